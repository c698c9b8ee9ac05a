"""LIME and KernelSHAP: the same as sklearn, captum and brute force make of the same samples."""

from functools import partial
from itertools import combinations
from math import factorial

import numpy as np
import pytest
import torch
from captum.attr import LimeBase
from importance.reference import (
    ONE,
    TARGETS,
    TEXTS,
    Additive,
    alone,
    example_batch,
    plain_logit,
    planted,
    strong_classifier,
)
from sklearn.linear_model import LinearRegression, Ridge

from faithmeter.importance.surrogate import (
    SAMPLES,
    _constrained,
    _draw_by_shapley_kernel,
    _draw_near,
    _ridge,
    kernel_shap,
    lime,
    samples_for,
)
from faithmeter.importance.table import IMPORTANCE_MEASURES
from faithmeter.masking import Purpose, random_stream


@pytest.fixture(scope="module")
def classifier():
    return strong_classifier("bert")


def logit_with(classifier, one, places, kept, target):
    """The logit of a text with those of its open tokens masked that are not kept."""
    masked = one.masked.clone()
    masked[0, places] = torch.from_numpy(~np.asarray(kept, dtype=bool))
    with torch.no_grad():
        return float(plain_logit(classifier, one.with_masked(masked), target))


def open_places(one):
    return np.flatnonzero((one.maskable & ~one.masked)[0].numpy())


def shapley_values(worth, players):
    """Shapley's formula: the mean gain of a token over all orders."""
    values = []
    for player in range(players):
        others, total = [p for p in range(players) if p != player], 0.0
        for size in range(players):
            for chosen in combinations(others, size):
                weight = factorial(size) * factorial(players - size - 1) / factorial(players)
                before = np.isin(np.arange(players), chosen)
                after = before | (np.arange(players) == player)
                total += weight * (worth(after) - worth(before))
        values.append(total)
    return values


@pytest.mark.parametrize("masked", [False, True])
def test_kernel_shap_gives_the_shapley_values_where_all_sets_of_tokens_fit(classifier, masked):
    batch = example_batch(classifier, masked=masked, texts=["a film", "it was", "the plot was bad", "great"])
    found = kernel_shap(classifier, batch, TARGETS, 0)
    for row in range(len(batch)):
        one, target = alone(batch, row), int(TARGETS[row])
        places = open_places(one)
        assert 2 ** len(places) - 2 <= 200
        expected = shapley_values(partial(logit_with, classifier, one, places, target=target), len(places))
        np.testing.assert_allclose(found[row, places], expected, atol=1e-4)


def test_kernel_shap_adds_up_to_what_the_text_says_beyond_an_empty_one(classifier):
    batch = example_batch(classifier)
    found = kernel_shap(classifier, batch, TARGETS, 0, samples=40)
    for row in range(len(batch)):
        one, target = alone(batch, row), int(TARGETS[row])
        places = open_places(one)
        ends = [logit_with(classifier, one, places, np.full(len(places), kept), target) for kept in (True, False)]
        assert float(found[row].sum()) == pytest.approx(ends[0] - ends[1], abs=1e-4)


@pytest.mark.parametrize(("draw", "samples"), [(_draw_near, 60), (_draw_by_shapley_kernel, 60)])
def test_the_fits_are_those_of_sklearn_on_the_same_samples(draw, samples):
    random = np.random.default_rng(0)
    kept, weights = draw(12, samples, random)
    values, full, empty = random.standard_normal(len(kept)), 2.0, -1.0
    if draw is _draw_near:
        expected = Ridge(alpha=1.0).fit(kept, values, sample_weight=weights).coef_
        found = _ridge(kept, weights, values, full, empty)
    else:  # with weights so large on both ends that the fit must go through them
        inputs = np.concatenate((kept, np.ones((1, 12)), np.zeros((1, 12))))
        model = LinearRegression().fit(inputs, [*values, full, empty], sample_weight=[*weights, 1e9, 1e9])
        expected, found = model.coef_, _constrained(kept, weights, values, full, empty)
    np.testing.assert_allclose(found, expected, atol=1e-5)


class RidgeOfSklearn:
    """The interpretable model that captum fits."""

    def fit(self, loader):
        inputs, outputs, weights = (torch.cat(parts).numpy() for parts in zip(*loader, strict=True))
        self.coefficients = Ridge(alpha=1.0).fit(inputs, outputs, sample_weight=weights).coef_

    def representation(self):
        return torch.from_numpy(self.coefficients)


def captums_lime(worth, kept, weights):
    """LIME by captum, on these samples with these weights."""
    samples, weight_of = iter(kept), iter(weights)
    explainer = LimeBase(
        forward_func=lambda sample: torch.tensor([worth(sample[0].bool().numpy())]),
        interpretable_model=RidgeOfSklearn(),
        similarity_func=lambda *_, **__: torch.tensor([next(weight_of)]),
        perturb_func=lambda *_, **__: torch.from_numpy(next(samples))[None].float(),
        perturb_interpretable_space=True,
        from_interp_rep_transform=lambda sample, *_, **__: sample,
        to_interp_rep_transform=None,
    )
    return explainer.attribute(torch.ones(1, kept.shape[1]), n_samples=len(kept)).reshape(-1)


def test_lime_is_captums_on_the_same_samples(classifier):
    batch = example_batch(classifier)
    found = lime(classifier, batch, TARGETS, 7, samples=50)
    for row in range(len(batch)):
        one, target = alone(batch, row), int(TARGETS[row])
        places = open_places(one)
        kept, weights = _draw_near(len(places), 50, random_stream(7, Purpose.SURROGATE, int(one.rows[0])))
        expected = captums_lime(partial(logit_with, classifier, one, places, target=target), kept, weights)
        np.testing.assert_allclose(found[row, places], expected, atol=1e-4)


def test_samples_belong_to_the_seed_and_the_dataset_row_and_not_to_the_batch(classifier):
    encoded = classifier.encode([*TEXTS, TEXTS[2]])
    for explain in (lime, kernel_shap):
        together = explain(classifier, encoded.batch([2, 0]), TARGETS[:2], 3, samples=50)
        other = explain(classifier, encoded.batch([1, 2]), TARGETS[[1, 0]], 3, samples=50)
        np.testing.assert_allclose(together[0], other[1], atol=1e-5)
        again = explain(classifier, encoded.batch([4]), TARGETS[:1], 3, samples=50)  # the same text in another row
        assert not torch.allclose(again[0], together[0], atol=1e-5)


def test_kernel_shap_draws_sizes_by_their_shapley_weight_and_complements_in_pairs():
    kept, weights = _draw_by_shapley_kernel(20, 20_000, np.random.default_rng(0))
    assert np.array_equal(kept[1::2], ~kept[::2])
    assert set(weights) == {1.0}
    sizes = np.bincount(kept.sum(axis=1), minlength=21)[1:20] / len(kept)
    expected = np.array([1 / (k * (20 - k)) for k in range(1, 20)])
    np.testing.assert_allclose(sizes, expected / expected.sum(), atol=0.01)


def test_lime_samples_lack_any_number_of_tokens_and_the_nearer_ones_weigh_more():
    kept, weights = _draw_near(10, 5000, np.random.default_rng(0))
    assert kept[0].all()
    assert weights[0] == 1.0
    lacking = np.bincount((~kept[1:]).sum(axis=1), minlength=11)[1:] / 4999
    np.testing.assert_allclose(lacking, 0.1, atol=0.02)
    order = np.argsort(kept.sum(axis=1))
    assert (np.diff(weights[order]) >= 0).all()
    # half of the tokens: cosine sqrt(1/2), distance 29.3 %, weight exp(-(29.3 / 25)^2 / 2)
    half = weights[kept.sum(axis=1) == 5][0]
    assert half == pytest.approx(np.exp(-((100 * (1 - np.sqrt(0.5)) / 25) ** 2) / 2))


def share_found(explain, length, **asked):
    """The share of the most important tenth of an exactly additive text that is found."""
    effects = np.random.default_rng(length).standard_normal((1, length))
    found = explain(Additive(effects), planted(length), ONE, 0, **asked)[0].numpy()
    tenth = length // 10
    return len({*np.argsort(-found)[:tenth]} & {*np.argsort(-effects[0])[:tenth]}) / tenth


@pytest.mark.parametrize("explain", [lime, kernel_shap])
def test_long_texts_get_as_many_samples_as_it_takes_to_find_what_is_important(explain, recwarn):
    assert min(share_found(explain, length) for length in (50, 200, 510)) >= 0.95
    assert not recwarn
    with pytest.warns(UserWarning, match="too few to find the important ones"):  # 75 and 49 %, 30 and 35 %
        assert max(share_found(explain, length, samples=200) for length in (200, 510)) <= 0.75


def test_texts_of_up_to_50_units_get_the_200_samples_that_all_once_got():
    assert [samples_for(units) for units in (0, 1, 50, 51, 510)] == [SAMPLES, 200, 200, 204, 2040]
    effects = np.random.default_rng(0).standard_normal((1, 50))
    for name, explain in (("lime", lime), ("kernel-shap", kernel_shap)):
        by_default, as_before = (
            explain(Additive(effects), planted(50), ONE, 0, **more) for more in ({}, {"samples": 200})
        )
        assert torch.equal(by_default, as_before)
        passes = IMPORTANCE_MEASURES[name].passes
        assert (passes(7), passes(51), passes(510)) == (200, 204, 2040)
