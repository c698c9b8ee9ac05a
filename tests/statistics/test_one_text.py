import numpy as np
import pytest

from faithmeter.statistics.one_text import FEWEST_ORDERS, adjusted_p_values, randomisation_p_value, win_rate


def test_the_p_value_counts_the_orders_that_do_as_well_and_the_explanation_itself():
    random = np.arange(19.0)
    assert randomisation_p_value(100.0, random) == 1 / 20
    assert randomisation_p_value(18.0, random) == 2 / 20  # a tie counts
    assert randomisation_p_value(16.5, random) == 3 / 20
    assert randomisation_p_value(-1.0, random) == 1
    assert randomisation_p_value(0.1 + 0.2, np.array([0.3])) == 1  # equal but for rounding


def test_one_of_the_fewest_orders_can_reach_5_per_cent_and_one_fewer_cannot():
    assert randomisation_p_value(1.0, np.zeros(FEWEST_ORDERS)) <= 0.05
    assert randomisation_p_value(1.0, np.zeros(FEWEST_ORDERS - 1)) > 0.05


def test_an_explanation_that_is_a_random_order_is_called_better_as_often_as_the_level_says():
    areas = np.random.default_rng(0).exponential(size=(4000, 40))
    p_values = np.array([randomisation_p_value(row[0], row[1:]) for row in areas])
    for level in (0.05, 0.25, 0.5):
        assert np.mean(p_values <= level) == pytest.approx(level, abs=0.025)  # three standard errors at the most


def test_an_explanation_that_is_better_is_found():
    random = np.random.default_rng(0)
    p_values = [randomisation_p_value(random.normal(4), random.normal(size=99)) for _ in range(200)]
    assert np.mean(np.array(p_values) <= 0.05) > 0.95


def test_the_win_rate_is_of_texts_that_beat_their_own_mean_and_has_the_score_interval():
    random = np.array([[0.0, 0.0, 0.0, 5.0], [2.0, 2.0, 2.0, 5.0]])  # means 1, 1, 1 and 5
    rate, (low, high) = win_rate(np.array([1.5, 1.0, 3.0, 4.0]), random)
    assert rate == 0.5  # the second is a tie
    # (p + z²/2n ± z·sqrt(p(1−p)/n + z²/4n²)) / (1 + z²/n), z = 1.95996, n = 4
    assert (low, high) == pytest.approx((0.15004, 0.84996), abs=1e-5)


def test_the_interval_of_the_win_rate_covers_near_one():
    random = np.random.default_rng(1)
    covered = []
    for _ in range(500):
        _, (low, high) = win_rate((random.random(30) < 0.95).astype(float), np.full((2, 30), 0.5))
        covered.append(low <= 0.95 <= high)
    assert np.mean(covered) > 0.92


def test_p_values_are_adjusted_step_up():
    # sorted .01, .02, .03, .5 of four: .04, .04, .04, .5, each the smallest of what follows
    assert adjusted_p_values(np.array([0.5, 0.01, 0.03, 0.02])) == pytest.approx([0.5, 0.04, 0.04, 0.04])
    known = adjusted_p_values(np.array([0.02, np.nan, 0.04]))
    assert known[[0, 2]] == pytest.approx([0.04, 0.04])
    assert np.isnan(known[1])
    assert np.isnan(adjusted_p_values(np.array([np.nan]))).all()


def test_of_the_texts_that_are_taken_a_twentieth_is_false_at_most():
    random = np.random.default_rng(2)
    shares = []
    for _ in range(300):
        better = np.arange(100) < 30
        own = random.normal(size=100) + 6 * better
        p_values = np.array([randomisation_p_value(area, random.normal(size=199)) for area in own])
        taken = adjusted_p_values(p_values) <= 0.05
        shares.append((taken & ~better).sum() / max(1, taken.sum()))
        assert taken[better].mean() > 0.9
    assert np.mean(shares) < 0.05
