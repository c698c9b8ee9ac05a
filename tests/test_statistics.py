import numpy as np
import pytest
from scipy import stats

from faithmeter.statistics import bca_interval, mean_interval


def test_the_interval_of_a_mean_is_scipys():
    values = np.random.default_rng(0).exponential(size=40)
    expected = stats.bootstrap(
        (values,), np.mean, n_resamples=9999, method="BCa", rng=np.random.default_rng(1)
    ).confidence_interval
    # both draw 9,999 resamples at random: the ends agree to a few hundredths of the width
    assert mean_interval(values) == pytest.approx((expected.low, expected.high), abs=0.02)


def test_a_skewed_sample_has_a_skewed_interval():
    low, high = mean_interval(np.random.default_rng(0).exponential(size=30) ** 2)
    mean = (np.random.default_rng(0).exponential(size=30) ** 2).mean()
    assert high - mean > mean - low


def test_the_interval_covers_the_mean_as_often_as_it_says():
    random = np.random.default_rng(0)
    covered = 0
    for trial in range(200):
        low, high = mean_interval(random.normal(size=25), seed=trial)
        covered += low <= 0 <= high
    # 95 % of 200 is 190, standard deviation 3; a bootstrap of 25 covers a little less
    assert 178 <= covered <= 198


def test_one_value_has_no_interval_and_equal_values_a_point():
    assert mean_interval(np.array([0.5])) is None
    assert mean_interval(np.array([0.5, 0.5, 0.5])) == (0.5, 0.5)


def test_a_statistic_that_is_not_a_number_has_no_interval():
    assert bca_interval(lambda weights: np.full(len(weights), np.nan), 10) is None


def test_the_same_seed_gives_the_same_interval():
    values = np.arange(10.0)
    assert mean_interval(values, seed=3) == mean_interval(values, seed=3) != mean_interval(values, seed=4)
