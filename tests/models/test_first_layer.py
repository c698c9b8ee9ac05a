import pytest
import torch
from conftest import ARCHITECTURES
from importance.reference import example_batch, strong_classifier

from faithmeter.models.fast import first_layer
from faithmeter.models.fast.choice import Choice
from faithmeter.models.fast.options import LINEAR_LAYERS, PassOptions

SHARED = ("bert", "roberta", "roformer")


def maskings(batch, count=40):
    generator = torch.manual_seed(0)
    rows = torch.randint(len(batch), (count,), generator=generator)
    return rows, (torch.rand(count, batch.maskable.shape[1], generator=generator) < 0.4) & batch.maskable[rows]


@pytest.fixture
def used(monkeypatch):
    made, original = [], first_layer.FirstLayer

    def counted(*given):
        made.append(1)
        return original(*given)

    monkeypatch.setattr(first_layer, "FirstLayer", counted)
    return made


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("layers", LINEAR_LAYERS[1:])
def test_maskings_that_share_the_first_layer_give_the_same_logits(architecture, layers, monkeypatch, used):
    classifier = strong_classifier(architecture)
    classifier.choice = Choice(classifier.model, PassOptions(layers, 64))
    batch = example_batch(classifier, pairs=True)
    rows, masked = maskings(batch)
    monkeypatch.setattr(first_layer, "OFTEN", 10**6)
    expected = classifier.logits_of_masks(batch, rows, masked)
    assert not used
    monkeypatch.setattr(first_layer, "OFTEN", 0)
    torch.testing.assert_close(classifier.logits_of_masks(batch, rows, masked), expected, atol=1e-5, rtol=1e-5)
    if architecture in SHARED:
        assert used
    assert not any("forward" in vars(module) for module in classifier.model.modules())
    # each masking by itself, as the model computes it
    model = classifier.model.eval()
    with torch.no_grad():
        alone = torch.cat([classifier.logits(batch.take(rows[[i]]).with_masked(
            masked[[i], : int(batch.attention_mask[rows[i]].sum())])) for i in range(5)])  # fmt: skip
    torch.testing.assert_close(expected[:5], alone, atol=1e-5, rtol=1e-5)
    assert model is classifier.model


def test_a_batch_that_is_divided_for_memory_keeps_its_rows(monkeypatch, used):
    classifier = strong_classifier("bert")
    batch = example_batch(classifier, pairs=True)
    rows, masked = maskings(batch)
    monkeypatch.setattr(first_layer, "OFTEN", 10**6)
    expected = classifier.logits_of_masks(batch, rows, masked)
    monkeypatch.setattr(first_layer, "OFTEN", 0)
    classifier.memory.tokens = 2 * batch.input_ids.shape[1]
    torch.testing.assert_close(classifier.logits_of_masks(batch, rows, masked), expected, atol=1e-5, rtol=1e-5)
    assert used


def test_few_maskings_and_layers_that_somebody_listens_to_share_nothing(monkeypatch, used):
    classifier = strong_classifier("bert")
    batch = example_batch(classifier)
    rows, masked = maskings(batch, first_layer.OFTEN * len(batch) - 1)
    classifier.logits_of_masks(batch, rows, masked)
    assert not used
    monkeypatch.setattr(first_layer, "OFTEN", 0)
    heard = []
    query = classifier.model.bert.encoder.layer[0].attention.self.query
    hook = query.register_forward_hook(lambda *_: heard.append(1))
    classifier.logits_of_masks(batch, rows, masked)
    assert heard
    assert not used
    hook.remove()
    classifier.logits_of_masks(batch, rows, masked)
    assert used
