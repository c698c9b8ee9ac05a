"""Gradient measures against the formulas, written naively, and against captum."""

import pytest
import torch
from importance.reference import (
    REFERENCES,
    SHAPES,
    TARGETS,
    alone,
    example_batch,
    ig,
    logit_of_embeddings,
    references,
    strong_classifier,
    word_embeddings,
)  # fmt: skip

from faithmeter.errors import InputError
from faithmeter.importance import gradient as gradient_module
from faithmeter.importance.gradient import integrated_gradient
from faithmeter.importance.table import IMPORTANCE_MEASURES

EVERY_KIND = pytest.mark.parametrize(("pairs", "masked"), [(False, False), (False, True), (True, False), (True, True)])


@EVERY_KIND
@pytest.mark.parametrize("architecture", SHAPES)
@pytest.mark.parametrize("name", ["grad-l1", "grad-l2", "x-grad-signed", "ig-signed", "ig-mask-signed"])
def test_a_gradient_measure_equals_its_formula(name, architecture, pairs, masked):
    classifier = strong_classifier(architecture)
    batch = example_batch(classifier, pairs=pairs, masked=masked)
    expected = references(REFERENCES[name], classifier, batch)
    found = IMPORTANCE_MEASURES[name].explain(classifier, batch, TARGETS, 0)
    # DeBERTa without positions and types normalises the word embedding itself, so its length has no gradient
    assert expected.abs().max() > 1e-3 or (architecture == "deberta" and not name.startswith("grad"))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["x-grad", "ig", "ig-mask"])
def test_an_absolute_measure_is_the_absolute_value_of_the_signed_one(name):
    classifier = strong_classifier("bert")
    batch = example_batch(classifier)
    signed, absolute = (
        IMPORTANCE_MEASURES[f"{name}-{v}"].explain(classifier, batch, TARGETS, 0) for v in ("signed", "abs")
    )
    assert (signed < 0).any()
    assert torch.equal(absolute, signed.abs())


@pytest.mark.parametrize("architecture", SHAPES)
@pytest.mark.parametrize("name", ["mask", "pad"])
def test_integrated_gradient_starts_from_the_baseline_asked_for(name, architecture):
    classifier = strong_classifier(architecture)
    batch = example_batch(classifier)
    token = getattr(classifier.tokenizer, f"{name}_token_id")
    start = classifier.model.get_input_embeddings().weight.detach()[token]
    expected = references(lambda *given: ig(*given, baseline=start, steps=7), classifier, batch)
    found = integrated_gradient(classifier, batch, TARGETS, 0, steps=7, baseline=name)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(found, integrated_gradient(classifier, batch, TARGETS, 0, steps=7), atol=1e-4)


def test_an_unknown_baseline_is_refused():
    classifier = strong_classifier("bert")
    with pytest.raises(InputError, match="no baseline 'nought'"):
        integrated_gradient(classifier, example_batch(classifier), TARGETS, 0, baseline="nought")


def test_integrated_gradient_of_many_steps_adds_up_to_the_difference_of_the_logits():
    # completeness: Σ over all tokens of ⟨e − b, ∫ g⟩ = logit(e) − logit(b); the special tokens' part is left to measure
    classifier = strong_classifier("bert")
    batch = alone(example_batch(classifier), 0)
    everything = batch.__class__(**{**vars(batch), "maskable": torch.ones_like(batch.maskable)})
    e = word_embeddings(classifier, batch)
    with torch.no_grad():
        ends = [float(logit_of_embeddings(classifier, batch, point, 0)) for point in (e, 0 * e)]
    found = integrated_gradient(classifier, everything, TARGETS[:1], 0, steps=2000)
    assert float(found.sum()) == pytest.approx(ends[0] - ends[1], abs=5e-3)


def test_norms_over_the_vocabulary_worked_by_hand():
    words = torch.tensor([[1.0, 0.0], [0.0, -2.0], [3.0, 1.0]])
    gradients = torch.tensor([[1.0, 2.0], [0.0, 0.0], [-1.0, 1.0]])
    # W g = (1, −4, 5), (0, 0, 0), (−1, −2, −2)
    torch.testing.assert_close(gradient_module._l1_over_vocabulary(gradients, words), torch.tensor([10.0, 0.0, 5.0]))
    by_gram = gradient_module.l2_over_vocabulary(gradients, words)
    directly = gradient_module.l2_over_vocabulary(gradients[:1], words)  # fewer tokens than dimensions
    torch.testing.assert_close(by_gram, torch.tensor([42.0**0.5, 0.0, 3.0]))
    torch.testing.assert_close(directly, torch.tensor([42.0**0.5]))


def test_norms_do_not_depend_on_where_the_tiles_end():
    generator = torch.Generator().manual_seed(0)
    tokens, vocabulary = gradient_module.TILE_TOKENS + 3, gradient_module.TILE_VOCABULARY + 5
    gradients, words = (torch.randn(n, 4, generator=generator) for n in (tokens, vocabulary))
    products = gradients @ words.T
    torch.testing.assert_close(
        gradient_module._l1_over_vocabulary(gradients, words), products.abs().sum(1), rtol=1e-5, atol=0
    )
    torch.testing.assert_close(
        gradient_module.l2_over_vocabulary(gradients, words), products.norm(dim=1), rtol=1e-5, atol=0
    )


@EVERY_KIND
@pytest.mark.parametrize("architecture", SHAPES)
def test_integrated_gradient_and_input_times_gradient_equal_captums(architecture, pairs, masked):
    attr = pytest.importorskip("captum.attr")
    classifier = strong_classifier(architecture)
    classifier.model.eval()
    batch = example_batch(classifier, pairs=pairs, masked=masked)

    def with_captum(classifier, one, target):
        def forward(embeddings):
            types = (
                {} if one.token_type_ids is None else {"token_type_ids": one.token_type_ids.expand(len(embeddings), -1)}
            )
            attention = one.attention_mask.expand(len(embeddings), -1)
            return classifier.model(inputs_embeds=embeddings, attention_mask=attention, **types).logits

        e = word_embeddings(classifier, one).requires_grad_()
        if name == "ig-signed":
            found = attr.IntegratedGradients(forward).attribute(e, target=target, n_steps=20, method="riemann_right")
        else:
            found = attr.InputXGradient(forward).attribute(e, target=target)
        return found.sum(dim=-1)[0].detach()

    for name in ("ig-signed", "x-grad-signed"):
        expected = references(with_captum, classifier, batch)
        found = IMPORTANCE_MEASURES[name].explain(classifier, batch, TARGETS, 0)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
