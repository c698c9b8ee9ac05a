"""Robust losses against formulas written out for a model whose gradients are known, and against finite differences."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import torch
import transformers
from conftest import random_classifier
from transformers.modeling_outputs import SequenceClassifierOutput

from faithmeter.errors import InputError
from faithmeter.importance.table import IMPORTANCE_MEASURES
from faithmeter.models.classifier import Classifier
from faithmeter.models.from_scratch import bilstm_classifier, small_classifier, word_level_tokenizer
from faithmeter.models.temporary import evaluating
from faithmeter.training import robust
from faithmeter.training.config import ATTRIBUTIONS, TrainingConfig, TrainingOptions
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


def attention_of(bag, batch, row):
    """Attention of a row's rankable tokens, as shares: softmax(e · v) over the text."""
    here = embeddings_of(bag, batch)[row][batch.attention_mask[row].bool()]
    ranked = (batch.maskable[row] & ~batch.masked[row])[: len(here)]
    attention = (here @ bag.model.look.weight[0]).softmax(dim=0)[ranked]
    return attention / attention.sum()


def kl(bag, batch, classes):
    """KL(attention ‖ attribution): attribution of a mean is |⟨U_class, e_t⟩|/n, and a tenth of the sum dealt evenly."""
    embeddings, found = embeddings_of(bag, batch), []
    for row in range(len(batch)):
        ranked = batch.maskable[row] & ~batch.masked[row]
        attribution = (embeddings[row][ranked] @ bag.model.head.weight[classes[row]]).abs()
        t = (attribution + 0.1 * attribution.sum() / len(attribution)) / (1.1 * attribution.sum())
        a = attention_of(bag, batch, row)
        found.append((a * (a / t).log()).sum())
    return torch.stack(found)


def without_noise(bag, batch, classes, counts):
    """The batch with so many tokens of the least |⟨U_class, e_t⟩| masked."""
    least, embeddings = batch.masked.clone(), embeddings_of(bag, batch)
    for row, count in enumerate(counts):
        places = torch.nonzero(batch.maskable[row])[:, 0]
        attribution = (embeddings[row][places] @ bag.model.head.weight[classes[row]]).abs()
        least[row, places[attribution.argsort()[:count]]] = True
    return batch.with_masked(least)


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
    _, found, change = guided_loss(bag, batch, embeddings_of(bag, batch), 0.4, 1)
    classes = bag.logits(batch).argmax(dim=-1)
    assert classes.tolist() != LABELS  # so that it matters which class is explained
    assert batch.maskable.sum(dim=1).tolist() == [4, 9, 2]
    without = without_noise(bag, batch, classes, (1, 3, 1))  # 40 %, at least one
    expected = kl(bag, batch, classes) + kl(bag, without, classes)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    # attention is of each token alone here: masking others leaves its proportions
    torch.testing.assert_close(change, torch.zeros(3), rtol=0, atol=1e-6)


def test_the_consistency_is_the_divergence_of_attention_without_noise_from_that_with_it():
    classifier = random_classifier("bert", spread=0.3)
    batch = batch_of(classifier)
    with evaluating(classifier.model):
        logits, _, change = guided_loss(classifier, batch, embeddings_of(classifier, batch), 0.4, 1)
        attribution = IMPORTANCE_MEASURES["x-grad-abs"].explain(classifier, batch, logits.argmax(dim=-1), 0)
        left = batch.maskable.clone()
        for row, count in enumerate((0.4 * batch.maskable.sum(dim=1)).int().tolist()):
            places = torch.nonzero(batch.maskable[row])[:, 0]
            left[row, places[attribution[row, places].argsort()[:count]]] = False
        without = batch.with_masked(batch.maskable & ~left)
        layers = [classifier.logits_and_attentions(one)[1][-1] for one in (batch, without)]
    for row in range(len(batch)):
        before, after = (layer[row, :, 0].mean(dim=0)[left[row]] for layer in layers)  # the first token's, of all heads
        before, after = before / before.sum(), after / after.sum()
        torch.testing.assert_close(change[row], (after * (after / before).log()).sum(), rtol=1e-4, atol=1e-6)
        assert change[row] > 1e-4


def test_only_attention_learns_from_the_guided_loss(bag):
    batch = batch_of(bag)
    _, found, change = guided_loss(bag, batch, embeddings_of(bag, batch), 0.4, 1)
    # the head has no part in attention, and the attribution, which is made of it, is a constant
    weights = [bag.model.head.weight, bag.model.look.weight]
    head, look = torch.autograd.grad((found + change).sum(), weights, allow_unused=True)
    assert head is None
    assert look.abs().max() > 1e-3


@pytest.mark.parametrize("scale", [100.0, 1.0, 1e-3])
def test_the_target_does_not_depend_on_the_scale_of_the_logits(bag, scale):
    batch = batch_of(bag)
    _, before, _ = guided_loss(bag, batch, embeddings_of(bag, batch), 0.4, 1)
    with torch.no_grad():
        bag.model.head.weight *= scale
    _, after, _ = guided_loss(bag, batch, embeddings_of(bag, batch), 0.4, 1)
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)


def test_a_model_without_attributions_has_no_target(bag):
    with torch.no_grad():
        bag.model.head.weight *= 0
    _, found, _ = guided_loss(bag, batch_of(bag), embeddings_of(bag, batch_of(bag)), 0.4, 1)
    assert found.tolist() == [0, 0, 0]


@pytest.mark.parametrize(("attribution", "measure"), [("x-grad", "x-grad-abs"), ("ig", "ig-abs")])
def test_the_target_is_the_importance_measure_of_that_name(attribution, measure):
    classifier = random_classifier("bert", spread=0.3)
    batch = batch_of(classifier)
    with evaluating(classifier.model):
        embeddings = embeddings_of(classifier, batch)
        logits = classifier.logits_from(batch, embeddings)
        classes, steps = torch.tensor([2, 0, 1]), ATTRIBUTIONS[attribution]
        found = robust._attribution(classifier, batch, embeddings, logits, classes, steps)
    expected = IMPORTANCE_MEASURES[measure].explain(classifier, batch, classes, 0)
    torch.testing.assert_close(found[batch.maskable], expected[batch.maskable], rtol=1e-3, atol=1e-5)
    assert not found.requires_grad


def graded_texts(classifier, count, seed):
    """Texts of eight words, each of its own worth; the label is the sign of their sum."""
    worth = np.array([8, -8, 4, -4, 2, -2, 1, -1, 0.5, -0.5, 0.2, -0.2])
    random = np.random.default_rng(seed)
    chosen = [random.permutation(len(worth))[:8] for _ in range(count)]
    texts = [" ".join(f"w{word}" for word in words) for words in chosen]
    return classifier.encode(texts, labels=[int(worth[words].sum() > 0) for words in chosen])


def agreement(classifier, encoded):
    """Means over texts: rank correlation and KL of attention and x-grad-abs, attention's entropy over its maximum."""
    batch, found = encoded.batch(np.arange(len(encoded))), []
    targets = classifier.predict(encoded).argmax(dim=-1)
    both = [IMPORTANCE_MEASURES[name].explain(classifier, batch, targets, 0) for name in ("attention", "x-grad-abs")]
    for attention, attribution, maskable in zip(*both, batch.maskable, strict=True):
        a, t = (
            values[maskable].double().numpy() / values[maskable].sum().item() for values in (attention, attribution)
        )
        correlation = scipy.stats.spearmanr(a, t).statistic
        found.append((correlation, scipy.stats.entropy(a, t + 1e-6), scipy.stats.entropy(a) / np.log(len(a))))
    return np.mean(found, axis=0)


def learn(classifier, encoded, steps, config, seed):
    optimizer, random = torch.optim.AdamW(classifier.model.parameters(), lr=3e-3), np.random.default_rng(seed)
    classifier.model.train()
    for _ in range(steps):
        batch = encoded.batch(random.integers(len(encoded), size=32))
        loss = torch.nn.functional.cross_entropy(classifier.logits(batch), batch.labels)
        loss = loss + sum(added.mean() for added in weighted_losses(classifier, batch, config).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    classifier.model.eval()


@pytest.mark.parametrize("shape", ["bilstm", "tiny"])
def test_guided_training_brings_attention_nearer_to_attribution_and_does_not_flatten_it(shape):
    words = [" ".join(f"w{word}" for word in range(12))] * 5
    torch.manual_seed(0)
    if shape == "bilstm":
        classifier = bilstm_classifier(words, ("a", "b"), pairs=False, seed=0)
    else:
        classifier = small_classifier(words, ("a", "b"), shape=shape, seed=0)
    train, test = graded_texts(classifier, 256, 0), graded_texts(classifier, 48, 1)
    learn(classifier, train, 60, TrainingConfig(), 0)
    before, weights = agreement(classifier, test), copy.deepcopy(classifier.model.state_dict())
    learn(classifier, train, 40, TrainingConfig(), 1)
    unguided = agreement(classifier, test)
    classifier.model.load_state_dict(weights)
    learn(classifier, train, 40, TrainingConfig(robust=("explanation-guided",)), 1)
    correlation, distance, entropy = agreement(classifier, test)
    assert correlation > max(before[0], unguided[0]) + 0.05
    assert distance < min(before[1], unguided[1]) - 0.02
    assert entropy < 0.85


def test_a_text_with_one_token_to_rank_has_no_guided_loss(bag):
    batch = batch_of(bag, ["film", "the film"], [0, 1])
    _, found, change = guided_loss(bag, batch, embeddings_of(bag, batch), 0.5, 1)
    assert found[0] == 0
    assert found[1] > 0
    gradient = torch.autograd.grad((found + change).sum(), bag.model.words.weight)[0]
    assert torch.isfinite(gradient).all()


def test_tokens_that_are_masked_already_are_not_ranked(bag):
    batch = batch_of(bag)
    masked = batch.masked.clone()
    masked[:, 1] = True
    batch = batch.with_masked(masked)
    _, found, _ = guided_loss(bag, batch, embeddings_of(bag, batch), 0.1, 1)
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
def test_the_gradient_by_the_weights_is_that_of_finite_differences(shape, name, monkeypatch):
    classifier = classifier_of(shape)
    classifier.model.double().eval()
    batch, config = batch_of(classifier), replace(ALL, robust=(name,))
    targets, attribution = [], robust._attribution

    def constant(*given):
        """The attributions of the first pass, which are constants to the gradient: of the text, and without noise."""
        if len(targets) < 2:
            targets.append(attribution(*given))
            return targets[-1]
        targets.append(targets.pop(0))
        return targets[-1]

    monkeypatch.setattr(robust, "_attribution", constant)

    def loss():
        return weighted_losses(classifier, batch, config)[name].sum()

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
    weights = {"igr_weight": 2 * ALL.igr_weight, "vat_weight": 3.0}
    weights |= {"guided_weight": 5 * ALL.guided_weight, "guided_consistency": 5 * ALL.guided_consistency}
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
    with pytest.raises(InputError, match="none left"):
        TrainingConfig(robust=("explanation-guided",), epochs=3, guided_after=3)
    with pytest.raises(InputError, match="no attribution 'former'"):
        TrainingOptions(guided_attribution="former")
    with pytest.raises(InputError, match="2 epochs"):
        TrainingConfig(robust=("adversarial",), epochs=1)


def test_how_a_model_was_trained_names_what_was_added():
    assert TrainingConfig().how == "masked"
    assert TrainingConfig(strategy="plain", robust=("vat", "igr")).how == "plain + vat + igr"


def test_robust_losses_come_first_and_guidance_after_half_of_the_epochs():
    both = TrainingOptions(robust=("igr", "explanation-guided", "adversarial"), epochs=5).over(TrainingConfig())
    assert [both.added_losses(epoch) for epoch in range(5)] == 2 * [["igr"]] + 3 * [["igr", "explanation-guided"]]
    alone = TrainingOptions(robust=("explanation-guided",)).over(TrainingConfig())
    assert alone.first_stage == 0
    told = TrainingOptions(robust=("explanation-guided",), guided_after=3).over(TrainingConfig())
    assert told.first_stage == 3
    assert TrainingOptions(guided_after=3).over(TrainingConfig()).first_stage == 0  # there is nothing to wait for


def test_a_run_guided_by_the_former_loss_says_so():
    before = {"strategy": "plain", "robust": ["explanation-guided"], "epochs": 2}
    read = TrainingConfig.read(before)
    assert read.how == "plain + explanation-guided (the former loss)"
    assert read != TrainingConfig(strategy="plain", robust=("explanation-guided",), epochs=2)
    assert TrainingConfig.read({"robust": ["igr"]}) == TrainingConfig(robust=("igr",))
