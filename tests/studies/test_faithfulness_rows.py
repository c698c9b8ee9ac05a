"""Measures beside each other: all pairs, the set that may be best, and the winner, over trainings."""

import numpy as np
import pytest

from faithmeter.runs.results import (
    Pooling,
    Result,
    find,
    key_of,
    letters,
    most_faithful,
    rows_of,
    surely_ahead,
    unbeaten,
)
from faithmeter.statistics import mean_interval, student_interval
from faithmeter.studies.faithfulness_rows import _pooled, _pooled_comparisons


def compared(values, rejected=()):
    """Result rows of several trainings: measure -> its ACU in each; masked texts of some are rejected."""
    kept = [
        Result(kind="acu", value=float(np.mean(each)), metric="accuracy", n=len(each), measure=name).as_row()
        for name, each in values.items()
    ]
    runs = range(len(next(iter(values.values()))))
    keyed = [{key_of(row): {**row, "value": values[row["measure"]][run]} for row in kept} for run in runs]
    kept += [Result(kind="walk_p_value", value=0.001, metric="p", n=9, measure=name).as_row() for name in rejected]
    return kept + [result.as_row() for result in _pooled_comparisons(kept, keyed)]


def test_the_winner_is_estimated_on_trainings_that_did_not_choose_it():
    rows = compared({"a": [0.5, 0.24, 0.6], "b": [0.4, 0.4, 0.4]})
    (row,) = rows_of(rows, "acu_cross_fitted")
    # a's mean without each of them: .42, .55 and .35, beside .40 of b
    assert row["value"] == pytest.approx((0.5 + 0.24 + 0.4) / 3)
    assert row["measure"] == "a"
    assert row["detail"] == "a, b"  # not all of them chose the same
    assert (row["n"], row["over"]) == (3, "seeds")


def test_the_winner_is_one_that_was_not_rejected_and_is_chosen_among_those():
    values = {"a": [0.9, 0.8, 0.9], "b": [0.5, 0.6, 0.5], "c": [0.1, 0.1, 0.2]}
    (row,) = rows_of(compared(values, rejected=["a"]), "acu_cross_fitted")
    assert (row["measure"], row["detail"]) == ("b", None)
    assert row["value"] == pytest.approx(1.6 / 3)
    assert [row["measure"] for row in rows_of(compared(values, rejected="abc"), "acu_cross_fitted")] == ["a"]


def test_a_difference_has_both_directions_and_is_that_of_the_trainings():
    rows = compared({"a": [0.5, 0.3, 0.7], "b": [0.4, 0.4, 0.4]})
    there, back = find(rows, "acu_difference", "a", detail="b"), find(rows, "acu_difference", "b", detail="a")
    # of a single pair the simultaneous interval is Student's: .1 ± 4.303 · .2 / √3, drawn 20,000 times
    assert there["value"] == pytest.approx(0.1)
    assert there["high"] == pytest.approx(0.1 + 4.303 * 0.2 / 3**0.5, rel=0.05)
    assert (back["value"], back["low"], back["high"]) == pytest.approx((-0.1, -there["high"], -there["low"]))


def test_intervals_of_differences_end_where_accuracies_do():
    rows = compared({"a": [0.9, -0.9], "b": [-0.9, 0.9]})
    row = find(rows, "acu_difference", "a", detail="b")
    assert (row["low"], row["high"]) == (-1, 1)


def test_what_lies_behind_the_best_is_the_difference_to_it():
    rows = compared({"a": [0.5, 0.51, 0.49, 0.5, 0.5], "b": [0.4, 0.42, 0.38, 0.4, 0.41]})
    best, pair = most_faithful(rows), find(rows, "acu_difference", "a", detail="b")
    assert best == "a"
    for name, expected in (("a", 0.0), ("b", 0.098)):
        assert find(rows, "acu_behind_best", name)["value"] == pytest.approx(expected)
    behind = find(rows, "acu_behind_best", "b")
    assert (behind["low"], behind["high"]) == (pair["low"], pair["high"])


def test_measures_share_a_letter_unless_they_are_told_apart_and_the_best_set_leaves_out_the_rest():
    rows = compared({"a": [0.51, 0.49] * 4, "b": [0.49, 0.51] * 4, "c": [0.2, 0.2, 0.21, 0.21] * 2})
    assert [letters(rows, name) for name in "abc"] == ["a", "a", "b"]
    assert [row["value"] for row in rows_of(rows, "best_set")] == [1, 1, 0]
    assert surely_ahead(rows) == {("a", "c"), ("b", "c")}
    assert unbeaten(rows, ["b", "c"]) == ["b"]
    assert unbeaten(rows, ["c"]) == ["c"]  # where the others are not asked about


@pytest.mark.parametrize(("texts", "winner"), [(49, "loo-signed"), (50, "beam")])
def test_a_measure_with_fewer_than_half_of_the_texts_is_not_the_most_faithful(texts, winner):
    def row(measure, value, n):
        ends = {"low": value - 0.1, "high": value + 0.1}
        return Result(kind="acu", value=value, metric="accuracy", n=n, measure=measure, **ends).as_row()

    rows = [row("beam", 0.9, texts), row("loo-signed", 0.5, 100), row("grad-l2", 0.4, 100)]
    assert most_faithful(rows) == winner
    assert most_faithful(rows, among={"beam"}) == "beam"


def test_a_measure_that_another_is_surely_ahead_of_is_not_the_most_faithful_by_a_narrower_interval():
    def row(kind, value, measure, **other):
        return Result(kind=kind, value=value, metric="accuracy", n=200, measure=measure, **other).as_row()

    rows = [row("acu", 0.40, "a", low=0.35, high=0.45), row("acu", 0.38, "b", low=0.36, high=0.40)]
    assert most_faithful(rows) == "b"
    pair = [row("acu_difference", 0.02, "a", detail="b"), row("acu_difference", -0.02, "b", detail="a")]
    apart = [row("best_set", 1.0, "a", detail="a"), row("best_set", 0.0, "b", detail="b")]
    assert most_faithful([*rows, *pair, *apart]) == "a"
    alike = [row("best_set", 1.0, name, detail="a") for name in "ab"]
    assert most_faithful([*rows, *pair, *alike]) == "b"


def test_one_training_or_one_measure_is_compared_with_nothing():
    assert {row["kind"] for row in compared({"a": [0.5], "b": [0.4]})} == {"acu"}
    rows = compared({"a": [0.5, 0.6]})
    assert not rows_of(rows, "acu_difference") + rows_of(rows, "acu_cross_fitted")
    assert find(rows, "acu_behind_best", "a")["value"] == 0


def test_five_trainings_are_bootstrapped_as_in_the_papers_and_fewer_have_students_interval():
    five = np.array([0.1, 0.2, 0.3, 0.4, 0.9])
    assert _pooled(Pooling.BOOTSTRAP, five)[1] == mean_interval(five)
    assert _pooled(Pooling.BOOTSTRAP, five[:4])[1] == student_interval(five[:4])
