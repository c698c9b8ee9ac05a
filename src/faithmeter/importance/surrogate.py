"""Surrogate importance: mask random sets of tokens, and fit a linear model to the classifier's logits.

LIME (Ribeiro et al., 2016) and KernelSHAP (Lundberg and Lee, 2017), over the tokens of a text, or its units, that are
not masked yet. Own code, because the packages explain one text at a time, in passes that are padded or half empty; here
the maskings of all texts are packed together. The fits take a thousandth of the time of the passes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import product
from math import comb
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from faithmeter.importance.measure import open_units
from faithmeter.masking import Purpose, random_stream

if TYPE_CHECKING:
    from faithmeter.data.batch import Batch
    from faithmeter.models.classifier import Classifier

SAMPLES = 200  # of a text of up to 50 units
SAMPLES_PER_UNIT = 4  # of a longer one: a linear model of n units needs more than n samples
# Of texts of 50 to 510 tokens whose effects add up, four samples per token find 97 to 100 % of the most important
# tenth, two find 87 to 100 %, and one 35 to 73 %.
FEWEST_PER_UNIT = 2
TOO_FEW = (
    f"LIME and KernelSHAP explain some texts with less than {FEWEST_PER_UNIT} random maskings per token, too few to "
    "find the important ones: give them more samples, or explain longer units (--by sentence)."
)
KERNEL_WIDTH = 25  # of LIME's weights, for cosine distances in per cent, and its ridge: those of the package
RIDGE = 1.0
Array = np.ndarray[Any, np.dtype[np.float64]]
Kept = np.ndarray[Any, np.dtype[np.bool_]]  # (samples, tokens): which tokens a sample keeps
Draw = Callable[[int, np.random.Generator], tuple[Kept, Array]]  # of so many units
Solve = Callable[[Kept, Array, Array, float, float], Array]


def samples_for(units: int) -> int:
    """Return how many random maskings a text of so many units gets where nothing else is asked for."""
    return max(SAMPLES, SAMPLES_PER_UNIT * units)


def lime(classifier: Classifier, batch: Batch, targets: Tensor, seed: int, *, samples: int | None = None) -> Tensor:
    """Return LIME's coefficients: a ridge regression of the logit on which tokens are kept, near samples first."""
    return explain_by_maskings(
        classifier, batch, targets, seed, Purpose.SURROGATE, _as_many(samples, _draw_near), _ridge
    )


def kernel_shap(
    classifier: Classifier, batch: Batch, targets: Tensor, seed: int, *, samples: int | None = None
) -> Tensor:
    """Return Shapley values by KernelSHAP: they add up to the logit, less that with everything masked.

    Exact where all sets of tokens fit into the samples.
    """
    draw = _as_many(samples, _draw_by_shapley_kernel)
    return explain_by_maskings(classifier, batch, targets, seed, Purpose.SURROGATE, draw, _constrained)


def _as_many(samples: int | None, draw: Callable[[int, int, np.random.Generator], tuple[Kept, Array]]) -> Draw:
    """Return a draw of that many samples, or of as many as a text's units call for; too few are called too few."""

    def draw_for(units: int, random: np.random.Generator) -> tuple[Kept, Array]:
        count = samples_for(units) if samples is None else samples
        if count < FEWEST_PER_UNIT * units:
            warnings.warn(TOO_FEW, stacklevel=2)
        return draw(units, count, random)

    return draw_for


def explain_by_maskings(
    classifier: Classifier, batch: Batch, targets: Tensor, seed: int, purpose: Purpose, draw: Draw, solve: Solve
) -> Tensor:
    """Draw samples for every text from (seed, its dataset row), pass all of them, and fit each text's own."""
    home, batch, targets = batch.maskable.device, batch.to(classifier.device), targets.to(classifier.device)
    units = open_units(batch)
    drawn, parts, rows = [], [], []
    for index, row in enumerate(batch.rows.tolist()):
        count = units[index].count
        kept, weights = draw(count, random_stream(seed, purpose, row))
        # what is drawn twice is passed once; everything kept and nothing kept come first
        ends = np.array([[True] * count, [False] * count], dtype=np.bool_)
        distinct, which = np.unique(kept, axis=0, return_inverse=True)
        drawn.append((kept, weights, which.reshape(-1), len(distinct)))
        sets = units[index].tokens_of(~np.concatenate((ends, distinct)))
        masked = batch.masked[index] | torch.from_numpy(sets).to(batch.masked.device)
        parts.append(masked)
        rows.append(torch.full((len(masked),), index, device=masked.device))
    which_row = torch.cat(rows)
    logits = classifier.logits_of_masks(batch, which_row, torch.cat(parts))
    values = logits.gather(1, targets[which_row][:, None])[:, 0].double().cpu().numpy()
    importance = torch.zeros(batch.maskable.shape)
    start = 0
    for index, (kept, weights, which, count) in enumerate(drawn):
        full, empty = values[start : start + 2]
        own = values[start + 2 : start + 2 + count][which]
        start += 2 + count
        if units[index].count:
            found = solve(kept, weights, own, full, empty)
            importance[index] = torch.from_numpy(units[index].spread(found)).float()
    return importance.to(home)


# ------------------------------------------------------------------------------------------------- LIME


def _draw_near(tokens: int, samples: int, random: np.random.Generator) -> tuple[Kept, Array]:
    """Return the whole text and samples that lack 1 … all of its tokens, and weights that fall with the distance."""
    kept = np.ones((samples, tokens), dtype=np.bool_)
    for sample in range(1, samples if tokens else 0):
        kept[sample, random.permutation(tokens)[: random.integers(1, tokens + 1)]] = False
    share = np.sqrt(kept.mean(axis=1)) if tokens else np.ones(samples)  # cosine similarity with the whole text
    distance = 100 * (1 - share)
    return kept, np.sqrt(np.exp(-((distance / KERNEL_WIDTH) ** 2)))


def _ridge(kept: Kept, weights: Array, values: Array, _full: float, _empty: float) -> Array:
    """Return the coefficients of a weighted ridge regression whose intercept is free."""
    total = weights.sum()
    inputs = kept - (weights @ kept) / total
    outputs = values - (weights @ values) / total
    gram = inputs.T @ (weights[:, None] * inputs) + RIDGE * np.eye(kept.shape[1])
    return np.linalg.solve(gram, inputs.T @ (weights * outputs))


# ------------------------------------------------------------------------------------------- KernelSHAP


def _draw_by_shapley_kernel(tokens: int, samples: int, random: np.random.Generator) -> tuple[Kept, Array]:
    """Return every proper subset with its Shapley weight where they fit, else subsets drawn by that weight.

    Subsets are drawn with their complements, which halves the noise: sizes k and n − k are as likely.
    """
    if tokens < 2:
        return np.zeros((0, tokens), dtype=np.bool_), np.zeros(0)
    if 2**tokens - 2 <= samples:
        kept = np.array(list(product((False, True), repeat=tokens))[1:-1], dtype=np.bool_)
        sizes = kept.sum(axis=1)
        return kept, np.array([(tokens - 1) / (comb(tokens, k) * k * (tokens - k)) for k in sizes.tolist()])
    sizes = np.arange(1, tokens)
    chances = 1 / (sizes * (tokens - sizes))
    kept = np.zeros((samples, tokens), dtype=np.bool_)
    for sample, size in enumerate(random.choice(sizes, size=-(-samples // 2), p=chances / chances.sum())):
        kept[2 * sample, random.permutation(tokens)[:size]] = True
        if 2 * sample + 1 < samples:
            kept[2 * sample + 1] = ~kept[2 * sample]
    return kept, np.ones(samples)


def _constrained(kept: Kept, weights: Array, values: Array, full: float, empty: float) -> Array:
    """Return the weighted least squares coefficients that add up to full − empty, from the intercept `empty`.

    The last coefficient is what the others leave; where samples are too few for one solution, it is the shortest.
    """
    gain = full - empty
    if kept.shape[1] == 1:
        return np.array([gain])
    last = kept[:, -1:].astype(np.float64)
    root = np.sqrt(weights)[:, None]
    outputs = (values - empty)[:, None] - last * gain
    found = np.linalg.lstsq(root * (kept[:, :-1] - last), root * outputs, rcond=None)[0][:, 0]
    return np.append(found, gain - found.sum())
