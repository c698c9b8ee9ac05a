"""One text: is its explanation better than random orders, and of how many texts is it so."""

import math

import numpy as np
import scipy

from faithmeter.statistics import Array

FEWEST_ORDERS = 19  # from which on a p-value can reach .05


def randomisation_p_value(area: float, random: Array) -> float:
    """Return (1 + #{random orders with an area at least as large}) / (1 + orders), of one text.

    Under the hypothesis that the explanation orders the tokens no better than chance, it is below any level at most as
    often as that level, whatever the model and the text. It is conditional on both. Areas that differ by rounding alone
    count as equal, which can only make the p-value larger.
    """
    return float((1 + np.count_nonzero(random >= area - 1e-12)) / (1 + len(random)))


def win_rate(areas: Array, random: Array, *, confidence: float = 0.95) -> tuple[float, tuple[float, float]]:
    """Return the share of texts whose area exceeds the mean of their random areas, with its interval.

    `areas` is (texts,), `random` (orders, texts). The interval is the score interval of a share (E. B. Wilson's of
    1927), which holds for few texts and for shares near 0 and 1. A tie is no win. Half the texts win by chance only
    where random areas are symmetric: to test a text, take its p-value.
    """
    wins = int(np.count_nonzero(areas > random.mean(axis=0) + 1e-12))
    interval = scipy.stats.binomtest(wins, len(areas)).proportion_ci(confidence, method="wilson")
    return wins / len(areas), (float(interval.low), float(interval.high))


def adjusted_p_values(p_values: Array) -> Array:
    """Return p-values adjusted for their number: to take those below q makes a share of q false (step-up, on average).

    Benjamini and Hochberg (1995). nan stays nan and is not counted.
    """
    adjusted = np.full(len(p_values), math.nan)
    known = ~np.isnan(p_values)
    if known.any():
        adjusted[known] = scipy.stats.false_discovery_control(p_values[known], method="bh")
    return adjusted
