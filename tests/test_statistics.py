import numpy as np
import pytest
from scipy import stats

from faithmeter import statistics
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


def test_blocks_draw_what_one_piece_would(monkeypatch):
    values = np.random.default_rng(0).normal(size=30)
    whole = statistics.mean_interval(values)
    monkeypatch.setattr(statistics, "BLOCK", 7)
    assert statistics.mean_interval(values) == pytest.approx(whole)


def test_students_interval_covers_a_mean_of_three_where_the_bootstrap_does_not():
    draws = np.random.default_rng(0).normal(size=(300, 3))
    covered = [low <= 0 <= high for low, high in map(statistics.student_interval, draws)]
    bootstrapped = [low <= 0 <= high for low, high in map(statistics.mean_interval, draws[:60])]
    assert 0.92 < np.mean(covered) < 0.98
    assert np.mean(bootstrapped) < 0.85
    assert statistics.student_interval(np.ones(1)) is None
