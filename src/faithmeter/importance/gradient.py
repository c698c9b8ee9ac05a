"""Importance from gradients of the target's logit with respect to word embeddings.

g_t = d logit / d e_t, where e_t is what the word-embedding lookup gives for token t of the masked input.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from faithmeter.errors import InputError
from faithmeter.importance.measure import of_the_text
from faithmeter.models.fast.options import GRADIENT
from faithmeter.models.temporary import explaining

if TYPE_CHECKING:
    from faithmeter.data.batch import Batch
    from faithmeter.models.classifier import Classifier

# one tile of tokens × vocabulary stays in the processor's cache between the product and the sum
TILE_TOKENS, TILE_VOCABULARY = 256, 1024
STEPS = 20  # points on the way of integrated gradients
BASELINES = ("zero", "mask", "pad")


def gradient_l1(classifier: Classifier, batch: Batch, targets: Tensor, _seed: int) -> Tensor:
    """Return |W g_t|_1, the L1 norm over the vocabulary of d logit / d one-hot (Madsen et al., 2024, App. E.1)."""
    return of_the_text(gradient_l1_at, classifier, batch, targets)


def gradient_l2(classifier: Classifier, batch: Batch, targets: Tensor, _seed: int) -> Tensor:
    """Return |W g_t|_2, the L2 norm over the vocabulary of d logit / d one-hot (Madsen et al., 2024, App. E.1)."""
    return of_the_text(gradient_l2_at, classifier, batch, targets)


def input_times_gradient(classifier: Classifier, batch: Batch, targets: Tensor, _seed: int) -> Tensor:
    """Return ⟨g_t, e_t⟩, the gradient by the one-hot input times that input (Madsen et al., 2024, App. E.1)."""
    return of_the_text(input_times_gradient_at, classifier, batch, targets)


def integrated_gradient(
    classifier: Classifier, batch: Batch, targets: Tensor, _seed: int, *, steps: int = STEPS, baseline: str = "zero"
) -> Tensor:
    """Return ⟨e_t − b, mean over i = 1..k of g_t at b + (i/k)(e − b)⟩, a right Riemann sum.

    Sundararajan et al. (2017); Madsen et al. (2024), Eq. (1).

    The gradient is taken at the interpolated point. `baseline` b is the zero vector, or the embedding of the mask or
    the padding token, and stands in for every token of the input, the special ones too.
    """
    return of_the_text(partial(integrated_gradient_at, steps=steps, baseline=baseline), classifier, batch, targets)


# ------------------------------------------------------------------------------------ the same at any embeddings


def gradient_l1_at(classifier: Classifier, batch: Batch, embeddings: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits and `gradient_l1` at these embeddings."""
    return _gradient_norm(classifier, batch, embeddings, targets, _l1_over_vocabulary)


def gradient_l2_at(classifier: Classifier, batch: Batch, embeddings: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits and `gradient_l2` at these embeddings."""
    return _gradient_norm(classifier, batch, embeddings, targets, l2_over_vocabulary)


def input_times_gradient_at(
    classifier: Classifier, batch: Batch, embeddings: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the logits and `input_times_gradient` at these embeddings."""
    logits, gradients = _gradients(classifier, batch, embeddings, targets)
    return logits, (embeddings * gradients).sum(dim=-1).float().masked_fill(~batch.maskable, 0.0)


def integrated_gradient_at(
    classifier: Classifier,
    batch: Batch,
    embeddings: Tensor,
    targets: Tensor,
    *,
    steps: int = STEPS,
    baseline: str = "zero",
) -> tuple[Tensor, Tensor]:
    """Return the logits and `integrated_gradient` at these embeddings, which are the end of its way."""
    start = baseline_embedding(classifier, baseline)
    lengths = classifier.lengths(batch)
    # all steps of a text lie side by side, so that a pass holds few texts and no padding
    rows = torch.arange(len(batch), device=lengths.device).repeat_interleave(steps)
    step = torch.arange(1, steps + 1, device=lengths.device).repeat(len(batch))
    with explaining(classifier.model), classifier.fast_layers(GRADIENT, batch, rows):
        logits = torch.zeros(len(batch), classifier.model.config.num_labels, device=classifier.device)
        importance = torch.zeros(batch.maskable.shape, device=classifier.device)
        for index in classifier.packed(lengths[rows], classifier.tokens_at_once(GRADIENT)):
            part, last = batch.take(rows[index]), step[index] == steps
            way = embeddings[rows[index], : part.input_ids.shape[1]] - start
            points = start + (step[index, None, None] / steps).to(way.dtype) * way
            said, gradients = classifier.logits_and_gradients(part, points, targets[rows[index]])
            products = (way * gradients).sum(dim=-1).float() / steps
            importance[:, : products.shape[1]].index_add_(0, rows[index], products)
            logits[rows[index[last]]] = said[last]
    return logits, importance.masked_fill(~batch.maskable, 0.0)


def _gradients(classifier: Classifier, batch: Batch, embeddings: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits and g: (rows, tokens, dimensions), 0 at padding."""
    lengths = classifier.lengths(batch)
    with explaining(classifier.model), classifier.fast_layers(GRADIENT, batch):
        logits = torch.zeros(len(batch), classifier.model.config.num_labels, device=classifier.device)
        gradients = torch.zeros(embeddings.shape, device=classifier.device)
        for rows in classifier.packed(lengths, classifier.tokens_at_once(GRADIENT)):
            part = batch.take(rows)
            length = part.input_ids.shape[1]
            logits[rows], found = classifier.logits_and_gradients(part, embeddings[rows, :length], targets[rows])
            gradients[rows, :length] = found.float()
    return logits, gradients


def _gradient_norm(
    classifier: Classifier, batch: Batch, embeddings: Tensor, targets: Tensor, norm: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    logits, gradients = _gradients(classifier, batch, embeddings, targets)
    importance = torch.zeros(batch.maskable.shape, device=classifier.device)
    importance[batch.maskable] = norm(gradients[batch.maskable], classifier.vocabulary())
    return logits, importance


def _l1_over_vocabulary(gradients: Tensor, words: Tensor) -> Tensor:
    """Sum |⟨g, w⟩| over the vocabulary, tile by tile: tokens × vocabulary are never held at once."""
    norm = torch.zeros(len(gradients), device=gradients.device)
    for few in torch.arange(len(gradients), device=gradients.device).split(TILE_TOKENS):
        for block in words.split(TILE_VOCABULARY):
            norm[few] += torch.linalg.vector_norm(gradients[few] @ block.float().T, ord=1, dim=1)
    return norm


def l2_over_vocabulary(gradients: Tensor, words: Tensor) -> Tensor:
    """Return sqrt(gᵀ (WᵀW) g): the Gram matrix is small, and W g is never written down.

    It costs as much as W g of as many tokens as there are dimensions; for fewer, W g itself is cheaper.
    """
    if len(gradients) < words.shape[1]:
        squares = torch.zeros(len(gradients), device=gradients.device)
        for block in words.split(TILE_VOCABULARY):
            products = gradients @ block.float().T
            squares += torch.linalg.vecdot(products, products)
        return _root(squares)
    gram = words.float().T @ words.float()
    return _root(((gradients @ gram) * gradients).sum(dim=1))


def _root(squares: Tensor) -> Tensor:
    """Return the root, 0 and with slope 0 where the square vanishes or rounding has carried it below 0."""
    vanishing = squares <= 0
    return squares.masked_fill(vanishing, 1.0).sqrt().masked_fill(vanishing, 0.0)


def baseline_embedding(classifier: Classifier, name: str) -> Tensor:
    """Return the embedding that integrated gradients start from, of one of `BASELINES`."""
    words = classifier.vocabulary()
    ids = {"mask": classifier.mask_token_id, "pad": classifier.tokenizer.pad_token_id}
    if name == "zero":
        return torch.zeros_like(words[0])
    if ids.get(name) is None:
        raise InputError(f"There is no baseline {name!r} for this model; there are {', '.join(BASELINES)}.")
    return words[ids[name]]
