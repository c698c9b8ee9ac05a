"""Robust losses against formulas written out for a model whose gradients are known, and against finite differences."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from conftest import random_classifier
from transformers.modeling_outputs import SequenceClassifierOutput

from faithmeter.errors import InputError
from faithmeter.models.classifier import Classifier
from faithmeter.models.from_scratch import bilstm_classifier, word_level_tokenizer
from faithmeter.models.temporary import evaluating
from faithmeter.training.config import TrainingConfig
from faithmeter.training.robust import guided_loss, input_gradient_loss, virtual_adversarial_loss, weighted_losses

TEXTS = ["the film was great", "not a very good story , it was awful", "bad plot"]
LABELS = [1, 0, 0]


class BagConfig(transformers.PretrainedConfig):
    model_type = "bag-of-words-for-tests"


class Bag(transformers.PreTrainedModel):
    """Logits are U times the mean embedding; attention is softmax(e · v) and has no part in them."""

    config_class, _supports_sdpa = BagConfig, True

    def __init__(self, config):
        super().__init__(config)
        self.words = torch.nn.Embedding(config.vocab_size, 5)
        self.head = torch.nn.Linear(5, config.num_labels, bias=False)
        self.look = torch.nn.Linear(5, 1, bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.words

    def forward(self, input_ids, attention_mask, **_):
        embeddings, there = self.words(input_ids), attention_mask[..., None].to(self.words.weight.dtype)
        mean = (embeddings * there).sum(dim=1) / there.sum(dim=1)
        scores = self.look(embeddings)[..., 0].masked_fill(attention_mask == 0, -torch.inf)
        attentions = (scores.softmax(dim=1)[:, None, None, :],)
        return SequenceClassifierOutput(logits=self.head(mean), attentions=attentions)


@pytest.fixture
def bag() -> Classifier:
    torch.manual_seed(0)
    tokenizer = word_level_tokenizer(TEXTS)
    config = BagConfig(vocab_size=len(tokenizer), num_labels=3, pad_token_id=tokenizer.pad_token_id)
    model = Bag._from_config(config, attn_implementation="sdpa")
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    return Classifier(model, tokenizer)


def classifier_of(shape) -> Classifier:
    if shape == "bilstm":
        return bilstm_classifier(TEXTS, ("a", "b", "c"), pairs=False, seed=0)
    return random_classifier(shape)


def batch_of(classifier, texts=TEXTS, labels=LABELS):
    encoded = classifier.encode(texts, labels=labels)
    return encoded.batch(np.arange(len(encoded)))


def embeddings_of(classifier, batch):
    return classifier.model.get_input_embeddings()(batch.masked_ids(classifier.mask_token_id))


def kl(bag, batch, classes):
    """KL(attention ‖ attribution), row by row: attribution of a mean is |⟨U_class, e_t⟩|/n; 1 is dealt out evenly."""
    embeddings, found = embeddings_of(bag, batch), []
    for row in range(len(batch)):
        ranked = batch.maskable[row] & ~batch.masked[row]
        here = embeddings[row][batch.attention_mask[row].bool()]
        attention = (here @ bag.model.look.weight[0]).softmax(dim=0)[ranked[: len(here)]]
        attribution = (embeddings[row][ranked] @ bag.model.head.weight[classes[row]]).abs()
        attribution = attribution / len(here) + 1 / ranked.sum()
        a, t = attention / attention.sum(), attribution / attribution.sum()
        found.append((a * (a / t).log()).sum())
    return torch.stack(found)


def test_the_input_gradient_loss_is_its_formula(bag):
    batch = batch_of(bag)
    embeddings = embeddings_of(bag, batch)
    logits = bag.logits_from(batch, embeddings)
    found = input_gradient_loss(logits, batch.labels, embeddings)
    # each of n embeddings has the gradient Uᵀ(p − y)/n, so the sum of squares is |Uᵀ(p − y)|²/n
    error = logits.softmax(dim=-1) - torch.nn.functional.one_hot(batch.labels, 3)
    expected = (error @ bag.model.head.weight).square().sum(dim=1) / batch.attention_mask.sum(dim=1)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    wanted = torch.autograd.grad(expected.sum(), list(bag.model.head.parameters()), retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), list(bag.model.head.parameters())), wanted)


def test_the_guided_loss_is_its_formula_on_the_text_and_on_the_text_without_noise(bag):
    batch = batch_of(bag)
    _, found = guided_loss(bag, batch, embeddings_of(bag, batch), 0.4)
    classes = bag.logits(batch).argmax(dim=-1)
    assert classes.tolist() != LABELS  # so that it matters which class is explained
    # the tokens with the least |⟨U_class, e_t⟩| are noise: 40 % of 4, of 9 and of 2 tokens, at least one
    least = batch.masked.clone()
    embeddings = embeddings_of(bag, batch)
    for row, count in enumerate((1, 3, 1)):
        places = torch.nonzero(batch.maskable[row])[:, 0]
        assert len(places) == (4, 9, 2)[row]
        attribution = (embeddings[row][places] @ bag.model.head.weight[classes[row]]).abs()
        least[row, places[attribution.argsort()[:count]]] = True
    expected = kl(bag, batch, classes) + kl(bag, batch.with_masked(least), classes)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_both_attention_and_attribution_learn_from_the_guided_loss(bag):
    batch = batch_of(bag)
    _, found = guided_loss(bag, batch, embeddings_of(bag, batch), 0.4)
    # the head has no part in attention and the look none in attribution: each has its gradient through the other way
    gradients = torch.autograd.grad(found.sum(), [bag.model.head.weight, bag.model.look.weight, bag.model.words.weight])
    assert all(gradient.abs().max() > 1e-3 for gradient in gradients)


def test_a_model_that_has_learnt_nothing_is_not_torn_about_by_the_guided_loss(bag):
    batch = batch_of(bag)
    slopes = []
    for scale in (1.0, 1e-3, 0.0):  # of the logits
        with torch.no_grad():
            bag.model.head.weight *= scale
        _, found = guided_loss(bag, batch, embeddings_of(bag, batch), 0.4)
        slopes.append(torch.autograd.grad(found.sum(), bag.model.head.weight)[0].norm().item())
    assert max(slopes) < 10 * len(batch)  # shares alone would have slopes of the order 1 / scale


def test_a_text_with_one_token_to_rank_has_no_guided_loss(bag):
    batch = batch_of(bag, ["film", "the film"], [0, 1])
    _, found = guided_loss(bag, batch, embeddings_of(bag, batch), 0.5)
    assert found[0] == 0
    assert found[1] > 0
    gradient = torch.autograd.grad(found.sum(), bag.model.words.weight)[0]
    assert torch.isfinite(gradient).all()


def test_tokens_that_are_masked_already_are_not_ranked(bag):
    batch = batch_of(bag)
    masked = batch.masked.clone()
    masked[:, 1] = True
    batch = batch.with_masked(masked)
    _, found = guided_loss(bag, batch, embeddings_of(bag, batch), 0.1)
    assert found[2] == 0  # one of its two tokens is left
    assert found[1] > 0


def test_the_divergence_of_virtual_attack_is_its_formula(bag):
    batch = batch_of(bag)
    embeddings, radius = embeddings_of(bag, batch), 0.05
    torch.manual_seed(1)
    found = virtual_adversarial_loss(bag, batch, embeddings, radius)
    # one power step on the mean: where KL grows is the same direction for every token of the row
    torch.manual_seed(1)
    start = torch.randn_like(embeddings) * batch.attention_mask[..., None]
    clean = bag.logits_from(batch, embeddings).detach()
    for row in range(len(batch)):
        n = int(batch.attention_mask[row].sum())
        length = radius * embeddings[row, :n].norm()
        moved = 0.1 * length * start[row] / start[row].norm()
        p, head = clean[row].softmax(dim=0), bag.model.head.weight
        q = (clean[row] + head @ moved.sum(dim=0) / n).softmax(dim=0)
        step = (head.T @ (q - p)).expand(n, -1)  # dKL/dz = q − p
        worst = (length * step / step.norm()).sum(dim=0) / n
        after = (clean[row] + head @ worst).log_softmax(dim=0)
        torch.testing.assert_close(found[row], (p * (p.log() - after)).sum(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shape", ["bert", "roberta", "distilbert", "gpt2"])
def test_the_direction_of_virtual_attack_raises_kl_more_than_random_ones_of_the_same_length(shape):
    classifier = classifier_of(shape)
    batch = batch_of(classifier)
    with evaluating(classifier.model):
        embeddings = embeddings_of(classifier, batch).detach()
        torch.manual_seed(0)
        found = virtual_adversarial_loss(classifier, batch, embeddings, 0.1).detach()
        expected = classifier.logits_from(batch, embeddings).log_softmax(dim=-1)
        attended = batch.attention_mask[..., None]
        length = 0.1 * (embeddings * attended).flatten(1).norm(dim=1)[:, None, None]
        for _ in range(20):
            noise = torch.randn_like(embeddings) * attended
            noise = length * noise / noise.flatten(1).norm(dim=1)[:, None, None]
            after = classifier.logits_from(batch, embeddings + noise).log_softmax(dim=-1)
            assert ((expected.exp() * (expected - after)).sum(dim=-1) < found).all()


ALL = TrainingConfig(robust=("igr", "vat", "explanation-guided"), epochs=2)


@pytest.mark.parametrize("shape", ["bert", "roberta", "distilbert", "deberta", "gpt2", "bilstm"])
@pytest.mark.parametrize("name", ["igr", "explanation-guided"])
def test_the_gradient_by_the_weights_is_that_of_finite_differences(shape, name):
    classifier = classifier_of(shape)
    classifier.model.double().eval()
    batch, config = batch_of(classifier), replace(ALL, robust=(name,))

    def loss():
        embeddings = embeddings_of(classifier, batch)
        if name == "igr":
            return weighted_losses(classifier, batch, config)[name].sum()
        return config.guided_weight * guided_loss(classifier, batch, embeddings, config.guided_share)[1].sum()

    parameters = [one for one in classifier.model.parameters() if one.requires_grad]
    gradients = torch.autograd.grad(loss(), parameters, allow_unused=True)
    torch.manual_seed(0)
    way = [torch.randn_like(one) for one in parameters]
    slope = sum((g * w).sum() for g, w in zip(gradients, way, strict=True) if g is not None)
    # logits are in single precision, of which the gradient of cross-entropy is made and that of a logit is not
    values, step = [], {"igr": 1e-5, "explanation-guided": 1e-7}[name]
    for sign in (1, -1):
        with torch.no_grad():
            for one, w in zip(parameters, way, strict=True):
                one += sign * step * w
        values.append(loss().detach())
        with torch.no_grad():
            for one, w in zip(parameters, way, strict=True):
                one -= sign * step * w
    assert slope.item() == pytest.approx(((values[0] - values[1]) / (2 * step)).item(), rel=2e-2)
    assert abs(slope.item()) > 1e-9


@pytest.mark.parametrize("shape", ["bert", "roberta", "bilstm"])
def test_a_rows_losses_do_not_depend_on_its_neighbours(shape):
    classifier = classifier_of(shape)
    config = replace(ALL, robust=("igr", "explanation-guided"))  # VAT draws its random direction for the batch
    together = weighted_losses(classifier, batch_of(classifier), config)
    for row, (text, label) in enumerate(zip(TEXTS, LABELS, strict=True)):
        alone = weighted_losses(classifier, batch_of(classifier, [text], [label]), config)
        for name, values in together.items():
            torch.testing.assert_close(alone[name][0], values[row], rtol=1e-4, atol=1e-6)


def test_the_losses_are_weighted_and_the_model_is_left_in_its_mode():
    classifier = random_classifier("bert")
    classifier.model.train()
    batch = batch_of(classifier)
    torch.manual_seed(0)
    once = weighted_losses(classifier, batch, ALL)
    torch.manual_seed(0)
    weights = {"igr_weight": 2 * ALL.igr_weight, "vat_weight": 3.0, "guided_weight": 5 * ALL.guided_weight}
    other = weighted_losses(classifier, batch, replace(ALL, **weights))
    assert list(once) == ["igr", "vat", "explanation-guided"]
    for name, factor in (("igr", 2), ("vat", 3), ("explanation-guided", 5)):
        torch.testing.assert_close(other[name], factor * once[name])
    assert all(module.training for module in classifier.model.modules())
    assert classifier.model.config._attn_implementation == "sdpa"
    assert all(parameter.grad is None for parameter in classifier.model.parameters())


def test_bad_settings_are_refused_in_words():
    with pytest.raises(InputError, match=r"no robust training 'igrr'.*igr"):
        TrainingConfig(robust=("igrr",))
    with pytest.raises(InputError, match="twice"):
        TrainingConfig(robust=("vat", "vat"))
    with pytest.raises(InputError, match="weights"):
        TrainingConfig(robust=("vat",), vat_weight=-1)
    with pytest.raises(InputError, match="between 0 and 1"):
        TrainingConfig(robust=("explanation-guided",), guided_share=1.0)
    with pytest.raises(InputError, match="2 epochs"):
        TrainingConfig(robust=("adversarial",), epochs=1)


def test_how_a_model_was_trained_names_what_was_added():
    assert TrainingConfig().how == "masked"
    assert TrainingConfig(strategy="plain", robust=("vat", "igr")).how == "plain + vat + igr"
