"""Which measures may be the best: all pairs on the same texts, with one error rate for all of them together."""

import functools
import math
import string
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from faithmeter.statistics import LEVEL, RESAMPLES, Array, Groups, Statistic, over_groups, weights_drawn
from faithmeter.statistics.intervals import Interval, jackknife_interval, pseudo_values

FLIPS = 1999
DRAWN_NORMAL = 20_000
TEXTS_AT_ONCE = 4096  # signs × texts are turned into floats a few texts at a time
Booleans = NDArray[np.bool_]
Signs = NDArray[np.int8]


@dataclass(frozen=True)
class BestSet:
    """What can be said of several measures at once. Tables are (measures, measures): the row's score less the column's.

    `low` and `high` hold for all pairs together; nan where there is no interval: a pair with fewer than two common
    texts, or so few texts that no difference could be sure. `letters` are shared by measures that cannot be told apart.
    """

    difference: Array
    low: Array
    high: Array
    counts: NDArray[np.int64]  # common texts, or runs
    may_be_best: Booleans
    letters: tuple[str, ...]


def differences_between(scores: Array) -> Array:
    """Return (texts, measures, measures) differences of (texts, measures) scores; nan where not both were measured."""
    return scores[:, :, None] - scores[:, None, :]


def best_set(differences: Array, *, decided: Booleans | None = None, level: float = LEVEL, seed: int = 0) -> BestSet:
    """Return which measures may be best, from paired differences on the same texts: a step-down max-t by sign flips.

    `differences` is (texts, measures, measures), as of `differences_between`, or has a line per group of texts that are
    not independent (`paired_differences`); then all that is said of a text here is said of a group. Signs of whole
    texts are flipped, for all pairs alike, so that the largest t of all pairs is compared with what it would be if no
    measure were better (Westfall and Young, 1993). A pair with 10 texts and one with 200 are judged alike, by the tails
    of Student's t. Pairs that are told apart no longer count among those that might be wronged, and the rest is asked
    again (Romano and Wolf, 2005). A measure may be best unless some other is surely better: with probability
    1 − level no measure that truly is best, or shares the first place, is left out.

    `decided` has the pairs of which it is known already that the row is ahead, from looks at a growing number of texts
    (`stopping.decide`). Nothing is tested then: a test that takes no account of the looks would find too much.
    """
    known = ~np.isnan(differences)
    counts = known.sum(axis=0)
    filled = np.where(known, differences, 0.0)
    squares = (filled**2).sum(axis=0)
    ahead = decided
    if ahead is None:
        signs = random_signs(FLIPS, len(filled), seed)
        flipped = comparable(t_values(_flipped_sums(filled, signs), squares, counts), counts)
        ahead = told_apart(comparable(t_values(filled.sum(axis=0), squares, counts), counts), flipped, level)
    difference = np.divide(filled.sum(axis=0), counts, out=np.full(counts.shape, np.nan), where=counts > 0)
    half = simultaneous_half_widths(differences, level=level, seed=seed)
    return BestSet(
        difference=difference,
        low=difference - half,
        high=difference + half,
        counts=counts,
        may_be_best=~np.asarray(ahead.any(axis=0)),
        letters=compact_letters(ahead, np.nansum(difference, axis=1) / np.maximum((counts > 0).sum(axis=1), 1)),
    )


def best_set_over_runs(values: Array, *, level: float = LEVEL, seed: int = 0) -> BestSet:
    """Return which measures may be best, from (runs, measures) values of several trainings: Student's max-t.

    Of a few trainings signs cannot be flipped often enough. Each pair has the t of its own differences; their largest
    is compared with that of independent normal values of equal spread (Hsu, 1996), drawn 20,000 times.
    """
    runs, measures = values.shape
    if runs < 2:
        raise ValueError("One training says nothing of another: compare its measures over texts instead.")
    by_chance = _t_of_normal_runs(runs, measures, seed)
    ahead = told_apart(_t_of_runs(values), by_chance, level)
    differences = differences_between(values)
    difference = differences.mean(axis=0)
    bound = largest_by_chance(by_chance, np.ones(difference.shape, dtype=np.bool_), level)
    half = bound * differences.std(axis=0, ddof=1) / math.sqrt(runs)
    return BestSet(
        difference=difference,
        low=difference - half,
        high=difference + half,
        counts=np.full(difference.shape, runs),
        may_be_best=~np.asarray(ahead.any(axis=0)),
        letters=compact_letters(ahead, difference.mean(axis=1)),
    )


def _t_of_runs(values: Array) -> Array:
    """Return the t of every pair, of (..., runs, measures) values."""
    pairs = values[..., :, None] - values[..., None, :]
    return t_values(pairs.sum(axis=-3), (pairs**2).sum(axis=-3), np.full(pairs.shape[-2:], values.shape[-2]))


@functools.lru_cache(maxsize=4)
def _t_of_normal_runs(runs: int, measures: int, seed: int) -> Array:
    drawn = np.random.default_rng(seed).normal(size=(DRAWN_NORMAL, runs, measures))
    return np.concatenate([_t_of_runs(part) for part in np.array_split(drawn, 40)])


def simultaneous_half_widths(differences: Array, *, level: float = LEVEL, seed: int = 0) -> Array:
    """Return (measures, measures): half the widths of intervals that hold for all pairs together.

    The studentised bootstrap over texts, of all pairs at once: each pair's |t| is turned into its rank among the
    resamples, and the intervals reach to the rank that the highest of all pairs exceeds with probability `level`, so
    that no pair is favoured (Beran, 1988). nan where resamples have no spread too often: too few texts differ.
    """
    first, second = np.triu_indices(differences.shape[1], 1)
    if len(first) == 0:
        return np.zeros(differences.shape[1:])
    pairs = differences[:, first, second]
    known = ~np.isnan(pairs)
    filled = np.where(known, pairs - np.nanmean(np.where(known.any(axis=0), pairs, 0.0), axis=0), 0.0)
    t = np.concatenate([_studentised(weights, filled, known) for weights in weights_drawn(len(pairs), RESAMPLES, seed)])
    counts = known.sum(axis=0)
    error = np.sqrt((filled**2).sum(axis=0) / np.maximum(counts - 1, 1) / np.maximum(counts, 1))
    ordered = np.sort(t, axis=0)
    # ties share the lowest rank, so that a pair whose t is infinite in many resamples hides no other
    ranks = np.stack([np.searchsorted(ordered[:, pair], t[:, pair]) for pair in range(t.shape[1])], axis=1)
    highest = min(int(np.quantile(ranks.max(axis=1), 1 - level, method="higher")), len(t) - 1)
    reach = ordered[highest]
    half = np.where(error > 0, reach * np.where(np.isfinite(reach), error, np.nan), 0.0)
    half = np.where(counts > 1, half, np.nan)
    table = np.zeros(differences.shape[1:])
    table[first, second] = table[second, first] = half
    return table


def _studentised(weights: Array, centred: Array, known: Booleans) -> Array:
    """Return |t| of every resample and pair; infinite where a resample has no spread, but another mean."""
    total = weights @ known
    mean = np.divide(weights @ centred, total, out=np.zeros(total.shape), where=total > 0)
    variance = np.divide(weights @ centred**2, total, out=np.zeros(total.shape), where=total > 0) - mean**2
    error = np.sqrt(np.maximum(variance, 0.0) / np.maximum(total - 1, 1))
    flat = variance <= 1e-12 * (centred**2).max(axis=0)
    t = np.divide(np.abs(mean), error, out=np.zeros(total.shape), where=~flat)
    return np.where(flat & (centred**2).any(axis=0), np.inf, t)


def random_signs(flips: int, texts: int, seed: int) -> Signs:
    """Return (flips, texts) signs; those of the first texts stay the same when more texts follow."""
    bits = np.random.default_rng(seed).integers(0, 2, size=(texts, flips), dtype=np.int8)
    return np.ascontiguousarray((2 * bits - 1).T)


def _flipped_sums(differences: Array, signs: Signs) -> Array:
    """Return (flips, measures, measures) sums of the differences with signs flipped."""
    flat = differences.reshape(len(differences), -1)
    sums = np.zeros((len(signs), flat.shape[1]))
    for start in range(0, len(flat), TEXTS_AT_ONCE):
        part = slice(start, start + TEXTS_AT_ONCE)
        sums += signs[:, part].astype(np.float64) @ flat[part]
    return sums.reshape(len(signs), *differences.shape[1:])


def t_values(sums: Array, squares: Array, counts: NDArray[np.int64]) -> Array:
    """Return Student's t that the row is ahead of the column, from sums and sums of squares over so many texts.

    0 for a pair that never differs or has fewer than two texts; infinite where it always differs by the same.
    """
    n = np.maximum(counts, 1)
    variance = np.maximum(squares - sums**2 / n, 0.0) / np.maximum(counts - 1, 1)
    error = np.sqrt(np.where(variance < 1e-12 * squares / n, 0.0, variance) / n)  # what is left by rounding is 0
    same = np.where((counts > 1) & (np.abs(sums) > 1e-9 * np.sqrt(squares)), np.copysign(np.inf, sums), 0.0)
    return np.divide(sums / n, error, out=same, where=error > 0)


def comparable(t: Array, counts: NDArray[np.int64]) -> Array:
    """Return t as it is, or where pairs have different numbers of texts the normal deviate with the same tail."""
    return t if counts.min() == counts.max() else scipy.stats.norm.isf(scipy.stats.t.sf(t, np.maximum(counts - 1, 1)))


def largest_by_chance(by_chance: Array, pairs: Booleans, level: float) -> float:
    """Return what the largest statistic of these pairs exceeds by chance with probability `level` at most.

    `by_chance` is (draws, rows, columns). Infinite where there are too few texts for anything to be so rare.
    """
    largest = np.sort(by_chance[:, pairs].max(axis=1))[::-1]
    allowed = int(level * (len(largest) + 1)) - 1  # the sample itself counts among the draws
    return float(largest[allowed]) if allowed >= 0 else math.inf


def told_apart(t: Array, by_chance: Array, level: float) -> Booleans:
    """Return in which pairs the row is surely ahead of the column: step by step, of the pairs that are still open."""
    ahead = np.zeros(t.shape, dtype=np.bool_)
    while True:
        now = t > largest_by_chance(by_chance, ~ahead, level)
        if not (now & ~ahead).any():
            return ahead
        ahead |= now


def compact_letters(differ: Booleans, order: Array) -> tuple[str, ...]:
    """Return letters such that two measures share one exactly if they do not differ (Piepho, 2004: insert and absorb).

    `differ` is (measures, measures), in either direction; `order` gives `a` to the group of the largest.
    """
    apart = differ | differ.T
    groups = [frozenset(range(len(apart)))]
    for i, j in np.argwhere(np.triu(apart)):
        split = [part for group in groups for part in ((group - {i}, group - {j}) if {i, j} <= group else (group,))]
        groups = [g for k, g in enumerate(split) if not any(g < o or (g == o and k > m) for m, o in enumerate(split))]
    rank = {int(measure): place for place, measure in enumerate(np.argsort(-order, kind="stable"))}
    groups.sort(key=lambda group: sorted(rank[measure] for measure in group))
    names = [
        *string.ascii_lowercase,
        *string.ascii_uppercase,
        *(f"({number})" for number in range(53, 53 + len(groups))),
    ]
    return tuple("".join(names[g] for g, group in enumerate(groups) if k in group) for k in range(len(apart)))


@dataclass(frozen=True)
class Winner:
    """The best of several: on texts that did not choose it (`value`), and on those that did (`optimistic`)."""

    value: float
    interval: Interval
    optimistic: float
    chosen: tuple[int, ...]  # the measure that each part's other texts chose


def winners_estimate(
    statistic: Statistic, texts: int, *, folds: int = 10, seed: int = 0, groups: Groups | None = None
) -> Winner:
    """Return the winner's score by cross-fitting: chosen on the other parts of the texts, estimated on each part.

    `statistic` maps (resamples, texts) weights to (resamples, measures) scores. On a part a measure's score is the mean
    of its pseudo-values there: of a mean over texts exactly the part's mean, and of F1 without the bias of few texts.
    The interval is of the mean score of the measures that were chosen, which is that of the best where all parts agree.
    With `groups`, parts are of whole groups, and the interval is over groups; there must be two or more.
    """
    pseudo = pseudo_values(statistic, texts, groups)
    statistic, texts = over_groups(statistic, texts, groups)
    folds = min(folds, texts)
    part = np.random.default_rng(seed).permutation(texts) % folds
    chosen = statistic((part != np.arange(folds)[:, None]).astype(np.float64)).argmax(axis=1)
    values = pseudo[np.arange(texts), chosen[part]]
    return Winner(
        value=float(values.mean()),
        interval=jackknife_interval(values, float(values.mean())),
        optimistic=float(statistic(np.ones((1, texts)))[0].max()),
        chosen=tuple(chosen.tolist()),
    )
