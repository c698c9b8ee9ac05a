import numpy as np
import pytest
import torch
from conftest import random_classifier
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode

from faithmeter.data.batch import Batch
from faithmeter.importance.measure import ImportanceMeasure
from faithmeter.measuring.curves import (
    Curve,
    area_between_curves,
    faithfulness_over_observations,
    held_by_the_most_important,
    mask_most_important,
    masking_walk,
    observation_areas,
    performance_band,
    random_spread,
)
from faithmeter.statistics.intervals import jackknife_interval, ratio_interval


def batch(maskable: list[list[bool]], masked: list[list[bool]] | None = None) -> Batch:
    table = torch.tensor(maskable)
    return Batch(
        input_ids=torch.zeros(table.shape, dtype=torch.long),
        attention_mask=torch.ones(table.shape, dtype=torch.long),
        token_type_ids=None,
        maskable=table,
        masked=torch.zeros_like(table) if masked is None else torch.tensor(masked),
        labels=torch.zeros(len(table), dtype=torch.long),
        rows=torch.arange(len(table)),
    )


# ------------------------------------------------------------------------------------------------- the area


def test_racu_divides_the_area_by_the_fall_of_the_random_curve():
    # ACU = ½·½·(0 + .3) + ½·½·(.3 + 0) = .15;  scale = ½·½·(.6 + .4) + ½·½·(.4 + 0) = .35
    acu, racu = area_between_curves(np.array([0.9, 0.4, 0.3]), np.array([0.9, 0.7, 0.3]))
    assert acu == pytest.approx(0.15)
    assert racu == pytest.approx(0.15 / 0.35)


def test_the_scale_of_racu_goes_down_to_the_last_point_of_the_random_curve_not_to_its_lowest_nor_to_zero():
    # ACU = ½·½·(0 + .1) + ½·½·(.1 + 0) = .05;  scale = ½·½·(.6 − .1) + ½·½·(−.1 + 0) = .1; to .2 it were .2, to 0 .4
    acu, racu = area_between_curves(np.array([0.9, 0.1, 0.3]), np.array([0.9, 0.2, 0.3]))
    assert (acu, racu) == pytest.approx((0.05, 0.5))


def test_random_itself_has_no_area_and_worse_than_random_a_negative_one():
    curve = np.array([1.0, 0.8, 0.2])
    assert area_between_curves(curve, curve)[0] == 0
    assert area_between_curves(np.array([1.0, 0.9, 0.2]), curve)[0] == pytest.approx(-0.05)


def test_an_immediate_fall_has_racu_one_as_steps_grow_and_a_lower_one_more():
    random = np.linspace(1, 0, 1001)
    immediate, below = np.zeros(1001), np.full(1001, -0.5)
    immediate[0] = below[0] = 1
    below[-1] = 0
    assert area_between_curves(immediate, random)[1] == pytest.approx(1, abs=0.002)
    assert area_between_curves(below, random)[1] > 1


def test_there_is_no_racu_where_random_masking_costs_nothing():
    acu, racu = area_between_curves(np.array([0.5, 0.4, 0.5]), np.array([0.5, 0.5, 0.5]))
    assert acu == pytest.approx(0.05)
    assert np.isnan(racu)
    assert np.isnan(area_between_curves(np.array([0.5, 0.4, 0.6]), np.array([0.5, 0.5, 0.6]))[1])


# ------------------------------------------------------------------------------------------------- the walk


def test_the_most_important_tokens_go_first_and_ties_to_the_lowest_position():
    rows = batch([[False, True, True, True, True, False]])
    importance = torch.tensor([[9.0, 1.0, 3.0, 3.0, 2.0, 9.0]])
    assert mask_most_important(rows, importance, 5).tolist() == [[False, False, True, True, False, False]]
    tied = torch.zeros(1, 6)
    assert mask_most_important(rows, tied, 5).tolist() == [[False, True, True, False, False, False]]


def test_masked_tokens_stay_and_count():
    rows = batch([[True] * 4], [[False, False, False, True]])
    importance = torch.tensor([[4.0, 3.0, 2.0, 0.0]])
    assert mask_most_important(rows, importance, 5).tolist() == [[True, False, False, True]]


def test_negative_importance_is_still_chosen_before_tokens_that_are_not_maskable():
    rows = batch([[False, True, True, False]])
    assert mask_most_important(rows, torch.tensor([[0.0, -5.0, -1.0, 0.0]]), 5).tolist() == [
        [False, False, True, False]
    ]


def test_ninety_tokens_at_seven_tenths_are_sixty_three():
    assert int(mask_most_important(batch([[True] * 90]), torch.rand(1, 90), 7).sum()) == 63


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 600), min_size=1, max_size=4), st.integers(0, 2**31))
def test_every_step_masks_its_whole_share_and_keeps_what_was_masked(lengths, seed):
    width = max(lengths) + 2
    maskable = torch.zeros(len(lengths), width, dtype=torch.bool)
    for row, length in enumerate(lengths):
        maskable[row, 1 : length + 1] = True
    rows = batch(maskable.tolist())
    generator = torch.Generator().manual_seed(seed)
    measure = ImportanceMeasure(
        "any", "test", lambda c, b, t, s: torch.randn(b.maskable.shape, generator=generator), signed=True
    )
    walked = list(masking_walk(None, rows, measure, None, seed=0))
    assert len(walked) == 11
    before = torch.zeros_like(maskable)
    for step, after in enumerate(walked):
        assert after.masked.sum(dim=1).tolist() == [length * step // 10 for length in lengths]
        assert not (after.masked & ~maskable).any()
        assert not (before & ~after.masked).any()
        before = after.masked


@pytest.mark.parametrize(("recursive", "calls"), [(True, 9), (False, 1)])
def test_a_recursive_measure_is_asked_before_every_step_but_the_last(recursive, calls):
    seen = []

    def explain(classifier, rows, targets, seed):
        seen.append(rows.masked.sum().item())
        return torch.arange(20.0).expand(1, -1)

    measure = ImportanceMeasure("counting", "test", explain, signed=True, recursive=recursive)
    list(masking_walk(None, batch([[True] * 20]), measure, None, seed=0))
    assert seen == [2 * step for step in range(calls)]  # 0, 2, 4 … tokens were masked when it was asked


def test_a_row_walks_alike_alone_and_in_a_batch():
    from faithmeter.importance.table import IMPORTANCE_MEASURES

    classifier = random_classifier("bert")
    encoded = classifier.encode(["The film was great", "It was not bad at all, the story was very good!"])
    together = list(
        masking_walk(
            classifier, encoded.batch([0, 1]), IMPORTANCE_MEASURES["loo-signed"], torch.zeros(2).long(), seed=0
        )
    )
    alone = list(
        masking_walk(classifier, encoded.batch([0]), IMPORTANCE_MEASURES["loo-signed"], torch.zeros(1).long(), seed=0)
    )
    for first, second in zip(together, alone, strict=True):
        assert first.masked[0, : second.masked.shape[1]].tolist() == second.masked[0].tolist()


# ----------------------------------------------------------------------------------------------- faithfulness


def answers(share_right: list[float], n: int = 100) -> Curve:
    """A curve whose first rows are answered right: gold is always 1."""
    predicted = np.stack([(np.arange(n) < share * n).astype(int) for share in share_right], axis=1)
    return Curve(predicted, predicted * 0.8 + 0.1)


def test_faithfulness_on_one_model_with_an_interval_over_observations():
    gold = np.ones(100, dtype=int)
    result = faithfulness_over_observations("accuracy", gold, answers([0.9, 0.4, 0.3]), [answers([0.9, 0.7, 0.3])])
    assert (result.acu, result.racu) == pytest.approx((0.15, 0.15 / 0.35))
    low, high = result.acu_interval
    # ACU is half the share of rows right at random's middle step and not at ours: 30 of 100, sd .5·sqrt(.3·.7/99);
    # skewness .4/sqrt(.3·.7) moves it by .872872 · .23028/600 · (1 + 2·1.98422²) = .002973
    half = 1.98422 * 0.023028
    assert (low, high) == pytest.approx((0.15 + 0.002973 - half, 0.15 + 0.002973 + half), abs=1e-5)
    assert (result.over, result.n) == ("observations", 100)
    # rows that are right under random masking at the first two of three steps have .75 of RACU's denominator each,
    # those that are right at the first alone .25, and those that always are nothing
    numerator = np.repeat([0.0, 0.5, 0.0], [40, 30, 30])
    denominator = np.repeat([0.0, 0.75, 0.25, 0.0], [30, 40, 20, 10])
    assert result.racu_interval == pytest.approx(ratio_interval((0.15, 0.35), numerator, denominator))


@pytest.mark.parametrize(("middle", "differing"), [(0.79, 19), (0.8, 20)])
def test_texts_that_random_masking_answers_otherwise_are_counted_for_the_interval_of_acu(middle, differing):
    gold = np.ones(100, dtype=int)
    result = faithfulness_over_observations("accuracy", gold, answers([0.9, 0.6, 0.3]), [answers([0.9, middle, 0.3])])
    values = np.repeat([0.5, 0.0], [differing, 100 - differing])
    assert result.acu_interval == pytest.approx(jackknife_interval(values, values.mean(), differing=differing))
    assert (result.acu_interval == pytest.approx(jackknife_interval(values, values.mean()))) == (differing == 20)


def test_there_is_no_interval_of_racu_where_random_masking_may_cost_nothing():
    gold = np.ones(100, dtype=int)
    # of 100 rows three fall and two rise again: the denominator is .0125 and its standard error .012
    random = answers([1.0, 1.0, 1.0])
    random.predicted[:3, 1:] = 0
    random.predicted[3:5, 0] = 0
    result = faithfulness_over_observations("accuracy", gold, answers([1.0, 0.7, 0.97]), [random])
    assert np.isfinite(result.racu)
    assert result.racu_interval is None
    assert result.acu_interval is not None


def test_one_observation_has_no_interval():
    result = faithfulness_over_observations(
        "accuracy", np.ones(1, dtype=int), answers([1, 0, 0], 1), [answers([1, 1, 0], 1)]
    )
    assert (result.acu, result.racu) == pytest.approx((0.5, 0.5 / 0.75))
    assert result.acu_interval is None
    assert result.racu_interval is None


def test_the_baseline_is_the_mean_of_the_random_curves():
    gold = np.ones(100, dtype=int)
    two = [answers([1.0, 0.6, 0.2]), answers([1.0, 0.8, 0.2])]
    result = faithfulness_over_observations("accuracy", gold, answers([1.0, 0.7, 0.2]), two)
    assert result.acu == pytest.approx(0)
    # each random run lies ½·.1 from the mean
    assert random_spread("accuracy", gold, two) == pytest.approx(0.05 * np.sqrt(2))


def test_the_share_of_the_baselines_noise_is_that_of_the_draws_among_texts():
    right, wrong = [1, 1, 0], [1, 0, 0]  # areas of .75 and .25
    of = lambda *texts: Curve(np.array(texts), np.zeros((2, 3)))  # noqa: E731
    draws = [of(right, wrong), of(wrong, right)]
    result = faithfulness_over_observations("accuracy", np.ones(2, dtype=int), of(wrong, right), draws)
    # a text's area varies by .125 from draw to draw, the mean of two by .0625; over texts ±.25 has a variance of .125
    assert result.baseline_share == pytest.approx(0.5)
    assert result.draws_needed == 19  # .125 / 18 is a tenth of .0625 + .125 / 18
    alone = faithfulness_over_observations("accuracy", np.ones(2, dtype=int), of(wrong, right), draws[:1])
    assert np.isnan(alone.baseline_share)
    assert alone.draws_needed is None


def test_each_observation_has_its_own_area():
    curve = Curve(np.zeros((2, 3), dtype=int), np.array([[0.9, 0.4, 0.3], [0.9, 0.9, 0.3]]))
    random = [Curve(np.zeros((2, 3), dtype=int), np.array([[0.9, 0.7, 0.3], [0.9, 0.7, 0.3]]))]
    acu, racu = observation_areas(curve, random)
    assert acu == pytest.approx([0.15, -0.1])
    assert racu == pytest.approx([0.15 / 0.35, -0.1 / 0.35])


def test_a_curve_is_drawn_with_the_interval_of_its_mean():
    gold = np.ones(400, dtype=int)
    band = performance_band("accuracy", gold, [answers([1.0, 0.6, 0.2], 400), answers([1.0, 0.4, 0.2], 400)])
    assert [value for value, _, _ in band] == pytest.approx([1.0, 0.5, 0.2])
    assert band[0] == (1.0, 1.0, 1.0)
    for value, low, high in band[2:]:
        error = 1.96 * np.sqrt(value * (1 - value) / 400)
        assert (low, high) == pytest.approx((value - error, value + error), abs=0.01)


def test_sparsity_is_the_share_of_importance_in_the_top_tokens():
    importance = torch.tensor([[9.0, -6.0, 3.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0, 5.0]])
    maskable = torch.tensor([[False, True, True, True, False], [True, True, False, False, False]])
    held = held_by_the_most_important(importance, maskable)
    # 3 tokens: one of them from step 4 on, two from step 7 on
    assert held[0].tolist() == pytest.approx([0] * 4 + [0.6] * 3 + [0.9] * 3 + [1.0])
    assert held[1].isnan().all()  # nothing is important in it


class ToldWhere(TorchFunctionMode):
    """Refuse tensors that are made without saying on which device: on a GPU they would not meet the others."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        made = function in (torch.arange, torch.zeros, torch.ones, torch.full, torch.empty, torch.tensor, torch.eye)
        assert not made or "device" in (kwargs or {}), function
        return function(*args, **(kwargs or {}))


def test_masking_and_sparsity_make_no_tensor_without_saying_on_which_device():
    rows, importance = batch([[True] * 6]), torch.rand(1, 6)
    with ToldWhere():
        mask_most_important(rows, importance, 5)
        held_by_the_most_important(importance, rows.maskable)
        with pytest.raises(AssertionError):
            torch.arange(3)
