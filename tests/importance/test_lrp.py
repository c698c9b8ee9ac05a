"""AttnLRP: the logits stay, no relevance is lost, and it is what the rules of the paper give when written out."""

import pytest
import torch
from conftest import ARCHITECTURES, MORE_ARCHITECTURES, random_classifier
from importance.reference import TARGETS, alone, any_classifier, example_batch, references, strong_classifier
from torch.nn import functional

from faithmeter.importance.deep_lift import activations_as_a_whole
from faithmeter.importance.lrp import Rules, attention_lrp
from faithmeter.models.temporary import eager_attention, frozen

EVERYWHERE = pytest.mark.parametrize("architecture", [*ARCHITECTURES, *MORE_ARCHITECTURES])
SOFTMAX = {functional.softmax, torch.softmax, torch.Tensor.softmax}
ADDED = (
    "bias", "position_embeddings.weight", "token_type_embeddings.weight", "wpe.weight", "embed_positions.weight",
    "relative_attention_bias.weight", "rel_embeddings.weight",
)  # fmt: skip


def classifier_of(architecture):
    if architecture in MORE_ARCHITECTURES and architecture != "roformer":
        return random_classifier(architecture, 3)
    return any_classifier(architecture)


class Watched(Rules):
    """The same rules, and what goes into and comes out of every softmax."""

    def __init__(self):
        super().__init__()
        self.softmaxes = []

    def __torch_function__(self, function, types, arguments=(), named=None):
        outputs = super().__torch_function__(function, types, arguments, named)
        if function in SOFTMAX and not self.inside and outputs.requires_grad:
            inputs = arguments[0]
            inputs.retain_grad()
            outputs.retain_grad()
            self.softmaxes.append((inputs, outputs))
        return outputs


def with_rules(classifier, one, rules):
    """The logits of a text by the rules, and the embeddings that they are a function of."""
    point = classifier.embed(one).clone().requires_grad_()
    with activations_as_a_whole(classifier.model, rules.activation), rules:
        return classifier.logits_from(one, point), point


@EVERYWHERE
def test_the_rules_leave_the_logits_as_they_are(architecture):
    classifier = classifier_of(architecture)
    batch = example_batch(classifier, pairs=True, masked=True)
    with frozen(classifier.model), eager_attention(classifier.model):
        found, _ = with_rules(classifier, batch, Rules())
        with torch.no_grad():
            torch.testing.assert_close(found, classifier.logits(batch), atol=2e-6, rtol=1e-6)


@EVERYWHERE
def test_all_relevance_arrives_at_words_positions_biases_and_the_constants_of_softmax(architecture):
    """The logit is the relevance of the embeddings, of what is added to them, and what each softmax keeps."""
    classifier = classifier_of(architecture)
    model, one = classifier.model, alone(example_batch(classifier), 0)
    with frozen(model), eager_attention(model):
        added = [parameter for name, parameter in model.named_parameters() if name.endswith(ADDED)]
        for parameter in added:
            parameter.requires_grad_(True)
        rules = Watched()
        logits, point = with_rules(classifier, one, rules)
        logits[0, 1].backward()
        arrived = [(point * point.grad).sum()]
        arrived += [(parameter * parameter.grad).sum() for parameter in added if parameter.grad is not None]
        kept = [((s * s.grad).sum() - (x * x.grad).sum()) for x, s in rules.softmaxes]
    model.zero_grad(set_to_none=True)
    assert len(kept) == model.config.num_hidden_layers
    assert (sum(arrived) + sum(kept)).item() == pytest.approx(logits[0, 1].item(), abs=1e-5, rel=1e-5)


def test_on_a_model_without_biases_and_attention_the_words_have_all_relevance():
    classifier = strong_classifier("llama")
    with torch.no_grad():
        for name, parameter in classifier.model.named_parameters():
            if name.endswith("o_proj.weight"):
                parameter.zero_()
    batch = example_batch(classifier)
    everything = batch.__class__(**{**vars(batch), "maskable": batch.attention_mask.bool()})
    found = attention_lrp(classifier, everything, TARGETS, 0).sum(dim=1)
    with torch.no_grad():
        logits = classifier.logits(batch).gather(1, TARGETS[:, None])[:, 0]
    assert logits.abs().min() > 1e-3
    torch.testing.assert_close(found, logits, atol=1e-5, rtol=1e-4)


# -------------------------------------------------------------------------- relevance by hand, on a BERT of one text


def through_linear(layer, x, z, relevance):
    """The ε rule with ε = 0: each input has the share of the output that it makes up."""
    return x * ((relevance / z) @ layer.weight.double())


def through_sum(parts, relevance):
    return [part / sum(parts) * relevance for part in parts]


def through_norm(norm, x, z, relevance):
    """The mean is taken away linearly; what is divided by is constant."""
    deviation = (x.var(dim=-1, correction=0, keepdim=True) + norm.eps).sqrt()
    share = relevance / z * norm.weight.double() / deviation
    return x * (share - share.mean(dim=-1, keepdim=True))


def through_attention(a, v, o, scores, q, k, relevance):
    """Half to the values, half to the attention; of that, through the softmax, half to queries and half to keys."""
    of_values = torch.einsum("hij,hjd,hid->hjd", a, v, relevance / o) / 2
    of_attention = torch.einsum("hij,hjd,hid->hij", a, v, relevance / o) / 2
    of_scores = scores * (of_attention - a * of_attention.sum(dim=-1, keepdim=True))
    share = of_scores / (scores * q.shape[-1] ** 0.5)
    return (
        torch.einsum("hid,hjd,hij->hid", q, k, share) / 2,
        torch.einsum("hid,hjd,hij->hjd", q, k, share) / 2,
        of_values,
    )


def heads(x, count):
    return x.reshape(len(x), count, -1).transpose(0, 1)


def joined(x):
    return x.transpose(0, 1).reshape(x.shape[1], -1)


def linear(layer, x):
    return functional.linear(x, layer.weight.double(), layer.bias.double())


def normed(norm, x):
    return functional.layer_norm(x, x.shape[-1:], norm.weight.double(), norm.bias.double(), norm.eps)


def through_layer(layer, x, count):
    """The output of a layer, and the way back of relevance through it."""
    own, mixed = layer.attention.self, layer.attention.output
    q, k, v = (heads(linear(part, x), count) for part in (own.query, own.key, own.value))
    scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
    a = scores.softmax(dim=-1)
    o = a @ v
    dense = linear(mixed.dense, joined(o))
    middle = normed(mixed.LayerNorm, dense + x)
    wide = linear(layer.intermediate.dense, middle)
    active = functional.gelu(wide)
    narrow = linear(layer.output.dense, active)
    out = normed(layer.output.LayerNorm, narrow + middle)

    def back(relevance):
        relevance = through_norm(layer.output.LayerNorm, narrow + middle, out, relevance)
        of_narrow, of_middle = through_sum((narrow, middle), relevance)
        of_wide = through_linear(layer.output.dense, active, narrow, of_narrow)  # the identity through the activation
        of_middle = of_middle + through_linear(layer.intermediate.dense, middle, wide, of_wide)
        of_dense, of_x = through_sum((dense, x), through_norm(mixed.LayerNorm, dense + x, middle, of_middle))
        of_o = heads(through_linear(mixed.dense, joined(o), dense, of_dense), count)
        parts = through_attention(a, v, o, scores, q, k, of_o)
        for part, of_part, z in zip((own.query, own.key, own.value), parts, (q, k, v), strict=True):
            of_x = of_x + through_linear(part, x, joined(z), joined(of_part))
        return of_x

    return out, back


@torch.no_grad()
def relevance_by_hand(classifier, one, target):
    model, ids = classifier.model, torch.where(one.masked, classifier.mask_token_id, one.input_ids)[0]
    table = model.bert.embeddings
    words = table.word_embeddings.weight[ids].double()
    others = table.position_embeddings.weight[: len(ids)] + table.token_type_embeddings.weight[one.token_type_ids[0]]
    x = normed(table.LayerNorm, words + others.double())
    start, ways = x, []
    for layer in model.bert.encoder.layer:
        x, back = through_layer(layer, x, model.config.num_attention_heads)
        ways.append(back)
    pooled = linear(model.bert.pooler.dense, x[:1])
    logits = linear(model.classifier, pooled.tanh())
    relevance = torch.zeros_like(logits)
    relevance[0, target] = logits[0, target]
    relevance = through_linear(model.classifier, pooled.tanh(), logits, relevance)
    first = through_linear(model.bert.pooler.dense, x[:1], pooled, relevance)
    relevance = torch.cat((first, torch.zeros_like(x[1:])))
    for back in reversed(ways):
        relevance = back(relevance)
    relevance = through_norm(table.LayerNorm, words + others, start, relevance)
    return through_sum((words, others.double()), relevance)[0].sum(dim=-1).float()


def test_relevance_is_what_the_rules_give_when_they_are_written_out_layer_by_layer():
    classifier = strong_classifier("bert")
    batch = example_batch(classifier, pairs=True, masked=True)
    expected = references(relevance_by_hand, classifier, batch)
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(attention_lrp(classifier, batch, TARGETS, 0), expected, atol=1e-6, rtol=1e-3)
