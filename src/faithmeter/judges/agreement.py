"""Do judges agree? Rank correlation of what they say of the same importance measures, with intervals over texts.

Each judge gives every measure a score, the mean over texts. Two judges agree where they put the measures in the same
order. The interval is a percentile bootstrap: the texts of each judge are drawn anew, all measures with them. It says
how sure the order is on these measures; with others it may be another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from faithmeter.judges import Array

FEWEST = 4  # measures that must be ranked for a correlation to mean anything
RESAMPLES = 1999


@dataclass(frozen=True)
class Agreement:
    """Spearman's correlation of two judges over `measures` importance measures, with its 95 % interval."""

    first: str
    second: str
    value: float
    low: float
    high: float
    measures: int


def agreements(judged: Mapping[str, Mapping[str, Array]], *, seed: int = 0) -> list[Agreement]:
    """Return how far each two judges agree; `judged[judge][measure]` are values a text, more is better, nan is none.

    A pair that has too few measures in common, or of which one cannot tell any two apart, is left out.
    """
    found = []
    names = list(judged)
    draws = {name: _scores(judged[name], np.random.default_rng([seed, place])) for place, name in enumerate(names)}
    for place, first in enumerate(names):
        for second in names[place + 1 :]:
            common = [name for name in judged[first] if name in judged[second]]
            if len(common) < FEWEST:
                continue
            scores = [np.stack([draws[one][name] for name in common], axis=1) for one in (first, second)]
            values = _rank_correlations(*scores)
            if np.isnan(values[0]):
                continue
            low, high = np.nanquantile(values[1:], (0.025, 0.975))
            found.append(Agreement(first, second, float(values[0]), float(low), float(high), len(common)))
    return found


def _scores(values: Mapping[str, Array], random: np.random.Generator) -> dict[str, Array]:
    """Return each measure's mean over its texts, then over texts drawn anew: (1 + resamples,)."""
    counts: dict[int, Array] = {}
    scores = {}
    for name, column in values.items():
        texts = len(column)
        if texts not in counts:  # measures that were judged on the same texts are drawn together
            drawn = random.multinomial(texts, np.full(texts, 1 / texts), RESAMPLES)
            counts[texts] = np.concatenate((np.ones((1, texts)), drawn))
        known = ~np.isnan(column)
        total = counts[texts] @ known
        with np.errstate(invalid="ignore", divide="ignore"):
            scores[name] = counts[texts] @ np.where(known, column, 0.0) / total
    return scores


def _rank_correlations(first: Array, second: Array) -> Array:
    """Return Spearman's correlation of each row of two (draws, measures) tables; nan where a row is flat."""
    ranks = [_centred(stats.rankdata(one, axis=1, nan_policy="propagate")) for one in (first, second)]
    with np.errstate(invalid="ignore", divide="ignore"):
        lengths: Sequence[Array] = [np.sqrt((one**2).sum(axis=1)) for one in ranks]
        return (ranks[0] * ranks[1]).sum(axis=1) / (lengths[0] * lengths[1])


def _centred(ranks: Array) -> Array:
    return ranks - ranks.mean(axis=1, keepdims=True)
