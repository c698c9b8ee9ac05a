"""Measure: mask what each importance measure calls important, step by step, and see how fast performance falls.

Batches are the outer loop and every finished one is a file, so memory is flat and a killed measurement goes on at the
batch it was at. Nothing is written that depends on how the work was cut: the rows are the same however often it stops.
"""

import dataclasses
import hashlib
import io
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import torch
from torch import Tensor

from faithmeter.batch import Batch, Encoded, Ints
from faithmeter.classifier import Classifier
from faithmeter.errors import InputError
from faithmeter.faithfulness.curves import (
    Curve,
    Faithfulness,
    Interval,
    faithfulness_over_observations,
    masking_walk,
    observation_areas,
    random_spread,
)
from faithmeter.files import write_bytes, write_json
from faithmeter.importance import IMPORTANCE_MEASURES, Explain, ImportanceMeasure, as_measure
from faithmeter.in_distribution import LEVEL, MaSF, Verdict, at_any_step, smallest_of, verdict_of
from faithmeter.jobs.training import encode
from faithmeter.masking import STEPS, Purpose, random_stream
from faithmeter.performance import Floats, weighted_performance
from faithmeter.progress import Reporter, Silent
from faithmeter.results import Result
from faithmeter.run import Run
from faithmeter.statistics import mean_interval

WORTH_SAYING = 60  # seconds that a measure takes before its estimate is worth a line
TOKENS_AT_ONCE = 1024  # of original text: what is lost when a measurement is killed
KINDS = (
    "acu", "racu", "masked_performance", "random_spread", "seconds_per_text", "share_atypical",
    "share_out_of_distribution", "walk_p_value",
)  # fmt: skip
Table = dict[str, np.ndarray[Any, np.dtype[Any]]]


@dataclass(frozen=True)
class MeasureOptions:
    """What to measure. `rows` and `beam_rows` are test rows, drawn at random; beam search is dear, so it gets fewer."""

    measures: tuple[str | Explain | ImportanceMeasure, ...] = tuple(
        name for name in IMPORTANCE_MEASURES if name != "random"
    )
    target: str = "gold"
    rows: int | None = None
    beam_rows: int | None = None
    random_runs: int = 5
    seed: int = 0
    without_check: bool = False

    def __post_init__(self) -> None:
        if self.target not in ("gold", "predicted"):
            raise InputError(f"There is no target {self.target!r}: choose gold or predicted.")
        if self.random_runs < 1:
            raise InputError("At least one random run is needed as the baseline.")


def measure(path: str | Path, options: MeasureOptions | None = None, *, reporter: Reporter | None = None) -> Run:
    """Measure the faithfulness of importance measures on a run's test split."""
    run, options, reporter = Run(path), options or MeasureOptions(), reporter or Silent()
    if not run.checked and not options.without_check:
        raise InputError(
            f"{path} has no in-distribution test, so its masking curves cannot be trusted. "
            f"Run `faithmeter check {path}` first, or pass --without-check to measure anyway."
        )
    masf = run.in_distribution_test() if run.checked else None
    if run.checked and (words := _out_of_distribution(run)):
        reporter.warn(words)
    measures = _distinct(options.measures)
    classifier, splits = run.classifier(), run.data()
    test = encode(classifier, splits.test, "test", reporter)
    _require_same_settings(run, options)
    for one in measures:
        if one.family == "custom":  # a function may have changed under its name, so what it said before is not kept
            shutil.rmtree(run.measurements / one.name, ignore_errors=True)
    chosen = random_stream(options.seed, Purpose.MEASURED_ROWS).permutation(len(test))[: options.rows]
    jobs = [
        (f"random.{number}", IMPORTANCE_MEASURES["random"], options.seed + number, chosen)
        for number in range(options.random_runs)
    ]
    for one in measures:
        rows = chosen[: options.beam_rows] if one.name == "beam" else chosen
        jobs.append((one.name, one, options.seed, rows))
    pace, known = _seconds_per_token(classifier, test), Known()
    for name, one, seed, rows in jobs:
        seconds = estimated_seconds(one, test, rows, pace)
        if seconds is not None and seconds > WORTH_SAYING:
            reporter.note(f"{name} on {len(rows)} texts will take about {_duration(seconds)}.")
        _measure_one(run, classifier, test, name, one, seed, rows, options.target, masf, known, reporter)
    _store(run, test, [name for name, *_ in jobs], masf)
    return run


def _out_of_distribution(run: Run) -> str | None:
    """Return what to say where `check` found masking out-of-distribution for the run's model."""
    if smallest_of([row["value"] for row in run.results if row["kind"] == "check_p_value"]) > LEVEL:
        return None
    return (
        "masking is out-of-distribution for this model, so these curves say little about its explanations. "
        f"`faithmeter train NEW_RUN --model {run.model_folder}` goes on from it to one that understands masks."
    )


def _seconds_per_token(classifier: Classifier, test: Encoded) -> float:
    """Return how long a token takes through the model, timed on texts of middling length."""
    middle = np.argsort(test.lengths, kind="stable")[len(test) // 2 :]
    batch = next(iter(test.batches(classifier.tokens_per_pass, middle[:50])))
    classifier.predict_with_features(batch)  # the first pass of a process is slower
    started = time.perf_counter()
    classifier.predict_with_features(batch)
    return (time.perf_counter() - started) / int(batch.attention_mask.sum())


def estimated_seconds(one: ImportanceMeasure, test: Encoded, rows: Ints, pace: float) -> float | None:
    """Return about how long a masking walk of these rows will take; None for a measure of which nothing is known."""
    if one.passes is None:
        return None
    total = 0.0
    for row in rows:
        part = slice(test.offsets[row], test.offsets[row + 1])
        count = int(test.maskable[part].sum())
        explained = range(STEPS) if one.recursive else range(1)
        passes = sum(one.passes(count - count * step // STEPS) for step in explained)
        total += (passes + STEPS + 1) * int(test.lengths[row])
    return total * pace


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def _distinct(chosen: Sequence[str | Explain | ImportanceMeasure]) -> list[ImportanceMeasure]:
    """Return the measures to compare. `random` is not one of them: it is the baseline, and always there."""
    measures = [one for one in map(as_measure, chosen) if one.name != "random"]
    names = [one.name for one in measures]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"Two importance measures are named {twice!r}: give each a name of its own.")
    if not measures:
        raise InputError("There is nothing to compare with random masking: name an importance measure.")
    return measures


def _measure_one(
    run: Run,
    classifier: Classifier,
    test: Encoded,
    name: str,
    one: ImportanceMeasure,
    seed: int,
    rows: Ints,
    target: str,
    masf: MaSF | None,
    known: "Known",
    reporter: Reporter,
) -> None:
    """Measure one importance measure on the rows, leaving out the batches that are done."""
    with reporter.bar(name, len(rows)) as advance:
        for number, batch in enumerate(test.batches(TOKENS_AT_ONCE, rows)):
            shard = run.measurements / name / f"{number:05d}.parquet"
            if not shard.exists():
                shard.parent.mkdir(parents=True, exist_ok=True)
                watch = Stopwatch(one, known.get((one.absolute_of, number)))
                table = _walk_table(classifier, batch, watch, seed, target, masf)
                write_bytes(shard, _parquet(table))
                if watch.first is not None:
                    known[one.name, number] = watch.first
            advance(len(batch))


def _walk_table(
    classifier: Classifier, batch: Batch, watch: "Stopwatch", seed: int, target: str, masf: MaSF | None
) -> pyarrow.Table:
    """Return a row for each observation and step: prediction, the target's probability, p-values, seconds."""
    targets = batch.labels if target == "gold" else classifier.predict_with_features(batch)[0].argmax(dim=-1)
    columns: dict[str, list[Tensor]] = {}
    for step, masked in enumerate(masking_walk(classifier, batch, watch.measure, targets, seed=seed)):
        logits, features = classifier.predict_with_features(masked)
        found = {
            "row": batch.rows,
            "step": torch.full_like(batch.rows, step),
            "predicted": logits.argmax(dim=-1),
            "probability": logits.softmax(dim=-1).gather(1, targets[:, None])[:, 0],
        }
        if masf is not None:
            p_values = masf.p_values(features, batch.attention_mask.sum(dim=1), batch.rows)
            found |= {"p_value": masf.at_step(p_values, step), "p_max": at_any_step(p_values)}
        for key, value in found.items():
            columns.setdefault(key, []).append(value)
    table = {key: torch.cat(values).numpy() for key, values in columns.items()}
    table["seconds"] = np.full(len(table["row"]), watch.seconds / len(table["row"]))
    return pyarrow.table(table)


# what a measure said of the texts of a batch as they are, and how long that took: its absolute form says the same
Known = dict[tuple[str | None, int], tuple[Tensor, float]]


class Stopwatch:
    """A measure whose explanations are timed. Where its signed form has explained the whole texts, it does not again.

    The time that took counts for both forms, as if each had been measured alone.
    """

    def __init__(self, one: ImportanceMeasure, signed: tuple[Tensor, float] | None) -> None:
        self.measure = dataclasses.replace(one, explain=self.explain)
        self.seconds = 0.0
        self.first: tuple[Tensor, float] | None = None
        self._explain, self._signed = one.explain, signed

    def explain(self, classifier: Classifier, batch: Batch, targets: Tensor, seed: int) -> Tensor:
        """Explain as the measure does, and note the time."""
        if self.first is None and self._signed is not None:
            importance, spent = self._signed[0].abs(), self._signed[1]
        else:
            started = time.perf_counter()
            importance = self._explain(classifier, batch, targets, seed)
            spent = time.perf_counter() - started
        self.first = self.first or (importance, spent)
        self.seconds += spent
        return importance


def _require_same_settings(run: Run, options: MeasureOptions) -> None:
    """Refuse to mix measurements of other settings or other weights with those that are stored."""
    weights = hashlib.sha256()
    for file in sorted(run.model_folder.glob("*.safetensors")):  # a large model has several
        weights.update(file.read_bytes())
    settings = {"target": options.target, "rows": options.rows, "beam_rows": options.beam_rows, "seed": options.seed}
    settings |= {"checked": run.checked, "weights": weights.hexdigest()[:16]}
    settings |= {"faithmeter": metadata.version("faithmeter")}
    file = run.measurements / "settings.json"
    if not file.exists():
        run.measurements.mkdir(exist_ok=True)
        write_json(file, settings)
        return
    stored = json.loads(file.read_text(encoding="utf-8"))
    differing = [key for key in settings if stored.get(key) != settings[key]]
    if differing:
        raise InputError(
            f"{run.path} holds measurements with another {' and '.join(differing)}, which do not compare with these. "
            f"Use the same settings ({stored}), or remove {run.measurements} first."
        )


def _parquet(table: pyarrow.Table) -> bytes:
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(table, buffer)
    return buffer.getvalue()


# --------------------------------------------------------------------------------------------------- results


def read_measurement(run: Run, name: str) -> Table:
    """Return a measure's stored columns as (observations, steps + 1) arrays, in the order of the dataset rows."""
    table = pyarrow.concat_tables(
        [pyarrow.parquet.read_table(shard) for shard in sorted((run.measurements / name).glob("*.parquet"))]
    ).sort_by([("row", "ascending"), ("step", "ascending")])
    return {column: table[column].to_numpy().reshape(-1, STEPS + 1) for column in table.column_names}


def _store(run: Run, test: Encoded, names: Sequence[str], masf: MaSF | None) -> None:
    """Turn measurements into result rows and `observations.parquet`."""
    tables = {name: read_measurement(run, name) for name in names}
    random = [tables[name] for name in names if name.startswith("random.")]
    results, observations = [], []
    for name, table in tables.items():
        if name.startswith("random."):
            continue
        rows = table["row"][:, 0]
        baseline = [_curve(one, rows) for one in random]
        faithfulness = faithfulness_over_observations(
            run.config.metric, test.labels[rows], _curve(table, rows), baseline
        )
        results += _measure_results(run, name, faithfulness, table, _typical(table, test, masf))
        acu, racu = observation_areas(_curve(table, rows), baseline)
        observations.append(pyarrow.table({"row": rows, "measure": [name] * len(rows), "acu": acu, "racu": racu}))
    gold = test.labels[random[0]["row"][:, 0]]
    curves = [_curve(one, one["row"][:, 0]) for one in random]
    spread = random_spread(run.config.metric, gold, curves)
    results.append(Result("random_spread", spread, run.config.metric, "test", None, len(gold), "random"))
    ones = np.ones((1, len(gold)))
    mean = np.mean([weighted_performance(run.config.metric, gold, c.predicted, ones)[0] for c in curves], axis=0)
    results += _curve_results(run, "random", mean, random[0], _typical(random[0], test, masf))
    run.store_results(KINDS, results)
    write_bytes(run.path / "observations.parquet", _parquet(pyarrow.concat_tables(observations)))


def _typical(table: Table, test: Encoded, masf: MaSF | None) -> list[Verdict]:
    """Return the verdict on the masked rows of each step; none where the run was not checked."""
    if masf is None or "p_max" not in table:
        return []
    lengths = torch.from_numpy(test.lengths[table["row"][:, 0]])
    own, largest = (torch.tensor(table[name]) for name in ("p_value", "p_max"))
    return [verdict_of(masf, own[:, step], largest[:, step], lengths, step) for step in range(STEPS + 1)]


def _measure_results(run: Run, name: str, found: Faithfulness, table: Table, verdicts: list[Verdict]) -> list[Result]:
    """Return a measure's result rows: areas with intervals, its curve, its p-values, its cost."""
    metric, n = run.config.metric, found.n
    per_text = float(table["seconds"].sum() / n)
    return [
        _with_interval("acu", found.acu, found.acu_interval, found, metric, name),
        _with_interval("racu", found.racu, found.racu_interval, found, metric, name),
        Result("seconds_per_text", per_text, "seconds", "test", None, n, name),
        *_curve_results(run, name, np.array(found.performance), table, verdicts),
    ]


def _with_interval(kind: str, value: float, interval: Interval, found: Faithfulness, metric: str, name: str) -> Result:
    low, high = interval or (None, None)
    return Result(kind, value, metric, "test", None, found.n, name, low, high, found.over)


def _curve_results(run: Run, name: str, performance: Floats, table: Table, verdicts: list[Verdict]) -> Iterator[Result]:
    n = len(table["row"])
    for step, value in enumerate(performance):
        yield Result("masked_performance", float(value), run.config.metric, "test", step / STEPS, n, name)
    for verdict in verdicts:
        ratio = verdict.step / STEPS
        yield Result("share_atypical", verdict.random.share_below, "share", "test", ratio, n, name)
        yield Result("share_out_of_distribution", verdict.anywhere.share_below, "share", "test", ratio, n, name)
    if verdicts:
        p_value = smallest_of([verdict.anywhere.dataset_p_value for verdict in verdicts])
        yield Result("walk_p_value", p_value, "p", "test", None, n, name)


def pool(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the result rows of several measured runs as one: means, with BCa intervals over the runs (their seeds).

    Only measures that were measured on all of them are there. Shares out-of-distribution are the mean, and their
    p-value the smallest times the number of runs.
    """
    rows = [run.results for run in runs]
    metrics = {run.config.metric for run in runs}
    if len(metrics) > 1:
        raise InputError(f"These runs have different metrics ({', '.join(sorted(metrics))}), which have no mean.")
    keyed = [
        {(row["kind"], row["measure"], row["masking_ratio"]): row for row in one if row["kind"] in KINDS}
        for one in rows
    ]
    pooled = []
    for key in [key for key in keyed[0] if all(key in one for one in keyed)]:
        same = [one[key] for one in keyed]
        values = np.array([row["value"] for row in same])
        interval = mean_interval(values) if key[0] in ("acu", "racu") else None
        value = smallest_of(values.tolist()) if key[0] == "walk_p_value" else float(values.mean())
        low, high = interval or (None, None)
        pooled.append({**same[0], "value": value, "low": low, "high": high, "over": "seeds", "n": len(runs)})
    return pooled


def _curve(table: Table, rows: Ints) -> Curve:
    """Return the curve of these dataset rows, of which the table holds all."""
    index = np.searchsorted(table["row"][:, 0], rows)
    return Curve(table["predicted"][index], table["probability"][index].astype(np.float64))
