"""Units: what is masked and explained as a whole — a token, a word, a sentence, or a chunk of tokens.

A unit is a whole number for each maskable token, counted from 0 by first tokens (`Batch.units`; None where each token
is its own). Importance stays one number per token: every token of a unit has the importance of the unit. A unit never
splits a word and never extends over both texts of a pair.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from faithmeter.errors import InputError, nearest

if TYPE_CHECKING:  # options of a command are checked against the names here before torch is loaded
    import tokenizers

    from faithmeter.data.batch import Encoded, Ints
    from faithmeter.masking import Mask

TOKEN, WORD, SENTENCE, CHUNKED = UNITS = ("token", "word", "sentence", "chunk")
CHUNK = 16  # tokens a chunk holds at most
AT_ONCE = 1000  # texts that are tokenised together

# what ends with a stop and ends no sentence; a single letter does not either
ABBREVIATIONS = frozenset(("mr", "mrs", "ms", "dr", "prof", "st", "jr", "sr", "vs", "etc", "e.g", "i.e", "cf"))
_END = re.compile(
    r"(?P<paragraph>\s*\n\s*\n\s*|\s*(?:<br\s*/?>\s*)+)"
    r"|(?P<stop>[.!?…]+)[\"'”’»)\]]*\s+"
    r"|(?P<wide>[。！？]+)[」』”’）]*\s*"
)
_LAST_WORD = re.compile(r"[^\s\"'“‘«(\[]*\Z")


class Tokeniser(Protocol):
    """Whatever says where the tokens of a text are, as a `Classifier` does."""

    def encodings(self, texts: Sequence[str], contexts: Sequence[str] | None = None) -> list[tokenizers.Encoding]:
        """Tokenise texts, with each token's place in its text."""
        ...


def require_units(by: str, chunk: int) -> None:
    """Refuse units that there are not."""
    if by not in UNITS:
        raise InputError(f"There is no unit {by!r}.{nearest(by, UNITS)} Mask by {', '.join(UNITS)}.")
    if chunk < 1:
        raise InputError(f"A chunk holds at least 1 token, not {chunk}.")


def with_units(
    encoded: Encoded,
    classifier: Tokeniser,
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
    said = [(text,) for text in texts] if contexts is None else list(zip(texts, contexts, strict=True))
    for start in range(0, len(texts), AT_ONCE):
        pairs = None if contexts is None else contexts[start : start + AT_ONCE]
        encodings = classifier.encodings(texts[start : start + AT_ONCE], pairs)
        for row, encoding in enumerate(encodings, start=start):
            span = slice(encoded.offsets[row], encoded.offsets[row + 1])
            units[span] = _units_of_text(encoding, maskable[span], said[row], by, chunk)
    return replace(encoded, units=units)


def _units_of_text(encoding: tokenizers.Encoding, maskable: Mask, said: tuple[str, ...], by: str, chunk: int) -> Ints:
    """Return the unit of each token, -1 where it is not maskable; `said` is a text, or a pair, whose words differ."""
    words: list[list[int]] = []  # the maskable positions of each word
    parts: list[int] = []  # which text of a pair it is of
    last: tuple[int, int | None] | None = None
    for position in np.flatnonzero(maskable).tolist():
        of_word = encoding.sequence_ids[position] or 0, encoding.word_ids[position]
        if of_word[1] is None or of_word != last:
            words.append([])
            parts.append(of_word[0])
        words[-1].append(position)
        last = of_word
    if by == WORD:
        numbers = list(range(len(words)))
    elif by == SENTENCE:
        starts = [sentence_starts(text) for text in said]
        before = (0, len(starts[0]) + 1)  # a sentence of the second text is none of the first
        numbers = [
            before[part] + bisect_right(starts[part], max(encoding.offsets[word[-1]][1] - 1, 0))
            for part, word in zip(parts, words, strict=True)
        ]
    else:
        numbers, held = [], chunk
        for number, word in enumerate(words):
            full = held + len(word) > chunk or parts[number] != parts[max(number - 1, 0)]
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
