"""DeepLIFT: hand-made models whose answer is known, captum, and the rule written naively on transformers."""

import pytest
import torch
import transformers
from captum.attr import DeepLift
from conftest import WORDS
from importance.reference import TARGETS, TEXTS, alone, example_batch, references, strong_classifier, word_embeddings
from torch import nn
from transformers.activations import NewGELUActivation
from transformers.modeling_outputs import SequenceClassifierOutput

from faithmeter.importance.deep_lift import NEAR, _rise, deep_lift
from faithmeter.importance.table import IMPORTANCE_MEASURES
from faithmeter.models.classifier import Classifier
from faithmeter.models.from_scratch import small_classifier, word_level_tokenizer

WIDTH = 5


class ToyConfig(transformers.PretrainedConfig):
    model_type = "toy"


class Toy(transformers.PreTrainedModel):
    """Words through one body, their sum through another: logits."""

    config_class = ToyConfig

    def __init__(self, config, words, of_a_word, of_the_sum):
        super().__init__(config)
        self.words, self.of_a_word, self.of_the_sum = nn.Embedding(words, WIDTH), of_a_word, of_the_sum

    def get_input_embeddings(self):
        return self.words

    def read(self, embeddings, attention_mask):
        return self.of_the_sum((self.of_a_word(embeddings) * attention_mask[..., None]).sum(dim=1))

    def forward(self, input_ids, attention_mask, token_type_ids=None):
        return SequenceClassifierOutput(logits=self.read(self.words(input_ids), attention_mask))


def toy(of_a_word, of_the_sum):
    torch.manual_seed(0)
    tokenizer = word_level_tokenizer([" ".join(WORDS), *TEXTS])
    model = Toy(ToyConfig(num_labels=3), len(tokenizer), of_a_word, of_the_sum).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.7)
    return Classifier(model, tokenizer)


class Functions(nn.Module):
    """Activation functions that are called, not kept as modules; one of them in place."""

    def forward(self, states):
        return torch.tanh(nn.functional.relu(states + 0.3, inplace=True)).sigmoid() + nn.functional.gelu(states)


MODULES = (
    lambda: nn.Sequential(nn.Linear(WIDTH, 7), nn.Tanh(), nn.Linear(7, 7), nn.ReLU()),
    lambda: nn.Sequential(nn.Linear(7, 6), nn.Sigmoid(), nn.Linear(6, 6), nn.LeakyReLU(0.2), nn.Linear(6, 3)),
)
NONLINEAR = {
    "modules": MODULES,
    "functions": (
        lambda: nn.Sequential(nn.Linear(WIDTH, 7), Functions()),
        lambda: nn.Sequential(nn.Linear(7, 6), Functions(), nn.Linear(6, 3)),
    ),
    "made of others": (
        lambda: nn.Sequential(nn.Linear(WIDTH, 7), NewGELUActivation()),
        lambda: nn.Sequential(NewGELUActivation(), nn.Linear(7, 3)),
    ),
}


def logits_at_zero(classifier, one):
    return classifier.logits_from(one, torch.zeros(*one.input_ids.shape, WIDTH))


def test_a_linear_model_is_explained_as_input_times_gradient():
    classifier = toy(nn.Linear(WIDTH, 4), nn.Linear(4, 3))
    batch = example_batch(classifier)
    expected = IMPORTANCE_MEASURES["x-grad-signed"].explain(classifier, batch, TARGETS, 0)
    torch.testing.assert_close(deep_lift(classifier, batch, TARGETS, 0), expected, atol=1e-5, rtol=1e-5)


def test_one_relu_by_hand():
    """f = relu(w·e − 1) with w·e = 3: from 0 to 2 while its input goes from −1 to 2, so 2/3 of what goes in goes on."""
    classifier = toy(nn.Identity(), nn.Sequential(nn.Linear(WIDTH, 1), nn.ReLU(), nn.Linear(1, 3, bias=False)))
    model, batch = classifier.model, classifier.encode(["good film"]).batch([0])
    with torch.no_grad():
        model.words.weight.zero_()
        model.words.weight[batch.input_ids[0, 1], 0] = 1.0
        model.words.weight[batch.input_ids[0, 2], 0] = 2.0
        model.of_the_sum[0].weight.fill_(1.0)
        model.of_the_sum[0].bias.fill_(-1.0)
        model.of_the_sum[2].weight.copy_(torch.tensor([[1.0], [-1.0], [2.0]]))
    found = deep_lift(classifier, batch, torch.tensor([2]), 0)
    torch.testing.assert_close(found, torch.tensor([[0.0, 4 / 3, 8 / 3, 0.0]]))  # 2 · 2/3 · 1 and 2 · 2/3 · 2


@pytest.mark.parametrize("kind", NONLINEAR)
def test_the_shares_add_up_to_the_change_of_the_logit(kind):
    classifier = toy(*(make() for make in NONLINEAR[kind]))
    batch = classifier.encode(TEXTS).batch(range(4))
    everything = batch.attention_mask.bool()  # special tokens have a share, too
    found = deep_lift(classifier, type(batch)(**{**vars(batch), "maskable": everything}), TARGETS, 0)
    with torch.no_grad():
        change = (classifier.logits(batch) - logits_at_zero(classifier, batch)).gather(1, TARGETS[:, None])[:, 0]
    assert change.abs().min() > 1e-3
    torch.testing.assert_close(found.sum(dim=1), change, atol=1e-5, rtol=1e-4)
    plain = IMPORTANCE_MEASURES["x-grad-signed"].explain(classifier, batch, TARGETS, 0)
    assert not torch.allclose(found * batch.maskable, plain, atol=1e-2)


def test_it_is_captums_where_captum_sees_all_activations():
    classifier = toy(*(make() for make in MODULES))
    batch = example_batch(classifier)

    class FromEmbeddings(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = classifier.model

        def forward(self, embeddings, attention_mask):
            return self.model.read(embeddings, attention_mask)

    def with_captum(classifier, one, target):
        e = word_embeddings(classifier, one).requires_grad_()
        found = DeepLift(FromEmbeddings()).attribute(
            e, torch.zeros_like(e), target=target, additional_forward_args=(one.attention_mask,)
        )
        return found.sum(dim=-1)[0].detach()

    expected = references(with_captum, classifier, batch)
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(deep_lift(classifier, batch, TARGETS, 0), expected, atol=1e-5, rtol=1e-5)


# ------------------------------------------------------------------------------------------ transformers


def naive(monkeypatch):
    """The Rescale rule on one text, by exchanging activations for straight lines: three passes, and a gradient."""

    def explain(classifier, one, target):
        model = classifier.model
        calls, lines, mode, within = [], [], "listen", []

        def watched(function):
            def call(inputs, *others, **named):
                if within:  # ALBERT's GELU is made of a tanh
                    return function(inputs, *others, **named)
                if mode == "listen":
                    within.append(True)
                    outputs = function(inputs.clone(), *others, **named)
                    within.pop()
                    calls.append((inputs.detach(), outputs.detach()))
                    return outputs
                (u, f), slope = lines.pop(0)
                return f + slope * (inputs - u)

            return call

        with monkeypatch.context() as patch:
            patch.setattr(torch, "tanh", watched(torch.tanh))
            patch.setattr(nn.functional, "relu", watched(nn.functional.relu))
            for module in model.modules():
                if type(module).__name__ == "GELUActivation":
                    patch.setattr(module, "act", watched(nn.functional.gelu))
                elif type(module).__name__ == "NewGELUActivation":
                    patch.setattr(module, "forward", watched(module.forward))
            e = word_embeddings(classifier, one)
            with torch.no_grad():
                classifier.logits_from(one, torch.zeros_like(e))
                count = len(calls)
                classifier.logits_from(one, e)
            assert 2 * count == len(calls) >= 4
            for (u0, f0), (u, f) in zip(calls[:count], calls[count:], strict=True):
                lines.append(((u, f), (f - f0) / (u - u0)))
            mode = "replace"
            point = e.clone().requires_grad_()
            classifier.logits_from(one, point)[0, target].backward()
        return (point.grad * e).sum(dim=-1)[0]

    return explain


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("architecture", ["bert", "roberta", "distilbert", "albert"])
def test_transformers_are_explained_by_the_rule_written_naively(architecture, masked, monkeypatch):
    classifier = strong_classifier(architecture)
    classifier.model.eval()
    batch = example_batch(classifier, pairs=True, masked=masked)
    expected = references(naive(monkeypatch), classifier, batch)
    assert expected.abs().max() > 1e-3
    found = deep_lift(classifier, batch, TARGETS, 0)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(found, IMPORTANCE_MEASURES["x-grad-signed"].explain(classifier, batch, TARGETS, 0))


def test_a_text_is_explained_alone_as_it_is_among_others_and_nothing_is_left_behind():
    classifier = small_classifier([" ".join(WORDS), *TEXTS], ("a", "b", "c"), seed=0)
    batch = example_batch(classifier, pairs=True)
    together = deep_lift(classifier, batch, TARGETS, 0)
    for row in range(len(batch)):
        single = deep_lift(classifier, alone(batch, row), TARGETS[row : row + 1], 0)
        torch.testing.assert_close(single[0], together[row, : single.shape[1]], atol=1e-5, rtol=1e-5)
    assert not any("forward" in vars(module) for module in classifier.model.modules())


def test_where_an_input_has_hardly_changed_the_slope_halfway_stands_in_for_the_quotient():
    start = torch.tensor([0.5, 0.5, 0.5], dtype=torch.float32)
    inputs = start + torch.tensor([0.0, NEAR / 2, 1.0])
    found = _rise(torch.tanh, inputs, inputs.tanh(), start, start.tanh())
    exact = inputs.double(), start.double()
    quotient = (exact[0].tanh() - exact[1].tanh()) / (exact[0] - exact[1])
    quotient[0] = 1 - start[0].double().tanh() ** 2
    torch.testing.assert_close(found.double(), quotient, atol=1e-6, rtol=0)
