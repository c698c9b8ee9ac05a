"""SmoothGrad, GradientSHAP and sequential integrated gradients: the formulas, one point at a time, and captum's."""

from functools import partial

import numpy as np
import pytest
import torch
from importance.reference import (
    TARGETS,
    alone,
    example_batch,
    gradient,
    logit_of_embeddings,
    references,
    strong_classifier,
    word_embeddings,
)

from faithmeter.data.units import with_units
from faithmeter.importance.gradient import gradient_l2, input_times_gradient
from faithmeter.importance.measure import with_steps
from faithmeter.importance.occlusion import leave_one_out
from faithmeter.importance.points import (
    NOISE,
    gradient_shap,
    sequential_integrated_gradient,
    smooth_gradient,
    smooth_input_times_gradient,
)
from faithmeter.importance.table import IMPORTANCE_MEASURES
from faithmeter.masking import Purpose, random_stream

SHAPES = pytest.mark.parametrize("architecture", ["bert", "roberta", "t5", "gpt2"])


def draws(batch, point, seed=5):
    return random_stream(seed, Purpose.EMBEDDING_NOISE, int(batch.rows[0]), point)


def noise_of(random, e):
    return torch.from_numpy(random.standard_normal(e.shape[1:], dtype=np.float32))[None]


def mean_gradient(classifier, batch, target, points):
    """The mean over noisy copies of the text, one after the other."""
    e = word_embeddings(classifier, batch)
    deviation = float(np.std(e.numpy()))
    noisy = [e + NOISE * deviation * noise_of(draws(batch, point), e) for point in range(points)]
    return sum(gradient(classifier, batch, one, target) for one in noisy)[0] / points


def smooth(classifier, batch, target, points=4):
    words = classifier.model.get_input_embeddings().weight.detach()
    return (mean_gradient(classifier, batch, target, points) @ words.T).norm(dim=1)


def smooth_x(classifier, batch, target, points=4):
    return (mean_gradient(classifier, batch, target, points) * word_embeddings(classifier, batch)[0]).sum(dim=1)


def mask_embedding(classifier):
    return classifier.model.get_input_embeddings().weight.detach()[classifier.tokenizer.mask_token_id]


def path_of(classifier, batch, point):
    """The share of the way and the baseline that a point is drawn with."""
    e = word_embeddings(classifier, batch)
    random = draws(batch, point)
    share = random.random()
    return share, mask_embedding(classifier) + NOISE * float(np.std(e.numpy())) * noise_of(random, e)


def shap_by_gradients(classifier, batch, target, points=4):
    e, total = word_embeddings(classifier, batch), 0.0
    for point in range(points):
        share, baseline = path_of(classifier, batch, point)
        at = share * e + (1 - share) * baseline
        total = total + ((e - baseline) * gradient(classifier, batch, at, target)).sum(dim=-1)[0]
    return total / points


def sequential(classifier, batch, target, steps=4):
    e, start = word_embeddings(classifier, batch), mask_embedding(classifier)
    importance = torch.zeros(e.shape[1])
    for t in range(e.shape[1]):
        if batch.masked[0, t]:
            continue
        baseline = e.clone()
        baseline[0, t] = start
        for i in range(1, steps + 1):
            g = gradient(classifier, batch, baseline + i / steps * (e - baseline), target)
            importance[t] += ((e - baseline) * g)[0, t].sum() / steps
    return importance


FORMULAS = {
    smooth_gradient: smooth,
    smooth_input_times_gradient: smooth_x,
    gradient_shap: shap_by_gradients,
}


@SHAPES
@pytest.mark.parametrize("explain", FORMULAS)
def test_gradients_at_noisy_points_equal_their_formula(explain, architecture):
    classifier = strong_classifier(architecture)
    batch = example_batch(classifier, pairs=True, masked=True)
    expected = references(FORMULAS[explain], classifier, batch)
    assert expected.abs().max() > 1e-3
    found = explain(classifier, batch, TARGETS, 5, points=4)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_without_noise_smoothed_gradients_are_the_gradients():
    classifier = strong_classifier("bert")
    batch = example_batch(classifier)
    for smoothed, plain in ((smooth_gradient, gradient_l2), (smooth_input_times_gradient, input_times_gradient)):
        found = smoothed(classifier, batch, TARGETS, 0, points=3, noise=0.0)
        torch.testing.assert_close(found, plain(classifier, batch, TARGETS, 0), atol=1e-5, rtol=1e-5)
        assert not torch.allclose(smoothed(classifier, batch, TARGETS, 0, points=3), found, atol=1e-3)


def test_noise_belongs_to_the_seed_and_the_dataset_row_and_not_to_the_batch():
    classifier = strong_classifier("bert")
    encoded = classifier.encode(["the film was great", "not bad at all, it was", "the film was great"])
    for explain in FORMULAS:
        together = explain(classifier, encoded.batch([1, 0]), TARGETS[:2], 3, points=3)
        single = explain(classifier, encoded.batch([0]), TARGETS[1:2], 3, points=3)
        torch.testing.assert_close(single[0], together[1, : single.shape[1]], atol=1e-5, rtol=1e-5)
        for row, seed in ((2, 3), (0, 4)):
            other = explain(classifier, encoded.batch([row]), TARGETS[1:2], seed, points=3)
            assert not torch.allclose(other, single, atol=1e-4)


def forward_of(classifier, one):
    def forward(embeddings):
        types = {} if one.token_type_ids is None else {"token_type_ids": one.token_type_ids.expand(len(embeddings), -1)}
        attention = one.attention_mask.expand(len(embeddings), -1)
        return classifier.model(inputs_embeds=embeddings, attention_mask=attention, **types).logits

    return forward


def test_smoothed_gradients_are_those_of_captum_with_the_same_noise(monkeypatch):
    attr = pytest.importorskip("captum.attr")
    classifier = strong_classifier("bert")
    classifier.model.eval()
    batch = example_batch(classifier)

    def with_captum(classifier, one, target):
        e = word_embeddings(classifier, one)
        deviation = NOISE * float(np.std(e.numpy()))
        drawn = torch.cat([deviation * noise_of(draws(one, point), e) for point in range(4)])
        monkeypatch.setattr(torch, "normal", lambda _, spread: drawn.reshape(spread.shape))
        tunnel = attr.NoiseTunnel(attr.Saliency(forward_of(classifier, one)))
        found = tunnel.attribute(e, target=target, nt_samples=4, nt_type="smoothgrad", stdevs=deviation, abs=False)
        return (found * e).sum(dim=-1)[0].detach()

    expected = references(with_captum, classifier, batch)
    found = smooth_input_times_gradient(classifier, batch, TARGETS, 5, points=4)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_gradient_shap_is_that_of_captum_with_the_same_baselines_and_points(monkeypatch):
    attr = pytest.importorskip("captum.attr")
    classifier = strong_classifier("bert")
    classifier.model.eval()
    batch = example_batch(classifier)

    def with_captum(classifier, one, target):
        e = word_embeddings(classifier, one)
        paths = [path_of(classifier, one, point) for point in range(4)]
        monkeypatch.setattr(np.random, "choice", lambda _, count: np.arange(count))
        monkeypatch.setattr(np.random, "uniform", lambda *_: np.array([share for share, _ in paths]))
        found = attr.GradientShap(forward_of(classifier, one)).attribute(
            e, baselines=torch.cat([baseline for _, baseline in paths]), target=target, n_samples=4, stdevs=0.0
        )
        return found.sum(dim=-1)[0].detach()

    expected = references(with_captum, classifier, batch)
    found = gradient_shap(classifier, batch, TARGETS, 5, points=4)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_gradient_shap_without_noise_adds_up_to_the_difference_of_the_logits_from_mask_embeddings():
    classifier = strong_classifier("bert")
    batch = alone(example_batch(classifier), 0)
    everything = batch.__class__(**{**vars(batch), "maskable": torch.ones_like(batch.maskable)})
    e = word_embeddings(classifier, batch)
    with torch.no_grad():
        start = mask_embedding(classifier).expand_as(e)
        ends = [float(logit_of_embeddings(classifier, batch, point, 0)) for point in (e, start)]
    found = gradient_shap(classifier, everything, TARGETS[:1], 0, points=2000, noise=0.0)
    assert float(found.sum()) == pytest.approx(ends[0] - ends[1], abs=0.03 * abs(ends[0] - ends[1]))


@SHAPES
def test_sequential_integrated_gradients_equal_their_formula(architecture):
    classifier = strong_classifier(architecture)
    batch = example_batch(classifier, pairs=True, masked=True)
    expected = references(sequential, classifier, batch)
    found = sequential_integrated_gradient(classifier, batch, TARGETS, 0, steps=4)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    row = with_steps(IMPORTANCE_MEASURES["sequential-ig"], 4)
    assert torch.equal(row.explain(classifier, batch, TARGETS, 0), found)
    assert row.passes(7) == 3 * 4 * 7


@pytest.mark.parametrize("by", ["token", "word"])
def test_sequential_integrated_gradients_become_leave_one_out_with_many_steps(by):
    classifier = strong_classifier("bert")
    texts = ["it was not awful at all", "great"]
    batch = with_units(classifier.encode(texts), classifier, texts, by=by).batch([0, 1])
    exact = leave_one_out(classifier, batch, TARGETS[:2], 0)
    explain = partial(sequential_integrated_gradient, classifier, batch, TARGETS[:2], 0)
    errors = [float((explain(steps=steps) - exact).abs().max()) for steps in (10, 300)]
    assert errors[1] < 0.01 * float(exact.abs().max())
    assert errors[1] < errors[0] / 10
