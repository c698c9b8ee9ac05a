import dataclasses

import numpy as np
import pytest
from scipy import stats

from faithmeter.statistics import stopping
from faithmeter.statistics.best_set import differences_between, random_signs, t_values
from faithmeter.statistics.stopping import (
    Looks,
    Stop,
    chance_to_drop,
    decide,
    flipped_t_values,
    planned_looks,
    texts_to_separate,
)

LOOKS = Looks((30, 45, 68, 100))


@pytest.fixture
def few_flips(monkeypatch):
    monkeypatch.setattr(stopping, "FLIPS", 499)


def rounds_of(scores, looks=LOOKS):
    return [scores[:texts] for texts in looks.texts]


def test_looks_grow_by_two_fifths_and_end_with_all_texts():
    assert planned_looks(300) == (20, 28, 40, 56, 79, 111, 156, 219, 300)
    assert planned_looks(200) == (20, 28, 40, 56, 79, 111, 156, 200)
    assert planned_looks(180) == (20, 28, 40, 56, 79, 111, 180)  # 156 and 24 more would be a short last round
    assert planned_looks(20) == (20,)
    assert planned_looks(12) == (12,)


def test_t_and_flipped_t_are_those_of_every_pair_written_out():
    scores = np.random.default_rng(0).normal(5, 1, size=(20, 4))
    scores[:, 3] = scores[:, 2]
    signs = random_signs(7, 20, 3)
    pairs, counts = differences_between(scores), np.full((4, 4), 20)
    squares = (pairs**2).sum(axis=0)
    t, flipped = flipped_t_values(scores, signs)
    assert t == pytest.approx(t_values(pairs.sum(axis=0), squares, counts))
    for k in range(7):
        turned = (signs[k][:, None, None] * pairs).sum(axis=0)
        assert flipped[k] == pytest.approx(t_values(turned, squares, counts))


def test_signs_of_the_first_texts_do_not_change_with_more_texts():
    assert np.array_equal(random_signs(9, 50, 1)[:, :20], random_signs(9, 20, 1))
    assert set(np.unique(random_signs(9, 50, 1))) == {-1, 1}


def test_a_measure_that_is_far_behind_is_dropped_at_the_first_look_and_the_best_is_soon_alone(few_flips):
    scores = np.random.default_rng(1).normal([3, 0, 2, 0], 1, size=(100, 4))
    decision = decide(rounds_of(scores)[:1], LOOKS)
    assert decision.dropped_at.tolist() == [0, 30, decision.dropped_at[2], 30]
    whole = decide(rounds_of(scores), LOOKS)
    assert whole.may_be_best.tolist() == [True, False, False, False]
    assert whole.stop is Stop.DECIDED
    assert whole.next_texts == whole.dropped_at.max() < 100
    assert decision.ahead[[0, 2]].tolist() == [[False, True, True, True], [False, True, False, True]]
    assert not decision.ahead[[1, 3]].any()
    assert whole.ahead.any(axis=0).tolist() == [False, True, True, True]


def test_a_decision_is_found_again_from_the_looks_so_far_and_the_scores_of_who_was_dropped_do_not_matter(few_flips):
    scores = np.random.default_rng(2).normal([1, 0.9, 0, 0.6], 1, size=(100, 4))
    before = None
    for number in range(1, 5):
        decision = decide(rounds_of(scores)[:number], LOOKS)
        if before is not None:
            assert not (decision.may_be_best & ~before.may_be_best).any()
            assert before.next_texts == LOOKS.texts[number - 1]
            unmeasured = [each.copy() for each in rounds_of(scores)[:number]]
            unmeasured[-1][:, ~before.may_be_best] = np.nan
            again = decide(unmeasured, LOOKS)
            assert again.dropped_at.tolist() == decision.dropped_at.tolist()
            assert again.stop is decision.stop
            assert np.array_equal(again.ahead, decision.ahead)
        before = decision
        if decision.stop is not None:
            break
    assert 30 in decision.dropped_at
    assert decide(rounds_of(scores), LOOKS).next_texts == decision.next_texts  # what comes after the end is not read


def test_over_all_looks_a_best_measure_is_dropped_in_5_per_cent_of_studies_at_most_and_naive_looks_do_more(few_flips):
    random = np.random.default_rng(3)
    dropped = naive = 0
    looks = dataclasses.replace(LOOKS, hopeless=0.0)
    signs = random_signs(499, 100, 0)
    for _ in range(300):
        scores = random.permuted(random.exponential(size=(100, 5)), axis=1)
        dropped += not decide(rounds_of(scores, looks), looks).may_be_best.all()
        for texts in looks.texts:
            t, flipped = flipped_t_values(scores[:texts], signs[:, :texts])
            if (t > np.quantile(flipped.max(axis=(1, 2)), 0.95)).any():
                naive += 1
                break
    assert 4 <= dropped <= 26  # 15 allowed, standard deviation 3.8
    assert naive > dropped + 8


def test_two_that_are_alike_end_for_lack_of_hope_and_the_others_are_dropped(few_flips):
    random = np.random.default_rng(4)
    looks = Looks(planned_looks(300))
    ends, used, right = [], [], []
    for _ in range(40):
        scores = random.normal([1, 1, 0, 0, 0.2, 0], 1, size=(300, 6))
        decision = decide(rounds_of(scores, looks), looks)
        ends.append(decision.stop)
        used.append(np.where(decision.may_be_best, decision.next_texts, decision.dropped_at).sum() / 1800)
        right.append(decision.may_be_best.tolist() == [True, True, False, False, False, False])
    assert np.mean([end is Stop.HOPELESS for end in ends]) > 0.6
    assert np.mean(right) > 0.85
    assert np.mean(used) < 0.4


def test_the_last_look_ends_it_whatever_was_found(few_flips):
    looks = Looks((20, 30), hopeless=0.0)
    scores = np.random.default_rng(5).normal(size=(30, 3))
    assert decide([scores[:20]], looks).stop is None
    assert decide([scores[:20]], looks).next_texts == 30
    assert decide([scores[:20], scores], looks).stop is Stop.COMPLETE


def test_no_more_flips_pass_than_may_be_spent():
    largest = np.arange(99.0)
    nobody = np.zeros(99, dtype=bool)
    assert stopping._bound(largest, nobody, 0.05) == 94  # int(.05·100) − 1 = 4 pass: 95 to 98
    some = largest >= 97
    assert stopping._bound(largest, some, 0.05) == 94  # two have passed before, two more: 95 and 96
    assert stopping._bound(largest, largest >= 90, 0.05) == np.inf
    assert stopping._bound(largest, nobody, 0.001) == np.inf


def test_the_chance_to_drop_is_the_share_of_futures_in_which_the_bound_is_passed():
    random = np.random.default_rng(6)
    scores = random.normal(size=(40, 2))
    difference = scores[:, 0] - scores[:, 1]
    scores[:, 0] += 0.3 - difference.mean()
    difference = scores[:, 0] - scores[:, 1]
    spread = difference.std(ddof=1)
    # the true difference is normal about .3 with the standard error of 40 texts, and 60 texts more are to come
    truth = random.normal(0.3, spread / np.sqrt(40), size=20_000)
    later = (40 * 0.3 + 60 * random.normal(truth, spread / np.sqrt(60))) / 100
    passed = np.mean(later > 2.5 * spread / np.sqrt(100))
    assert chance_to_drop(scores, 100, 2.5) == pytest.approx(passed, abs=0.01)
    assert chance_to_drop(np.ones((40, 2)), 100, 2.5) == 0
    assert chance_to_drop(scores, 100, np.inf) == 0


def test_two_measures_need_the_texts_of_the_textbook():
    scores = np.zeros((400, 2))
    scores[:, 0] = 0.25 + np.tile([1.0, -1.0], 200)  # mean ¼, standard deviation 1
    # ((1.96 + .8416)·1 / .25)² = 125.6; 1,999 flips know the bound to 3 %
    assert texts_to_separate(scores)[0, 1] == pytest.approx(126, rel=0.06)
    assert texts_to_separate(scores)[1, 0] == texts_to_separate(scores)[0, 1]
    assert texts_to_separate(scores, power=0.5)[0, 1] == pytest.approx((1.96 / 0.25) ** 2, rel=0.06)
    assert np.isinf(texts_to_separate(np.ones((30, 2)))).all()


def test_with_as_many_texts_as_planned_a_pair_is_told_apart_four_times_in_five():
    random = np.random.default_rng(7)
    pilot = random.normal(size=(5000, 3))
    needed = int(texts_to_separate(pilot - pilot.mean(axis=0) + [0.3, 0, 0])[0, 1])
    told = 0
    signs = random_signs(199, needed, 0)
    for _ in range(300):
        t, flipped = flipped_t_values(random.normal([0.3, 0, 0], 1, size=(needed, 3)), signs)
        told += t[0, 1] > np.quantile(flipped.max(axis=(1, 2)), 0.95)
    assert 0.72 < told / 300 < 0.88
    assert needed == pytest.approx(((stats.norm.isf(0.0095) + 0.84) * np.sqrt(2) / 0.3) ** 2, rel=0.1)  # three pairs


def test_at_the_last_look_the_flips_that_passed_before_are_what_was_spent_before(few_flips, monkeypatch):
    counted, bound = [], stopping._bound

    def recorded(largest, passed, spent):
        counted.append((int(passed.sum()), spent))
        return bound(largest, passed, spent)

    monkeypatch.setattr(stopping, "_bound", recorded)
    scores = np.random.default_rng(8).normal(size=(100, 4))
    assert decide(rounds_of(scores), dataclasses.replace(LOOKS, hopeless=0.0)).may_be_best.all()
    assert counted[-1] == (16, pytest.approx(0.0425))  # int(.0425 · √.68 · 500) − 1
