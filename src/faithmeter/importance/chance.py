"""Random importance: the baseline of every other measure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from faithmeter.importance.measure import units_in
from faithmeter.masking import Purpose, random_stream

if TYPE_CHECKING:
    from faithmeter.data.batch import Batch
    from faithmeter.models.classifier import Classifier


def random_importance(_classifier: Classifier, batch: Batch, _targets: Tensor, seed: int) -> Tensor:
    """Return U(0, 1) for every maskable token or unit, from seed and dataset row (Madsen et al., 2024, Sec. 3.4)."""
    importance = torch.zeros(batch.maskable.shape)
    for index, (row, units) in enumerate(zip(batch.rows.tolist(), units_in(batch, batch.maskable), strict=True)):
        draws = random_stream(seed, Purpose.RANDOM_IMPORTANCE, row).random(units.count)
        importance[index] = torch.from_numpy(units.spread(draws)).float()
    return importance.to(batch.maskable.device)
