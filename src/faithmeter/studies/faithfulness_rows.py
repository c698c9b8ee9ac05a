"""From stored measurements to result rows: areas with intervals, curves, p-values, cost; of one run or of several."""

import functools
import io
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow
import pyarrow.parquet
import torch

from faithmeter.data.batch import Encoded, Ints
from faithmeter.files import write_bytes
from faithmeter.importance.measure import ONCE
from faithmeter.importance.table import IMPORTANCE_MEASURES
from faithmeter.in_distribution.masf import MaSF
from faithmeter.in_distribution.p_values import smallest_of
from faithmeter.in_distribution.verdict import Verdict, dataset_verdict
from faithmeter.masking import STEPS
from faithmeter.measuring.contributions import areas_of, paired_differences
from faithmeter.measuring.curves import (
    Curve,
    Faithfulness,
    faithfulness_over_observations,
    observation_areas,
    performance_band,
    random_spread,
    walk_passes,
)
from faithmeter.performance import Gold
from faithmeter.problems import LABELS
from faithmeter.runs.measurements import ANSWERS, Table, answer_columns, curve_of, each_output, read_measurement
from faithmeter.runs.repetitions import require_repetitions
from faithmeter.runs.results import (
    AGREEMENT,
    EXPLAINED_ONCE,
    Pooling,
    Result,
    Row,
    Rows,
    accepted,
    key_of,
    kind_of,
    most_faithful,
    within_bounds,
)
from faithmeter.runs.run import Run
from faithmeter.statistics import Array, Weights, group_numbers, mean_interval, student_interval
from faithmeter.statistics.best_set import BestSet, best_set, best_set_over_runs, winners_estimate
from faithmeter.statistics.intervals import Interval

KINDS = (
    "acu", "acu_behind_best", "acu_cross_fitted", "acu_difference", "baseline_share", "best_set", "draws_needed",
    EXPLAINED_ONCE, "racu", "masked_performance", "random_spread", "seconds_per_text", "share_atypical",
    "share_out_of_distribution", "sparsity", "token_passes", "walk_p_value", "walk_random_p_value",
    "label_acu", "label_racu", "label_masked_performance",
)  # fmt: skip
BOOTSTRAPPED_TRAININGS = 5  # as many as in the papers; of fewer the bootstrap is far too narrow, and Student's holds


def store_faithfulness(
    run: Run, test: Encoded, names: Sequence[str], masf: MaSF | None, decided: Collection[tuple[str, str]] | None = None
) -> None:
    """Turn measurements into result rows and `observations.parquet`.

    `decided` has the pairs of measures of which the first is surely better, where measuring in rounds has decided that.
    """
    at_random = [name for name in names if name.startswith("random.")]
    groups = test.sources()
    random = [_answers(read_measurement(run, name, answer_columns(run)), run) for name in at_random]
    results, answers = [], dict[str, Table]()
    observed, observations = io.BytesIO(), None
    for name in (name for name in names if name not in at_random):
        table = read_measurement(run, name)  # one at a time, of which only the answers are kept
        answers[name] = _answers(table, run)
        rows = table["row"][:, 0]
        baseline = [_curve(one, rows) for one in random]
        faithfulness = faithfulness_over_observations(
            run.config.metric, test.labels[rows], _curve(table, rows), baseline, groups[rows]
        )
        results += _measure_results(run, name, faithfulness, table)
        results += _work(name, test, rows)
        verdicts = _typical(table, test, groups, masf)
        results += _curve_results(run, name, test.labels[rows], [_curve(table, rows)], groups[rows], verdicts)
        results += _label_results(run, name, test.labels[rows], [_curve(table, rows)], baseline, groups[rows])
        found = _observed(run, name, rows, *observation_areas(_curve(table, rows), baseline))
        observations = observations or pyarrow.parquet.ParquetWriter(observed, found.schema)
        observations.write_table(found)
    assert observations is not None
    observations.close()
    rows = random[0]["row"][:, 0]
    gold, curves = test.labels[rows], [_curve(one, one["row"][:, 0]) for one in random]
    spread = random_spread(run.config.metric, gold, curves)
    results.append(Result(kind="random_spread", value=spread, metric=run.config.metric, n=len(gold), measure="random"))
    first = read_measurement(run, at_random[0]) if masf is not None else {}
    results += _curve_results(run, "random", gold, curves, groups[rows], _typical(first, test, groups, masf))
    results += _explained_once(run, list(answers), len(rows))
    results += _label_results(run, "random", gold, curves, [], groups[rows])
    results += _comparisons(run, test, groups, answers, random, [result.as_row() for result in results], decided)
    run.store_results(KINDS, results)
    write_bytes(run.observations, observed.getvalue())


def _explained_once(run: Run, names: Sequence[str], n: int) -> list[Result]:
    """Return which measures are explained once, where explanations from elsewhere, or forms like them, are compared."""
    files = run.measurement_settings["asked"].get("scores", {})
    if not any(name in files or name.endswith(ONCE) for name in names):
        return []
    once = {name: name in files or not getattr(IMPORTANCE_MEASURES.get(name), "recursive", True) for name in names}
    base = Result(kind=EXPLAINED_ONCE, value=0.0, metric="share", n=n)
    return [
        replace(base, value=float(once[name]), measure=name, detail=Path(files[name]).name if name in files else None)
        for name in names
    ]


def _typical(table: Table, test: Encoded, groups: Ints, masf: MaSF | None) -> list[Verdict]:
    """Return the verdict on the masked rows of each step; none where the run was not checked.

    By larger units the rows of a step are judged by the references of their own shares, several at a step. All have as
    many calibrating rows, and rows that share fewer of them vary together less than the tests allow for.
    """
    if masf is None or masf.form == "paper":  # the paper's form allows no verdict
        return []
    rows = table["row"][:, 0]
    lengths, own_groups = torch.from_numpy(test.lengths[rows]), torch.from_numpy(groups[rows])
    walks = zip(each_output(table, "p_own"), each_output(table, "p_outside"), strict=True)
    return [
        dataset_verdict(masf, torch.tensor(own)[:, step], torch.tensor(outside)[:, step], lengths, step, own_groups)
        for own, outside in walks
        for step in range(STEPS + 1)
    ]


def _answers(table: Table, run: Run) -> Table:
    """Return the columns of a measurement that curves are made of, the predicted classes in as few bytes as can be."""
    if "predicted" not in table:
        return {**{name: table[name] for name in answer_columns(run)}, "row": table["row"][:, :1].copy()}
    predicted = table["predicted"].astype(np.min_scalar_type(len(run.config.labels)))
    return {**{name: table[name] for name in ANSWERS}, "row": table["row"][:, :1].copy(), "predicted": predicted}


def _comparisons(
    run: Run,
    test: Encoded,
    groups: Ints,
    tables: dict[str, Table],
    random: list[Table],
    rows: Rows,
    decided: Collection[tuple[str, str]] | None,
) -> list[Result]:
    """Return what can be said of the measures beside each other, each pair on the texts that both were measured on."""
    metric, measured = run.config.metric, {name: table["row"][:, 0] for name, table in tables.items()}
    texts = functools.reduce(np.union1d, measured.values())
    curves = [_curve(table, measured[name]) for name, table in tables.items()]
    places = [np.searchsorted(texts, own) for own in measured.values()]
    ahead = None if decided is None else np.array([[(a, b) in decided for b in tables] for a in tables])
    told = best_set(paired_differences(metric, test.labels[texts], curves, places, groups[texts]), decided=ahead)
    common = told.counts
    if group_numbers(groups[texts]) is not None:
        common = np.array([[len(np.intersect1d(a, b)) for b in measured.values()] for a in measured.values()])
    base = Result(kind="best_set", value=float("nan"), metric=metric, n=0, over="observations")

    def cross_fitted(winner: str, rivals: Sequence[str]) -> Result | None:
        # a measure of fewer texts than the winner's is no rival: it cannot be chosen on these texts
        own = measured[winner]
        rivals = [name for name in rivals if np.isin(own, measured[name]).all()]
        at_random = [_curve(table, own) for table in random]
        areas = areas_of(metric, test.labels[own], [_curve(tables[name], own) for name in rivals], at_random)
        return _cross_fitted(areas, rivals, replace(base, n=len(own), measure=winner), groups[own])

    return _compared(told, list(tables), rows, base, cross_fitted, common)


def _compared(
    told: BestSet,
    names: Sequence[str],
    rows: Rows,
    base: Result,
    cross_fitted: Callable[[str, Sequence[str]], Result | None],
    common: Ints,
) -> list[Result]:
    """Return the rows of all pairs of measures, of those that may be best, of the winner, and of how far others lie.

    `base` has what all of these rows share, and `common` the number of texts, or runs, of each pair. A pair without two
    common texts, or groups of texts, has no row.
    """

    def counted(i: int, j: int) -> Result:
        n, units = int(common[i, j]), int(told.counts[i, j])
        return replace(base, n=n, groups=None if n in (1, units) else units)

    def lead(i: int, j: int) -> Result:
        interval = None if np.isnan(told.low[i, j]) else (float(told.low[i, j]), float(told.high[i, j]))
        low, high = within_bounds(interval, "acu_difference", base.metric) or (None, None)
        value, pair = float(told.difference[i, j]), (names[i], names[j])
        return replace(
            counted(i, j), kind="acu_difference", value=value, measure=pair[0], detail=pair[1], low=low, high=high
        )

    pairs = [(i, j) for i in range(len(names)) for j in range(len(names)) if i != j and told.counts[i, j] > 1]
    results = [lead(i, j) for i, j in pairs]
    for i, name in enumerate(names):
        may_be, own = float(told.may_be_best[i]), counted(i, i)
        results.append(replace(own, value=may_be, metric="share", measure=name, detail=told.letters[i]))
    known = [*rows, *(result.as_row() for result in results)]
    best, trusted = most_faithful(known), accepted(rows) or names
    winner = most_faithful(known, among=trusted)
    assert best is not None
    assert winner is not None
    first = names.index(best)
    behind = [replace(lead(first, j), kind="acu_behind_best", measure=names[j], detail=None) for j in range(len(names))]
    chosen = cross_fitted(winner, trusted)
    return [*results, *behind, *([] if chosen is None else [chosen])]


def _cross_fitted(
    statistic: Callable[[Weights], Array], rivals: Sequence[str], base: Result, groups: Ints | None = None
) -> Result | None:
    """Return the winner's ACU on texts, or runs, that did not choose it; None where there was nothing to choose.

    Where parts of them chose other measures, `detail` names all that were chosen: the estimate is of their mean.
    """
    numbers = group_numbers(groups)
    units = base.n if numbers is None else int(numbers.max()) + 1
    if len(rivals) < 2 or units < 2:
        return None
    winner = winners_estimate(statistic, base.n, groups=numbers)
    low, high = within_bounds(winner.interval, "acu_cross_fitted", base.metric) or (None, None)
    names = sorted({rivals[number] for number in winner.chosen})
    detail = None if names == [base.measure] else ", ".join(names)
    base = replace(base, groups=None if numbers is None else units)
    return replace(base, kind="acu_cross_fitted", value=winner.value, low=low, high=high, detail=detail)


def _measure_results(run: Run, name: str, found: Faithfulness, table: Table) -> list[Result]:
    """Return a measure's result rows: areas with intervals, its cost, how sparse it is."""
    metric, n = run.config.metric, found.n
    per_text = float(table["seconds"].sum() / n)
    return [
        _with_interval("acu", found.acu, found.acu_interval, found, metric, name),
        _with_interval("racu", found.racu, found.racu_interval, found, metric, name),
        *_baseline_noise(found, name),
        Result(kind="seconds_per_text", value=per_text, metric="seconds", n=n, measure=name),
        *(
            Result(kind="sparsity", value=float(share), metric="share", masking_ratio=step / STEPS, n=n, measure=name)
            for step, share in enumerate(_mean_known(np.concatenate(each_output(table, "held"))))
        ),
    ]


def _baseline_noise(found: Faithfulness, name: str) -> list[Result]:
    """Return how much of an interval is noise of the random draws, and how many draws there should be."""
    if math.isnan(found.baseline_share):
        return []
    share = Result(kind="baseline_share", value=found.baseline_share, metric="share", n=found.n, measure=name)
    if found.draws_needed is None:
        return [share]
    return [share, Result(kind="draws_needed", value=found.draws_needed, metric="draws", n=found.n, measure=name)]


def _work(name: str, test: Encoded, rows: Ints) -> list[Result]:
    """Return how many tokens went through the model a text, about: what `seconds_per_text` was spent on.

    The two together tell what a text of another length will cost. Nothing is known of a user's own measure.
    """
    if name not in IMPORTANCE_MEASURES:
        return []
    work, units = 0.0, test.unit_counts
    for row in rows:
        work += (walk_passes(IMPORTANCE_MEASURES[name], int(units[row])) or 0.0) * int(test.lengths[row]) * test.outputs
    return [Result(kind="token_passes", value=work / len(rows), metric="tokens", n=len(rows), measure=name)]


def _mean_known(table: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
    """Return the mean of each column over the texts in which anything is important; nan where there is none."""
    known = ~np.isnan(table)
    return np.where(known, table, 0).sum(axis=0) / np.where(known.any(axis=0), known.sum(axis=0), np.nan)


def _with_interval(kind: str, value: float, interval: Interval, found: Faithfulness, metric: str, name: str) -> Result:
    low, high = within_bounds(interval, kind, metric) or (None, None)
    known = Result(kind=kind, value=value, metric=metric, n=found.n, measure=name, low=low, high=high, over=found.over)
    return replace(known, groups=found.groups)


def _curve_results(
    run: Run, name: str, gold: Gold, curves: list[Curve], groups: Ints, verdicts: list[Verdict]
) -> Iterator[Result]:
    """Yield the performance at every step, the mean of the curves, and how typical the masked rows are."""
    metric, n, numbers = run.config.metric, len(gold), group_numbers(groups)
    units = None if numbers is None else int(numbers.max()) + 1
    for step, (value, low, high) in enumerate(performance_band(metric, gold, curves, numbers)):
        yield Result(
            kind="masked_performance",
            value=value,
            metric=metric,
            masking_ratio=step / STEPS,
            n=n,
            measure=name,
            low=None if units == 1 else low,
            high=None if units == 1 else high,
            over="observations",
            groups=units,
        )
    for step in sorted({verdict.step for verdict in verdicts}):
        own = [verdict for verdict in verdicts if verdict.step == step]  # several where each label has its walk
        shares = {
            "share_atypical": [verdict.random.share_below for verdict in own],
            "share_out_of_distribution": [verdict.anywhere.share_below for verdict in own],
        }
        for kind, each in shares.items():
            value = sum(each) / len(each)
            yield Result(kind=kind, value=value, metric="share", masking_ratio=step / STEPS, n=n, measure=name)
    if verdicts:
        p_value = smallest_of([verdict.anywhere.dataset_p_value for verdict in verdicts])
        yield Result(kind="walk_p_value", value=p_value, metric="p", n=n, measure=name)
        unlike = smallest_of([verdict.random.dataset_p_value for verdict in verdicts])
        yield Result(kind="walk_random_p_value", value=unlike, metric="p", n=n, measure=name)


def _observed(run: Run, name: str, rows: Ints, acu: Array, racu: Array) -> pyarrow.Table:
    """Return the areas of each text; of several labels those of each text and label."""
    labels = run.config.labels
    beside = {}
    if acu.ndim == 2:
        rows, acu, racu = np.repeat(rows, acu.shape[1]), acu.ravel(), racu.ravel()
        beside = {"label": list(labels) * (len(rows) // len(labels))}
    return pyarrow.table({"row": rows, "measure": pyarrow.repeat(name, len(rows)), "acu": acu, "racu": racu} | beside)


def _label_results(
    run: Run, name: str, gold: Gold, curves: Sequence[Curve], baseline: Sequence[Curve], groups: Ints
) -> Iterator[Result]:
    """Yield the performance on each label at every step, and its areas where there is a baseline; `detail` names it.

    By F1 it is the F1 of that label, by mean average precision its average precision.
    """
    labels, metric, numbers = run.config.labels, run.config.metric, group_numbers(groups)
    if run.config.problem.name != LABELS:
        return
    alone_in_one_group = numbers is not None and int(numbers.max()) == 0
    for output, label in enumerate(labels):
        own, alone = gold[:, [output]], [curve.of([output]) for curve in curves]
        for step, (value, low, high) in enumerate(performance_band(metric, own, alone, numbers)):
            yield Result(
                kind="label_masked_performance", value=value, metric=metric, masking_ratio=step / STEPS, n=len(own),
                measure=name, low=None if alone_in_one_group else low, high=None if alone_in_one_group else high,
                over="observations", detail=label,
            )  # fmt: skip
        if baseline:
            at_random = [each.of([output]) for each in baseline]
            found = faithfulness_over_observations(metric, own, alone[0], at_random, groups)
            for area in (
                _with_interval("label_acu", found.acu, found.acu_interval, found, metric, name),
                _with_interval("label_racu", found.racu, found.racu_interval, found, metric, name),
            ):
                yield replace(area, detail=label)


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
        row.pop("groups", None)
        pooled.append(cast(Row, {**row, "n": same[0]["n"] if key[0] == AGREEMENT else len(runs)}))
    kept = [row for row in pooled if kind_of(row["kind"]).pooling is not Pooling.ANEW]
    return kept + [result.as_row() for result in _pooled_comparisons(kept, keyed)]


def _pooled(how: Pooling, values: Array) -> tuple[float, Interval]:
    """Return the number that stands for those of several trainings, and its interval over them."""
    if how is Pooling.SMALLEST_P:
        return smallest_of(values.tolist()), None
    if how is Pooling.SMALLEST:
        return float(values.min()), None
    if how is Pooling.LARGEST:
        return float(values.max()), None
    bootstrap = mean_interval if len(values) >= BOOTSTRAPPED_TRAININGS else student_interval
    intervals = {Pooling.BOOTSTRAP: bootstrap, Pooling.STUDENT: student_interval}
    return float(values.mean()), intervals[how](values) if how in intervals else None


def _pooled_comparisons(pooled: Rows, keyed: Sequence[Mapping[Any, Row]]) -> list[Result]:
    """Return what can be said of the measures beside each other, over several trainings; nothing of a single one."""
    areas = [row for row in pooled if row["kind"] == "acu"]
    if len(keyed) < 2 or not areas:
        return []
    values = np.array([[rows[key_of(row)]["value"] for row in areas] for rows in keyed], dtype=np.float64)
    names = [str(row["measure"]) for row in areas]
    base = Result(kind="best_set", value=float("nan"), metric=areas[0]["metric"], n=len(keyed), over="seeds")

    def cross_fitted(winner: str, rivals: Sequence[str]) -> Result | None:
        own = values[:, [names.index(name) for name in rivals]]
        return _cross_fitted(lambda w: w @ own / w.sum(axis=1, keepdims=True), rivals, replace(base, measure=winner))

    told = best_set_over_runs(values)
    return _compared(told, names, pooled, base, cross_fitted, told.counts)


def _curve(table: Table, rows: Ints) -> Curve:
    """Return the curve of these dataset rows, of which the table holds all."""
    return curve_of(table).at(np.searchsorted(table["row"][:, 0], rows))
