"""Attention as importance: what a model's own attention looks at. Often shown, not always faithful (ROAR Sec. 4)."""

import torch
from torch import Tensor

from faithmeter.batch import Batch, packed
from faithmeter.classifier import Classifier, evaluating


def attention(classifier: Classifier, batch: Batch, _targets: Tensor, _seed: int) -> Tensor:
    """Return α of BiLSTM-attention, Eqs. (4) and (5) of ROAR App. C.1: (rows, tokens), a row adds up to 1."""
    home, batch = batch.maskable.device, batch.to(classifier.device)
    importance = torch.zeros(batch.maskable.shape, device=classifier.device)
    with evaluating(classifier.model), torch.inference_mode():
        for rows in packed(batch.attention_mask.sum(dim=1), classifier.tokens_per_pass):
            found = classifier.attention(batch.take(rows))
            importance[rows, : found.shape[1]] = found
    return importance.masked_fill(~batch.maskable, 0.0).to(home).clone()
