"""The kinds of attack: one visible table. To add one, write a function and give it a row.

A kind is a function of (text, place of the word, neighbours, random numbers) that yields the text with that word
attacked, in as many ways as it knows. It does not evaluate the candidates.
"""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import numpy as np

from faithmeter.attacks.neighbours import Neighbours
from faithmeter.attacks.words import Words

Kind = Callable[[Words, int, Neighbours, np.random.Generator], Iterator[Words]]
KEYBOARD = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
TRIES = 1  # places in a word that each way to misspell it is tried at


def replaced(text: Words, place: int, neighbours: Neighbours, _random: np.random.Generator) -> Iterator[Words]:
    """Yield the text with the word replaced by its nearest neighbours, in the word's case."""
    word = text.words[place]
    for other in neighbours.of(word):
        yield text.with_words({place: _in_case_of(word, other)})


def swapped(text: Words, place: int, _neighbours: Neighbours, _random: np.random.Generator) -> Iterator[Words]:
    """Yield the text with the word and the next one exchanged: two words are changed."""
    if place + 1 < len(text.words) and place + 1 not in text.changed:
        word, after = text.words[place], text.words[place + 1]
        if word.casefold() != after.casefold():
            yield text.with_words({place: after, place + 1: word})


def deleted(text: Words, place: int, _neighbours: Neighbours, _random: np.random.Generator) -> Iterator[Words]:
    """Yield the text without the word, unless no other is left."""
    if sum(map(bool, text.words)) > 1:
        yield text.without(place)


def misspelt(text: Words, place: int, _neighbours: Neighbours, random: np.random.Generator) -> Iterator[Words]:
    """Yield the text with a character of the word exchanged with the next, left out, doubled, or mistyped.

    First and last character stay, by which people read a misspelt word; so one of two characters has no candidates.
    """
    word = text.words[place]
    for way in (_exchanged, _left_out, _doubled, _mistyped):
        for at in random.permutation(np.arange(1, max(1, len(word) - 1)))[:TRIES].tolist():
            other = way(word, at, random)
            if other != word:
                yield text.with_words({place: other})


def _exchanged(word: str, at: int, _random: np.random.Generator) -> str:
    return word[:at] + word[at + 1] + word[at] + word[at + 2 :] if at + 2 < len(word) else word


def _left_out(word: str, at: int, _random: np.random.Generator) -> str:
    return word[:at] + word[at + 1 :]


def _doubled(word: str, at: int, _random: np.random.Generator) -> str:
    return word[: at + 1] + word[at:]


def _mistyped(word: str, at: int, random: np.random.Generator) -> str:
    near = NEAR_KEYS.get(word[at].lower(), "")
    if not near:
        return word
    key = near[int(random.integers(len(near)))]
    return word[:at] + (key.upper() if word[at].isupper() else key) + word[at + 1 :]


def _near_keys() -> dict[str, str]:
    """Return the keys beside each key, in its row and in those above and below, each shifted by half a key."""
    place = {key: (across + down / 2, down) for down, keys in enumerate(KEYBOARD) for across, key in enumerate(keys)}
    return {
        key: "".join(o for o, (x, y) in place.items() if o != key and abs(x - across) <= 1 and abs(y - down) <= 1)
        for key, (across, down) in place.items()
    }


def _in_case_of(word: str, other: str) -> str:
    if len(word) > 1 and word.isupper():
        return other.upper()
    return other[:1].upper() + other[1:] if word[:1].isupper() else other


NEAR_KEYS = _near_keys()
ATTACKS: Mapping[str, Kind] = MappingProxyType(
    {"replace": replaced, "swap": swapped, "delete": deleted, "characters": misspelt}
)
# Deletions and swaps take away or move what the label hangs on, so that a person's answer may change as well, and a
# deletion is what judges of explanations do by masking: who wants them names them.
DEFAULT_KINDS = ("replace", "characters")
