"""Importance by chance: what every other measure must beat."""

import torch
from torch import Tensor

from faithmeter.batch import Batch
from faithmeter.classifier import Classifier
from faithmeter.masking import Purpose, random_stream


def random_importance(_classifier: Classifier, batch: Batch, _targets: Tensor, seed: int) -> Tensor:
    """Return U(0, 1) for every maskable token, from the seed and the dataset row only (FMM Sec. 3.4)."""
    importance = torch.zeros(batch.maskable.shape)
    for index, row in enumerate(batch.rows.tolist()):
        maskable = batch.maskable[index].cpu()
        draws = random_stream(seed, Purpose.RANDOM_IMPORTANCE, row).random(int(maskable.sum()))
        importance[index, maskable] = torch.from_numpy(draws).float()
    return importance.to(batch.maskable.device)
