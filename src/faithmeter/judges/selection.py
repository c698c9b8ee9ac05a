"""Rationales of select-then-predict (FRESH; Jain et al., 2020): the few tokens that a measure chooses.

A second model is shown nothing but the rationale, so what it answers rests on these tokens by construction. The others
are taken out of the ids, not masked, and nothing is tokenised again: the pieces of a word that stay are the same ones.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from faithmeter.data.batch import Encoded, Ints
from faithmeter.errors import InputError
from faithmeter.judges.maskings import tokens_of
from faithmeter.masking import Mask

Importance = np.ndarray[Any, np.dtype[np.float32]]


def top(importance: Importance, count: int) -> Ints:
    """Return the places of the `count` most important tokens, in text order; ties go to the lowest place."""
    return np.sort(np.argsort(-importance, kind="stable")[:count])


def contiguous(importance: Importance, count: int) -> Ints:
    """Return the places of the `count` neighbours with the largest sum of importance; ties to the lowest place.

    Each window is summed on its own: differences of running sums would part equal windows by their rounding.
    """
    windows = np.lib.stride_tricks.sliding_window_view(importance.astype(np.float64), count)
    return int(windows.sum(axis=1).argmax()) + np.arange(count)


# what is chosen of the importances of one text's maskable tokens
RATIONALES: Mapping[str, Callable[[Importance, int], Ints]] = MappingProxyType({"top": top, "contiguous": contiguous})


def rationale(encoded: Encoded, importance: Importance, kind: str, length: float) -> Mask:
    """Return which tokens of a split are its rationales, flat, by their flat importance (signed as it is).

    Of n maskable tokens ⌈length · n⌉ are chosen, one at least (`tokens_of`). Neighbours are neighbours among the
    maskable tokens: a special token that is written in a text does not part them. A text without any has no rationale.
    """
    if kind not in RATIONALES:
        raise InputError(f"There is no rationale {kind!r}: choose from {', '.join(RATIONALES)}.")
    if not 0 < length <= 1:
        raise InputError(f"The length of a rationale is a share of the tokens, above 0 and at most 1; not {length}.")
    chosen, maskable = np.zeros(len(encoded.ids), dtype=np.bool_), encoded.maskable
    for start, end in zip(encoded.offsets[:-1], encoded.offsets[1:], strict=True):
        places = start + np.flatnonzero(maskable[start:end])
        if len(places):
            chosen[places[RATIONALES[kind](importance[places], tokens_of(length, len(places)))]] = True
    return chosen


def only(encoded: Encoded, chosen: Mask) -> Encoded:
    """Return the split without the maskable tokens that were not chosen; special tokens and contexts stay."""
    stays = chosen | ~encoded.maskable
    before = np.concatenate(([0], np.cumsum(stays, dtype=np.int64)))
    return replace(
        encoded,
        ids=encoded.ids[stays],
        type_ids=None if encoded.type_ids is None else encoded.type_ids[stays],
        sequence=encoded.sequence[stays],
        masked=encoded.masked[stays],
        offsets=before[encoded.offsets],
    )
