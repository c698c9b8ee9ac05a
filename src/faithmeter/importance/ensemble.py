"""Ensembles: the mean of several importances, each scaled so that its absolute values add up to 1.

Oxford thesis (2022), Sec. 3.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from faithmeter.importance.measure import even_shares

if TYPE_CHECKING:
    from faithmeter.data.batch import Batch
    from faithmeter.importance.measure import Explain
    from faithmeter.models.classifier import Classifier

NOTHING = 1e-4  # what rounding makes of a zero: gradient times input, where a norm follows the embeddings


def ensemble(members: Sequence[Explain]) -> Explain:
    """Return the measure that is the mean of others. A member that calls nothing important has no say."""

    def explain(classifier: Classifier, batch: Batch, targets: Tensor, seed: int) -> Tensor:
        total = torch.zeros(batch.maskable.shape, device=batch.maskable.device)
        for member in members:
            importance = member(classifier, batch, targets, seed)
            size = even_shares(batch, importance.abs()).sum(dim=1, keepdim=True)
            total += torch.where(size < NOTHING, 0.0, importance / size)
        return total / len(members)

    return explain
