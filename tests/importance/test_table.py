"""One conformance suite: every row of the table, on every architecture."""

import functools

import pytest
import torch
from conftest import ARCHITECTURES
from importance.reference import SHORT, TARGETS, TEXTS, alone, any_classifier, example_batch, strong_classifier

from faithmeter.errors import InputError
from faithmeter.importance.gradient import integrated_gradient
from faithmeter.importance.measure import ImportanceMeasure, with_steps
from faithmeter.importance.table import IMPORTANCE_MEASURES, as_measure
from faithmeter.models.fast.choice import DEFAULT, Choice
from faithmeter.models.fast.fused_linear import available
from faithmeter.models.fast.options import PassOptions


@functools.cache
def classifier_of(architecture):
    """One for all measures; nothing is measured between two that must be equal to the last digit."""
    classifier = any_classifier(architecture)
    layers = DEFAULT.linear_layers if available() else "torch"
    classifier.choice = Choice(classifier.model, PassOptions(layers, DEFAULT.tokens))
    return classifier


EVERYWHERE = [
    pytest.param(measure, architecture, id=f"{measure.name}-{architecture}")
    for architecture in (*ARCHITECTURES, "roformer", "bilstm-attention")
    for measure in IMPORTANCE_MEASURES.values()
    if measure.explains(architecture)
]
EVERY_MEASURE_EVERYWHERE = pytest.mark.parametrize(("measure", "architecture"), EVERYWHERE)


def test_the_table_holds_the_measures_of_the_paper_under_their_own_names():
    assert list(IMPORTANCE_MEASURES) == [
        "random", "grad-l1", "grad-l2", "x-grad-signed", "x-grad-abs", "ig-signed", "ig-abs", "loo-signed", "loo-abs",
        "loo-sampled", "beam", "search", "attention", "scaled-attention", "lime", "kernel-shap", "attention-average",
        "attention-rollout", "attention-rollout-residual", "deep-lift", "ensemble-top3", "ensemble-all",
        "ig-mask-signed", "ig-mask-abs", "smooth-grad", "smooth-x-grad", "gradient-shap", "sequential-ig",
        "shapley-sampled", "banzhaf", "partition-shap", "chefer", "attn-lrp",
    ]  # fmt: skip
    assert all(name == measure.name for name, measure in IMPORTANCE_MEASURES.items())
    assert all(measure.differentiable == (measure.at is not None) for measure in IMPORTANCE_MEASURES.values())
    assert {name for name, measure in IMPORTANCE_MEASURES.items() if not measure.recursive} == {
        "random",
        "beam",
        "search",
    }


@EVERY_MEASURE_EVERYWHERE
def test_importance_is_one_finite_number_a_maskable_token_and_zero_elsewhere(measure, architecture):
    classifier = classifier_of(architecture)
    batch = example_batch(classifier, pairs=True, masked=True, texts=SHORT)
    importance = measure.explain(classifier, batch, TARGETS, 0)
    assert importance.shape == batch.input_ids.shape
    assert importance.dtype == torch.float32
    assert not importance.requires_grad
    assert importance.isfinite().all()
    assert (importance[~batch.maskable] == 0).all()
    assert (importance[batch.maskable & ~batch.masked] != 0).float().mean() > 0.5


@functools.cache
def explained(name, architecture):
    """A padded batch explained by a measure, for the two claims that compare with it."""
    classifier = classifier_of(architecture)
    batch = example_batch(classifier, pairs=True, texts=SHORT)
    return IMPORTANCE_MEASURES[name].explain(classifier, batch, TARGETS, 3)


@EVERY_MEASURE_EVERYWHERE
def test_a_text_has_the_same_importance_alone_as_padded_in_a_batch(measure, architecture):
    classifier = classifier_of(architecture)
    batch = example_batch(classifier, pairs=True, texts=SHORT)
    together = explained(measure.name, architecture)
    for row in range(len(batch)):
        one = alone(batch, row)
        single = measure.explain(classifier, one, TARGETS[row : row + 1], 3)
        torch.testing.assert_close(single[0], together[row, : single.shape[1]], atol=1e-5, rtol=1e-5)


@EVERY_MEASURE_EVERYWHERE
def test_the_same_seed_gives_the_same_importance_and_the_model_is_left_as_it_was(measure, architecture):
    classifier = classifier_of(architecture)
    model, batch = classifier.model, example_batch(classifier, pairs=True, texts=SHORT)
    expected = explained(measure.name, architecture)
    parameters = list(model.parameters())
    model.train()
    first, frozen = next(model.children()), parameters[0]
    first.eval()  # a mode that differs inside the model, a frozen parameter and a gradient are kept too
    learnt = parameters[-1]
    was_learnt = frozen.requires_grad
    frozen.requires_grad_(False)
    learnt.grad = torch.ones_like(learnt)
    try:
        before = [(p.detach().clone(), p.requires_grad, p.grad is None) for p in parameters]
        modes = [module.training for module in model.modules()]
        hooks = [len(module._forward_hooks) for module in model.modules()]
        assert torch.equal(measure.explain(classifier, batch, TARGETS, 3), expected)
        for parameter, (value, requires_grad, no_gradient) in zip(parameters, before, strict=True):
            assert torch.equal(parameter, value)
            assert parameter.requires_grad == requires_grad
            assert (parameter.grad is None) == no_gradient
        assert torch.equal(learnt.grad, torch.ones_like(learnt))
        assert [module.training for module in model.modules()] == modes
        assert [len(module._forward_hooks) for module in model.modules()] == hooks
        assert not any("forward" in vars(module) for module in model.modules())
    finally:
        learnt.grad = None
        frozen.requires_grad_(was_learnt)
        model.eval()


@pytest.mark.parametrize(
    ("measure", "architecture"), [one for one in EVERYWHERE if one.values[1] in ("bert", "bilstm-attention")]
)
def test_importance_can_be_asked_for_where_gradients_are_switched_off(measure, architecture):
    classifier = classifier_of(architecture)

    def explain():
        return measure.explain(classifier, example_batch(classifier, pairs=True, texts=SHORT), TARGETS, 0)

    expected = explain()
    with torch.no_grad():
        assert torch.equal(explain(), expected)
    with torch.inference_mode():
        assert torch.equal(explain(), expected)


@pytest.mark.parametrize("name", ["grad-l2", "ig-signed", "loo-signed", "beam", "search"])
def test_the_model_is_left_as_it_was_when_it_fails(name, monkeypatch):
    classifier = strong_classifier("bert")
    classifier.model.train()
    batch = example_batch(classifier, texts=SHORT)
    broken = classifier.model.classifier
    monkeypatch.setattr(broken, "forward", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        IMPORTANCE_MEASURES[name].explain(classifier, batch, TARGETS, 0)
    assert all(module.training for module in classifier.model.modules())
    assert all(parameter.requires_grad for parameter in classifier.model.parameters())
    assert not classifier.model.get_input_embeddings()._forward_hooks
    assert "forward" not in vars(classifier.model.bert.encoder.layer[-1])


def test_random_importance_follows_seed_and_dataset_row_only():
    classifier, explain = classifier_of("bert"), IMPORTANCE_MEASURES["random"].explain
    encoded = classifier.encode([*TEXTS, TEXTS[0]])
    both = explain(classifier, encoded.batch([2, 0]), TARGETS[:2], 7)
    other = explain(classifier, encoded.batch([0, 4]), TARGETS[:2], 7)
    width = other.shape[1]
    assert torch.equal(both[1, :width], other[0])
    assert not torch.equal(other[0], other[1])  # the same text in another row of the dataset
    assert not torch.equal(explain(classifier, encoded.batch([0]), TARGETS[:1], 8)[0], other[0])
    many = explain(classifier, encoded.batch([0]), TARGETS[:1], 7)
    assert ((many >= 0) & (many < 1)).all()


def test_a_plain_function_becomes_a_measure_that_is_zero_outside_the_text():
    classifier = classifier_of("bert")
    batch = example_batch(classifier, texts=SHORT)

    def lengths_of_ids(classifier, batch, targets, seed):
        return batch.input_ids.double() + 1

    measure = as_measure(lengths_of_ids)
    assert (measure.name, measure.family, measure.recursive) == ("lengths_of_ids", "custom", True)
    importance = measure.explain(classifier, batch, TARGETS, 0)
    assert importance.dtype == torch.float32
    assert torch.equal(importance, (batch.input_ids + 1.0) * batch.maskable)
    assert as_measure(measure) is measure
    assert as_measure("beam") is IMPORTANCE_MEASURES["beam"]
    assert isinstance(measure, ImportanceMeasure)


def test_a_wrong_name_a_wrong_shape_and_a_number_that_is_not_finite_are_refused_in_words():
    classifier = classifier_of("bert")
    batch = example_batch(classifier, texts=SHORT)
    with pytest.raises(InputError, match=r"no importance measure 'loo-sined'\. Did you mean 'loo-signed'"):
        as_measure("loo-sined")
    with pytest.raises(InputError, match="one number per token"):
        as_measure(lambda *_: torch.zeros(2, 2)).explain(classifier, batch, TARGETS, 0)
    with pytest.raises(InputError, match="not finite"):
        as_measure(lambda *_: torch.full(batch.input_ids.shape, torch.nan)).explain(classifier, batch, TARGETS, 0)


def test_integrated_gradients_take_another_number_of_steps_and_other_measures_do_not():
    classifier, batch = classifier_of("bert"), example_batch(classifier_of("bert"), texts=SHORT)
    signed, absolute = (with_steps(IMPORTANCE_MEASURES[f"ig-{kind}"], 3) for kind in ("signed", "abs"))
    expected = integrated_gradient(classifier, batch, TARGETS, 0, steps=3)
    assert torch.equal(signed.explain(classifier, batch, TARGETS, 0), expected)
    assert torch.equal(absolute.explain(classifier, batch, TARGETS, 0), expected.abs())
    assert signed.passes(7) == 9
    assert not torch.equal(expected, IMPORTANCE_MEASURES["ig-signed"].explain(classifier, batch, TARGETS, 0))
    from_mask = integrated_gradient(classifier, batch, TARGETS, 0, steps=3, baseline="mask")
    for name, expected in (("ig-mask-signed", from_mask), ("ig-mask-abs", from_mask.abs())):
        assert torch.equal(with_steps(IMPORTANCE_MEASURES[name], 3).explain(classifier, batch, TARGETS, 0), expected)
    assert with_steps(IMPORTANCE_MEASURES["beam"], 3) is IMPORTANCE_MEASURES["beam"]
