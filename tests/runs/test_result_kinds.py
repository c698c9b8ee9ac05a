"""Kinds of results are data: what is asked for is there, and pooled as its row says."""

import numpy as np
import pytest

from faithmeter.judges.table import JUDGES
from faithmeter.performance import METRICS
from faithmeter.runs.results import METRIC_BOUNDS, Pooling, Result, bounds_of, find, kind_of, rows_of, within_bounds
from faithmeter.studies.faithfulness_rows import _pooled


def test_a_kind_that_is_not_there_is_an_error_wherever_it_is_asked_for():
    for ask in (
        lambda: find([], "acuu"),
        lambda: rows_of([], "select_fulll"),
        lambda: Result(kind="walk_p", value=0.1, metric="p", n=1),
    ):
        with pytest.raises(ValueError, match="There is no kind of result"):
            ask()
    with pytest.raises(ValueError, match="Did you mean 'acu'"):
        kind_of("acuu")


def test_results_are_built_with_keywords():
    with pytest.raises(TypeError):
        Result("acu", 0.5, "accuracy", "test", None, 3)


def test_every_metric_and_every_score_of_a_judge_has_bounds():
    assert set(METRICS) <= set(METRIC_BOUNDS)
    assert {column for judge in JUDGES.values() for column in judge.scores} <= set(METRIC_BOUNDS)


@pytest.mark.parametrize(
    ("kind", "metric", "bounds"),
    [
        ("performance", "accuracy", (0, 1)),
        ("performance", "matthews", (-1, 1)),
        ("acu", "accuracy", (-1, 1)),  # a difference of two accuracies
        ("acu", "matthews", (-2, 2)),
        ("racu", "accuracy", (-np.inf, np.inf)),
        ("walk_p_value", "p", (0, 1)),
        ("audit_randomisation_cascading", "cascading", (-1, 1)),
        ("audit_drift_drift", "drift", (0, 2)),
    ],
)
def test_a_number_lies_where_its_kind_and_metric_say(kind, metric, bounds):
    assert bounds_of(kind, metric) == bounds
    assert within_bounds((-9.0, 9.0), kind, metric) == (max(-9, bounds[0]), min(9, bounds[1]))
    assert within_bounds(None, kind, metric) is None


@pytest.mark.parametrize(
    ("how", "value", "interval"),
    [
        (Pooling.MEAN, 0.2, None),
        (Pooling.SMALLEST_P, 0.3, None),  # 3 · 0.1
        (Pooling.SMALLEST, 0.1, None),
        (Pooling.LARGEST, 0.3, None),
        # 0.2 ± 4.3027 · 0.1 / √3
        (Pooling.STUDENT, 0.2, (-0.0484, 0.4484)),
    ],
)
def test_numbers_of_several_trainings_are_pooled_as_their_kind_says(how, value, interval):
    found = _pooled(how, np.array([0.1, 0.2, 0.3]))
    assert found[0] == pytest.approx(value)
    assert found[1] == (interval if interval is None else pytest.approx(interval, abs=1e-4))


def test_the_bootstrap_of_the_papers_stays_within_the_numbers():
    value, (low, high) = _pooled(Pooling.BOOTSTRAP, np.array([0.1, 0.15, 0.2, 0.25, 0.3]))  # of fewer it is Student's
    assert value == pytest.approx(0.2)
    assert 0.1 <= low < 0.2 < high <= 0.3
