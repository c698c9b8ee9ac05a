"""Intervals by the jackknife: of one area, of a ratio of two, and what the random baseline adds to them."""

import math

import numpy as np
import scipy

from faithmeter.statistics import Array, Groups, Statistic, each_left_out, over_groups

Interval = tuple[float, float] | None
FEW_DIFFERING = 20  # texts that add to an area, below which its spread is not known
IMAGINED = 0.5  # what each of two more texts would add then: about as much as one text can
FEW_TEXTS_WIDEN = 6.0  # of n texts a ratio's variance is taken as 1 + 6/n times as large


def pseudo_values(statistic: Statistic, observations: int, groups: Groups | None = None) -> Array:
    """Return Tukey's pseudo-values n·T − (n−1)·T₍₋ₜ₎: what each observation adds to a statistic.

    `statistic` maps (resamples, observations) weights to one value per row, or to several columns. Of a mean these are
    the observations themselves, exactly; of F1 or Matthews' coefficient they are so to first order.

    With `groups`, one number per observation, each group is left out as a whole and there is a value per group, in the
    order in which they first appear. As groups differ in size, the values are moved so that their mean is the statistic
    itself. A single group has no other: its value is the statistic.
    """
    texts = observations
    statistic, observations = over_groups(statistic, texts, groups)
    if observations == 1 < texts:
        return statistic(np.ones((1, 1)))
    whole = statistic(np.ones((1, observations)))
    left = np.concatenate([statistic(weights) for weights in each_left_out(observations)])
    values: Array = observations * whole - (observations - 1) * left
    return values if observations == texts else values + (whole - values.mean(axis=0, keepdims=True))


def jackknife_interval(
    values: Array, estimate: float, *, differing: int | None = None, confidence: float = 0.95
) -> Interval:
    """Return an interval about an estimate from its pseudo-values: Student's, moved for skewness.

    Its ends are about where Johnson's modified t reaches Student's (Johnson, 1978). An area over texts is skewed: most
    texts add nothing and a few add much, and a sample that lacks those few has both too small a mean and too small a
    spread. `differing` is the number of texts that add anything at all, where that is
    known. Below `FEW_DIFFERING` the spread itself is guesswork, and the interval is that of a sample with two more
    texts, one at +½ and one at −½: too wide rather than too narrow, as Agresti and Coull (1998) do for shares. None for
    fewer than two values, or where one is not a number.
    """
    n = len(values)
    if n < 2 or not np.isfinite(values).all() or not math.isfinite(estimate):
        return None
    if differing is not None and differing < FEW_DIFFERING:
        away = np.append(values - values.mean(), (IMAGINED, -IMAGINED))
        half = _reach(n + 2, confidence) * float(away.std(ddof=1)) / math.sqrt(n + 2)
        return estimate - half, estimate + half
    reach, spread = _reach(n, confidence), float(values.std(ddof=1))
    moved = _skewness(values) * spread / (6 * n) * (1 + 2 * reach**2)
    half = reach * spread / math.sqrt(n)
    return estimate + moved - half, estimate + moved + half


def _reach(n: int, confidence: float) -> float:
    """Return how many standard errors Student's interval of a mean of n values reaches to each side."""
    return float(scipy.stats.t.ppf((1 + confidence) / 2, n - 1))


def _skewness(values: Array) -> float:
    """Return the third central moment over the cubed standard deviation; 0 for values that are all alike."""
    away = values - values.mean()
    variance = float(np.mean(away**2))
    return 0.0 if variance < 1e-24 else float(np.mean(away**3)) / variance**1.5


def ratio_interval(
    estimates: tuple[float, float], numerator: Array, denominator: Array, *, confidence: float = 0.95
) -> Interval:
    """Return Fieller's interval of a ratio (Fieller, 1954): all r for which numerator − r·denominator may be 0.

    `numerator` and `denominator` are pseudo-values of the same observations. Of few texts it is too narrow, so their
    variance is taken as 1 + 6/n times as large: as if there were two more texts, about two standard deviations to
    either side (chosen by simulation). None where the denominator itself may be 0, or is negative: then no ratio can be
    excluded, or all but a few, and there is no interval to show.
    """
    above, below = estimates
    n = len(numerator)
    if n < 2 or not np.isfinite(numerator).all() or not np.isfinite(denominator).all() or below <= 0:
        return None
    covariance = np.cov(numerator, denominator) / n
    squared = _reach(n, confidence) ** 2 * (1 + FEW_TEXTS_WIDEN / n)
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
