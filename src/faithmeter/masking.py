"""Which tokens are masked: pure functions on boolean arrays of one text. Masking is set algebra; ids never change.

All randomness comes from `random_stream`: an explicit seed and the dataset row, so that batches, workers and restarts
never change a draw.
"""

from enum import IntEnum
from typing import Any

import numpy as np

Mask = np.ndarray[Any, np.dtype[np.bool_]]
STEPS = 10  # masking steps from 0 % to 100 %
MASK = "mask"  # how tokens are removed unless another way is named: by the mask token


class Purpose(IntEnum):
    """What random numbers are for. Each purpose has its own stream, so that no two draws share numbers."""

    TRAIN_MASKS = 1
    VALIDATION_MASKS = 2
    TRAIN_ORDER = 3
    DROPOUT = 4
    EVALUATION_MASKS = 5
    CHECK_MASKS = 6
    MEASURED_ROWS = 7
    SYNTHETIC = 8
    RANDOM_IMPORTANCE = 11
    SURROGATE = 12
    KNOWN_TOKEN = 13
    RANDOM_LAYERS = 14
    ADVERSARY = 15
    AUDITED_ROWS = 16
    AGREEMENT = 17
    ATTACK = 18
    ATTACKED_ROWS = 19
    MASKED_GROUPS = 20
    RANDOM_ORDERS = 21
    CHANGED_TOKENS = 22
    MOSAIC = 23
    SOFT_ERASURE = 24
    PARTIAL_REMOVAL = 25
    EMBEDDING_NOISE = 26
    COALITIONS = 27
    KNOWN_ANSWERS = 28
    REFERENCE_MASKS = 31
    REFERENCE_HALVES = 32
    TIES = 33
    REFERENCE_ROWS = 34
    REFERENCE_STEPS = 35
    RANDOM_WORDS = 36
    SHUFFLED = 37
    DRIFT_MAP = 41
    SELECTED_ROWS = 51
    PROMPT_EXAMPLES = 61
    UNIGRAMS = 71


def random_stream(*keys: int) -> np.random.Generator:
    """Return the random numbers that belong to these keys (seed, `Purpose`, epoch, row ...) and to no others."""
    return np.random.default_rng(list(keys))


def masked_count(maskable: int, step: int, steps: int = STEPS) -> int:
    """Return how many of `maskable` tokens are masked at a step, in whole numbers: int(0.7 * 90) is 62."""
    return maskable * step // steps


def random_ratio_mask(maskable: Mask, random: np.random.Generator) -> Mask:
    """Draw a ratio from U(0, 1), mask each maskable token with that probability (Madsen et al., 2024, Sec. 3.2)."""
    mask = np.zeros_like(maskable)
    ratio = random.random()
    mask[maskable] = random.random(int(maskable.sum())) < ratio
    return mask


def random_count_mask(maskable: Mask, step: int, steps: int, random: np.random.Generator) -> Mask:
    """Mask exactly `masked_count` tokens chosen at random. A later step masks what an earlier one did, and more."""
    mask = np.zeros_like(maskable)
    positions = random.permutation(np.flatnonzero(maskable))
    mask[positions[: masked_count(len(positions), step, steps)]] = True
    return mask
