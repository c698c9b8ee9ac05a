"""Naive importance, written from the formulas: one text at a time, one forward pass a number, no packing."""

from dataclasses import replace

import torch
from conftest import WORDS, random_classifier

from faithmeter.data.batch import Batch
from faithmeter.models.from_scratch import bilstm_classifier, small_classifier

TEXTS = ["the film was great", "it was not awful at all", "was the story bad? the plot was very good!", "great"]
SHORT = ["a film", "it was", "the plot was bad", "great"]
CONTEXTS = ["was it good?", "the plot", "very bad", "not the story"]
SHAPES = ("bert", "roberta", "distilbert", "deberta", "t5", "gpt2", "llama")


def strong_classifier(architecture, classes=3):
    """A tiny random classifier with weights large enough that importances are far above rounding."""
    classifier = random_classifier(architecture, classes)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in classifier.model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return classifier


def example_batch(classifier, *, pairs=False, masked=False, texts=TEXTS):
    """Four texts of unlike length in a padded batch; with `masked`, every third maskable token is masked."""
    encoded = classifier.encode(texts, CONTEXTS if pairs else None)
    batch = encoded.batch([2, 0, 3, 1])
    if masked:
        batch = batch.with_masked(batch.maskable & (batch.maskable.cumsum(dim=1) % 3 == 0))
    return batch


TARGETS = torch.tensor([0, 2, 1, 0])


def alone(batch, row):
    """One row of the batch, without padding."""
    length = int(batch.attention_mask[row].sum())
    parts = {
        name: value[row : row + 1, :length] if value.ndim == 2 else value[row : row + 1]
        for name, value in vars(batch).items()
        if isinstance(value, torch.Tensor)
    }
    return replace(batch, **parts)


def plain_logit(classifier, batch, target):
    """The target's logit of a batch of one text, from the bare model."""
    classifier.model.eval()
    types = {} if batch.token_type_ids is None else {"token_type_ids": batch.token_type_ids}
    ids = torch.where(batch.masked, classifier.tokenizer.mask_token_id, batch.input_ids)
    return classifier.model(input_ids=ids, attention_mask=batch.attention_mask, **types).logits[0, target]


def logit_of_embeddings(classifier, batch, embeddings, target):
    types = {} if batch.token_type_ids is None else {"token_type_ids": batch.token_type_ids}
    classifier.model.eval()
    output = classifier.model(inputs_embeds=embeddings, attention_mask=batch.attention_mask, **types)
    return output.logits[0, target]


def word_embeddings(classifier, batch):
    ids = torch.where(batch.masked, classifier.tokenizer.mask_token_id, batch.input_ids)
    return classifier.model.get_input_embeddings().weight.detach()[ids]


def gradient(classifier, batch, embeddings, target):
    point = embeddings.clone().requires_grad_()
    logit_of_embeddings(classifier, batch, point, target).backward()
    return point.grad


def one_hot_norm(order):
    def explain(classifier, batch, target):
        words = classifier.model.get_input_embeddings().weight.detach()
        g = gradient(classifier, batch, word_embeddings(classifier, batch), target)[0]
        return torch.stack([(words @ g[t]).abs().pow(order).sum().pow(1 / order) for t in range(len(g))])

    return explain


def x_grad(classifier, batch, target):
    e = word_embeddings(classifier, batch)
    return (gradient(classifier, batch, e, target) * e).sum(dim=-1)[0]


def ig(classifier, batch, target, baseline=0.0, steps=20):
    e = word_embeddings(classifier, batch)
    total = torch.zeros_like(e)
    for i in range(1, steps + 1):
        total += gradient(classifier, batch, baseline + i / steps * (e - baseline), target)
    return ((e - baseline) * total / steps).sum(dim=-1)[0]


def ig_from_mask(classifier, batch, target):
    """From the mask token's embedding in every place of the text, those of special tokens too."""
    start = classifier.model.get_input_embeddings().weight.detach()[classifier.tokenizer.mask_token_id]
    return ig(classifier, batch, target, baseline=start)


@torch.no_grad()
def loo(classifier, batch, target):
    whole = plain_logit(classifier, batch, target)
    importance = torch.zeros(batch.input_ids.shape[1])
    for t in range(len(importance)):
        masked = batch.masked.clone()
        masked[0, t] = True
        importance[t] = whole - plain_logit(classifier, batch.with_masked(masked), target)
    return importance


REFERENCES = {
    "grad-l1": one_hot_norm(1),
    "grad-l2": one_hot_norm(2),
    "x-grad-signed": x_grad,
    "ig-signed": ig,
    "ig-mask-signed": ig_from_mask,
    "loo-signed": loo,
    "loo-abs": lambda *given: loo(*given).abs(),
}


def references(explain, classifier, batch, targets=TARGETS):
    """The reference for every row alone, padded to the batch and 0 outside maskable."""
    importance = torch.zeros(batch.input_ids.shape)
    for row, target in enumerate(targets.tolist()):
        one = alone(batch, row)
        importance[row, : one.input_ids.shape[1]] = explain(classifier, one, target)
    classifier.model.zero_grad(set_to_none=True)
    return importance * batch.maskable


def any_classifier(architecture):
    """A new classifier of any architecture that is supported, those from scratch too."""
    if architecture == "roformer":
        return small_classifier([" ".join(WORDS), *TEXTS], ("a", "b", "c"), seed=0)
    if architecture == "bilstm-attention":
        return bilstm_classifier(2 * [" ".join(WORDS), *TEXTS], ("a", "b", "c"), pairs=True, seed=0)
    return strong_classifier(architecture)


ONE = torch.ones(1, dtype=torch.long)  # the target of a planted text


class Additive:
    """A classifier whose logit loses what is planted at each masked token, and that counts what it is asked."""

    device = torch.device("cpu")

    def __init__(self, effects):
        self.effects, self.asked = torch.as_tensor(effects, dtype=torch.float32), {}

    def logits_of_masks(self, batch, rows, masked):
        for row in batch.rows[rows].tolist():
            self.asked[row] = self.asked.get(row, 0) + 1
        lost = (masked * self.effects[rows][:, : masked.shape[1]]).sum(dim=1)
        return torch.stack((lost * 0, 10 - lost), dim=1)


def planted(*lengths, rows=None, units=None):
    """A batch of texts of so many maskable tokens."""
    width = max(lengths)
    maskable = torch.arange(width) < torch.tensor(lengths)[:, None]
    zero = torch.zeros(len(lengths), width, dtype=torch.long)
    rows = torch.arange(len(lengths)) if rows is None else torch.tensor(rows)
    return Batch(zero, maskable.long(), None, maskable, torch.zeros_like(maskable), zero[:, 0], rows, units)
