"""Measure until it is certain: texts come in rounds; after each, who may be best, and whether to go on."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import scipy
from numpy.typing import NDArray

from faithmeter.statistics import LEVEL, Array
from faithmeter.statistics.best_set import (
    FLIPS,
    Booleans,
    Signs,
    differences_between,
    largest_by_chance,
    random_signs,
    t_values,
)

# Chosen by simulation: against looks after 30 texts, half as many again each time, and an end where the chance is below
# a fifth, the same error at a third less work where measures are alike.
FIRST_LOOK = 20
GROWTH = 1.4
HOPELESS = 0.5  # chance that the full number of texts would leave out one more, below which it is not worth measuring
PATIENCE = 0.5
# Flips assume that a text's difference is as likely to have either sign, which few texts do not quite hold: with 5 % a
# best measure was dropped in 5.7 % of 3,000 simulated studies of eight that are alike, with 4.2 % in 4.0 %.
SPENT_LEVEL = 0.85 * LEVEL


class Stop(Enum):
    """Why measuring ends."""

    DECIDED = "one measure is left"
    HOPELESS = "the full number of texts would hardly leave out another"
    COMPLETE = "all texts were measured"


@dataclass(frozen=True)
class Looks:
    """After how many texts is looked, the full number last, and how the error rate is spent over the looks.

    Up to a share s of the full number of texts, `level`·s^`patience` may have been spent (Lan and DeMets, 1983).
    """

    texts: tuple[int, ...]
    level: float = SPENT_LEVEL
    patience: float = PATIENCE
    hopeless: float = HOPELESS
    seed: int = 0


@dataclass(frozen=True)
class Decision:
    """Who may still be best, after how many texts the others were dropped (0: not), and whether measuring ends.

    `ahead` is (measures, measures): the row was found to be surely better than the column, at some look.
    """

    may_be_best: Booleans
    ahead: Booleans
    dropped_at: NDArray[np.int64]
    stop: Stop | None
    next_texts: int  # up to how many texts the candidates are measured next; the same as now where it ends


def planned_looks(texts: int) -> tuple[int, ...]:
    """Return after how many texts to look: 20, then 1.4 times as many each time, and at last all of them."""
    looks = [min(FIRST_LOOK, texts)]
    while looks[-1] < texts:
        grown = math.ceil(looks[-1] * GROWTH)
        looks.append(texts if grown * 1.2 >= texts else grown)  # no short last round
    return tuple(looks)


def decide(rounds: Sequence[Array], looks: Looks) -> Decision:
    """Return what to do after the looks so far: a group-sequential step-down max-t by sign flips.

    `rounds` has an array per look: the (texts so far, measures) scores, each text's contribution to ACU, of which those
    of a measure that was dropped before may be anything. Texts that are not independent have one line per group, in the
    order in which groups first appear: a group keeps its sign while its texts come in. The decision depends on nothing
    else, so it can be found again after an interruption. At every look the largest t is compared with what flips of
    whole texts' signs give, the same signs at all looks; the bound is such that the share of flips that have passed any
    bound so far is what may be spent by then (Lan and DeMets, 1983, with the joint distribution by flips). With
    probability 1 − level no best measure is dropped at any look. The end for lack of hope can only keep measures in, so
    it costs no error.
    """
    measures = rounds[0].shape[1]
    left, ahead = np.ones(measures, dtype=np.bool_), np.zeros((measures, measures), dtype=np.bool_)
    dropped_at = np.zeros(measures, dtype=np.int64)
    signs = _signs(FLIPS, looks.texts[-1], looks.seed)
    passed = np.zeros(FLIPS, dtype=np.bool_)
    stop = None
    for texts, scores in zip(looks.texts, rounds, strict=False):
        columns = np.flatnonzero(left)
        scores = scores[:texts]
        t, flipped = flipped_t_values(scores[:, columns], signs[:, : len(scores)])
        largest = flipped.max(axis=1)  # (flips, columns): by how much each is beaten
        spent = looks.level * (texts / looks.texts[-1]) ** looks.patience
        staying = np.ones(len(columns), dtype=np.bool_)
        while True:
            bound = _bound(largest[:, staying].max(axis=1), passed, spent)
            now = staying & ~(t > bound).any(axis=0)
            if (now == staying).all():
                break
            staying = now
        ahead[np.ix_(columns, columns)] |= t > bound
        passed = passed | (largest[:, staying].max(axis=1) > bound)
        dropped_at[columns[~staying]] = texts
        left[columns[~staying]] = False
        if staying.sum() == 1:
            stop = Stop.DECIDED
        elif texts == looks.texts[-1]:
            stop = Stop.COMPLETE
        elif len(scores) >= min(FIRST_LOOK, texts):  # of a few groups nothing can be told yet
            reach = _bound(largest[:, staying].max(axis=1), np.zeros(FLIPS, dtype=np.bool_), looks.level)
            full = len(scores) * looks.texts[-1] / texts  # texts, or as many groups as they are worth at most
            if chance_to_drop(scores[:, left], full, reach) < looks.hopeless:
                stop = Stop.HOPELESS
        if stop is not None:
            break
    return Decision(left, ahead, dropped_at, stop, texts if stop else looks.texts[len(rounds)])


@functools.lru_cache(maxsize=2)
def _signs(flips: int, texts: int, seed: int) -> Signs:
    return random_signs(flips, texts, seed)


def flipped_t_values(scores: Array, signs: Signs) -> tuple[Array, Array]:
    """Return the t that a row is ahead of a column, of (texts, measures) scores, and of them with signs flipped.

    They are those of `best_set`. Where all measures have the same texts, sums over pairs follow from those over
    measures.
    """
    # a text's differences do not change with its mean, and smaller numbers are rounded less
    scores = scores - scores.mean(axis=1, keepdims=True)
    gram = scores.T @ scores
    squares = np.diag(gram)[:, None] + np.diag(gram)[None, :] - 2 * gram
    squares[squares < 1e-12 * np.diag(gram).max(initial=0.0)] = 0.0  # two measures that never differ
    counts = np.full(squares.shape, len(scores))
    sums = np.concatenate([scores.sum(axis=0, keepdims=True), signs.astype(np.float64) @ scores])
    t = t_values(differences_between(sums), squares, counts)
    return t[0], t[1:]


def _bound(largest: Array, passed: Booleans, spent: float) -> float:
    """Return the t above which so many flips pass that, with those of earlier looks, `spent` of all have."""
    allowed = int(spent * (len(largest) + 1)) - 1 - int(passed.sum())
    return math.inf if allowed < 0 else float(np.sort(largest[~passed])[::-1][allowed])


def chance_to_drop(scores: Array, texts: float, bound: float) -> float:
    """Return how likely the clearest pair is to pass a bound once there are so many texts: predictive power.

    Its difference D with standard deviation σ after n of N texts will be normal about D with variance σ²(1/n − 1/N), if
    nothing else is known of it (Spiegelhalter et al., 1986).
    """
    n = len(scores)
    differences = differences_between(scores)
    mean, spread = differences.mean(axis=0), differences.std(axis=0, ddof=1)
    pairs = spread > 0
    if not pairs.any():
        return 0.0
    # (bound·σ/√N − D) / (σ·√(1/n − 1/N)), in units of σ
    short = bound / math.sqrt(texts) - mean[pairs] / spread[pairs]
    return float(scipy.stats.norm.sf(short / math.sqrt(1 / n - 1 / texts)).max())


def texts_to_separate(scores: Array, *, power: float = 0.8, level: float = LEVEL, seed: int = 0) -> Array:
    """Return (measures, measures): how many texts tell two measures apart with this power, planned from a pilot.

    ((z of the family-wise level + z of the power)·σ/D)², with D and σ of the (texts, measures) scores of the pilot;
    infinite for a pair that does not differ. It is as uncertain as D: of a pilot of 30 texts right within a factor, not
    to the text.
    """
    flipped = flipped_t_values(scores, random_signs(FLIPS, len(scores), seed))[1]
    bound = largest_by_chance(flipped, np.ones(flipped.shape[1:], dtype=np.bool_), level)
    bound = float(scipy.stats.norm.isf(scipy.stats.t.sf(bound, len(scores) - 1)))  # of many texts
    differences = differences_between(scores)
    mean, spread = np.abs(differences.mean(axis=0)), differences.std(axis=0, ddof=1)
    reach = bound + float(scipy.stats.norm.ppf(power))
    needed = np.divide(reach * spread, mean, out=np.full(mean.shape, np.inf), where=mean > 1e-12) ** 2
    return np.where(np.isfinite(needed), np.maximum(2.0, np.ceil(needed)), np.inf)
