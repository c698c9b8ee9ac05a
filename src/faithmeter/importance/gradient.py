"""Importance from gradients of the target's logit with respect to word embeddings.

g_t = d logit / d e_t, where e_t is what the word-embedding lookup gives for token t of the masked input.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from faithmeter.batch import Batch, packed
from faithmeter.borrowing import explaining
from faithmeter.classifier import Classifier
from faithmeter.errors import InputError

# one tile of tokens × vocabulary stays in the processor's cache between the product and the sum
TILE_TOKENS, TILE_VOCABULARY = 256, 1024
STEPS = 20  # points on the way of integrated gradients
BASELINES = ("zero", "mask", "pad")


def gradient_l1(classifier: Classifier, batch: Batch, targets: Tensor, _seed: int) -> Tensor:
    """Return |W g_t|_1, the L1 norm over the vocabulary of d logit / d one-hot (FMM App. E.1)."""
    return _gradient_norm(classifier, batch, targets, _l1_over_vocabulary)


def gradient_l2(classifier: Classifier, batch: Batch, targets: Tensor, _seed: int) -> Tensor:
    """Return |W g_t|_2, the L2 norm over the vocabulary of d logit / d one-hot (FMM App. E.1)."""
    return _gradient_norm(classifier, batch, targets, _l2_over_vocabulary)


def input_times_gradient(classifier: Classifier, batch: Batch, targets: Tensor, _seed: int) -> Tensor:
    """Return ⟨g_t, e_t⟩, the gradient with respect to the one-hot input times that input (FMM App. E.1)."""
    gradients = _gradients(classifier, batch, targets)
    embeddings = classifier.embed(batch.to(classifier.device))
    return _only_maskable((embeddings * gradients).sum(dim=-1).float(), batch)


def integrated_gradient(
    classifier: Classifier, batch: Batch, targets: Tensor, _seed: int, *, steps: int = STEPS, baseline: str = "zero"
) -> Tensor:
    """Return ⟨e_t − b, mean over i = 1..k of g_t at b + (i/k)(e − b)⟩, Eq. (1) of FMM; a right Riemann sum.

    The gradient is taken at the interpolated point. `baseline` b is the zero vector, or the embedding of the mask or
    the padding token, and stands in for every token of the input, the special ones too.
    """
    home, batch, targets = batch.maskable.device, batch.to(classifier.device), targets.to(classifier.device)
    start = _baseline(classifier, baseline)
    count = len(batch)
    lengths = batch.attention_mask.sum(dim=1)
    # all steps of a text lie side by side, so that a pass holds few texts and no padding
    rows = torch.arange(count, device=lengths.device).repeat_interleave(steps)
    share = torch.arange(1, steps + 1, device=lengths.device).repeat(count) / steps
    with explaining(classifier.model):
        importance = torch.zeros(batch.maskable.shape, device=classifier.device)
        for index in packed(lengths[rows], classifier.tokens_per_pass):
            part = batch.take(rows[index])
            way = classifier.embed(part) - start
            points = start + share[index, None, None].to(way.dtype) * way
            gradients = classifier.gradients(part, points, targets[rows[index]])
            products = (way * gradients).sum(dim=-1).float() / steps
            importance[:, : products.shape[1]].index_add_(0, rows[index], products)
    return _only_maskable(importance, batch).to(home)


def _gradients(classifier: Classifier, batch: Batch, targets: Tensor) -> Tensor:
    """Return g: (rows, tokens, dimensions), 0 at padding."""
    batch, targets = batch.to(classifier.device), targets.to(classifier.device)
    with explaining(classifier.model):
        gradients = torch.zeros(*batch.maskable.shape, classifier.vocabulary().shape[1], device=classifier.device)
        for rows in packed(batch.attention_mask.sum(dim=1), classifier.tokens_per_pass):
            part = batch.take(rows)
            found = classifier.gradients(part, classifier.embed(part), targets[rows])
            gradients[rows, : found.shape[1]] = found.float()
    return gradients


def _gradient_norm(
    classifier: Classifier, batch: Batch, targets: Tensor, norm: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    gradients = _gradients(classifier, batch, targets)
    maskable = batch.maskable.to(classifier.device)
    importance = torch.zeros(maskable.shape, device=classifier.device)
    importance[maskable] = norm(gradients[maskable], classifier.vocabulary())
    return importance.to(batch.maskable.device)


def _l1_over_vocabulary(gradients: Tensor, words: Tensor) -> Tensor:
    """Sum |⟨g, w⟩| over the vocabulary, tile by tile: tokens × vocabulary are never held at once."""
    norm = torch.zeros(len(gradients), device=gradients.device)
    for few in torch.arange(len(gradients), device=gradients.device).split(TILE_TOKENS):
        for block in words.split(TILE_VOCABULARY):
            norm[few] += torch.linalg.vector_norm(gradients[few] @ block.float().T, ord=1, dim=1)
    return norm


def _l2_over_vocabulary(gradients: Tensor, words: Tensor) -> Tensor:
    """Return sqrt(gᵀ (WᵀW) g): the Gram matrix is small, and W g is never written down.

    It costs as much as W g of as many tokens as there are dimensions; for fewer, W g itself is cheaper.
    """
    if len(gradients) < words.shape[1]:
        squares = torch.zeros(len(gradients), device=gradients.device)
        for block in words.split(TILE_VOCABULARY):
            squares += (gradients @ block.float().T).square_().sum(dim=1)
        return squares.sqrt()
    gram = words.float().T @ words.float()
    # rounding may carry the square of a vanishing gradient below 0
    return ((gradients @ gram) * gradients).sum(dim=1).clamp_min(0).sqrt()


def _baseline(classifier: Classifier, name: str) -> Tensor:
    words = classifier.vocabulary()
    ids = {"mask": classifier.mask_token_id, "pad": classifier.tokenizer.pad_token_id}
    if name == "zero":
        return torch.zeros_like(words[0])
    if ids.get(name) is None:
        raise InputError(f"There is no baseline {name!r} for this model; there are {', '.join(BASELINES)}.")
    return words[ids[name]]


def _only_maskable(importance: Tensor, batch: Batch) -> Tensor:
    maskable = batch.maskable
    return importance.to(maskable.device).masked_fill(~maskable, 0.0)
