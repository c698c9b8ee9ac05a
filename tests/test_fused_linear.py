import pytest
import torch
from conftest import ARCHITECTURES, random_classifier
from importance.reference import example_batch, strong_classifier

from faithmeter.borrowing import evaluating
from faithmeter.fused_linear import _operator, fused_linears


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_fused_layers_say_the_same_and_leave_no_trace(architecture):
    classifier = strong_classifier(architecture)
    batch = example_batch(classifier, pairs=True, masked=True)
    with evaluating(classifier.model), torch.inference_mode():
        expected = classifier.logits(batch)
        with fused_linears(classifier.model):
            torch.testing.assert_close(classifier.logits(batch), expected, atol=1e-5, rtol=1e-5)
        assert torch.equal(classifier.logits(batch), expected)
    assert not any("forward" in vars(module) for module in classifier.model.modules())


@pytest.mark.skipif(_operator() is None, reason="this build of torch has no oneDNN")
def test_layers_are_fused_only_without_gradients_and_only_where_nobody_listens():
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
