"""What each text adds to an area: the numbers that measures are compared by, whatever the metric."""

from collections.abc import Callable, Sequence

import numpy as np

from faithmeter.measuring.curves import Curve, Floats, area_between_curves
from faithmeter.performance import Gold, Ints, weighted_performance
from faithmeter.statistics import Groups, Weights, group_numbers
from faithmeter.statistics.intervals import pseudo_values


def areas_of(metric: str, gold: Gold, curves: Sequence[Curve], random: Sequence[Curve]) -> Callable[[Weights], Floats]:
    """Return a function of weights: the (weights' rows, measures) ACU of several measures on the same weighted texts.

    The baseline is the mean of the random curves. Without any it is 0: areas that mean nothing by themselves, but whose
    differences are those of ACU, because the baseline cancels.
    """
    reached = [weighted_performance(metric, gold, curve.predicted) for curve in curves]
    at_random = [weighted_performance(metric, gold, curve.predicted) for curve in random]

    def areas(weights: Weights) -> Floats:
        curves_now = np.stack([each(weights) for each in reached], axis=1)
        mean = np.mean([each(weights) for each in at_random], axis=0) if at_random else np.zeros(curves_now[:, 0].shape)
        return area_between_curves(curves_now, np.broadcast_to(mean[:, None], curves_now.shape))[0]

    return areas


def paired_differences(
    metric: str, gold: Gold, curves: Sequence[Curve], rows: Sequence[Ints], groups: Groups | None = None
) -> Floats:
    """Return (texts, measures, measures): what each text adds to the difference of two measures' ACU.

    `gold` is of all texts and `rows` says on which of them each measure was measured, in the order of its curve. A pair
    is compared on its common texts alone; elsewhere it is nan. With `groups`, one number per text, it is (groups,
    measures, measures): what each group adds.
    """
    numbers = group_numbers(groups)
    if numbers is None:
        numbers = np.arange(len(gold))
    places = [{int(row): place for place, row in enumerate(each)} for each in rows]
    differences = np.full((int(numbers.max(initial=-1)) + 1, len(curves), len(curves)), np.nan)
    sets = {tuple(np.intersect1d(first, second).tolist()) for first in rows for second in rows}
    for common in (list(each) for each in sets if each):
        those = [k for k, place in enumerate(places) if all(row in place for row in common)]
        curves_now = [curves[k].at([places[k][row] for row in common]) for k in those]
        own = numbers[common]
        scores = pseudo_values(areas_of(metric, gold[common], curves_now, []), len(own), own) if len(own) > 1 else None
        present = list(dict.fromkeys(own.tolist()))
        for a, i in enumerate(those):
            for b, j in enumerate(those):
                if scores is not None and len(np.intersect1d(rows[i], rows[j])) == len(common):
                    differences[present, i, j] = scores[:, a] - scores[:, b]
    return differences
