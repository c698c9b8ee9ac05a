"""Texts of one story or author count as one: groups are left out, drawn and flipped as a whole."""

import numpy as np
import pytest

from faithmeter.measuring.contributions import areas_of, paired_differences
from faithmeter.measuring.curves import Curve, faithfulness_over_observations, performance_band
from faithmeter.statistics import bca_interval, group_numbers, mean_interval, percentile_band, stopping
from faithmeter.statistics.best_set import best_set, winners_estimate
from faithmeter.statistics.intervals import jackknife_interval, pseudo_values
from faithmeter.statistics.stopping import Looks, decide


def mean_of(values):
    return lambda weights: (
        weights @ values / (weights.sum(axis=1) if values.ndim == 1 else weights.sum(axis=1, keepdims=True))
    )


def curves_of(texts, measures, seed=0, classes=3):
    """Gold classes and answers of measures whose curves fall at random places."""
    random = np.random.default_rng(seed)
    gold = random.integers(classes, size=texts)
    falls = random.integers(1, 11, size=(measures, texts))
    wrong = (np.arange(11) >= falls[..., None]) * 1
    return gold, [Curve((gold[:, None] + each) % classes, np.zeros((texts, 11))) for each in wrong]


def test_groups_are_numbered_as_they_appear_and_groups_of_one_text_are_none():
    assert group_numbers(np.array([7, 2, 7, 9, 2])).tolist() == [0, 1, 0, 2, 1]
    assert group_numbers(np.array([7, 2, 9])) is None
    assert group_numbers(None) is None
    assert group_numbers(np.array([], dtype=np.int64)) is None


def test_what_a_group_adds_to_a_mean_is_worked_by_hand():
    # groups of equal size: their means, exactly
    assert pseudo_values(mean_of(np.array([1.0, 3, 5, 7])), 4, np.array([4, 4, 1, 1])).tolist() == [2, 6]
    # 1, 3 | 5: T = 3, without the first group 5, without the second 2; 2·3 − 5 = 1 and 2·3 − 2 = 4, whose mean is 2.5
    assert pseudo_values(mean_of(np.array([1.0, 3, 5])), 3, np.array([4, 4, 1])).tolist() == [1.5, 4.5]
    # a single group is the statistic itself, and has no interval
    alone = pseudo_values(mean_of(np.array([1.0, 3])), 2, np.array([4, 4]))
    assert alone.tolist() == [2]
    assert jackknife_interval(alone, 2.0) is None


@pytest.mark.parametrize("metric", ["accuracy", "macro-f1", "matthews"])
def test_where_every_text_is_its_own_group_every_number_is_the_same_to_the_last_bit(metric):
    own = np.random.default_rng(1).permutation(40)
    gold, (*curves, at_random) = curves_of(40, 4)
    places = [np.arange(40), np.arange(40), np.arange(10, 40)]
    cut = [Curve(curve.predicted[place], curve.probability[place]) for curve, place in zip(curves, places, strict=True)]
    statistic, every = areas_of(metric, gold, curves, [at_random]), [None, own]
    told = [best_set(paired_differences(metric, gold, cut, places, groups)) for groups in every]
    for name, value in vars(told[0]).items():
        assert np.array_equal(value, getattr(told[1], name), equal_nan=name in ("difference", "low", "high")), name
    first, second = (winners_estimate(statistic, 40, groups=groups) for groups in every)
    assert first == second
    first, second = (faithfulness_over_observations(metric, gold, curves[0], [at_random], g) for g in every)
    assert first == second
    assert first.groups is None
    first, second = (performance_band(metric, gold, curves, groups) for groups in every)
    assert first == second
    column = np.random.default_rng(2).normal(size=40)
    assert mean_interval(column) == mean_interval(column, groups=own)
    first, second = (pseudo_values(statistic, 40, groups) for groups in every)
    assert np.array_equal(first, second)


def test_copies_of_a_text_that_count_as_one_group_change_no_interval():
    values = np.random.default_rng(3).normal(size=(25, 3)) + np.array([0.6, 0.0, 0.1])
    copies, groups = np.repeat(values, 4, axis=0), np.repeat(np.arange(25), 4)
    once, often = mean_of(values), mean_of(copies)
    assert np.allclose(pseudo_values(often, 100, groups), values)
    column = mean_of(values[:, 0]), mean_of(copies[:, 0])
    assert bca_interval(column[1], 100, groups=groups) == pytest.approx(bca_interval(column[0], 25))
    narrow, wide = (np.ptp(bca_interval(column[1], 100, groups=known)) for known in (None, groups))
    assert narrow < 0.6 * wide  # as if they were independent: half as wide
    for band, single in zip(percentile_band(often, 100, groups=groups), percentile_band(once, 25), strict=True):
        assert np.allclose(band, single)
    first, second = winners_estimate(once, 25), winners_estimate(often, 100, groups=groups)
    assert (second.value, *second.interval) == pytest.approx((first.value, *first.interval))
    assert second.chosen == first.chosen


def test_all_texts_of_one_group_have_no_interval():
    gold, (curve, at_random) = curves_of(12, 2)
    found = faithfulness_over_observations("accuracy", gold, curve, [at_random], np.zeros(12, dtype=np.int64))
    assert (found.acu_interval, found.racu_interval, found.n, found.groups) == (None, None, 12, 1)
    assert mean_interval(np.arange(12.0), groups=np.zeros(12)) is None
    assert np.isnan(np.concatenate(percentile_band(mean_of(np.eye(12)), 12, groups=np.zeros(12)))).all()
    told = best_set(paired_differences("accuracy", gold, [curve, at_random], [np.arange(12)] * 2, np.zeros(12)))
    assert told.may_be_best.all()
    assert np.isnan(told.low[0, 1])


def test_a_pair_is_compared_on_the_groups_of_its_common_texts():
    gold, curves = curves_of(12, 2)
    groups, places = np.repeat(np.arange(4), 3), [np.arange(12), np.arange(5)]  # of which two groups, one cut
    cut = [Curve(curve.predicted[place], curve.probability[place]) for curve, place in zip(curves, places, strict=True)]
    differences = paired_differences("accuracy", gold, cut, places, groups)
    assert differences.shape == (4, 2, 2)
    assert np.isfinite(differences[:, 0, 1]).tolist() == [True, True, False, False]
    areas = areas_of("accuracy", gold[:5], [Curve(c.predicted[:5], c.probability[:5]) for c in curves], [])
    whole = areas(np.ones((1, 5)))[0]
    assert differences[:2, 0, 1].mean() == pytest.approx(whole[0] - whole[1])


def studies(count, groups=15, texts=8):
    """Normal scores of two measures that are alike: texts of one group share nearly all of how they vary."""
    random = np.random.default_rng(0)
    numbers = np.repeat(np.arange(groups), texts)
    for _ in range(count):
        shared = random.normal(size=(groups, 2))[numbers]
        yield shared + 0.4 * random.normal(size=(len(numbers), 2)), numbers


def test_with_groups_the_interval_holds_95_per_cent_and_without_them_far_too_little():
    holds = np.zeros(2)
    for scores, numbers in studies(600):
        estimate = scores[:, 0].mean()
        for at, known in enumerate((None, numbers)):
            low, high = jackknife_interval(pseudo_values(mean_of(scores[:, 0]), 120, known), estimate)
            holds[at] += low <= 0 <= high
    assert holds[0] / 600 < 0.65  # 1.96 / √(1 + 7·0.86) = 0.74 standard errors: 54 %
    assert 0.925 < holds[1] / 600 < 0.975  # 95 % within 2.8 standard errors


def test_flipping_whole_groups_keeps_the_level_and_flipping_texts_does_not():
    out = np.zeros(2)
    for scores, numbers in studies(150):
        for at, known in enumerate((None, numbers)):
            values = pseudo_values(mean_of(scores), 120, known)
            told = best_set(values[:, :, None] - values[:, None, :])
            out[at] += not told.may_be_best.all()
    assert out[0] / 150 > 0.3
    assert out[1] / 150 < 0.1  # 5 % plus 2.8 standard errors


def test_looks_at_growing_groups_keep_the_level_and_looks_at_texts_do_not():
    random, looks, dropped = np.random.default_rng(4), Looks((30, 60, 120), hopeless=0.0), np.zeros(2)
    for scores, numbers in studies(120):
        order = random.permutation(120)
        for at, known in enumerate((None, numbers[order])):
            seen = [
                pseudo_values(mean_of(scores[order[:n]]), n, None if known is None else known[:n]) for n in looks.texts
            ]
            dropped[at] += not decide(seen, looks).may_be_best.all()
    assert dropped[0] / 120 > 0.3
    assert dropped[1] / 120 < 0.11


def test_a_group_keeps_its_signs_while_its_texts_come_in(monkeypatch):
    seen, flipped = [], stopping.flipped_t_values
    monkeypatch.setattr(
        stopping, "flipped_t_values", lambda scores, signs: seen.append(signs) or flipped(scores, signs)
    )
    scores = np.random.default_rng(5).normal(size=(9, 2))
    decide([scores[:5], scores], Looks((30, 100)))
    assert [signs.shape[1] for signs in seen] == [5, 9]
    assert np.array_equal(seen[1][:, :5], seen[0])


def test_a_few_groups_are_no_reason_to_give_up():
    looks, alike = Looks((30, 100)), np.tile([0.5, 0.5], (30, 1))
    assert decide([alike], looks).stop is not None  # thirty texts that never differ
    assert decide([alike[:5]], looks).stop is None  # of five groups so far
