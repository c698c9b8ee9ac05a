"""A text as words and what lies between them, so that a word can be changed and all else stays as it was.

A word is a run of letters and digits, with the marks and apostrophes inside it. The tokenizers of models do not agree
on what a word is, and none of them can write a text again as it was; hence this small division of a text.
"""

import itertools
import unicodedata
from dataclasses import dataclass, field, replace

APOSTROPHES = "'’"


@dataclass(frozen=True)
class Words:
    """A text: `gaps[0] + words[0] + gaps[1] + ... + words[-1] + gaps[-1]`. `changed` numbers the words attacked.

    A word that was deleted is empty and keeps its number.
    """

    words: tuple[str, ...]
    gaps: tuple[str, ...]
    changed: frozenset[int] = field(default_factory=frozenset)

    @property
    def text(self) -> str:
        """The text as it is now."""
        between = zip(self.words, self.gaps[1:], strict=True)
        return self.gaps[0] + "".join(itertools.chain.from_iterable(between))

    def with_words(self, new: dict[int, str]) -> "Words":
        """Return the text with other words at these places."""
        words = tuple(new.get(place, word) for place, word in enumerate(self.words))
        return replace(self, words=words, changed=self.changed | set(new))

    def without(self, place: int) -> "Words":
        """Return the text without a word, and without one of the spaces around it, which would be one too many."""
        gaps, after = list(self.gaps), self.gaps[place + 1]
        if after[:1].isspace():
            gaps[place + 1] = after[1:]
        elif gaps[place][-1:].isspace():
            gaps[place] = gaps[place][:-1]
        return replace(self.with_words({place: ""}), gaps=tuple(gaps))


def divided(text: str) -> tuple[Words, list[tuple[int, int]]]:
    """Return a text as words, and the characters [start, end) that each of them is."""
    spans: list[tuple[int, int]] = []
    start: int | None = None
    for place, character in enumerate(text):
        inside = character.isalnum() or (start is not None and _goes_on(text, place))
        if inside and start is None:
            start = place
        elif not inside and start is not None:
            spans.append((start, place))
            start = None
    if start is not None:
        spans.append((start, len(text)))
    edges = [0, *itertools.chain.from_iterable(spans), len(text)]
    gaps = tuple(text[edges[i] : edges[i + 1]] for i in range(0, len(edges), 2))
    return Words(tuple(text[start:end] for start, end in spans), gaps), spans


def _goes_on(text: str, place: int) -> bool:
    """Whether a word that has begun goes on with a character that cannot begin one: a mark, or an apostrophe inside."""
    if text[place] in APOSTROPHES:
        return text[place + 1 : place + 2].isalnum()
    return unicodedata.category(text[place]).startswith("M")
