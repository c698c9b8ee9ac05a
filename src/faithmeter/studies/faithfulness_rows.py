"""From stored measurements to result rows: areas with intervals, curves, p-values, cost; of one run or of several."""

import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow
import pyarrow.parquet
import torch

from faithmeter.data.batch import Encoded, Ints
from faithmeter.files import write_bytes
from faithmeter.importance.table import IMPORTANCE_MEASURES
from faithmeter.in_distribution.masf import MaSF
from faithmeter.in_distribution.verdict import Verdict, dataset_verdict, smallest_of
from faithmeter.masking import STEPS
from faithmeter.measuring.curves import (
    Curve,
    Faithfulness,
    Interval,
    faithfulness_over_observations,
    lead,
    observation_areas,
    performance_band,
    random_spread,
    walk_passes,
)
from faithmeter.runs.repetitions import require_repetitions
from faithmeter.runs.results import AGREEMENT, Pooling, Result, Row, key_of, kind_of, most_faithful, within_bounds
from faithmeter.runs.run import Run
from faithmeter.runs.shards import read_shards
from faithmeter.statistics import Array, mean_interval, student_interval

KINDS = (
    "acu", "acu_behind_best", "racu", "masked_performance", "random_spread", "seconds_per_text", "share_atypical",
    "share_out_of_distribution", "sparsity", "token_passes", "walk_p_value", "walk_random_p_value",
)  # fmt: skip
Table = dict[str, np.ndarray[Any, np.dtype[Any]]]
ANSWERS = ("row", "predicted", "probability")  # the columns that a curve is made of


def read_measurement(run: Run, name: str, columns: Sequence[str] | None = None) -> Table:
    """Return a measure's stored columns as (observations, steps + 1) arrays, in the order of the dataset rows.

    All of them, or those that are named, of which `row` must be one.
    """
    remedy = "`faithmeter measure` with the same options computes it again."
    table = read_shards(run.measurements / name, remedy, columns and [*columns, "step"])
    assert table is not None
    table = table.sort_by([("row", "ascending"), ("step", "ascending")])
    return {column: table[column].to_numpy().reshape(-1, STEPS + 1) for column in columns or table.column_names}


def measured_texts(folder: Path) -> int:
    """Return of how many texts a walk is stored."""
    return sum(pyarrow.parquet.read_metadata(shard).num_rows for shard in folder.glob("*.parquet")) // (STEPS + 1)


def store_faithfulness(run: Run, test: Encoded, names: Sequence[str], masf: MaSF | None) -> None:
    """Turn measurements into result rows and `observations.parquet`."""
    at_random = [name for name in names if name.startswith("random.")]
    random = [_answers(read_measurement(run, name, ANSWERS), run) for name in at_random]
    results, answers = [], dict[str, Table]()
    observed, observations = io.BytesIO(), None
    for name in (name for name in names if name not in at_random):
        table = read_measurement(run, name)  # one at a time, of which only the answers are kept
        answers[name] = _answers(table, run)
        rows = table["row"][:, 0]
        baseline = [_curve(one, rows) for one in random]
        faithfulness = faithfulness_over_observations(
            run.config.metric, test.labels[rows], _curve(table, rows), baseline
        )
        results += _measure_results(run, name, faithfulness, table)
        results += _work(name, test, rows)
        results += _curve_results(run, name, test.labels[rows], [_curve(table, rows)], _typical(table, test, masf))
        acu, racu = observation_areas(_curve(table, rows), baseline)
        found = pyarrow.table({"row": rows, "measure": pyarrow.repeat(name, len(rows)), "acu": acu, "racu": racu})
        observations = observations or pyarrow.parquet.ParquetWriter(observed, found.schema)
        observations.write_table(found)
    assert observations is not None
    observations.close()
    gold = test.labels[random[0]["row"][:, 0]]
    curves = [_curve(one, one["row"][:, 0]) for one in random]
    spread = random_spread(run.config.metric, gold, curves)
    results.append(Result(kind="random_spread", value=spread, metric=run.config.metric, n=len(gold), measure="random"))
    first = read_measurement(run, at_random[0]) if masf is not None else {}
    results += _curve_results(run, "random", gold, curves, _typical(first, test, masf))
    results += _leads(run, test, answers, [result.as_row() for result in results])
    run.store_results(KINDS, results)
    write_bytes(run.observations, observed.getvalue())


def _typical(table: Table, test: Encoded, masf: MaSF | None) -> list[Verdict]:
    """Return the verdict on the masked rows of each step; none where the run was not checked.

    By larger units the rows of a step are judged by the references of their own shares, several at a step. All have as
    many calibrating rows, and rows that share fewer of them vary together less than the tests allow for.
    """
    if masf is None or masf.form == "paper":  # the paper's form allows no verdict
        return []
    rows = table["row"][:, 0]
    lengths, groups = torch.from_numpy(test.lengths[rows]), torch.from_numpy(test.sources()[rows])
    own, outside = (torch.tensor(table[name]) for name in ("p_own", "p_outside"))
    return [dataset_verdict(masf, own[:, step], outside[:, step], lengths, step, groups) for step in range(STEPS + 1)]


def _answers(table: Table, run: Run) -> Table:
    """Return the columns of a measurement that curves are made of, the predicted classes in as few bytes as can be."""
    predicted = table["predicted"].astype(np.min_scalar_type(len(run.config.labels)))
    return {**{name: table[name] for name in ANSWERS}, "row": table["row"][:, :1].copy(), "predicted": predicted}


def _leads(run: Run, test: Encoded, tables: dict[str, Table], found: list[Row]) -> Iterator[Result]:
    """Yield how far each measure lies behind the most faithful one, on the texts that both were measured on."""
    best = most_faithful(found)
    assert best is not None
    names = [row["measure"] for row in found if row["kind"] == "acu"]
    for name in names:
        rows = np.intersect1d(tables[best]["row"][:, 0], tables[name]["row"][:, 0])
        ahead, other = (_curve(tables[one], rows) for one in (best, name))
        value, interval = lead(run.config.metric, test.labels[rows], ahead, other, confidence_of_pairs(len(names)))
        low, high = interval or (None, None)
        yield Result(
            kind="acu_behind_best",
            value=value,
            metric=run.config.metric,
            n=len(rows),
            measure=name,
            low=low,
            high=high,
            over="observations",
        )


def confidence_of_pairs(measures: int) -> float:
    """Return how sure each difference must be for all of them to hold together in 95 % (Bonferroni).

    The best measure is found by looking at all pairs, so all pairs count.
    """
    return 1 - 0.05 / max(1, measures * (measures - 1) // 2)


def _measure_results(run: Run, name: str, found: Faithfulness, table: Table) -> list[Result]:
    """Return a measure's result rows: areas with intervals, its cost, how sparse it is."""
    metric, n = run.config.metric, found.n
    per_text = float(table["seconds"].sum() / n)
    return [
        _with_interval("acu", found.acu, found.acu_interval, found, metric, name),
        _with_interval("racu", found.racu, found.racu_interval, found, metric, name),
        Result(kind="seconds_per_text", value=per_text, metric="seconds", n=n, measure=name),
        *(
            Result(kind="sparsity", value=float(share), metric="share", masking_ratio=step / STEPS, n=n, measure=name)
            for step, share in enumerate(_mean_known(table["held"]))
        ),
    ]


def _work(name: str, test: Encoded, rows: Ints) -> list[Result]:
    """Return how many tokens went through the model a text, about: what `seconds_per_text` was spent on.

    The two together tell what a text of another length will cost. Nothing is known of a user's own measure.
    """
    if name not in IMPORTANCE_MEASURES:
        return []
    work, units = 0.0, test.unit_counts
    for row in rows:
        work += (walk_passes(IMPORTANCE_MEASURES[name], int(units[row])) or 0.0) * int(test.lengths[row])
    return [Result(kind="token_passes", value=work / len(rows), metric="tokens", n=len(rows), measure=name)]


def _mean_known(table: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
    """Return the mean of each column over the texts in which anything is important; nan where there is none."""
    known = ~np.isnan(table)
    return np.where(known, table, 0).sum(axis=0) / np.where(known.any(axis=0), known.sum(axis=0), np.nan)


def _with_interval(kind: str, value: float, interval: Interval, found: Faithfulness, metric: str, name: str) -> Result:
    low, high = interval or (None, None)
    return Result(kind=kind, value=value, metric=metric, n=found.n, measure=name, low=low, high=high, over=found.over)


def _curve_results(run: Run, name: str, gold: Ints, curves: list[Curve], verdicts: list[Verdict]) -> Iterator[Result]:
    """Yield the performance at every step, the mean of the curves, and how typical the masked rows are."""
    metric, n = run.config.metric, len(gold)
    for step, (value, low, high) in enumerate(performance_band(metric, gold, curves)):
        yield Result(
            kind="masked_performance",
            value=value,
            metric=metric,
            masking_ratio=step / STEPS,
            n=n,
            measure=name,
            low=low,
            high=high,
            over="observations",
        )
    for verdict in verdicts:
        ratio = verdict.step / STEPS
        yield Result(
            kind="share_atypical",
            value=verdict.random.share_below,
            metric="share",
            masking_ratio=ratio,
            n=n,
            measure=name,
        )
        yield Result(
            kind="share_out_of_distribution",
            value=verdict.anywhere.share_below,
            metric="share",
            masking_ratio=ratio,
            n=n,
            measure=name,
        )
    if verdicts:
        p_value = smallest_of([verdict.anywhere.dataset_p_value for verdict in verdicts])
        yield Result(kind="walk_p_value", value=p_value, metric="p", n=n, measure=name)
        unlike = smallest_of([verdict.random.dataset_p_value for verdict in verdicts])
        yield Result(kind="walk_random_p_value", value=unlike, metric="p", n=n, measure=name)


def pool(runs: Sequence[Run]) -> list[Row]:
    """Return the result rows of several measured runs as one, each pooled over the runs (their seeds) as its kind says.

    Only what was measured on all of them is included, and only kinds that this version knows. Runs that differ in more
    than the training seed are an error.
    """
    require_repetitions(runs)
    rows = [run.results for run in runs]
    keyed = [{key_of(row): row for row in one} for one in rows]
    pooled: list[Row] = []
    for key in [key for key in keyed[0] if all(key in one for one in keyed)]:
        same = [one[key] for one in keyed]
        values = np.array([np.nan if row["value"] is None else row["value"] for row in same])
        value, interval = _pooled(kind_of(key[0]).pooling, values)
        low, high = within_bounds(interval, key[0], same[0]["metric"]) or (None, None)
        row = {**same[0], "value": None if np.isnan(value) else value, "low": low, "high": high, "over": "seeds"}
        pooled.append(cast(Row, {**row, "n": same[0]["n"] if key[0] == AGREEMENT else len(runs)}))
    return [row for row in pooled if kind_of(row["kind"]).pooling is not Pooling.ANEW] + _pooled_leads(pooled, keyed)


def _pooled(how: Pooling, values: Array) -> tuple[float, Interval]:
    """Return the number that stands for those of several trainings, and its interval over them."""
    if how is Pooling.SMALLEST_P:
        return smallest_of(values.tolist()), None
    if how is Pooling.SMALLEST:
        return float(values.min()), None
    if how is Pooling.LARGEST:
        return float(values.max()), None
    intervals = {Pooling.BOOTSTRAP: mean_interval, Pooling.STUDENT: student_interval}
    return float(values.mean()), intervals[how](values) if how in intervals else None


def _pooled_leads(pooled: list[Row], keyed: Sequence[Mapping[Any, Row]]) -> list[Row]:
    """Return how far each measure lies behind the one that is most faithful over all runs: a difference a run."""
    best = most_faithful(pooled)
    rows = []
    for row in [row for row in pooled if row["kind"] == "acu"]:
        differences = [
            one["acu", best, None, None]["value"] - one["acu", row["measure"], None, None]["value"] for one in keyed
        ]
        sure = confidence_of_pairs(sum(one["kind"] == "acu" for one in pooled))
        interval = student_interval(np.array(differences), confidence=sure)
        low, high = within_bounds(interval, "acu_behind_best", row["metric"]) or (None, None)
        lead = {"kind": "acu_behind_best", "value": float(np.mean(differences)), "low": low, "high": high}
        rows.append(cast(Row, {**row, **lead}))
    return rows


def _curve(table: Table, rows: Ints) -> Curve:
    """Return the curve of these dataset rows, of which the table holds all."""
    index = np.searchsorted(table["row"][:, 0], rows)
    return Curve(table["predicted"][index], table["probability"][index].astype(np.float64))
