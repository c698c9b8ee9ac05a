"""The words that an answer names: whole words without case, every occurrence, the first mentioned highest."""

import pytest

from faithmeter.importance.named_words import named_words


@pytest.mark.parametrize(
    ("text", "answer", "expected"),
    [
        ("a slow , very slow film", "Slow, boring, film.", {"slow": 1.0, "film": 0.5}),
        ("a slow , very slow film", "film slow film slow", {"film": 1.0, "slow": 0.5}),
        ("filming a film", "film", {"film": 1.0}),  # whole words only
        ("It 's GOOD", "it's good", {"It": 1.0, "s": 2 / 3, "GOOD": 1 / 3}),
        ("crème_brûlée", "BRÛLÉE", {"brûlée": 1.0}),
        ("a film", "nothing in it", {}),
        ("", "film", {}),
        ("a film", "", {}),
    ],
)
def test_scores_fall_with_the_order_of_mention(text, answer, expected):
    found = named_words([text], answer)
    assert {text[start:end]: score for start, end, score, _ in found} == expected
    occurrences = [word for word in text.replace("_", " ").split() if word in expected]
    assert len(found) == len([*occurrences, *(["s"] if "s" in expected else [])])


def test_of_a_pair_one_order_holds_for_both():
    assert named_words(["a film", "the plot of a film"], "plot film") == [
        (4, 8, 1.0, 1), (2, 6, 0.5, 0), (14, 18, 0.5, 1),
    ]  # fmt: skip
