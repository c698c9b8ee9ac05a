"""From measurements by several removal operators to result rows: how often measures win, and how alike they are ranked.

Whether the answer changes with the way in which tokens are removed is the question of Basu and Chakraborty
(2026).
"""

import functools
import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow.parquet
import scipy

from faithmeter.data.batch import Encoded, Ints
from faithmeter.files import require_whole
from faithmeter.measuring.contributions import areas_of
from faithmeter.measuring.curves import Curve, Floats
from faithmeter.runs.measurements import answer_columns, curve_of, read_measurement
from faithmeter.runs.results import OPERATOR_RANKS, WIN_RATE, Result, rows_of
from faithmeter.runs.run import MEASURE_AGAIN, Run
from faithmeter.statistics import Weights, group_numbers, mean_interval, percentile_band
from faithmeter.statistics.one_text import win_rate

FEWEST_MEASURES = 3  # of two the rank correlation is 1 or −1, and nothing between


def store_operators(run: Run, test: Encoded) -> None:
    """Store what can be said of a run that was measured with several operators; nothing of a single one."""
    views = [run.by(name) for name in run.measured_operators]
    if len(views) < 2:
        return
    for view in views:
        view.store_results((WIN_RATE,), _win_rates(view, test.sources()))
    home = run.by(run.own_operator)
    home.store_results((OPERATOR_RANKS,), rank_correlations(views, test))


def _win_rates(run: Run, groups: Ints) -> list[Result]:
    """Return the share of texts in which a measure's area is larger than the mean of the random ones."""
    table = pyarrow.parquet.read_table(require_whole(run.observations, MEASURE_AGAIN)).to_pandas()
    results = []
    for measure, own in table.groupby("measure", sort=False):
        areas = own.groupby("row")["acu"].mean()  # of several labels, their mean
        rows, values = areas.index.to_numpy(), areas.to_numpy()
        share, interval = win_rate(values, np.zeros((1, len(values))))
        if group_numbers(groups[rows]) is not None:
            interval = mean_interval((values > 1e-12).astype(np.float64), groups=groups[rows]) or (0.0, 1.0)
        low, high = interval
        results.append(
            Result(
                kind=WIN_RATE, value=share, metric="share", n=len(rows), measure=str(measure), low=low, high=high,
                over="observations",
            )
        )  # fmt: skip
    return results


def rank_correlations(runs: Sequence[Run], test: Encoded) -> list[Result]:
    """Return Spearman's rank correlation of the measures' ACU between every two operators, over the same texts.

    The interval is over texts (percentile bootstrap): measures are ranked anew by each resample, with both operators on
    the same texts. Texts and measures are those that all operators have.
    """
    every = [[row["measure"] for row in rows_of(run.results, "acu")] for run in runs]
    measures = [name for name in every[0] if all(name in names for names in every)]
    if len(measures) < FEWEST_MEASURES:
        return []
    texts = functools.reduce(np.intersect1d, (_texts(run, name) for run in runs for name in measures))
    areas = [_areas(run, measures, texts, test) for run in runs]
    pairs = list(itertools.combinations(range(len(runs)), 2))

    def correlations(weights: Weights) -> Floats:
        # areas that differ by rounding alone are a tie
        ranks = [scipy.stats.rankdata(np.round(each(weights), 9), axis=1) for each in areas]
        return np.stack([correlation_of_ranks(ranks[a], ranks[b]) for a, b in pairs], axis=1)

    groups = group_numbers(test.sources()[texts])
    values = correlations(np.ones((1, len(texts))))[0]
    low, high = percentile_band(correlations, len(texts), groups=groups)
    return [
        Result(
            kind=OPERATOR_RANKS, value=float(value), metric="rank_correlation", n=len(texts),
            low=None if np.isnan(first) else float(first), high=None if np.isnan(last) else float(last),
            over="observations", detail=f"{runs[a].operator}, {runs[b].operator}",
            groups=None if groups is None else int(groups.max()) + 1,
        )
        for (a, b), value, first, last in zip(pairs, values, low, high, strict=True)
    ]  # fmt: skip


def correlation_of_ranks(first: Floats, second: Floats) -> Floats:
    """Return the correlation of two tables of ranks, row by row; 0 where all of a row are alike, which rank nothing."""
    first, second = (ranks - ranks.mean(axis=1, keepdims=True) for ranks in (first, second))
    scale = np.sqrt((first**2).sum(axis=1) * (second**2).sum(axis=1))
    return np.divide((first * second).sum(axis=1), scale, out=np.zeros(len(scale)), where=scale > 0)


def _texts(run: Run, name: str) -> Ints:
    return read_measurement(run, name, ("row",))["row"][:, 0]


def _areas(run: Run, measures: Sequence[str], texts: Ints, test: Encoded) -> Callable[[Weights], Floats]:
    """Return ACU of the measures as a function of the texts' weights, by one operator."""
    draws = run.measurement_settings["asked"]["random_runs"]

    def curve(name: str) -> Curve:
        table = read_measurement(run, name, answer_columns(run))
        return curve_of(table).at(np.searchsorted(table["row"][:, 0], texts))

    at_random = [curve(f"random.{number}") for number in range(draws)]
    return areas_of(run.config.metric, test.labels[texts], [curve(name) for name in measures], at_random)
