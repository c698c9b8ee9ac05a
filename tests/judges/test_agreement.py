"""Agreement of judges: Spearman over measures, and intervals over texts."""

import numpy as np
import pytest
from scipy import stats

from faithmeter.judges.agreement import Scores, agreements

NAMES = ("a", "b", "c", "d", "e", "f")


def judged(means, texts=100, noise=0.1, seed=0):
    random = np.random.default_rng(seed)
    rows = np.arange(texts)
    return {
        name: Scores(rows, mean + noise * random.standard_normal(texts))
        for name, mean in zip(NAMES, means, strict=False)
    }


def test_the_value_is_spearmans_correlation_of_the_means():
    first, second = judged([1, 2, 3, 4, 5, 6], noise=1), judged([2, 1, 4, 3, 6, 5], noise=1, seed=1)
    (found,) = agreements({"first": first, "second": second})
    means = [[one[name].values.mean() for name in NAMES] for one in (first, second)]
    assert found.value == pytest.approx(stats.spearmanr(*means).statistic)
    assert (found.first, found.second, found.measures) == ("first", "second", 6)
    assert found.low <= found.value <= found.high


def test_judges_that_say_the_same_agree_surely_and_opposite_ones_surely_do_not():
    up, down = judged([1, 2, 3, 4, 5, 6]), judged([6, 5, 4, 3, 2, 1], seed=1)
    same, opposite, _ = agreements({"up": up, "again": judged([1, 2, 3, 4, 5, 6], texts=50, seed=2), "down": down})
    assert (same.low, same.high) == (1.0, 1.0)
    assert (opposite.first, opposite.second) == ("up", "down")
    assert (opposite.low, opposite.high) == (-1.0, -1.0)


def test_noise_makes_the_interval_wide():
    (found,) = agreements({"first": judged([0] * 6, noise=1), "second": judged([0] * 6, noise=1, seed=1)})
    assert found.high - found.low > 0.8


def test_texts_that_could_not_be_judged_do_not_count():
    first = judged([1, 2, 3, 4, 5, 6])
    first["a"].values[:50] = np.nan
    (found,) = agreements({"first": first, "second": judged([1, 2, 3, 4, 5, 6], seed=1)})
    assert found.value == 1.0


def test_noise_that_two_judges_share_does_not_make_them_disagree():
    first = judged([0] * 6, noise=1)
    random = np.random.default_rng(5)
    second = {name: Scores(one.rows, one.values + 0.01 * random.standard_normal(100)) for name, one in first.items()}
    (found,) = agreements({"first": first, "second": second})
    assert found.value == 1.0
    assert found.low > 0.5  # drawn apart, it would reach below 0


def test_intervals_are_wider_where_more_pairs_are_looked_at():
    table = {str(seed): judged([1, 2, 3, 4, 5, 6], noise=8, seed=seed) for seed in range(6)}
    (alone,) = agreements({"0": table["0"], "1": table["1"]})
    together = agreements(table)[0]
    assert (together.first, together.second, together.value) == (alone.first, alone.second, alone.value)
    assert together.low < alone.low
    assert together.high >= alone.high


def test_a_measure_that_one_judge_could_never_judge_is_left_out_of_their_comparison():
    first, second = judged([1, 2, 3, 4, 5, 6]), judged([1, 2, 3, 4, 5, 6], seed=1)
    first["c"] = Scores(np.arange(100), np.full(100, np.nan))
    (found,) = agreements({"first": first, "second": second})
    assert found.measures == 5


ONES = Scores(np.arange(5), np.ones(5))


@pytest.mark.parametrize("other", [{"a": ONES, "b": ONES}, dict.fromkeys(NAMES, ONES)])
def test_too_few_measures_or_a_judge_that_tells_none_apart_give_no_number(other):
    assert agreements({"first": judged([1, 2, 3, 4, 5, 6]), "second": other}) == []
