"""What each kind of attack makes of a word."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from faithmeter.attacks.kinds import ATTACKS, DEFAULT_KINDS, NEAR_KEYS
from faithmeter.attacks.words import divided


class Known:
    """Neighbours that are known beforehand."""

    def of(self, word):
        return {"film": ("movie", "cinema"), "good": ("great",)}.get(word.casefold(), ())


def made(kind, text, place, seed=0):
    return [one.text for one in ATTACKS[kind](divided(text)[0], place, Known(), np.random.default_rng(seed))]


def test_a_word_is_replaced_by_its_neighbours_in_its_own_case():
    assert made("replace", "a Film.", 1) == ["a Movie.", "a Cinema."]
    assert made("replace", "FILM", 0) == ["MOVIE", "CINEMA"]
    assert made("replace", "a plot", 1) == []


def test_a_word_is_swapped_with_the_next_and_both_count_as_changed():
    (found,) = ATTACKS["swap"](divided("not, good")[0], 0, Known(), np.random.default_rng(0))
    assert found.text == "good, not"
    assert found.changed == {0, 1}
    assert made("swap", "not good", 1) == []  # there is no next
    assert made("swap", "very Very", 0) == []  # which would change nothing but case
    again = found.with_words({}), 0
    assert list(ATTACKS["swap"](*again, Known(), np.random.default_rng(0))) == []  # what was changed stays


def test_the_only_word_is_never_deleted():
    assert made("delete", "good film", 0) == ["film"]
    assert made("delete", "film!", 0) == []
    one_left = divided("good film")[0].without(0)
    assert list(ATTACKS["delete"](one_left, 1, Known(), np.random.default_rng(0))) == []


def test_a_misspelt_word_keeps_its_first_and_last_character():
    # of "plot" only l and o are inside: exchanged, one left out, one doubled, one mistyped
    found = made("characters", "plot", 0, seed=1)
    assert len(found) >= 3
    assert found[-3] in ("pot", "plt")
    assert found[-2] in ("pllot", "ploot")
    assert len(found[-1]) == 4
    assert all(word[0] == "p" and word[-1] == "t" for word in found)
    assert made("characters", "it", 0) == []


@given(st.text(min_size=1, max_size=12), st.integers(0, 5))
def test_misspelling_changes_one_place_of_any_word_and_never_yields_the_word_itself(text, seed):
    for place, word in enumerate(divided(text)[0].words):
        for one in ATTACKS["characters"](divided(text)[0], place, Known(), np.random.default_rng(seed)):
            other = one.words[place]
            assert other != word
            assert (other[0], other[-1]) == (word[0], word[-1])
            assert abs(len(other) - len(word)) <= 1
            assert one.gaps == divided(text)[0].gaps


def test_keys_are_near_those_beside_them():
    assert set(NEAR_KEYS["g"]) == set("fhtyvb")
    assert set(NEAR_KEYS["q"]) == set("wa")
    assert all(key in NEAR_KEYS[other] for key, near in NEAR_KEYS.items() for other in near)


def test_what_takes_away_or_moves_what_decides_is_not_done_unasked():
    assert set(ATTACKS) == {"replace", "swap", "delete", "characters"}
    assert set(DEFAULT_KINDS) == {"replace", "characters"}


@pytest.mark.parametrize("kind", ATTACKS)
def test_a_kind_changes_only_the_words_that_it_says_it_changed(kind):
    text, _ = divided("Good film, not a good plot.")
    for place in range(len(text.words)):
        for one in ATTACKS[kind](text, place, Known(), np.random.default_rng(place)):
            differing = {i for i, (a, b) in enumerate(zip(text.words, one.words, strict=True)) if a != b}
            assert differing == one.changed
