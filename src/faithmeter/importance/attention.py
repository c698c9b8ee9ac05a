"""Attention as importance. Often shown, not always faithful.

A transformer has an attention for each layer, head and query; BiLSTM-attention has one. Each adds up to 1 over the
tokens of a text, before those that cannot be masked are set to 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from faithmeter.data.batch import Batch
from faithmeter.importance.measure import of_the_text
from faithmeter.models.heads import attention_of_what_is_read
from faithmeter.models.temporary import frozen

if TYPE_CHECKING:
    from faithmeter.models.classifier import Classifier

# from the (rows, heads, queries, tokens) attentions of all layers, and the batch they are of
Reduce = Callable[[Sequence[Tensor], Batch], Tensor]


def attention(classifier: Classifier, batch: Batch, targets: Tensor, _seed: int) -> Tensor:
    """Return the last layer's attention from where the head reads, the mean of its heads; α of BiLSTM-attention.

    An encoder's head reads the first position, a decoder's the last; where it reads the mean of all, so is this.
    Madsen et al. (2022), App. C.1, Eqs. (4) and (5), for BiLSTM-attention.
    """
    return of_the_text(attention_at, classifier, batch, targets)


def attention_average(classifier: Classifier, batch: Batch, targets: Tensor, _seed: int) -> Tensor:
    """Return the mean attention that a token gets, over layers, heads, queries (Oxford thesis, 2022, Sec. 2.2.2.3)."""
    return of_the_text(attention_average_at, classifier, batch, targets)


def attention_rollout(
    classifier: Classifier, batch: Batch, targets: Tensor, _seed: int, *, residual: bool = False
) -> Tensor:
    """Return the mean over queries of the product of all layers' attentions, heads averaged (thesis, Sec. 2.2.2.3).

    `residual` counts what passes a layer by, as half of each matrix (Abnar and Zuidema, 2020).
    """
    return of_the_text(partial(attention_rollout_at, residual=residual), classifier, batch, targets)


def scaled_attention(classifier: Classifier, batch: Batch, targets: Tensor, _seed: int) -> Tensor:
    """Return the last layer's attention from where the head reads times the logit's gradient by it, mean of the heads.

    Serrano and Smith (2019); signed, since more attention may speak against a class.
    """
    return of_the_text(scaled_attention_at, classifier, batch, targets)


def attention_relevance(classifier: Classifier, batch: Batch, targets: Tensor, _seed: int) -> Tensor:
    """Return what the head reads of R − I, from R = I and R ← R + Ā R in every layer, Ā the heads' mean of (∇A ⊙ A)⁺.

    Chefer et al. (2021), the rule of self-attention; ∇A is the gradient of the logit by the attention. The identity, by
    which a token is relevant to itself, is taken away: it would favour the last token of a decoder, which its head
    reads.
    """
    return of_the_text(attention_relevance_at, classifier, batch, targets)


# ------------------------------------------------------------------------------------ the same at any embeddings


def attention_at(classifier: Classifier, batch: Batch, embeddings: Tensor, _targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits and `attention` at these embeddings."""
    return _reduced(
        classifier,
        batch,
        embeddings,
        lambda layers, part: attention_of_what_is_read(classifier.model, part, layers[-1]),
    )


def attention_average_at(
    classifier: Classifier, batch: Batch, embeddings: Tensor, _targets: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the logits and `attention_average` at these embeddings."""
    return _reduced(
        classifier, batch, embeddings, lambda layers, part: _over_queries(_mean_of_heads(layers).mean(dim=0), part)
    )


def attention_rollout_at(
    classifier: Classifier, batch: Batch, embeddings: Tensor, _targets: Tensor, *, residual: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the logits and `attention_rollout` at these embeddings."""

    def rolled(layers: Sequence[Tensor], part: Batch) -> Tensor:
        matrices = _mean_of_heads(layers)
        if residual:
            matrices = (matrices + torch.eye(matrices.shape[-1], device=matrices.device)) / 2
        product = matrices[0]
        for matrix in matrices[1:]:
            product = matrix @ product  # a later layer looks at what an earlier one has gathered
        return _over_queries(product, part)

    return _reduced(classifier, batch, embeddings, rolled)


def scaled_attention_at(
    classifier: Classifier, batch: Batch, embeddings: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the logits and `scaled_attention` at these embeddings."""
    twice = embeddings.requires_grad

    def scaled(part: Batch, rows: Tensor, point: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            logits, layers = classifier.logits_and_attentions(part, point if twice else point.clone().requires_grad_())
            (gradient,) = _gradients_by(layers[-1:], logits, targets[rows], twice)
            return logits, attention_of_what_is_read(classifier.model, part, layers[-1] * gradient)

    return _packed(classifier, batch, embeddings, scaled)


def _gradients_by(layers: Sequence[Tensor], logits: Tensor, targets: Tensor, twice: bool) -> tuple[Tensor, ...]:
    """Return d logit[target] / d attention of these layers, which can be differentiated once more where `twice`."""
    return torch.autograd.grad(logits.gather(1, targets[:, None]).sum(), list(layers), create_graph=twice)


def attention_relevance_at(
    classifier: Classifier, batch: Batch, embeddings: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the logits and `attention_relevance` at these embeddings."""
    twice = embeddings.requires_grad

    def relevant(part: Batch, rows: Tensor, point: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            logits, layers = classifier.logits_and_attentions(part, point if twice else point.clone().requires_grad_())
            gradients = _gradients_by(layers, logits, targets[rows], twice)
            identity = torch.eye(layers[0].shape[-1], device=point.device)
            relevance = identity.expand(len(part), -1, -1)
            for layer, gradient in zip(layers, gradients, strict=True):
                relevance = relevance + (layer * gradient).float().clamp_min(0).mean(dim=1) @ relevance
            return logits, attention_of_what_is_read(classifier.model, part, (relevance - identity)[:, None])

    return _packed(classifier, batch, embeddings, relevant)


def _reduced(classifier: Classifier, batch: Batch, embeddings: Tensor, reduce: Reduce) -> tuple[Tensor, Tensor]:
    def reduced(part: Batch, _rows: Tensor, point: Tensor) -> tuple[Tensor, Tensor]:
        with torch.set_grad_enabled(embeddings.requires_grad):
            logits, layers = classifier.logits_and_attentions(part, point)
            return logits, reduce(layers, part)

    return _packed(classifier, batch, embeddings, reduced)


def _packed(
    classifier: Classifier,
    batch: Batch,
    embeddings: Tensor,
    explain_part: Callable[[Batch, Tensor, Tensor], tuple[Tensor, Tensor]],
) -> tuple[Tensor, Tensor]:
    """Explain texts of like length together, and return the logits and the importance of all."""
    twice = embeddings.requires_grad
    with frozen(classifier.model), torch.inference_mode(False):
        logits = torch.zeros(len(batch), classifier.model.config.num_labels, device=classifier.device)
        importance = torch.zeros(batch.maskable.shape, device=classifier.device)
        for rows in classifier.packed(classifier.lengths(batch)):
            part = batch.take(rows)
            length, shown = part.input_ids.shape[1], classifier.shown(part)
            point = shown.forth(embeddings[rows, :length])
            said, found = classifier.memory.through(shown, explain_part, rows, point)
            logits[rows] = said if twice else said.detach()
            importance[rows, :length] = shown.back(found if twice else found.detach()).float()
    return logits, importance.masked_fill(~batch.maskable, 0.0)


def _mean_of_heads(layers: Sequence[Tensor]) -> Tensor:
    """Return (layers, rows, queries, tokens)."""
    return torch.stack([layer.float().mean(dim=1) for layer in layers])


def _over_queries(matrices: Tensor, batch: Batch) -> Tensor:
    """Return the mean over the queries that are not padding."""
    real = batch.attention_mask
    return (matrices * real[..., None]).sum(dim=1) / real.sum(dim=1, keepdim=True).clamp_min(1)
