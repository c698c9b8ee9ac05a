"""What is masked in training and in validation (Madsen et al., 2024, Sec. 3.2, App. F.1 and H).

A new strategy is a row here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch

from faithmeter.data.batch import TEXT, Batch, Encoded, Ints
from faithmeter.masking import Mask, Purpose, random_ratio_mask, random_stream


@dataclass(frozen=True)
class Strategy:
    """A training strategy: every `every`-th text of a mini-batch is masked (0: none); `makes` describes the model.

    `validation` is what the best epoch is chosen by, unless another is asked for (Madsen et al., 2024, Table 10).
    """

    every: int
    makes: str
    validation: str


STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    {
        "plain": Strategy(0, "a classifier trained without masks", "unmasked"),
        "masked": Strategy(
            2,
            "a faithfulness measurable model: in training half of each mini-batch was masked at random ratios, so that "
            "masked texts are in-distribution for it by design",
            "both",
        ),
        "only-masking": Strategy(1, "a classifier that was trained on masked texts only", "masked"),
    }
)
VALIDATIONS = ("unmasked", "masked", "both")


def masked_positions(strategy: str, positions: Ints) -> Mask:
    """Return which positions of the epoch are masked: none, all, or every second one, so half of a mini-batch."""
    every = STRATEGIES[strategy].every
    if every == 0:
        return np.zeros(len(positions), dtype=np.bool_)
    return positions % every == every - 1


def mask_for_training(
    encoded: Encoded, batch: Batch, positions: Ints, *, strategy: str, mask_context: bool, seed: int, epoch: int
) -> Batch:
    """Mask a training batch; `positions` are its rows' places in the order of this epoch."""
    masked = batch.masked.clone()
    rows = batch.rows.numpy()
    for index in np.flatnonzero(masked_positions(strategy, positions)):
        row = int(rows[index])
        sequence = encoded.sequence[encoded.offsets[row] : encoded.offsets[row + 1]]
        candidates = sequence >= TEXT if mask_context or encoded.both_texts else sequence == TEXT
        random = random_stream(seed, Purpose.TRAIN_MASKS, epoch, int(positions[index]), row)
        masked[index, : len(sequence)] = torch.from_numpy(random_ratio_mask(candidates, random))
    return batch.with_masked(masked)


def masked_copy(encoded: Encoded, *, mask_context: bool, seed: int) -> Encoded:
    """Return a copy of a validation split with its masks drawn, once for all epochs."""
    return encoded.masked_by(
        lambda row, maskable: random_ratio_mask(maskable, random_stream(seed, Purpose.VALIDATION_MASKS, row)),
        mask_context,
    )
