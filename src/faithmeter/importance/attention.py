"""Attention as importance: what a model's own attention looks at. Often shown, not always faithful.

A transformer has an attention for each layer, head and query; BiLSTM-attention has one. Each adds up to 1 over the
tokens of a text, before those that cannot be masked are set to 0.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from faithmeter.batch import Batch, packed
from faithmeter.borrowing import frozen
from faithmeter.classifier import Classifier

# from the (rows, heads, queries, tokens) attentions of all layers, and the batch they are of
Reduce = Callable[[Sequence[Tensor], Batch], Tensor]


def attention(classifier: Classifier, batch: Batch, _targets: Tensor, _seed: int) -> Tensor:
    """Return the last layer's attention from where the head reads, the mean of its heads; α of BiLSTM-attention.

    An encoder's head reads the first position, a decoder's the last; where it reads the mean of all, so is this.
    ROAR App. C.1, Eqs. (4) and (5), for BiLSTM-attention.
    """
    return _reduced(classifier, batch, lambda layers, part: _from_what_is_read(classifier, part, layers[-1]))


def attention_average(classifier: Classifier, batch: Batch, _targets: Tensor, _seed: int) -> Tensor:
    """Return the mean attention that a token gets, over layers, heads and queries (Thesis 2.2.2.3)."""
    return _reduced(classifier, batch, lambda layers, part: _over_queries(_mean_of_heads(layers).mean(dim=0), part))


def attention_rollout(
    classifier: Classifier, batch: Batch, _targets: Tensor, _seed: int, *, residual: bool = False
) -> Tensor:
    """Return the mean over queries of the product of all layers' attentions, heads averaged (Thesis 2.2.2.3).

    `residual` counts what passes a layer by, as half of each matrix (Abnar and Zuidema, 2020).
    """

    def rolled(layers: Sequence[Tensor], part: Batch) -> Tensor:
        matrices = _mean_of_heads(layers)
        if residual:
            matrices = (matrices + torch.eye(matrices.shape[-1], device=matrices.device)) / 2
        product = matrices[0]
        for matrix in matrices[1:]:
            product = matrix @ product  # a later layer looks at what an earlier one has gathered
        return _over_queries(product, part)

    return _reduced(classifier, batch, rolled)


def scaled_attention(classifier: Classifier, batch: Batch, targets: Tensor, _seed: int) -> Tensor:
    """Return the last layer's attention from where the head reads times the logit's gradient by it, mean of the heads.

    Serrano and Smith (2019); signed, since more attention may speak against a class.
    """
    home, batch, targets = batch.maskable.device, batch.to(classifier.device), targets.to(classifier.device)
    with frozen(classifier.model), torch.inference_mode(False), torch.enable_grad():
        importance = torch.zeros(batch.maskable.shape, device=classifier.device)
        for rows in packed(batch.attention_mask.sum(dim=1), classifier.tokens_per_pass):
            part = batch.take(rows)
            logits, layers = classifier.logits_and_attentions(part, classifier.embed(part).clone().requires_grad_())
            wanted = logits.gather(1, targets[rows][:, None]).sum()
            (gradient,) = torch.autograd.grad(wanted, layers[-1])
            found = _from_what_is_read(classifier, part, (layers[-1] * gradient).detach()).float()
            importance[rows, : found.shape[1]] = found
    return importance.masked_fill(~batch.maskable, 0.0).to(home)


def _reduced(classifier: Classifier, batch: Batch, reduce: Reduce) -> Tensor:
    home, batch = batch.maskable.device, batch.to(classifier.device)
    importance = torch.zeros(batch.maskable.shape, device=classifier.device)
    with frozen(classifier.model), torch.no_grad():
        for rows in packed(batch.attention_mask.sum(dim=1), classifier.tokens_per_pass):
            part = batch.take(rows)
            _, layers = classifier.logits_and_attentions(part)
            found = reduce(layers, part).float()
            importance[rows, : found.shape[1]] = found
    return importance.masked_fill(~batch.maskable, 0.0).to(home)


def _mean_of_heads(layers: Sequence[Tensor]) -> Tensor:
    """Return (layers, rows, queries, tokens)."""
    return torch.stack([layer.float().mean(dim=1) for layer in layers])


def _over_queries(matrices: Tensor, batch: Batch) -> Tensor:
    """Return the mean over the queries that are not padding."""
    real = batch.attention_mask
    return (matrices * real[..., None]).sum(dim=1) / real.sum(dim=1, keepdim=True).clamp_min(1)


def _from_what_is_read(classifier: Classifier, batch: Batch, layer: Tensor) -> Tensor:
    """Return (rows, tokens) of a (rows, heads, queries, tokens) layer: the queries that the head reads, heads averaged.

    BiLSTM-attention has one query, which is what it reads.
    """
    weights = classifier.read_weights(batch)[:, : layer.shape[2], None]
    return (layer.mean(dim=1) * weights).sum(dim=1)
