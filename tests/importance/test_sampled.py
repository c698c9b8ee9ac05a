"""The sampled leave-one-out: exact where it can be, bounded where it cannot, right on what adds up."""

from functools import partial

import numpy as np
import pytest
import torch
from conftest import random_classifier
from importance.reference import ONE, TARGETS, Additive, alone, example_batch, planted, strong_classifier

from faithmeter.data.units import with_units
from faithmeter.importance.occlusion import PASSES, even_parts, leave_one_out, leave_one_out_sampled, neighbours
from faithmeter.importance.table import IMPORTANCE_MEASURES


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("pairs", [False, True])
def test_it_is_the_exact_leave_one_out_where_the_passes_are_enough(pairs, masked):
    classifier = strong_classifier("bert")
    batch = example_batch(classifier, pairs=pairs, masked=masked)
    exact = leave_one_out(classifier, batch, TARGETS, 0)
    assert torch.equal(IMPORTANCE_MEASURES["loo-sampled"].explain(classifier, batch, TARGETS, 0), exact)
    longest = int((batch.maskable & ~batch.masked).sum(dim=1).max())
    assert torch.equal(leave_one_out_sampled(classifier, batch, TARGETS, 0, passes=longest + 1), exact)
    assert not torch.equal(leave_one_out_sampled(classifier, batch, TARGETS, 0, passes=longest), exact)


@pytest.mark.parametrize("length", [1, 2, 62, 63, 64, 65, 500, 4000])
def test_a_text_of_any_length_takes_no_more_passes_than_the_bound(length):
    classifier = Additive(torch.zeros(1, length))
    leave_one_out_sampled(classifier, planted(length), ONE, 0)
    assert classifier.asked[0] <= PASSES
    assert classifier.asked[0] <= IMPORTANCE_MEASURES["loo-sampled"].passes(length)
    if length < PASSES:
        assert classifier.asked[0] == length + 1
    else:
        assert classifier.asked[0] >= PASSES - 1


@pytest.mark.parametrize("units", [64, 65, 100, 127, 511])
def test_every_unit_is_masked_once_with_its_neighbours_in_groups_of_like_size(units):
    for seed in range(20):
        groups = neighbours(units, PASSES - 1, np.random.default_rng(seed))
        assert len(groups) <= PASSES - 1
        assert (groups.sum(axis=0) == 1).all()
        where = groups.argmax(axis=0)
        assert (np.diff(where) >= 0).all()
        sizes = groups.sum(axis=1)
        assert sizes.min() >= 1
        assert np.ptp(sizes[1:-1]) <= 1  # the groups at the ends are cut where the draw says


def test_the_shares_add_up_to_what_the_whole_text_costs_where_effects_add_up():
    effects = torch.randn(1, 300, generator=torch.Generator().manual_seed(0))
    for seed in range(5):
        found = leave_one_out_sampled(Additive(effects), planted(300), ONE, seed)
        assert float(found.sum()) == pytest.approx(float(effects.sum()), abs=1e-3)


def test_over_seeds_a_unit_has_the_mean_effect_of_the_neighbours_it_may_be_grouped_with():
    # a single effect of 1 at token 150 of 310: groups of 5 hold it with up to 4 on either side
    effects = torch.zeros(1, 310)
    effects[0, 150] = 1
    draws = [leave_one_out_sampled(Additive(effects), planted(310), ONE, seed)[0] for seed in range(600)]
    mean = torch.stack(draws).mean(dim=0)
    expected = torch.zeros(310)
    for distance in range(-4, 5):
        expected[150 + distance] = (5 - abs(distance)) / 25
    torch.testing.assert_close(mean, expected, atol=0.02, rtol=0)


def test_it_ranks_planted_phrases_nearly_as_the_exact_one_does():
    generator = np.random.default_rng(0)
    effects = np.repeat(generator.standard_normal(40), generator.integers(5, 15, 40))  # phrases matter as a whole
    found = leave_one_out_sampled(Additive(effects[None]), planted(len(effects)), ONE, 0)[0].numpy()
    ranks = [np.argsort(np.argsort(values)) for values in (found, effects)]
    assert np.corrcoef(*ranks)[0, 1] > 0.85


def test_a_text_is_sampled_alike_whatever_its_neighbours_in_the_batch_and_otherwise_with_another_seed_or_row():
    effects = torch.randn(3, 200, generator=torch.Generator().manual_seed(1))
    together = leave_one_out_sampled(Additive(effects), planted(200, 90, 150, rows=[7, 3, 5]), ONE.repeat(3), 0)
    alone_ = leave_one_out_sampled(Additive(effects[1:2]), planted(90, rows=[3]), ONE, 0)
    torch.testing.assert_close(alone_[0], together[1, :90], atol=1e-5, rtol=1e-5)
    same = [leave_one_out_sampled(Additive(effects[:1]), planted(200, rows=[row]), ONE, seed) for row, seed in
            ((7, 0), (7, 1), (8, 0))]  # fmt: skip
    torch.testing.assert_close(same[0][0], together[0], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(same[0], same[1])
    assert not torch.allclose(same[0], same[2])


def test_tokens_that_are_masked_already_are_in_no_group_and_have_no_importance():
    batch = planted(200)
    masked = batch.maskable & (torch.arange(200) % 2 == 0)
    effects = torch.ones(1, 200)
    found = leave_one_out_sampled(Additive(effects), batch.with_masked(masked), ONE, 0)
    assert (found[masked] == 0).all()
    torch.testing.assert_close(found[~masked], torch.ones(100), atol=1e-5, rtol=1e-5)


def test_units_are_sampled_as_tokens_are():
    # 100 units of 3 tokens, each worth what its tokens are worth together
    units = torch.arange(300)[None] // 3
    effects = torch.randn(1, 300, generator=torch.Generator().manual_seed(2))
    classifier = Additive(effects)
    found = leave_one_out_sampled(classifier, planted(300, units=units), ONE, 0)
    assert classifier.asked[0] <= PASSES
    totals = effects.view(100, 3).sum(dim=1)
    groups = neighbours(100, PASSES - 1, np.random.default_rng([0, 20, 0]))
    expected = even_parts(groups, groups @ totals.numpy().astype(np.float64))
    torch.testing.assert_close(found[0, ::3], torch.tensor(expected).float(), atol=1e-4, rtol=1e-4)


def test_a_real_model_walks_a_text_longer_than_the_bound_alike_alone_and_in_a_batch():
    classifier = random_classifier("bert")
    texts = ["the film was great, it was not awful at all. " * 3, "a good plot"]
    encoded = with_units(classifier.encode(texts), classifier, texts, by="token")
    explain = partial(leave_one_out_sampled, passes=8)
    batch = encoded.batch([0, 1])
    together = explain(classifier, batch, TARGETS[:2], 0)
    for row in (0, 1):
        single = explain(classifier, alone(batch, row), TARGETS[row : row + 1], 0)
        torch.testing.assert_close(single[0], together[row, : single.shape[1]], atol=1e-5, rtol=1e-5)
    assert not torch.equal(together, leave_one_out(classifier, batch, TARGETS[:2], 0))
