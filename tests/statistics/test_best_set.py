import numpy as np
import pytest
from scipy import stats

from faithmeter.statistics import best_set as best
from faithmeter.statistics import student_interval
from faithmeter.statistics.best_set import (
    best_set,
    best_set_over_runs,
    compact_letters,
    differences_between,
    largest_by_chance,
    simultaneous_half_widths,
    t_values,
    told_apart,
    winners_estimate,
)
from faithmeter.statistics.intervals import jackknife_interval


@pytest.fixture
def few_draws(monkeypatch):
    monkeypatch.setattr(best, "FLIPS", 399)
    monkeypatch.setattr(best, "RESAMPLES", 599)


def test_t_is_that_of_the_paired_test():
    scores = np.random.default_rng(0).normal(size=(12, 3))
    pairs = differences_between(scores)
    t = t_values(pairs.sum(axis=0), (pairs**2).sum(axis=0), np.full((3, 3), 12))
    for i, j in ((0, 1), (2, 0)):
        assert t[i, j] == pytest.approx(stats.ttest_rel(scores[:, i], scores[:, j]).statistic)
    assert np.diag(t) == pytest.approx([0, 0, 0])


def test_pairs_that_never_differ_have_t_0_and_those_that_always_differ_alike_are_infinitely_sure():
    pairs = differences_between(np.array([[0.3, 0.3, 0.1]] * 4))
    t = t_values(pairs.sum(axis=0), (pairs**2).sum(axis=0), np.full((3, 3), 4))
    assert t.tolist() == [[0, 0, np.inf], [0, 0, np.inf], [-np.inf, -np.inf, 0]]


def test_two_measures_are_told_apart_where_the_exact_test_of_all_flips_does():
    random = np.random.default_rng(1)
    agreed, rejected = [], []
    for shift in np.linspace(0, 1.5, 60):
        difference = random.normal(shift, 1, size=10)
        signs = 1 - 2 * ((np.arange(2**10)[:, None] >> np.arange(10)) & 1)
        exact = np.mean(np.abs(signs @ difference) >= abs(difference.sum()) - 1e-12)
        if not 0.035 < exact < 0.065:  # where 1,999 flips of 1,024 decide
            told = best_set(differences_between(np.stack([difference, np.zeros(10)], axis=1)))
            agreed.append((not told.may_be_best.all()) == (exact < 0.05))
            rejected.append(exact < 0.05)
    assert all(agreed)
    assert 5 < sum(rejected) < len(rejected) - 5


def test_five_texts_are_never_sure_and_eight_are_if_they_all_say_the_same():
    for texts, sure in ((5, False), (8, True)):  # all signs alike: 2 of 32, and 2 of 256
        told = best_set(differences_between(np.tile([0.4, 0.1], (texts, 1))))
        assert told.may_be_best.tolist() == [True, not sure]
        assert told.letters == (("a", "b") if sure else ("a", "a"))


def test_measures_that_are_alike_are_left_out_in_5_per_cent_of_studies(few_draws):
    random = np.random.default_rng(2)
    out = 0
    for _ in range(300):
        scores = random.permuted(random.exponential(size=(40, 6)) * random.random(40)[:, None], axis=1)
        out += not best_set(differences_between(scores)).may_be_best.all()
    assert 4 <= out <= 27  # 15 expected, standard deviation 3.8


def test_no_best_measure_is_left_out_where_others_are_worse(few_draws):
    random = np.random.default_rng(3)
    out, sizes = 0, []
    for _ in range(200):
        told = best_set(differences_between(random.normal([1, 1, 0, 0, 0.5, 0], 1, size=(60, 6))))
        out += not told.may_be_best[:2].all()
        sizes.append(told.may_be_best.sum())
    assert out <= 18  # 10 allowed
    assert np.mean(sizes) < 3


def test_the_best_is_alone_where_it_is_far_ahead(few_draws):
    told = best_set(differences_between(np.random.default_rng(4).normal([0, 2, 0, 0], 1, size=(40, 4))))
    assert told.may_be_best.tolist() == [False, True, False, False]
    assert told.letters == ("b", "a", "b", "b")
    assert (told.low[1, [0, 2, 3]] > 0).all()
    assert told.low == pytest.approx(-told.high.T)


def test_all_intervals_hold_together(few_draws):
    random = np.random.default_rng(5)
    truth = np.array([0.0, 0.3, 0.6, 1.0, 2.0])
    pairs = truth[:, None] - truth[None, :]
    held, one = [], []
    for _ in range(200):
        told = best_set(differences_between(truth + random.exponential(size=(50, 5)) - 1))
        held.append(((told.low <= pairs + 1e-12) & (pairs <= told.high + 1e-12)).all())
        one.append((told.high - told.low)[0, 1])
    assert np.mean(held) > 0.91  # 95 %, standard error 1.5 points
    assert np.mean(one) < 1.6  # 2 · 3.3 standard errors of .2, not an interval that holds because it is endless


def test_a_pair_is_compared_on_its_common_texts_alone(few_draws):
    scores = np.random.default_rng(6).normal(size=(60, 3))
    scores[:, 0] += 1
    few = scores.copy()
    few[10:, 2] = np.nan
    told = best_set(differences_between(few))
    assert told.counts.tolist() == [[60, 60, 10], [60, 60, 10], [10, 10, 10]]
    assert told.difference[0, 2] == pytest.approx((scores[:10, 0] - scores[:10, 2]).mean())
    assert told.difference[0, 1] == pytest.approx((scores[:, 0] - scores[:, 1]).mean())
    assert not told.may_be_best[1]
    assert told.high[0, 2] - told.low[0, 2] > 2 * (told.high[0, 1] - told.low[0, 1])


def test_measures_without_common_texts_cannot_be_told_apart(few_draws):
    scores = np.full((30, 2), np.nan)
    scores[:15, 0], scores[15:, 1] = 5 + np.arange(15.0), np.arange(15.0)
    told = best_set(differences_between(scores))
    assert told.may_be_best.all()
    assert told.letters == ("a", "a")
    assert np.isnan(told.low[0, 1])
    assert np.isnan(told.difference[0, 1])


def test_too_few_texts_that_differ_have_no_interval_and_take_none_from_others(few_draws):
    scores = np.random.default_rng(7).normal(size=(50, 3))
    scores[:, 1] = scores[:, 0]
    whole = simultaneous_half_widths(differences_between(scores))
    assert whole[0, 1] == 0
    assert whole[0, 2] == whole[1, 2] > 0
    scores[0, 1] += 1  # one text of fifty: a third of the resamples do not have it
    half = simultaneous_half_widths(differences_between(scores))
    assert np.isnan(half[0, 1])
    assert half[0, 2] == pytest.approx(whole[0, 2], rel=0.3)


def test_the_order_of_the_measures_does_not_matter(few_draws):
    scores = np.random.default_rng(8).normal([0, 0.5, 0.8, 0.1], 1, size=(40, 4))
    order = np.array([2, 0, 3, 1])
    told, turned = (best_set(differences_between(each)) for each in (scores, scores[:, order]))
    assert turned.low == pytest.approx(told.low[np.ix_(order, order)])
    assert turned.may_be_best.tolist() == told.may_be_best[order].tolist()
    assert turned.letters == tuple(told.letters[k] for k in order)


def test_who_is_told_apart_no_longer_counts_and_so_the_bound_falls():
    # twenty draws, of which 1 in 20 and the sample itself may pass: the bound is the second largest
    by_chance = np.zeros((39, 2, 2))
    by_chance[:5, 0, 1] = [5, 4, 3, 2, 1]
    by_chance[:5, 1, 0] = [1, 1, 0.5, 0, 0]
    everything = np.ones((2, 2), dtype=bool)
    assert largest_by_chance(by_chance, everything, 0.05) == 4  # int(.05 · 40) − 1 = 1 may be larger
    assert largest_by_chance(by_chance, np.array([[True, False], [True, True]]), 0.05) == 1
    t = np.array([[0, 4.5], [2.0, 0]])
    assert told_apart(t, by_chance, 0.05).tolist() == [[False, True], [True, False]]
    assert told_apart(np.array([[0, 3.9], [2.0, 0]]), by_chance, 0.05).sum() == 0
    assert largest_by_chance(by_chance, everything, 0.01) == np.inf  # 39 draws are too few for one in a hundred


@pytest.mark.parametrize("seed", range(30))
def test_two_measures_share_a_letter_exactly_if_they_do_not_differ(seed):
    random = np.random.default_rng(seed)
    differ = np.triu(random.random((7, 7)) < random.random(), 1)
    letters = compact_letters(differ, random.random(7))
    for i in range(7):
        for j in range(i):
            assert bool(set(letters[i]) & set(letters[j])) == (not differ[j, i])


def test_letters_begin_with_the_best():
    differ = np.zeros((3, 3), dtype=bool)
    differ[2, 0] = True  # the last is ahead of the first
    assert compact_letters(differ, np.array([0.1, 0.2, 0.3])) == ("b", "ab", "a")
    assert compact_letters(np.zeros((3, 3), dtype=bool), np.zeros(3)) == ("a", "a", "a")


def test_the_winner_is_chosen_on_other_texts_than_it_is_estimated_on():
    scores = np.random.default_rng(9).normal(size=(23, 4))
    winner = winners_estimate(lambda weights: weights @ scores / weights.sum(axis=1, keepdims=True), 23, folds=5)
    part = np.random.default_rng(0).permutation(23) % 5
    chosen = [int(scores[part != k].mean(axis=0).argmax()) for k in range(5)]
    values = np.array([scores[t, chosen[part[t]]] for t in range(23)])
    assert winner.chosen == tuple(chosen)
    assert winner.value == pytest.approx(values.mean())
    assert winner.interval == pytest.approx(jackknife_interval(values, values.mean()))
    assert winner.optimistic == pytest.approx(scores.mean(axis=0).max())


def test_the_best_of_many_that_are_alike_looks_too_good_but_not_by_cross_fitting():
    random = np.random.default_rng(10)
    cross_fitted, optimistic = [], []
    for seed in range(300):
        scores = random.normal(size=(40, 8))
        winner = winners_estimate(lambda w, s=scores: w @ s / w.sum(axis=1, keepdims=True), 40, seed=seed)
        cross_fitted.append(winner.value)
        optimistic.append(winner.optimistic)
    assert np.mean(optimistic) > 0.2  # the largest of eight: 1.42 standard errors of .158
    assert abs(np.mean(cross_fitted)) < 0.04  # three standard errors of about .2/√300


def test_over_runs_two_measures_have_students_interval():
    values = np.random.default_rng(11).normal(size=(4, 2))
    told = best_set_over_runs(values)
    low, high = student_interval(values[:, 0] - values[:, 1])
    assert (told.low[0, 1], told.high[0, 1]) == pytest.approx((low, high), rel=0.05)


@pytest.mark.parametrize("spread", [np.ones(5), np.array([1.0, 1.5, 2.0, 3.0, 4.0])])
def test_over_runs_measures_that_are_alike_are_left_out_in_5_per_cent(spread):
    values = np.random.default_rng(12).normal(size=(200, 4, 5)) * spread + 7
    out = sum(not best_set_over_runs(each).may_be_best.all() for each in values)
    assert 2 <= out <= 20  # 10 expected, standard deviation 3.1


def test_over_runs_the_best_is_found_and_one_run_is_refused():
    values = np.random.default_rng(13).normal([0, 0, 12, 0], 1, size=(5, 4))
    assert best_set_over_runs(values).may_be_best.tolist() == [False, False, True, False]
    with pytest.raises(ValueError, match="One training"):
        best_set_over_runs(values[:1])
