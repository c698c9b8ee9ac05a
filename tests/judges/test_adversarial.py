"""Adversarial explanations: the numbers by hand, the search's promises, and that it finds more than chance does."""

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import ARCHITECTURES, WORDS, sentiment_rows
from importance.reference import TARGETS, alone, any_classifier, example_batch, strong_classifier

from faithmeter.data.batch import Batch
from faithmeter.errors import InputError
from faithmeter.importance.measure import with_steps
from faithmeter.importance.table import IMPORTANCE_MEASURES, as_measure
from faithmeter.judges import adversarial as module
from faithmeter.judges.adversarial import adversarial, rank_change, top_count, top_k, top_k_sum_change
from faithmeter.models.from_scratch import small_classifier

DIFFERENTIABLE = [measure for measure in IMPORTANCE_MEASURES.values() if measure.differentiable]
EVERY_MEASURE = pytest.mark.parametrize("measure", DIFFERENTIABLE, ids=lambda one: one.name)
BOTH = pytest.mark.parametrize("constrained", [False, True])


@pytest.fixture(scope="module")
def trained():
    """A small classifier that has learnt to tell good from bad."""
    classifier = small_classifier([" ".join(WORDS)], ("negative", "positive"), seed=0)
    rows = sentiment_rows(64)
    labels = [int(row["label"] == "positive") for row in rows]
    batch = classifier.encode([row["text"] for row in rows], labels=labels).batch(range(64))
    optimiser = torch.optim.Adam(classifier.model.parameters(), lr=1e-3)
    for _ in range(40):
        loss = torch.nn.functional.cross_entropy(classifier.logits(batch), batch.labels)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
    classifier.model.eval()
    assert (classifier.logits(batch).argmax(dim=1) == batch.labels).all()
    classifier.model.zero_grad(set_to_none=True)
    return classifier


@pytest.fixture(scope="module")
def texts(trained) -> Batch:
    return trained.encode([row["text"] for row in sentiment_rows(8, seed=1)]).batch(range(8))


@pytest.fixture
def watched(monkeypatch):
    """Every perturbation that a search returns, with the texts that it is of."""
    seen = []
    search = module._found

    def watching(classifier, texts, how):
        seen.append((texts, search(classifier, texts, how)))
        return seen[-1][1]

    monkeypatch.setattr(module, "_found", watching)
    return seen


# ----------------------------------------------------------------------------------------------- by hand


def test_rank_change_is_the_share_of_the_top_ranks_that_changed():
    before, after = torch.zeros(16), torch.zeros(16)
    before[[12, 3, 7]] = torch.tensor([3.0, 2.0, 1.0])
    after[[3, 15, 7]] = torch.tensor([3.0, 2.0, 1.0])
    assert top_k(before, 3).tolist() == [12, 3, 7]
    assert rank_change(before, after, 3) == pytest.approx(2 / 3)  # the example of the Thesis: 12→3, 3→15, 7→7
    assert rank_change(before, before, 3) == 0.0
    assert rank_change(before, after, 1) == 1.0
    # the same set in another order: 2 of 2 ranks have another token
    assert rank_change(torch.tensor([2.0, 1.0]), torch.tensor([1.0, 2.0]), 2) == 1.0


def test_equal_importances_rank_by_their_place():
    assert top_k(torch.tensor([1.0, 2.0, 2.0, 1.0]), 3).tolist() == [1, 2, 0]


def test_top_k_sum_change_is_the_fall_of_the_importance_of_the_old_top():
    before, after = torch.tensor([0.5, 4.0, 3.0, -1.0]), torch.tensor([9.0, 1.0, -2.0, 9.0])
    assert top_k_sum_change(before, after, 2) == 8.0  # (4 − 1) + (3 − (−2))
    assert top_k_sum_change(before, after, 1) == 3.0


def test_the_top_is_fifteen_per_cent_rounded_down_and_at_least_one_token():
    # ⌊.15·1⌋ = 0 → 1; ⌊.15·13⌋ = ⌊1.95⌋ = 1; ⌊.15·14⌋ = ⌊2.1⌋ = 2; .15·20 = 3 in whole numbers
    assert [top_count(n) for n in (1, 6, 13, 14, 20, 100)] == [1, 1, 1, 2, 3, 15]


# ----------------------------------------------------------------------------- gradients of explanations


@functools.cache
def in_double(architecture):
    classifier = any_classifier(architecture)
    classifier.model.double().eval()
    return classifier


@EVERY_MEASURE
@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "roformer", "bilstm-attention"])
def test_an_explanation_has_the_gradient_that_differences_show(measure, architecture, monkeypatch):
    if not measure.explains(architecture):
        pytest.skip("not for this model")
    classifier = in_double(architecture)
    # the gradient of a ReLU jumps, and differences would show the jump
    monkeypatch.setattr(torch.nn.functional, "relu", lambda states, **_: torch.nn.functional.gelu(states))
    batch = example_batch(classifier, pairs=True, masked=True)
    e, at = classifier.embed(batch), with_steps(measure, 3).at

    def total(point):
        logits, importance = at(classifier, batch, point, TARGETS)
        return importance[:, ::2].double().sum() - importance[:, 1::2].double().sum() + logits.double().sum()

    point = e.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(total(point), point)
    length = float(gradient.norm())
    step = 1e-3 / length * gradient  # uphill, where the slope is the gradient's length
    assert float(total(e + step) - total(e - step)) / 2e-3 == pytest.approx(length, rel=0.02)
    assert not total(e).requires_grad


def test_an_explanation_at_the_embeddings_of_a_text_is_the_explanation_of_the_text():
    classifier = strong_classifier("bert")
    batch = example_batch(classifier, pairs=True, masked=True)
    classifier.model.eval()
    with torch.no_grad():
        expected_logits = classifier.logits(batch)
    for measure in DIFFERENTIABLE:
        point = classifier.embed(batch).requires_grad_()
        logits, importance = measure.at(classifier, batch, point, TARGETS)
        assert importance.requires_grad
        expected = measure.explain(classifier, batch, TARGETS, 0)
        torch.testing.assert_close(importance.detach(), expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(logits.detach(), expected_logits, atol=1e-5, rtol=1e-5)


# ------------------------------------------------------------------------------------------- the search


@BOTH
@EVERY_MEASURE
def test_a_search_keeps_the_prediction_and_the_budget_and_beats_chance(
    trained, texts, measure, constrained, watched, monkeypatch
):
    monkeypatch.setattr(module, "RATE", 1.0)  # the toy is small and its gradients are, too
    found = adversarial(trained, texts, measure, constrained=constrained, seed=0, steps=25, budget=0.25)
    assert found["top_k_sum_change"].mean() > 2 * max(0, found["random_top_k_sum_change"].mean())
    assert (found["top_k_sum_change"] > found["random_top_k_sum_change"]).mean() > 0.8
    assert found["rank_change"].mean() >= found["random_rank_change"].mean()
    assert watched
    for part, delta in watched:
        assert float(delta.abs().max()) <= 0.25
        assert float(delta.abs().max()) > 0.01
        assert (delta[~part.movable[..., 0]] == 0).all()
        with torch.no_grad():
            answers = trained.logits_from(part.batch, part.embeddings + delta).argmax(dim=1)
            assert torch.equal(answers, trained.logits_from(part.batch, part.embeddings).argmax(dim=1))


def test_steps_that_change_the_prediction_are_walked_through_and_never_kept(trained, texts, watched, monkeypatch):
    """Lowering the importance of what speaks for a class may change the class: such a point must not be the answer."""
    crossed, slope = [], module._slope

    def watching(classifier, now, delta, search):
        found = slope(classifier, now, delta, search)
        crossed.extend((found[1] != now.targets).tolist())
        return found

    monkeypatch.setattr(module, "_slope", watching)
    monkeypatch.setattr(module, "RATE", 1.0)
    found = adversarial(trained, texts, IMPORTANCE_MEASURES["x-grad-signed"], constrained=False, seed=0, steps=60)
    assert sum(crossed) > 5
    for part, delta in watched:
        with torch.no_grad():
            assert torch.equal(trained.logits_from(part.batch, part.embeddings + delta).argmax(dim=1), part.targets)
    assert (found["top_k_sum_change"] > 0).all()


def test_the_penalty_keeps_the_probability_near(trained, texts):
    measure = IMPORTANCE_MEASURES["x-grad-signed"]
    free, held = (
        adversarial(trained, texts, measure, constrained=constrained, seed=0, steps=40, beta=1000.0)
        for constrained in (False, True)
    )
    assert np.abs(held["probability_change"]).mean() < 0.3 * np.abs(free["probability_change"]).mean()
    assert held["top_k_sum_change"].mean() > 0


@EVERY_MEASURE
def test_a_text_is_attacked_alone_as_it_is_among_others(measure):
    classifier = strong_classifier("bert")
    batch = example_batch(classifier)
    together = adversarial(classifier, batch, measure, constrained=True, seed=3, steps=5)
    for row in range(len(batch)):
        single = adversarial(classifier, alone(batch, row), measure, constrained=True, seed=3, steps=5)
        for name, values in single.items():
            assert values[0] == pytest.approx(together[name][row], abs=1e-4), name


def test_a_search_that_rests_ends_and_the_others_go_on(trained, texts, monkeypatch):
    passes, slope = [], module._slope

    def counting(classifier, now, delta, search):
        passes.append(len(now.batch))
        value, answers, gradient = slope(classifier, now, delta, search)
        resting = now.batch.rows < 3
        return value, answers, gradient.masked_fill(resting[:, None, None], 1e-5)

    monkeypatch.setattr(module, "_slope", counting)
    adversarial(trained, texts, IMPORTANCE_MEASURES["x-grad-signed"], constrained=False, seed=0, steps=30)
    # 20 steps of .1 · 1e-5 and less end three of the eight searches; the last of 31 points is looked at, too
    assert passes == 20 * [8] + 11 * [5]


def test_the_learning_rate_is_halved_every_two_hundred_steps(trained, texts, monkeypatch):
    places = []

    def sliding(_classifier, now, delta, _search):
        places.append(float(delta[0][now.movable[0, :, 0]][0, 0]))
        flat = torch.zeros(len(now.batch))
        return flat, now.targets, torch.full_like(delta, 0.01)

    monkeypatch.setattr(module, "_slope", sliding)
    adversarial(trained, texts, IMPORTANCE_MEASURES["x-grad-signed"], constrained=False, seed=0)
    assert len(places) == 501
    assert places[200] == pytest.approx(0.2, abs=1e-4)  # 200 steps of .1 · .01
    assert places[400] == pytest.approx(0.3, abs=1e-4)  # and 200 of .05 · .01
    assert places[500] == pytest.approx(0.325, abs=1e-4)  # and 100 of .025 · .01


def test_the_random_perturbation_is_as_large_and_belongs_to_seed_and_row():
    delta, movable = torch.zeros(4, 3), torch.tensor([False, True, True, False])
    delta[movable] = torch.tensor([[1.0, -2.0, 3.0], [0.0, 5.0, 0.5]])
    shuffled = module._shuffled(delta, movable, 7, 0)
    assert (shuffled[~movable] == 0).all()
    assert sorted(shuffled.abs().flatten().tolist()) == sorted(delta.abs().flatten().tolist())
    assert torch.equal(shuffled, module._shuffled(delta, movable, 7, 0))
    assert not torch.equal(shuffled, module._shuffled(delta, movable, 8, 0))
    assert not torch.equal(shuffled, module._shuffled(delta, movable, 7, 1))


def test_a_text_without_a_token_to_explain_has_no_number_and_the_model_is_left_as_it_was(trained, texts):
    model, measure = trained.model, IMPORTANCE_MEASURES["scaled-attention"]
    nothing = replace(texts, masked=texts.maskable & (texts.rows < 2)[:, None])
    model.train()
    try:
        weights = [parameter.detach().clone() for parameter in model.parameters()]
        learnt = [parameter.requires_grad for parameter in model.parameters()]
        with torch.inference_mode():
            found = adversarial(trained, nothing, measure, constrained=True, seed=0, steps=2)
        assert all(np.isnan(values[:2]).all() and np.isfinite(values[2:]).all() for values in found.values())
        assert all(map(torch.equal, weights, model.parameters()))
        assert [parameter.requires_grad for parameter in model.parameters()] == learnt
        assert all(parameter.grad is None for parameter in model.parameters())
        assert all(part.training and not part._forward_hooks for part in model.modules())
    finally:
        model.eval()
    everything = adversarial(trained, texts.with_masked(texts.maskable), measure, constrained=True, seed=0)
    assert all(np.isnan(values).all() for values in everything.values())


def test_a_measure_without_a_gradient_is_refused_in_words(trained, texts):
    for measure in (IMPORTANCE_MEASURES["beam"], as_measure(lambda *_: torch.zeros(texts.maskable.shape))):
        with pytest.raises(InputError, match="cannot be differentiated"):
            adversarial(trained, texts, measure, constrained=False, seed=0)
