"""Do judges agree? Rank correlation of their numbers for the same importance measures, with intervals over texts.

Each judge gives every measure a score, the mean over texts. Two judges agree where they put the measures in the same
order. The interval is a percentile bootstrap over texts: a text is drawn, or not, for all judges and measures at once,
so that noise which two judges share counts as shared. Noise in the scores pulls a correlation towards 0, and its
interval with it. The intervals hold for all pairs together, and say how sure the order is on these measures; with
others it may be another.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from faithmeter.judges.ranking import Array
from faithmeter.masking import Purpose, random_stream

FEWEST = 4  # measures that must be ranked for a correlation to mean anything
RESAMPLES = 4999
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Scores:
    """A judge's numbers for a measure: one value per dataset row, more is better, nan is none."""

    rows: np.ndarray[Any, np.dtype[np.int64]]
    values: Array


@dataclass(frozen=True)
class Agreement:
    """Spearman's correlation of two judges over `measures` importance measures, with its interval."""

    first: str
    second: str
    value: float
    low: float
    high: float
    measures: int


def agreements(judged: Mapping[str, Mapping[str, Scores]], *, seed: int = 0) -> list[Agreement]:
    """Return how far each two judges agree, of `judged[judge][measure]`; intervals hold together (Bonferroni).

    A pair with too few common measures, or with a judge that gives all the same value, is left out.
    """
    weights: dict[int, Array] = {}
    means = {
        judge: {name: _means(one, weights, seed) for name, one in measures.items() if not np.isnan(one.values).all()}
        for judge, measures in judged.items()
    }
    names = list(judged)
    pairs = []
    for place, first in enumerate(names):
        for second in names[place + 1 :]:
            common = [name for name in means[first] if name in means[second]]
            if len(common) >= FEWEST:
                scores = [np.stack([means[one][name] for name in common], axis=1) for one in (first, second)]
                values = _rank_correlations(*scores)
                if not np.isnan(values[0]):
                    pairs.append((first, second, values, len(common)))
    tail = (1 - CONFIDENCE) / 2 / max(1, len(pairs))
    found = []
    for first, second, values, count in pairs:
        value = float(values[0])
        low, high = (float(end) for end in np.nanquantile(values, (tail, 1 - tail)))
        found.append(Agreement(first, second, value, min(low, value), max(high, value), count))
    return found


def _means(scores: Scores, weights: dict[int, Array], seed: int) -> Array:
    """Return the mean over the texts, then over resampled texts: (1 + resamples,).

    How often a text is drawn is Poisson's, from the seed and its row alone, so that it is the same for every judge.
    """
    for row in scores.rows.tolist():
        if row not in weights:
            drawn = random_stream(seed, Purpose.AGREEMENT, row).poisson(1.0, RESAMPLES)
            weights[row] = np.concatenate((np.ones(1), drawn))
    known = ~np.isnan(scores.values)
    counts = np.stack([weights[row] for row in scores.rows[known].tolist()], axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):  # of few texts none may be drawn
        return counts @ scores.values[known] / counts.sum(axis=1)


def _rank_correlations(first: Array, second: Array) -> Array:
    """Return Spearman's correlation of each row of two (draws, measures) tables; nan where a row is flat."""
    ranks = [_centred(scipy.stats.rankdata(one, axis=1, nan_policy="propagate")) for one in (first, second)]
    with np.errstate(invalid="ignore", divide="ignore"):
        lengths = [np.sqrt((one**2).sum(axis=1)) for one in ranks]
        return np.clip((ranks[0] * ranks[1]).sum(axis=1) / (lengths[0] * lengths[1]), -1.0, 1.0)


def _centred(ranks: Array) -> Array:
    return ranks - ranks.mean(axis=1, keepdims=True)
