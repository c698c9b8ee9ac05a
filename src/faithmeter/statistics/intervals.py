"""Intervals by the jackknife: of one area, of a ratio of two, and what the random baseline adds to them."""

import math
from collections.abc import Callable

import numpy as np
from scipy import stats

from faithmeter.statistics import Array, Weights, each_left_out

Interval = tuple[float, float] | None


def pseudo_values(statistic: Callable[[Weights], Array], observations: int) -> Array:
    """Return Tukey's pseudo-values n·T − (n−1)·T₍₋ₜ₎: what each observation adds to a statistic.

    `statistic` maps (resamples, observations) weights to one value per row, or to several columns. Of a mean these are
    the observations themselves, exactly; of F1 or Matthews' coefficient they are so to first order.
    """
    whole = statistic(np.ones((1, observations)))
    left = np.concatenate([statistic(weights) for weights in each_left_out(observations)])
    return observations * whole - (observations - 1) * left


def jackknife_interval(values: Array, estimate: float, *, confidence: float = 0.95) -> Interval:
    """Return Student's interval about an estimate, with the standard error of its pseudo-values.

    None for fewer than two of them, or where one is not a number.
    """
    if len(values) < 2 or not np.isfinite(values).all() or not math.isfinite(estimate):
        return None
    half = float(stats.t.ppf((1 + confidence) / 2, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)))
    return estimate - half, estimate + half


def ratio_interval(
    estimates: tuple[float, float], numerator: Array, denominator: Array, *, confidence: float = 0.95
) -> Interval:
    """Return Fieller's interval of a ratio (Fieller, 1954): all r for which numerator − r·denominator may be 0.

    `numerator` and `denominator` are pseudo-values of the same observations. None where the denominator itself may be
    0, or is negative: then no ratio can be excluded, or all but a few, and there is no interval to show.
    """
    above, below = estimates
    n = len(numerator)
    if n < 2 or not np.isfinite(numerator).all() or not np.isfinite(denominator).all() or below <= 0:
        return None
    covariance = np.cov(numerator, denominator) / n
    squared = float(stats.t.ppf((1 + confidence) / 2, n - 1)) ** 2
    # r solves a·r² − 2b·r + c ≤ 0
    a = below**2 - squared * covariance[1, 1]
    b = above * below - squared * covariance[0, 1]
    c = above**2 - squared * covariance[0, 0]
    if a <= 0:
        return None
    half = math.sqrt(max(0.0, b * b - a * c))
    return float((b - half) / a), float((b + half) / a)


def baseline_share(random: Array, area: Array) -> float:
    """Return which share of the variance of a mean area over texts is noise of its random baseline.

    `random` is (draws, texts): the pseudo-values of the area under each random draw, `area` (texts,) those of the area
    between the mean random curve and the measure's. Draws are independent from text to text, so that an interval over
    texts holds this noise already: it is a share of it, and never comes on top. nan with a single draw.
    """
    draws = len(random)
    total = float(area.var(ddof=1))
    if draws < 2 or total == 0:
        return math.nan
    return min(1.0, float(random.var(axis=0, ddof=1).mean()) / draws / total)


def draws_needed(random: Array, area: Array, share: float = 0.1) -> int | None:
    """Return how many random draws per text make the baseline's noise less than a share of the variance.

    With `now` draws and a share s of the variance v, the noise of one draw is s·v·now, and what does not come from
    draws v·(1 − s): noise/m < share · (rest + noise/m). None where it cannot be told.
    """
    now, part = len(random), baseline_share(random, area)
    if math.isnan(part) or part >= 1:
        return None
    return math.floor(now * part / (1 - part) * (1 - share) / share + 1e-9) + 1
