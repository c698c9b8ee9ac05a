"""The words of a text that an answer names, as scores of characters: what a language model says decided."""

import re
from collections.abc import Sequence

WORD = re.compile(r"[^\W_]+")  # a run of letters and digits: "it's" is two


def named_words(texts: Sequence[str], answer: str) -> list[tuple[int, int, float, int]]:
    """Return (start, end, score, number of the text) of every occurrence of a word that the answer names.

    Words are compared whole and without case. Of k different words that are named, the first has the score 1, the
    second (k - 1) / k, and the last 1 / k. The texts are one, or both of a pair.
    """
    places: dict[str, list[tuple[int, int, int]]] = {}
    for part, text in enumerate(texts):
        for found in WORD.finditer(text):
            places.setdefault(found[0].casefold(), []).append((*found.span(), part))
    said = (word.casefold() for word in WORD.findall(answer))
    named = list(dict.fromkeys(word for word in said if word in places))
    return [
        (start, end, (len(named) - rank) / len(named), part)
        for rank, word in enumerate(named)
        for start, end, part in places[word]
    ]
