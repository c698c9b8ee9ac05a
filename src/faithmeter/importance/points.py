"""Gradients at many points per text: SmoothGrad, GradientSHAP and sequential integrated gradients.

The points of all texts are packed together. Noise is drawn from the seed, the dataset row and the number of the point,
so that neither the batch nor its padding changes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from faithmeter.importance.gradient import STEPS, baseline_embedding, l2_over_vocabulary
from faithmeter.importance.measure import open_units
from faithmeter.masking import Purpose, random_stream
from faithmeter.models.fast.options import GRADIENT
from faithmeter.models.temporary import explaining

if TYPE_CHECKING:
    from faithmeter.data.batch import Batch
    from faithmeter.models.classifier import Classifier

POINTS = 50  # that gradients are averaged over: more add little (Smilkov et al., 2017)
# Standard deviation of the noise, in those of the text's own embeddings. Smilkov et al. (2017) take a tenth to a fifth
# of the range from the smallest to the largest number; a few outlying dimensions make the range of word embeddings (26
# standard deviations in MiniLM, 42 in MPNet), and so much noise would leave nothing of the text.
NOISE = 0.5
# (which of the points, rows of the batch, their embeddings) -> the points, and what each gradient is multiplied by
Points = Callable[[Tensor, "Batch", Tensor], tuple[Tensor, Tensor | float]]


def smooth_gradient(
    classifier: Classifier, batch: Batch, targets: Tensor, seed: int, *, points: int = POINTS, noise: float = NOISE
) -> Tensor:
    """Return |W ḡ_t|_2 with ḡ the mean gradient at `points` noisy copies of the text (Smilkov et al., 2017)."""
    here, gradients, _ = _smoothed(classifier, batch, targets, seed, points, noise)
    importance = torch.zeros(here.maskable.shape, device=classifier.device)
    importance[here.maskable] = l2_over_vocabulary(gradients[here.maskable], classifier.vocabulary())
    return importance.to(batch.maskable.device)


def smooth_input_times_gradient(
    classifier: Classifier, batch: Batch, targets: Tensor, seed: int, *, points: int = POINTS, noise: float = NOISE
) -> Tensor:
    """Return ⟨ḡ_t, e_t⟩, the text's own embedding times the mean gradient at noisy copies of it.

    Smilkov et al. (2017).
    """
    here, gradients, embeddings = _smoothed(classifier, batch, targets, seed, points, noise)
    products = (gradients * embeddings).sum(dim=-1).float()
    return products.masked_fill(~here.maskable, 0.0).to(batch.maskable.device)


def gradient_shap(
    classifier: Classifier, batch: Batch, targets: Tensor, seed: int, *, points: int = POINTS, noise: float = NOISE
) -> Tensor:
    """Return the mean of ⟨e_t − b_t, g_t at b + u(e − b)⟩ over random u from U(0, 1) and baselines b.

    Lundberg and Lee (2017), as captum's GradientShap computes it. A baseline is the mask token's embedding at every
    position, special ones too, plus noise as in `smooth_gradient`; so it is integrated gradients from the surroundings
    of the mask token.
    """
    here, targets = batch.to(classifier.device), targets.to(classifier.device)
    embeddings, start = _embedded(classifier, here), baseline_embedding(classifier, "mask")
    rows = _repeated(here, points)
    spread = noise * _deviations(here, embeddings)

    def on_the_way(index: Tensor, part: Batch, text: Tensor) -> tuple[Tensor, Tensor]:
        drawn = [_draws(seed, here, int(rows[one]), int(one) % points) for one in index]
        share = torch.tensor([random.random() for random in drawn], device=text.device, dtype=text.dtype)
        baseline = start + spread[rows[index], None, None] * _noise_like(text, part, drawn)
        way = text - baseline
        return baseline + share[:, None, None] * way, way / points

    products = _summed(classifier, here, embeddings, targets, rows, on_the_way).sum(dim=-1)
    return products.float().masked_fill(~here.maskable, 0.0).to(batch.maskable.device)


def sequential_integrated_gradient(
    classifier: Classifier, batch: Batch, targets: Tensor, _seed: int, *, steps: int = STEPS
) -> Tensor:
    """Return for each unit ⟨e − b, mean over i = 1..k of g at b + (i/k)(e − b)⟩, b the text with that unit masked.

    Enguehard (2023), without the division by the norm of a text's importances, which changes no order: a
    right Riemann sum on a way on which all other tokens stay in place. The gradients on that way add up to what masking
    the unit costs, so with more and more steps this becomes leave-one-out.
    """
    here, targets = batch.to(classifier.device), targets.to(classifier.device)
    embeddings, start = _embedded(classifier, here), baseline_embedding(classifier, "mask")
    units = open_units(here)
    counts = torch.tensor([one.count * steps for one in units])
    rows = torch.arange(len(here)).repeat_interleave(counts).to(here.rows.device)
    number = torch.cat([torch.arange(one.count).repeat_interleave(steps) for one in units]).to(rows.device)
    step = torch.arange(1, steps + 1).repeat(len(rows) // steps).to(rows.device)
    unit = torch.from_numpy(np.stack([one.unit for one in units])).to(rows.device)

    def one_unit_at_a_time(index: Tensor, _part: Batch, text: Tensor) -> tuple[Tensor, Tensor]:
        own = unit[rows[index], : text.shape[1]] == number[index, None]
        way = (text - start) * own[..., None]
        left = (1 - step[index] / steps).to(text.dtype)
        return text - left[:, None, None] * way, way / steps

    products = _summed(classifier, here, embeddings, targets, rows, one_unit_at_a_time).sum(dim=-1)
    importance = torch.zeros_like(products)
    for row, one in enumerate(units):  # what its tokens have together, at each token of a unit
        totals = np.bincount(one.unit + 1, weights=products[row].double().cpu().numpy(), minlength=one.count + 1)
        importance[row] = torch.from_numpy(one.spread(totals[1:])).to(products)
    return importance.float().to(batch.maskable.device)


# ------------------------------------------------------------------------------------------------- what they share


def _smoothed(
    classifier: Classifier, batch: Batch, targets: Tensor, seed: int, points: int, noise: float
) -> tuple[Batch, Tensor, Tensor]:
    """Return the batch where the classifier is, its mean gradients at noisy points, and its embeddings."""
    here, targets = batch.to(classifier.device), targets.to(classifier.device)
    embeddings = _embedded(classifier, here)
    rows = _repeated(here, points)
    spread = noise * _deviations(here, embeddings)

    def noisy(index: Tensor, part: Batch, text: Tensor) -> tuple[Tensor, float]:
        drawn = [_draws(seed, here, int(rows[one]), int(one) % points) for one in index]
        return text + spread[rows[index], None, None] * _noise_like(text, part, drawn), 1 / points

    return here, _summed(classifier, here, embeddings, targets, rows, noisy), embeddings


def _summed(
    classifier: Classifier, batch: Batch, embeddings: Tensor, targets: Tensor, rows: Tensor, points: Points
) -> Tensor:
    """Return the sum over all points of a text of the gradient there, times what it counts: shaped as embeddings.

    `rows` are the texts that the points belong to.
    """
    lengths = batch.attention_mask.sum(dim=1)
    with explaining(classifier.model), classifier.fast_layers(GRADIENT, batch, rows):
        total = torch.zeros(embeddings.shape, device=classifier.device)
        for index in classifier.packed(lengths[rows], classifier.tokens_at_once(GRADIENT)):
            part = batch.take(rows[index])
            length = part.input_ids.shape[1]
            at, counts = points(index, part, embeddings[rows[index], :length])
            _, gradients = classifier.logits_and_gradients(part, at, targets[rows[index]])
            total[:, :length].index_add_(0, rows[index], (gradients * counts).float())
    return total


def _embedded(classifier: Classifier, batch: Batch) -> Tensor:
    with torch.inference_mode(False):  # or they could not be differentiated by
        return classifier.embed(batch)


def _repeated(batch: Batch, points: int) -> Tensor:
    return torch.arange(len(batch), device=batch.rows.device).repeat_interleave(points)


def _deviations(batch: Batch, embeddings: Tensor) -> Tensor:
    """Return the standard deviation of the numbers in each text's embeddings, padding left out."""
    real = batch.attention_mask.bool()
    return torch.stack([text[own].std(correction=0) for text, own in zip(embeddings, real, strict=True)])


def _draws(seed: int, batch: Batch, row: int, point: int) -> np.random.Generator:
    return random_stream(seed, Purpose.EMBEDDING_NOISE, int(batch.rows[row]), point)


def _noise_like(text: Tensor, part: Batch, drawn: list[np.random.Generator]) -> Tensor:
    """Return standard normal numbers at the tokens of each text, from its own stream, and 0 at padding."""
    noise = torch.zeros(text.shape)
    for row, (length, random) in enumerate(zip(part.attention_mask.sum(dim=1).tolist(), drawn, strict=True)):
        noise[row, :length] = torch.from_numpy(random.standard_normal((length, text.shape[2]), dtype=np.float32))
    return noise.to(text)
