"""The outputs of a model for many maskings of texts, and which masked texts are out-of-distribution."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from math import ceil
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from faithmeter.masking import STEPS
from faithmeter.statistics import LEVEL

if TYPE_CHECKING:
    from faithmeter.data.batch import Batch
    from faithmeter.in_distribution.masf import MaSF
    from faithmeter.models.classifier import Classifier

MASKINGS_AT_ONCE = 512  # whose features are in memory: 20 MB for MiniLM, 80 MB for RoBERTa-base
NO_SCALE = 1e-4  # masking everything must lower the probability by this much, or there is no scale to normalise by


def tokens_of(ratio: float, maskable: int) -> int:
    """Return how many of a text's maskable tokens a ratio is: rounded up, so at least 1.

    The Oxford thesis (2022) does not say how.

    In whole numbers, because 0.07 * 100 is above 7.
    """
    return max(1, ceil(Fraction(str(ratio)) * maskable))


def answers(
    classifier: Classifier, batch: Batch, which: Tensor, masked: Tensor, masf: MaSF | None
) -> tuple[Tensor, Tensor | None]:
    """Return the logits of row `which[i]` of the batch with `masked[i]` masked, and whether it is out-of-distribution.

    None for the latter where there is no test to ask. All on the CPU.
    """
    if masf is not None:
        return _looked_at(classifier, batch, which, masked, masf, classifier.predict_with_features)
    here = classifier.device
    return classifier.logits_of_masks(batch.to(here), which.to(here), masked.to(here)).cpu(), None


def probabilities(
    classifier: Classifier, batch: Batch, variants: Tensor, masf: MaSF | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return the (variants, rows) probability of the first variant's class, and which are out-of-distribution.

    `variants` are (variants, rows, tokens) maskings of the batch. A masking that several variants share (5 and 10 % of
    a short text are both one token) is evaluated once.
    """
    count, rows = variants.shape[:2]
    which = torch.arange(rows, device=variants.device).repeat(count)
    keyed = torch.cat((which[:, None], variants.flatten(0, 1).long()), dim=1)
    distinct, where = torch.unique(keyed, dim=0, return_inverse=True)
    which, masked = distinct[:, 0], distinct[:, 1:].bool()
    logits, strange = answers(classifier, batch, which, masked, masf)
    where = where.cpu()
    by_variant = logits.softmax(dim=-1)[where].view(count, rows, -1)
    predicted = by_variant[0].argmax(dim=-1)
    found = by_variant.gather(2, predicted.expand(count, rows)[..., None])[..., 0]
    return found, None if strange is None else strange[where].view(count, rows)


def representations(
    classifier: Classifier, batch: Batch, which: Tensor, masked: Tensor, masf: MaSF | None
) -> tuple[Tensor, Tensor | None]:
    """Return what the head reads of row `which[i]` of the batch with `masked[i]` masked, and the same as `answers`."""
    look = partial(classifier.representations, features=masf is not None)
    return _looked_at(classifier, batch, which, masked, masf, look)


def _looked_at(
    classifier: Classifier,
    batch: Batch,
    which: Tensor,
    masked: Tensor,
    masf: MaSF | None,
    look: Callable[[Batch], tuple[Tensor, Tensor | None]],
) -> tuple[Tensor, Tensor | None]:
    """Return what `look` sees in maskings of rows, and whether each is out-of-distribution, from the same passes.

    `look` returns a table of a batch, one line per row, and the features of the test, if there is one.
    """
    seen = torch.zeros(len(which), 0)
    strange = None if masf is None else torch.zeros(len(which), dtype=torch.bool)
    lengths, size = batch.attention_mask.sum(dim=1)[which], batch.maskable.sum(dim=1)[which]
    share = (masked & batch.maskable[which]).sum(dim=1)
    steps = (2 * STEPS * share + size) // (2 * size).clamp_min(1)  # the nearest tenth, a half rounded up
    # step by step: the test looks up one reference a step, so maskings of one step are best tested together
    for part in steps.argsort(stable=True).split(MASKINGS_AT_ONCE):
        features: list[Tensor] = []
        order: list[Tensor] = []
        for index in classifier.packed(lengths[part]):
            chosen = part[index]
            taken = batch.take(which[chosen])
            taken = taken.with_masked(masked[chosen, : taken.input_ids.shape[1]])
            found, of_test = look(taken)
            seen = seen if seen.shape[1] else found.new_zeros(len(which), found.shape[1])
            seen[chosen.cpu()] = found
            order.append(chosen)
            if of_test is not None:
                features.append(of_test)
        if masf is not None and strange is not None:
            done = torch.cat(order).cpu()
            of_rows = batch.rows.cpu()[which.cpu()[done]]
            outside = masf.p_values(torch.cat(features), lengths.cpu()[done], of_rows, steps.cpu()[done])[1]
            strange[done] = outside <= LEVEL
    return seen, strange
