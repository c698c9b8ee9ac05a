"""Faithfulness curves: mask the most important tokens, step by step, explaining again each time.

Madsen et al. (2024), Sec. 3.4 and App. F.3. The faster performance falls below that under random masking, the more
faithful the explanation.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from faithmeter.data.batch import Batch
from faithmeter.errors import InputError
from faithmeter.importance.measure import ImportanceMeasure
from faithmeter.masking import STEPS
from faithmeter.models.classifier import Classifier
from faithmeter.performance import Gold, Ints, weighted_performance
from faithmeter.statistics import Groups, Weights, group_numbers, percentile_band
from faithmeter.statistics.intervals import (
    Interval,
    baseline_share,
    draws_needed,
    jackknife_interval,
    pseudo_values,
    ratio_interval,
)

TARGETS = ("gold", "predicted")  # the class whose logit is explained: the true one, or the model's answer
NO_SCALE = 1e-12  # RACU has none where random masking costs less than this, which is rounding
Floats = NDArray[np.float64]


def require_target(target: str) -> None:
    """Refuse a target that there is not."""
    if target not in TARGETS:
        raise InputError(f"There is no target {target!r}: choose {' or '.join(TARGETS)}.")


def mask_most_important(batch: Batch, importance: Tensor, step: int, steps: int = STEPS) -> Tensor:
    """Return what is masked at a step: floor(n·step/steps) of a row's n maskable tokens, in whole numbers.

    Tokens that are masked already stay and count; the highest importance comes next, ties to the lowest position. Units
    are masked as a whole, and steps still count tokens: a unit is masked if at least half of it fits into the step's
    share. So all measures mask the same share but for rounding, which favours none, and who only likes long units gains
    nothing. A unit whose tokens differ in importance has the largest.
    """
    wanted = batch.maskable.sum(dim=1) * step // steps - (batch.masked & batch.maskable).sum(dim=1)
    open_ = batch.maskable & ~batch.masked
    positions = torch.arange(open_.shape[1], device=open_.device).expand_as(open_)
    unit = positions if batch.units is None else batch.units.clamp(min=0)
    loudest = torch.full(open_.shape, -torch.inf, device=open_.device, dtype=importance.dtype)
    loudest.scatter_reduce_(1, unit, importance.masked_fill(~open_, -torch.inf), "amax")
    # three stable sorts: by unit, by its importance, then the tokens that may be chosen before those that may not
    order = unit.argsort(dim=1, stable=True)
    for key in (loudest.gather(1, unit), open_.int()):
        order = order.gather(1, key.gather(1, order).argsort(dim=1, descending=True, stable=True))
    rank = torch.empty_like(order).scatter_(1, order, positions.contiguous())
    size = torch.zeros_like(rank).scatter_add_(1, unit, open_.long())
    before = torch.full_like(rank, open_.shape[1]).scatter_reduce_(
        1, unit, rank.masked_fill(~open_, open_.shape[1]), "amin"
    )
    fits = 2 * before + size <= 2 * wanted[:, None]  # of a single token: as many come before it as are wanted at most
    return batch.masked | (open_ & fits.gather(1, unit))


def masking_walk(
    classifier: Classifier,
    batch: Batch,
    measure: ImportanceMeasure,
    targets: Tensor,
    *,
    seed: int,
    steps: int = STEPS,
    importance: Tensor | None = None,
) -> Iterator[Batch]:
    """Yield the batch with 0, 1 … `steps` steps masked, explaining again on the masked input before each step.

    A measure that is not recursive (random, beam) is computed once. At 100 % nothing is left to choose, so nothing is
    explained. `importance` is the measure's answer for the batch as given, where it is known already.
    """
    yield batch
    for step in range(1, steps):
        if importance is None or (measure.recursive and step > 1):
            importance = measure.explain(classifier, batch, targets, seed)
        batch = batch.with_masked(mask_most_important(batch, importance, step, steps))
        yield batch
    yield batch.with_masked(batch.masked | batch.maskable)


def walk_passes(measure: ImportanceMeasure, units: int, steps: int = STEPS) -> float | None:
    """Return about how often a text of so many units to mask goes through the model as it is explained on a walk.

    That is once where the measure is not recursive, and before each step where it is, of ever fewer units. What is
    predicted on the way is not counted. None for a measure of which nothing is known.
    """
    if measure.passes is None:
        return None
    explained = range(steps) if measure.recursive else range(1)
    return float(sum(measure.passes(units - units * step // steps) for step in explained))


def area_between_curves(performance: Floats, random: Floats) -> tuple[Floats, Floats]:
    """Return (ACU, RACU), Eq. (3) of Madsen et al. (2024), of curves along the last axis at equal steps from 0 to 1.

    ACU is the area by which `performance` lies below `random`; negative means worse than random. RACU divides it by
    the area under `random` down to its last point. It is not clipped: a signed measure may exceed 1, because it can
    push the model to the opposite label (Sec. 5.3). RACU is nan where random masking costs nothing: no scale then.
    """
    step = 1 / (random.shape[-1] - 1)
    acu = np.trapezoid(random - performance, dx=step, axis=-1)
    scale = np.trapezoid(random - random[..., -1:], dx=step, axis=-1)
    return acu, np.divide(acu, scale, out=np.full_like(acu, np.nan), where=scale > NO_SCALE)


@dataclass(frozen=True)
class Curve:
    """One measure on one model: for each observation and step the predicted class and the target's probability.

    Where a text has several labels, `predicted` is the probability of each label, masked by its own explanation, and so
    is `probability`. Where it has a number, `predicted` is that, and `probability` how near it is to that of the
    unmasked text: 0 there, and the distance below.
    """

    predicted: Gold  # (observations, steps + 1), of labels and numbers (observations, steps + 1, outputs)
    probability: Floats  # (observations, steps + 1), of labels and numbers (observations, outputs, steps + 1)

    def of(self, outputs: Sequence[int]) -> "Curve":
        """Return the curve of some of the labels."""
        return Curve(self.predicted[..., outputs], self.probability[:, outputs])

    def at(self, rows: Ints | Sequence[int]) -> "Curve":
        """Return the curve of some of the observations."""
        return Curve(self.predicted[rows], self.probability[rows])


@dataclass(frozen=True)
class Faithfulness:
    """How faithful a measure is. Intervals are 95 %, over `over`: `seeds` or `observations`; nan RACU has no scale.

    `groups` is the number of groups of observations that the intervals are over; None where each is independent.
    `baseline_share` is the share of ACU's variance that is noise of the random draws (nan of a single draw), and
    `draws_needed` how many of them make it less than a tenth.
    """

    acu: float
    acu_interval: Interval
    racu: float
    racu_interval: Interval
    over: str
    n: int
    groups: int | None = None
    baseline_share: float = float("nan")
    draws_needed: int | None = None


def area_and_scale(metric: str, gold: Gold, curve: Curve, random: Sequence[Curve]) -> Callable[[Weights], Floats]:
    """Return a function of weights: (rows, 2), ACU and what RACU divides it by, Eq. (3) of Madsen et al. (2024).

    The baseline is the mean of the random curves; an observation is weighted with all its curves, random ones included.
    """
    reached, *at_random = (weighted_performance(metric, gold, each.predicted) for each in (curve, *random))

    def both(weights: Weights) -> Floats:
        mean = np.mean([each(weights) for each in at_random], axis=0)
        acu, _ = area_between_curves(reached(weights), mean)
        scale, _ = area_between_curves(np.broadcast_to(mean[:, -1:], mean.shape), mean)
        return np.stack([acu, scale], axis=1)

    return both


def faithfulness_over_observations(
    metric: str, gold: Gold, curve: Curve, random: list[Curve], groups: Groups | None = None
) -> Faithfulness:
    """Return ACU and RACU on one model, with intervals by the jackknife: Johnson's of ACU, Fieller's of RACU.

    Both are over observations. The draws of random masking differ from one observation to the next, so their noise is
    part of how observations vary and of the intervals. RACU has no interval where its denominator may be 0. With
    `groups`, one number per observation, whole groups are left out in turn; of a single one there is no interval.
    """
    numbers = group_numbers(groups)
    statistic = area_and_scale(metric, gold, curve, random)
    acu, scale = statistic(np.ones((1, len(gold))))[0].tolist()
    values = pseudo_values(statistic, len(gold), numbers) if len(gold) > 1 else np.zeros((0, 2))
    by_draw = np.array([_pseudo_areas(metric, gold, each, numbers) for each in random if len(gold) > 1])
    differ = np.any([(each.predicted != curve.predicted).reshape(len(gold), -1) for each in random], axis=(0, 2))
    differing = int(differ.sum()) if numbers is None else len(np.unique(numbers[differ]))
    return Faithfulness(
        acu=acu,
        acu_interval=jackknife_interval(values[:, 0], acu, differing=differing),
        racu=acu / scale if scale > NO_SCALE else float("nan"),
        racu_interval=ratio_interval((acu, scale), values[:, 0], values[:, 1]) if scale > NO_SCALE else None,
        over="observations",
        n=len(gold),
        groups=None if numbers is None else int(numbers.max()) + 1,
        baseline_share=baseline_share(by_draw, values[:, 0]) if len(values) > 1 else float("nan"),
        draws_needed=draws_needed(by_draw, values[:, 0]) if len(values) > 1 else None,
    )


def _pseudo_areas(metric: str, gold: Gold, curve: Curve, numbers: Groups | None) -> Floats:
    """Return what each observation, or group of them, adds to the area under one curve."""
    reached = weighted_performance(metric, gold, curve.predicted)
    step = 1 / (curve.predicted.shape[1] - 1)
    return pseudo_values(lambda w: np.trapezoid(reached(w), dx=step, axis=-1)[:, None], len(gold), numbers)[:, 0]


def performance_band(
    metric: str, gold: Gold, curves: list[Curve], groups: Groups | None = None
) -> list[tuple[float, float, float]]:
    """Return for each step the mean performance of the curves and its 95 % interval over observations, or `groups`.

    The interval is nan where all observations are of one group.
    """
    reached = [weighted_performance(metric, gold, curve.predicted) for curve in curves]

    def mean(weights: Weights) -> Floats:
        return np.mean([one(weights) for one in reached], axis=0)

    low, high = percentile_band(mean, len(gold), groups=groups)
    return list(zip(mean(np.ones((1, len(gold))))[0].tolist(), low.tolist(), high.tolist(), strict=True))


def held_by_the_most_important(importance: Tensor, maskable: Tensor, steps: int = STEPS) -> Tensor:
    """Return (rows, steps + 1): the share of a row's |importance| in its top floor(n·k/steps) of n maskable tokens.

    The sparsity of Madsen et al. (2022), App. E. nan where there is no importance at all.
    """
    ordered = importance.abs().double().masked_fill(~maskable, 0.0).sort(dim=1, descending=True).values
    sums = torch.nn.functional.pad(ordered.cumsum(dim=1), (1, 0))
    counts = maskable.sum(dim=1, keepdim=True) * torch.arange(steps + 1, device=maskable.device) // steps
    return sums.gather(1, counts) / sums[:, -1:].masked_fill(sums[:, -1:] == 0, torch.nan)


def observation_areas(curve: Curve, random: list[Curve]) -> tuple[Floats, Floats]:
    """Return (ACU, RACU) of every observation, with the target's probability in place of the metric.

    Of labels and numbers they are (observations, outputs).
    """
    return area_between_curves(curve.probability, np.mean([r.probability for r in random], axis=0))


def random_spread(metric: str, gold: Gold, random: list[Curve]) -> float:
    """Return the standard deviation of one random draw's ACU relative to the mean random curve."""
    ones = np.ones((1, len(gold)))
    curves = np.concatenate([weighted_performance(metric, gold, r.predicted)(ones) for r in random])
    acu, _ = area_between_curves(curves, np.broadcast_to(curves.mean(axis=0), curves.shape))
    return float(acu.std(ddof=1)) if len(random) > 1 else float("nan")
