"""Units: what is masked and explained as a whole — a token, a word, a sentence, or a chunk of tokens.

A unit is a whole number for each maskable token, counted from 0 by first tokens (`Batch.units`; None where each token
is its own). Importance stays a number a token: every token of a unit has the importance of the unit. A unit never cuts
a word and never reaches into the context of a pair.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tokenizers
import torch
from torch import Tensor

from faithmeter.batch import Batch, Encoded, Ints
from faithmeter.classifier import Classifier
from faithmeter.errors import InputError, nearest
from faithmeter.masking import Mask

TOKEN, WORD, SENTENCE, CHUNKED = UNITS = ("token", "word", "sentence", "chunk")
CHUNK = 16  # tokens a chunk holds at most
AT_ONCE = 1000  # texts that are tokenised together
Floats = np.ndarray[Any, np.dtype[Any]]
Explain = Callable[[Classifier, Batch, Tensor, int], Tensor]

# what ends with a stop and ends no sentence; a single letter does not either
ABBREVIATIONS = frozenset(("mr", "mrs", "ms", "dr", "prof", "st", "jr", "sr", "vs", "etc", "e.g", "i.e", "cf"))
_END = re.compile(
    r"(?P<paragraph>\s*\n\s*\n\s*|\s*(?:<br\s*/?>\s*)+)"
    r"|(?P<stop>[.!?…]+)[\"'”’»)\]]*\s+"
    r"|(?P<wide>[。！？]+)[」』”’）]*\s*"
)
_LAST_WORD = re.compile(r"[^\s\"'“‘«(\[]*\Z")


def require_units(by: str, chunk: int) -> None:
    """Refuse units that there are not."""
    if by not in UNITS:
        raise InputError(f"There is no unit {by!r}.{nearest(by, UNITS)} Mask by {', '.join(UNITS)}.")
    if chunk < 1:
        raise InputError(f"A chunk holds at least 1 token, not {chunk}.")


# ------------------------------------------------------------------------------------------------- from a text


def with_units(
    encoded: Encoded,
    classifier: Classifier,
    texts: Sequence[str],
    contexts: Sequence[str] | None = None,
    *,
    by: str,
    chunk: int = CHUNK,
) -> Encoded:
    """Return the texts, as the classifier encoded them, with their units."""
    require_units(by, chunk)
    if by == TOKEN:
        return replace(encoded, units=None)
    units, maskable = np.full(len(encoded.ids), -1, dtype=np.int64), encoded.maskable
    for start in range(0, len(texts), AT_ONCE):
        pairs = None if contexts is None else contexts[start : start + AT_ONCE]
        encodings = classifier.encodings(texts[start : start + AT_ONCE], pairs)
        for row, encoding in enumerate(encodings, start=start):
            span = slice(encoded.offsets[row], encoded.offsets[row + 1])
            units[span] = _units_of_text(encoding, maskable[span], texts[row], by, chunk)
    return replace(encoded, units=units)


def _units_of_text(encoding: tokenizers.Encoding, maskable: Mask, text: str, by: str, chunk: int) -> Ints:
    """Return the unit of each token, -1 where it is not maskable."""
    words: list[list[int]] = []  # the maskable positions of each word
    last: int | None = None
    for position in np.flatnonzero(maskable).tolist():
        of_word = encoding.word_ids[position]
        if of_word is None or of_word != last:
            words.append([])
        words[-1].append(position)
        last = of_word
    if by == WORD:
        numbers = list(range(len(words)))
    elif by == SENTENCE:
        starts = sentence_starts(text)
        numbers = [bisect_right(starts, max(encoding.offsets[word[-1]][1] - 1, 0)) for word in words]
    else:
        numbers, held = [], chunk
        for word in words:
            full = held + len(word) > chunk
            held = len(word) if full else held + len(word)
            numbers.append((numbers[-1] if numbers else -1) + full)
    units = np.full(len(maskable), -1, dtype=np.int64)
    for number, word in zip(np.unique(numbers, return_inverse=True)[1].tolist(), words, strict=True):
        units[word] = number
    return units


def sentence_starts(text: str) -> list[int]:
    """Return where the sentences of a text begin, but for the first.

    A sentence ends at an empty line or a `<br>`; behind `。`, `！` and `？`; and behind `.`, `!`, `?` or `…`, with the
    quotes and brackets that it closes, before a space. It does not where a lower-case letter follows (unless the text
    has no capitals, or the stop stands apart, as in tokenised text), nor behind an abbreviation or a single letter.
    """
    cased = text != text.lower()
    starts = []
    for found in _END.finditer(text):
        at = found.end()
        if at == len(text) or not text[: found.start()].strip():
            continue  # nothing follows, or nothing was said yet
        if found["stop"] is not None:
            apart = text[found.start() - 1].isspace()
            if cased and text[at].islower() and not apart:
                continue
            before = _LAST_WORD.search(text, max(0, found.start() - 20), found.start())
            word = before[0] if before else ""
            if found["stop"] == "." and ((len(word) == 1 and word.isalpha()) or word.lower() in ABBREVIATIONS):
                continue
        starts.append(at)
    return starts


# ------------------------------------------------------------------------------------------------ of a batch


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
        """Return a number a unit as a number a token; 0 where a token is of none."""
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
