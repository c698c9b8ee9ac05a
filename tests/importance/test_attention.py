"""Attention measures: the formulas, one text at a time, on the model's own attentions."""

import pytest
import torch
from conftest import WORDS
from importance.reference import TARGETS, alone, example_batch, strong_classifier

from faithmeter.errors import InputError
from faithmeter.importance.ensemble import ensemble
from faithmeter.importance.table import IMPORTANCE_MEASURES
from faithmeter.models.from_scratch import bilstm_classifier

SHAPES = pytest.mark.parametrize(
    "architecture", ["bert", "roberta", "distilbert", "deberta", "modernbert", "t5", "gpt2", "llama"]
)


def attentions_of(classifier, one):
    """The (layers, heads, queries, tokens) attentions of one text, from the bare model."""
    model = classifier.model
    before = model.config._attn_implementation
    model.eval()
    model.set_attn_implementation("eager")
    types = {} if one.token_type_ids is None else {"token_type_ids": one.token_type_ids}
    ids = torch.where(one.masked, classifier.tokenizer.mask_token_id, one.input_ids)
    with torch.no_grad():
        output = model(input_ids=ids, attention_mask=one.attention_mask, **types, output_attentions=True)
    model.set_attn_implementation(before)
    return torch.stack([layer[0] for layer in output.attentions])


def rollout(layers, residual=False):
    product = torch.eye(layers.shape[-1])
    for layer in layers:
        mean = layer.mean(dim=0)
        product = (0.5 * mean + 0.5 * torch.eye(len(mean)) if residual else mean) @ product
    return product.mean(dim=0)


FORMULAS = {
    "attention": lambda layers: layers[-1].mean(dim=0)[0],
    ("attention", "gpt2"): lambda layers: layers[-1].mean(dim=0)[-1],  # one text without padding: the last query
    ("attention", "llama"): lambda layers: layers[-1].mean(dim=0)[-1],
    ("attention", "t5"): lambda layers: layers[-1].mean(dim=(0, 1)),
    "attention-average": lambda layers: layers.mean(dim=(0, 1, 2)),
    "attention-rollout": rollout,
    "attention-rollout-residual": lambda layers: rollout(layers, residual=True),
}


@SHAPES
@pytest.mark.parametrize("name", ["attention", "attention-average", "attention-rollout", "attention-rollout-residual"])
def test_attention_measures_are_their_formulas_on_every_shape_alone_and_padded(architecture, name):
    classifier = strong_classifier(architecture)
    batch = example_batch(classifier, pairs=True, masked=True)
    found = IMPORTANCE_MEASURES[name].explain(classifier, batch, TARGETS, 0)
    for row in range(len(batch)):
        one = alone(batch, row)
        formula = FORMULAS.get((name, architecture), FORMULAS[name])
        expected = formula(attentions_of(classifier, one)).masked_fill(~one.maskable[0], 0.0)
        torch.testing.assert_close(found[row, : len(expected)], expected, atol=1e-5, rtol=1e-5)


def test_scaled_attention_is_attention_times_its_gradient():
    """By differences: a little more of one head's attention to one token, put into the last layer by hand."""
    classifier = bilstm_classifier(2 * [" ".join(WORDS)], ("a", "b", "c"), pairs=False, seed=0)
    batch = example_batch(classifier)
    found = IMPORTANCE_MEASURES["scaled-attention"].explain(classifier, batch, TARGETS, 0)
    model = classifier.model
    for row in range(len(batch)):
        one = alone(batch, row)
        with torch.no_grad():
            _, (layer,) = classifier.logits_and_attentions(one)
            states, _ = model.encoder(model.embedding(one.input_ids), one.attention_mask.sum(dim=1))
            weights = model.decoder.weight[TARGETS[row]]  # the logit is linear in the attention
            expected = layer[0, 0, 0] * (states[0] @ weights)
        torch.testing.assert_close(found[row, : len(expected)], expected * one.maskable[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("architecture", "read"), [("bert", slice(1)), ("gpt2", slice(-1, None)), ("t5", slice(None))])
def test_scaled_attention_of_a_transformer_is_that_of_the_queries_it_reads(architecture, read):
    """The bare model on one text, its last layer's attention caught on the way: a head's mean over the queries read."""
    classifier = strong_classifier(architecture)
    batch = example_batch(classifier, pairs=True, masked=True)
    found = IMPORTANCE_MEASURES["scaled-attention"].explain(classifier, batch, TARGETS, 0)
    model = classifier.model.eval()
    model.set_attn_implementation("eager")
    for row in range(len(batch)):
        one = alone(batch, row)
        types = {} if one.token_type_ids is None else {"token_type_ids": one.token_type_ids}
        ids = torch.where(one.masked, classifier.tokenizer.mask_token_id, one.input_ids)
        output = model(input_ids=ids, attention_mask=one.attention_mask, **types, output_attentions=True)
        (gradient,) = torch.autograd.grad(output.logits[0, TARGETS[row]], output.attentions[-1])
        expected = (output.attentions[-1] * gradient)[0].detach()[:, read].mean(dim=(0, 1)) * one.maskable[0]
        assert expected.abs().max() > 1e-4
        torch.testing.assert_close(found[row, : len(expected)], expected, atol=1e-5, rtol=1e-5)


@SHAPES
def test_the_model_keeps_its_fast_attention(architecture):
    classifier = strong_classifier(architecture)
    before = classifier.model.config._attn_implementation
    batch = example_batch(classifier)
    classifier.model.eval()
    logits = classifier.logits(batch)
    for name in ("attention", "scaled-attention"):
        IMPORTANCE_MEASURES[name].explain(classifier, batch, TARGETS, 0)
    assert classifier.model.config._attn_implementation == before
    torch.testing.assert_close(classifier.logits(batch), logits)


def test_a_model_that_shows_no_attention_is_refused_in_words(monkeypatch):
    classifier = strong_classifier("bert")
    forward = classifier.model.forward
    monkeypatch.setattr(classifier.model, "forward", lambda output_attentions=False, **inputs: forward(**inputs))
    with pytest.raises(InputError, match="does not show its attention"):
        IMPORTANCE_MEASURES["attention"].explain(classifier, example_batch(classifier), TARGETS, 0)


def test_an_ensemble_is_the_mean_of_its_members_scaled_to_one(toy_classifier):
    batch = toy_classifier.encode(["a film", "it was"]).batch([0, 1])

    def giving(*values):
        table = torch.zeros(batch.maskable.shape)
        table[batch.maskable] = torch.tensor(values)
        return lambda *_: table

    # |1| + |-3| = 4 and |2| + |2| = 4; a member that says nothing of a text has no say, and counts
    found = ensemble((giving(1.0, -3.0, 0.0, 0.0), giving(2.0, 2.0, 5.0, 0.0)))(toy_classifier, batch, TARGETS[:2], 0)
    assert found[batch.maskable].tolist() == [0.375, -0.125, 0.5, 0.0]


@pytest.mark.parametrize(("architecture", "read"), [("bert", slice(1)), ("gpt2", slice(-1, None)), ("t5", slice(None))])
def test_relevance_through_attention_adds_up_layer_by_layer(architecture, read):
    """R ← R + mean of heads of (A · ∇A)⁺ R from the identity, on the bare model and one text at a time."""
    classifier = strong_classifier(architecture)
    batch = example_batch(classifier, pairs=True, masked=True)
    found = IMPORTANCE_MEASURES["chefer"].explain(classifier, batch, TARGETS, 0)
    model = classifier.model.eval()
    model.set_attn_implementation("eager")
    for row in range(len(batch)):
        one = alone(batch, row)
        types = {} if one.token_type_ids is None else {"token_type_ids": one.token_type_ids}
        ids = torch.where(one.masked, classifier.tokenizer.mask_token_id, one.input_ids)
        output = model(input_ids=ids, attention_mask=one.attention_mask, **types, output_attentions=True)
        gradients = torch.autograd.grad(output.logits[0, TARGETS[row]], output.attentions)
        relevance = torch.eye(ids.shape[1])
        for layer, gradient in zip(output.attentions, gradients, strict=True):
            positive = torch.stack([(a * g).relu() for a, g in zip(layer[0], gradient[0], strict=True)])
            relevance = relevance + positive.detach().mean(dim=0) @ relevance
        expected = (relevance - torch.eye(len(relevance)))[read].mean(dim=0) * one.maskable[0]
        assert expected.max() > 1e-4
        torch.testing.assert_close(found[row, : len(expected)], expected, atol=1e-5, rtol=1e-5)
