import numpy as np
import pytest
from scipy import sparse, stats

from faithmeter import statistics
from faithmeter.statistics import EachLeftOut, bca_interval, mean_interval


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


def test_replicates_that_equal_the_value_count_half_so_that_an_even_sample_has_an_even_interval():
    # of 0 and 1 the mean is ½, and resampled 0, ½ and 1 in 1, 2 and 1 of 4: half of the replicates lie below once ties
    # count half, so the bias is 0, and the tails of 2.5 % reach 0 and 1. Counted as above, a quarter would lie below:
    # Φ(2·Φ⁻¹(¼) + 1.96) = .73 of the replicates, and an upper end of ½; counted as below, a lower end of ½.
    assert mean_interval(np.array([0.0, 1.0])) == (0, 1)


def test_a_statistic_that_is_not_a_number_has_no_interval():
    assert bca_interval(lambda weights: np.full(len(weights), np.nan), 10) is None


def test_the_same_seed_gives_the_same_interval():
    values = np.arange(10.0)
    assert mean_interval(values, seed=3) == mean_interval(values, seed=3) != mean_interval(values, seed=4)


def test_blocks_draw_what_one_piece_would(monkeypatch):
    values = np.random.default_rng(0).normal(size=30)
    whole = statistics.mean_interval(values)
    monkeypatch.setattr(statistics, "BLOCK", 7)
    monkeypatch.setattr(statistics, "KEPT", 0)  # not those that the first call has left
    assert statistics.mean_interval(values) == pytest.approx(whole)


@pytest.mark.parametrize("columns", [np.arange(12.0), np.random.default_rng(0).integers(5, size=(12, 3))])
def test_weights_that_leave_one_out_give_what_they_would_written_down(columns):
    written, weights = 1 - np.eye(12)[4:9], EachLeftOut(12, 4, 9)
    assert np.array_equal(weights @ columns, written @ columns)
    assert np.array_equal(weights @ sparse.csr_array(columns.reshape(12, -1)), written @ columns.reshape(12, -1))
    assert np.array_equal(weights.sum(axis=1), written.sum(axis=1))
    assert np.array_equal(weights.sum(axis=1, keepdims=True), written.sum(axis=1, keepdims=True))
    assert len(weights) == len(written)


def test_no_more_weights_are_written_down_at_once_for_ten_times_the_observations(monkeypatch):
    monkeypatch.setattr(statistics, "RESAMPLES", 600)
    largest = {}

    def mean(values, written):
        def statistic(weights):
            written.append(getattr(weights, "size", 0))  # what leaves one out is not written down
            return weights @ values / weights.sum(axis=1)

        return statistic

    for observations in (1000, 10_000):
        written = []
        bca_interval(mean(np.random.default_rng(0).integers(2, size=observations), written), observations)
        largest[observations] = max(written)
    assert largest[10_000] <= largest[1000] <= statistics.WEIGHTS_AT_ONCE


def test_many_observations_are_resampled_as_few_are(monkeypatch):
    values = np.random.default_rng(0).integers(3, size=40).astype(float)
    whole = mean_interval(values)
    monkeypatch.setattr(statistics, "WEIGHTS_AT_ONCE", 100)
    monkeypatch.setattr(statistics, "KEPT", 0)
    assert mean_interval(values) == whole


def test_draws_are_made_once_for_all_statistics_of_as_many_observations(monkeypatch):
    values = np.random.default_rng(0).exponential(size=300)
    fresh = []
    monkeypatch.setattr(statistics, "KEPT", 0)
    fresh += [mean_interval(values), mean_interval(-values)]
    monkeypatch.undo()
    statistics._kept.cache_clear()
    assert [mean_interval(values), mean_interval(-values)] == fresh
    assert (statistics._kept.cache_info().hits, statistics._kept.cache_info().misses) == (1, 1)


def test_students_interval_covers_a_mean_of_three_where_the_bootstrap_does_not():
    draws = np.random.default_rng(0).normal(size=(300, 3))
    covered = [low <= 0 <= high for low, high in map(statistics.student_interval, draws)]
    bootstrapped = [low <= 0 <= high for low, high in map(statistics.mean_interval, draws[:60])]
    assert 0.92 < np.mean(covered) < 0.98
    assert np.mean(bootstrapped) < 0.85
    assert statistics.student_interval(np.ones(1)) is None
