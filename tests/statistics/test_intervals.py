import math

import numpy as np
import pytest
from scipy import stats

from faithmeter.performance import performance, weighted_performance
from faithmeter.statistics import student_interval
from faithmeter.statistics.intervals import (
    baseline_share,
    draws_needed,
    jackknife_interval,
    pseudo_values,
    ratio_interval,
)


def mean_of(values):
    return lambda weights: weights @ values / weights.sum(axis=1)


def test_the_pseudo_values_of_a_mean_are_the_observations():
    values = np.random.default_rng(0).normal(size=17)
    assert pseudo_values(mean_of(values), 17) == pytest.approx(values)


@pytest.mark.parametrize("metric", ["macro-f1", "matthews"])
def test_pseudo_values_of_a_metric_are_those_of_leaving_texts_out_one_by_one(metric):
    random = np.random.default_rng(0)
    gold, predicted = random.integers(3, size=12), random.integers(3, size=(12, 2))
    naive = np.array(
        [
            [
                12 * performance(metric, gold, column)
                - 11 * performance(metric, np.delete(gold, t), np.delete(column, t))
                for column in predicted.T
            ]
            for t in range(12)
        ]
    )
    assert pseudo_values(weighted_performance(metric, gold, predicted), 12) == pytest.approx(naive)


def test_the_interval_of_symmetric_values_is_students():
    values = np.random.default_rng(1).normal(size=9)
    values = np.concatenate([values, -values])
    assert jackknife_interval(values, 0.0) == pytest.approx(student_interval(values))
    low, high = jackknife_interval(values, 5.0, confidence=0.8)
    assert (low + high) / 2 == pytest.approx(5)
    assert high - low == pytest.approx(2 * stats.t.ppf(0.9, 17) * stats.sem(values))


def test_the_interval_of_skewed_values_is_moved_towards_their_tail():
    # 0, 0, 0, 4: standard deviation 2, skewness 6/√27; t of three degrees is 3.182446.
    # Moved by 6/√27 · 2/24 · (1 + 2·3.182446²) = 2.045354, half 3.182446 · 2/√4
    values = np.array([0.0, 0.0, 0.0, 4.0])
    assert jackknife_interval(values, 1.0) == pytest.approx(
        (1 + 2.045354 - 3.182446, 1 + 2.045354 + 3.182446), abs=1e-5
    )
    low, high = jackknife_interval(-values, -1.0)
    assert (low, high) == pytest.approx((-1 - 2.045354 - 3.182446, -1 - 2.045354 + 3.182446), abs=1e-5)


def coverage(interval, values, truth):
    """The share of rows of values whose interval holds the truth."""
    ends = np.array([interval(row) for row in values])
    return np.mean((ends[:, 0] <= truth) & (truth <= ends[:, 1]))


def test_the_interval_of_skewed_values_covers_where_students_is_too_narrow():
    random = np.random.default_rng(11)
    # four of five texts add nothing, the others about as much as one another
    values = random.uniform(0.2, 0.6, size=(4000, 50)) * (random.random((4000, 50)) < 0.2)
    before = coverage(student_interval, values, 0.08)
    now = coverage(lambda row: jackknife_interval(row, row.mean()), values, 0.08)
    assert before < 0.94 < now < 0.96  # of 4,000 known to .35 points


def test_where_few_texts_differ_the_interval_is_that_with_two_more_texts():
    values = np.repeat([0.3, 0.0], [2, 8])
    # two more, half a point to either side of the mean .06: the squares 2·.24² + 8·.06² + 2·.5² over 11 are .058545
    half = stats.t.ppf(0.975, 11) * math.sqrt(0.0585454545 / 12)
    assert jackknife_interval(values, 0.06, differing=2) == pytest.approx((0.06 - half, 0.06 + half))
    assert jackknife_interval(values, 0.06, differing=20) == jackknife_interval(values, 0.06)


def test_where_few_texts_differ_the_interval_covers_rather_too_often():
    random = np.random.default_rng(12)
    values = 0.3 * (random.random((2000, 100)) < 0.05)
    assert coverage(student_interval, values, 0.015) < 0.9
    assert (
        coverage(lambda row: jackknife_interval(row, row.mean(), differing=int((row > 0).sum())), values, 0.015) > 0.95
    )


def test_there_is_no_interval_of_one_text_or_of_what_is_no_number():
    assert jackknife_interval(np.ones(1), 1.0) is None
    assert jackknife_interval(np.array([1.0, np.nan]), 1.0) is None
    assert jackknife_interval(np.ones(3), math.nan) is None
    assert ratio_interval((1.0, 1.0), np.ones(1), np.ones(1)) is None


def test_at_the_ends_of_fiellers_interval_the_difference_is_just_significant():
    random = np.random.default_rng(2)
    below = random.normal(2, 1, size=40)
    above = 0.5 * below + random.normal(0.3, 1, size=40)
    for end in ratio_interval((above.mean(), below.mean()), above, below):
        difference = above - end * below
        # with 1 + 6/40 times the variance
        t = difference.mean() / (stats.sem(difference) * math.sqrt(1.15))
        assert abs(t) == pytest.approx(stats.t.ppf(0.975, 39))


def test_a_ratio_to_a_constant_has_the_interval_of_its_numerator():
    above = np.random.default_rng(3).normal(size=30)
    low, high = above.mean() + np.array([-1, 1]) * stats.t.ppf(0.975, 29) * stats.sem(above) * math.sqrt(1.2)
    assert ratio_interval((above.mean(), 4.0), above, np.full(30, 4.0)) == pytest.approx((low / 4, high / 4))


def test_there_is_no_ratio_to_what_may_be_nothing():
    above = np.random.default_rng(4).normal(1, 1, size=30)
    below = np.random.default_rng(5).normal(0, 1, size=30)
    below -= below.mean()
    sure = stats.t.ppf(0.975, 29) * stats.sem(below) * math.sqrt(1.2)
    assert ratio_interval((above.mean(), 0.99 * sure), above, below + 0.99 * sure) is None
    assert ratio_interval((above.mean(), 1.01 * sure), above, below + 1.01 * sure) is not None
    assert ratio_interval((above.mean(), -9.0), above, below - 9) is None  # more is masked, and more is right


def test_fiellers_interval_covers_where_the_denominator_is_small():
    random = np.random.default_rng(6)
    covered = []
    for _ in range(600):
        below = random.normal(0.6, 1, size=50)  # a mean of four standard errors
        above = 1.5 * below + random.normal(0, 1, size=50)
        interval = ratio_interval((above.mean(), below.mean()), above, below)
        if interval is not None:
            covered.append(interval[0] <= 1.5 <= interval[1])
    assert len(covered) > 540
    assert 0.94 < np.mean(covered) < 0.98  # 95 % and a little more on 50 texts, standard error 0.8 points


def test_the_share_of_the_baseline_is_the_variance_of_a_mean_of_draws():
    # within texts the draws 0 and 2 vary by 2, 1 and 1 by 0: 1 on average, ½ for a mean of two; areas 0, 2 vary by 2
    assert baseline_share(np.array([[0.0, 1.0], [2.0, 1.0]]), np.array([0.0, 2.0])) == pytest.approx(0.25)
    # a draw's noise 1 and a rest of 1.5: 1/m < a tenth of 1.5 + 1/m from m > 6 on
    assert draws_needed(np.array([[0.0, 1.0], [2.0, 1.0]]), np.array([0.0, 2.0])) == 7
    assert math.isnan(baseline_share(np.ones((1, 4)), np.arange(4.0)))
    assert draws_needed(np.ones((1, 4)), np.arange(4.0)) is None


def test_as_many_draws_as_are_needed_make_the_share_less_than_a_tenth_and_three_fewer_do_not():
    random = np.random.default_rng(7)
    texts = random.normal(0, 1, size=40_000)

    def share(draws):
        noise = random.normal(0, 1.2, size=(draws, 40_000))
        return noise, noise.mean(axis=0) + texts

    needed = draws_needed(*share(5))
    assert needed in (13, 14)  # 1.44/m < .1·(1 + 1.44/m) from m > 12.96 on, with a variance that is known to 1 %
    assert baseline_share(*share(needed)) < 0.102
    assert baseline_share(*share(needed - 3)) > 0.1


def test_an_interval_over_texts_holds_the_noise_of_a_single_random_draw():
    random = np.random.default_rng(9)
    covered = []
    for _ in range(2000):
        area = random.normal(0.2, 0.2, size=60) + random.normal(0, 0.4, size=60)  # most of it is the draw's
        low, high = jackknife_interval(area, area.mean())
        covered.append(low <= 0.2 <= high)
    assert 0.935 < np.mean(covered) < 0.965  # 95 %, three standard errors
