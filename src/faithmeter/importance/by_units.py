"""Importance of units: units of a batch's texts, and measures of tokens as measures of units."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from faithmeter.data.batch import Batch, Ints
from faithmeter.masking import Mask
from faithmeter.models.classifier import Classifier

Floats = np.ndarray[Any, np.dtype[Any]]
Explain = Callable[[Classifier, Batch, Tensor, int], Tensor]


@dataclass(frozen=True)
class TextUnits:
    """Units of one text: `unit` is the number of each token's, counted from 0, and -1 where it is of none."""

    unit: Ints
    count: int

    def tokens_of(self, sets: Mask) -> Mask:
        """Return sets of units, (sets, units), as sets of tokens."""
        none = np.zeros((len(sets), 1), dtype=np.bool_)
        return np.concatenate((sets, none), axis=1)[:, self.unit]  # the last column is that of -1

    def spread(self, values: Floats) -> Floats:
        """Return numbers per unit as numbers per token; 0 for tokens without a unit."""
        return np.append(values, 0.0)[self.unit]


def units_in(batch: Batch, tokens: Tensor) -> list[TextUnits]:
    """Return the units that these of a batch's tokens make up, of each text."""
    chosen = tokens.cpu().numpy()
    ids = (
        np.broadcast_to(np.arange(chosen.shape[1]), chosen.shape) if batch.units is None else batch.units.cpu().numpy()
    )
    found = []
    for mine, within in zip(ids, chosen, strict=True):
        present, number = np.unique(mine[within], return_inverse=True)
        unit = np.full(len(mine), -1, dtype=np.int64)
        unit[within] = number
        found.append(TextUnits(unit, len(present)))
    return found


def open_units(batch: Batch) -> list[TextUnits]:
    """Return the units of each text that are left to mask."""
    return units_in(batch, batch.maskable & ~batch.masked)


def of_units(explain: Explain, power: int = 1) -> Explain:
    """Return a measure of tokens as one of units: (Σ importance^power)^(1/power) of a unit's tokens.

    The sum suits what adds up (input times gradient, integrated gradients, DeepLIFT, shares of attention) and is the L1
    norm of the block of one-hot inputs that a unit is; power 2 gives its L2 norm. Tokens stay as they are.
    """

    def explain_units(classifier: Classifier, batch: Batch, targets: Tensor, seed: int) -> Tensor:
        importance = explain(classifier, batch, targets, seed)
        if batch.units is None:
            return importance
        powered = importance if power == 1 else importance**power
        added = _totals(batch, powered.masked_fill(~batch.maskable.to(importance.device), 0.0))
        return added if power == 1 else added ** (1 / power)

    return explain_units


def even_shares(batch: Batch, importance: Tensor) -> Tensor:
    """Return importance with that of each unit divided among its tokens, so that sums over tokens are over units."""
    if batch.units is None:
        return importance
    sizes = _totals(batch, batch.maskable.to(importance.device, importance.dtype))
    return importance / sizes.clamp(min=1)


def _totals(batch: Batch, values: Tensor) -> Tensor:
    """Return at each maskable token the sum over its unit."""
    assert batch.units is not None
    units = batch.units.to(values.device).clamp(min=0)
    totals = torch.zeros_like(values).scatter_add_(1, units, values)
    return totals.gather(1, units).masked_fill(~batch.maskable.to(values.device), 0.0)
