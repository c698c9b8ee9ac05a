import pytest
import torch
from conftest import ARCHITECTURES, random_classifier
from importance.reference import example_batch, strong_classifier
from torch import nn
from torch.nn.functional import linear

from faithmeter.models.fast import fused_linear
from faithmeter.models.fast.fused_linear import available, fused_linears, trained_linears
from faithmeter.models.temporary import evaluating, explaining, twice_differentiable

needs_onednn = pytest.mark.skipif(not available(), reason="this build of torch has no oneDNN")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("worth", [0, 10**6])
def test_fused_layers_say_the_same_and_leave_no_trace(architecture, worth, monkeypatch):
    monkeypatch.setattr(fused_linear, "WORTH", worth)
    classifier = strong_classifier(architecture)
    batch = example_batch(classifier, pairs=True, masked=True)
    with evaluating(classifier.model), torch.inference_mode():
        expected = classifier.logits(batch)
        with fused_linears(classifier.model):
            torch.testing.assert_close(classifier.logits(batch), expected, atol=1e-5, rtol=1e-5)
        assert torch.equal(classifier.logits(batch), expected)
    assert not any("forward" in vars(module) for module in classifier.model.modules())


@needs_onednn
def test_layouts_that_are_kept_are_used_from_the_first_pass_so_that_no_answer_depends_on_those_before():
    layer, kept = nn.Linear(8, 8), {}
    few = torch.ones(1, 8)  # one token is not worth a layout that is thrown away afterwards
    with torch.inference_mode():
        with fused_linears(layer):
            layer(few)
            assert layer.forward.there is None
        with fused_linears(layer, kept):
            first = layer(few)
        assert kept[layer].there is not None
        with fused_linears(layer, kept):
            layer(torch.ones(fused_linear.WORTH, 8))
            assert torch.equal(layer(few), first)


@needs_onednn
@pytest.mark.parametrize("worth", [0, 10**6], ids=["laid out", "as they are"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_gradients_through_fused_layers_are_the_same_once_and_twice(architecture, worth, monkeypatch):
    classifier = strong_classifier(architecture)
    batch = example_batch(classifier, pairs=True, masked=True)
    direction = torch.randn(classifier.embed(batch).shape, generator=torch.manual_seed(0))
    monkeypatch.setattr(fused_linear, "WORTH", worth)
    monkeypatch.setattr(fused_linear, "LARGE", 0)  # or weights as small as these would be left to torch

    def gradients():
        point = classifier.embed(batch).requires_grad_()
        logits, gradient = classifier.logits_and_gradients(batch, point, batch.labels)
        (second,) = torch.autograd.grad((gradient * direction).sum(), point)
        return logits.detach(), gradient.detach(), second

    with explaining(classifier.model):
        expected = gradients()
        with fused_linears(classifier.model):
            found = gradients()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@needs_onednn
def test_weights_are_laid_out_once_they_are_worth_it_and_never_where_they_learn(monkeypatch):
    layer = nn.Linear(8, 4)
    model = nn.Sequential(layer)
    few, many = torch.randn(1, fused_linear.WORTH - 1, 8), torch.randn(3, fused_linear.WORTH, 8)
    with fused_linears(model):
        model(many).sum().backward()
        assert layer.weight.grad is not None
        assert layer.forward.there is None  # its weights ask for a gradient
        layer.requires_grad_(False)
        model(few)
        assert layer.forward.there is None
        model(few)
        assert layer.forward.there is not None
        assert layer.forward.back is None  # nothing has asked for a gradient
        assert "_Product" not in model(many.requires_grad_()).grad_fn.name()  # too small to be worth it
        monkeypatch.setattr(fused_linear, "LARGE", 0)
        found = model(many)
    torch.testing.assert_close(found, model(many))
    assert "_Product" in found.grad_fn.name()


@needs_onednn
def test_weights_that_change_between_two_uses_are_laid_out_anew():
    layer = nn.Linear(8, 4)
    states = torch.randn(1, fused_linear.WORTH, 8)
    for _ in range(2):
        with fused_linears(layer), torch.inference_mode():
            found = layer(states)
        torch.testing.assert_close(found, linear(states, layer.weight, layer.bias), atol=1e-6, rtol=1e-5)
        layer.weight.data.mul_(2)  # which torch keeps no count of


@needs_onednn
def test_layers_are_fused_only_where_nobody_listens():
    model = random_classifier("bert").model.eval()
    layer = model.bert.encoder.layer[0]
    heard = []
    layer.intermediate.dense.register_forward_hook(lambda *_: heard.append(1))
    states = torch.randn(2, 3, 32)
    with fused_linears(model):
        assert "forward" in vars(layer.output.dense)
        assert "forward" not in vars(layer.intermediate)  # its linear layer is listened to
        layer.intermediate(states)
        assert heard
        found = layer.output.dense(torch.randn(2, 3, 64).requires_grad_())
        assert found.requires_grad


@needs_onednn
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_training_by_onednn_has_the_same_gradients_of_weights_once_and_twice(architecture, monkeypatch):
    monkeypatch.setattr(fused_linear, "LARGE", 0)  # or weights as small as these would be left to torch
    classifier = strong_classifier(architecture)
    batch = example_batch(classifier, pairs=True, masked=True)
    model = classifier.model
    learnt = {name: one for name, one in model.named_parameters() if one.requires_grad}

    def gradients():
        point = classifier.embed(batch).requires_grad_()
        with evaluating(model), twice_differentiable():
            logits = classifier.logits_from(batch, point)
        loss = torch.nn.functional.cross_entropy(logits, batch.labels)
        first = torch.autograd.grad(loss, list(learnt.values()), create_graph=True, allow_unused=True)
        (by_input,) = torch.autograd.grad(loss, point, create_graph=True)
        second = torch.autograd.grad(by_input.square().sum(), list(learnt.values()), allow_unused=True)
        return [each for each in (logits, *first, by_input, *second) if each is not None]

    expected = gradients()
    with trained_linears(model):
        assert any("forward" in vars(module) for module in model.modules())
        found = gradients()
    assert not any("forward" in vars(module) for module in model.modules())
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-3)


@needs_onednn
def test_trained_layers_follow_their_weights_and_leave_frozen_ones_without_gradient(monkeypatch):
    monkeypatch.setattr(fused_linear, "LARGE", 0)
    layer, states = nn.Linear(8, 4), torch.randn(2, 3, 8)
    with trained_linears(layer):
        assert "_Transposed" in layer(states).grad_fn.next_functions[0][0].name()  # before its shape is as it was
        for _ in range(2):
            torch.testing.assert_close(layer(states), linear(states, layer.weight, layer.bias))
            layer.weight.data.mul_(2)
        layer.weight.requires_grad_(False)
        layer(states).sum().backward()
        assert layer.weight.grad is None
        torch.testing.assert_close(layer.bias.grad, torch.full((4,), 6.0))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert layer(states).dtype == torch.bfloat16  # which autocast sees to where torch computes it
        monkeypatch.setattr(fused_linear, "LARGE", 33)
        assert "_Transposed" not in layer(states).grad_fn.name()
