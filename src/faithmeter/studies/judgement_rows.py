"""From stored judgements to result rows: means with intervals, and whether the judges agree."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet

from faithmeter.files import read_json, require_whole
from faithmeter.importance.table import IMPORTANCE_MEASURES
from faithmeter.judges.agreement import Scores, agreements
from faithmeter.judges.drift import CLASS, DRIFT, MAP, SHARES, Points, Space
from faithmeter.judges.judge import Judge, Need
from faithmeter.judges.known_token import SOLVED
from faithmeter.judges.ranking import Array
from faithmeter.judges.table import JUDGES
from faithmeter.runs.results import AGREEMENT, AUDIT, Result, mean_over_texts, most_faithful
from faithmeter.runs.run import DEFAULT_MEASURE, MEASURE_AGAIN, Run
from faithmeter.statistics import mean_interval, percentile_band

Table = dict[str, np.ndarray[Any, np.dtype[Any]]]
AGAIN = "`faithmeter audit` of this judge and measure, with the same options, computes it again."
SPACE = "space.safetensors"  # in the folder of a judge: where the original texts lie
KNOWN_TOKEN = "known_token.json"  # in the folder of the judge's model, or of the judge: how well it reads the word


def read_judgements(run: Run, judge: str) -> dict[str, Table]:
    """Return a judge's numbers, by measure and column (`row` is one), in the order of the dataset rows."""
    found: dict[str, Table] = {}
    folder = run.judgements / judge
    for one in sorted(folder.iterdir()) if folder.is_dir() else ():
        shards = sorted(one.glob("*.parquet")) if one.is_dir() else []
        if shards:
            require_whole(one, AGAIN)
            tables = [pyarrow.parquet.read_table(shard) for shard in shards]
            # an earlier release may have written some of them, without the columns that came later
            table = pyarrow.concat_tables(tables, promote_options="default")
            table = table.sort_by([("row", "ascending")])
            found[one.name] = {name: table[name].to_numpy() for name in table.column_names}
    return found


def drift_points(run: Run) -> Points | None:
    """Return the coordinates of texts masked at random and by the most faithful measure; None without drift.

    Where nothing was measured, it is the measure that would be used, or else the first of the table that was judged.
    """
    judged, file = read_judgements(run, DRIFT.name), run.judgements / DRIFT.name / SPACE
    others = [name for name in (*IMPORTANCE_MEASURES, *judged) if name in judged and name != "random"]
    if "random" not in judged or not others or not file.exists():
        return None
    best = most_faithful(run.results, among=others) or (DEFAULT_MEASURE if DEFAULT_MEASURE in others else others[0])
    rows = np.intersect1d(judged["random"]["row"], judged[best]["row"])  # one may have been stopped midway
    chosen = {name: judged[name] for name in ("random", best)}
    tables = {
        name: {column: values[np.searchsorted(table["row"], rows)] for column, values in table.items()}
        for name, table in chosen.items()
    }
    known = ~np.isnan(np.stack([table[f"{MAP}1@0 %"] for table in tables.values()])).any(axis=0)

    def columns(table: Table, kind: str) -> Array:
        return np.stack([table[f"{kind}@{share}"][known] for share in SHARES], axis=1)

    shares = Space.load(file).shares.numpy()
    kept = [f"{MAP}{number + 1}" for number in range(len(shares))]
    return Points(
        {name: np.stack([columns(table, kind) for kind in kept], axis=2) for name, table in tables.items()},
        {name: columns(table, "outside") for name, table in tables.items() if "outside@0 %" in table},
        tables["random"][CLASS][known],
        run.config.labels,
        shares,
    )


def store_judgements(run: Run, judge: Judge) -> None:
    """Turn a judge's numbers into result rows, which replace its earlier ones."""
    results = [
        result
        for measure, columns in read_judgements(run, judge.name).items()
        for result in (_curves if judge.curves else _means)(judge.name, measure, columns)
    ]
    reached = _known_token(run, judge)
    if reached is not None:
        results.append(
            Result(
                kind=f"{AUDIT}{judge.name}_accuracy", value=reached["accuracy"], metric="accuracy", n=reached["rows"]
            )
        )
    if judge.needs is Need.ATTACKED_TEXTS and results:
        results.append(_beaten(run, judge))
    stored = {row["kind"] for row in run.results if row["kind"].startswith(f"{AUDIT}{judge.name}_")}
    run.store_results(stored | {result.kind for result in results}, results)


def store_agreement(run: Run) -> None:
    """Compare all that was judged and measured on the run; nothing is stored where nothing was judged."""
    judged = {}
    for name, judge in JUDGES.items():
        reached = _known_token(run, judge)
        unread = reached is not None and reached["accuracy"] < SOLVED  # a token that is not read cannot rank measures
        judged[name] = {} if unread else read_judgements(run, name)
    results = [
        Result(
            kind=AGREEMENT,
            value=pair.value,
            metric="spearman",
            n=pair.measures,
            low=pair.low,
            high=pair.high,
            over="observations",
            detail=f"{pair.first} | {pair.second}",
        )
        for pair in agreements(_scores(run, judged))
    ]
    run.store_results((AGREEMENT,), results)


def _known_token(run: Run, judge: Judge) -> dict[str, Any] | None:
    """Return how well the model reads the known word, the run's or the judge's own; None where there is none."""
    folder = run.judgements / judge.name
    files = [file for file in (folder / KNOWN_TOKEN, folder / "model" / KNOWN_TOKEN) if file.exists()]
    return read_json(files[0], AGAIN) if judge.needs is Need.KNOWN_TOKEN and files else None


def attacked_texts(run: Run, judge: Judge) -> Path:
    """Return the file with the attacked texts that a judge judges explanations of."""
    return run.judgements / judge.name / "attacked.parquet"


def _beaten(run: Run, judge: Judge) -> Result:
    """Return the share of the attacked texts that the model answers otherwise than as they were."""
    file = require_whole(attacked_texts(run, judge), AGAIN)
    succeeded = pyarrow.parquet.read_table(file)["succeeded"].to_numpy().astype(np.float64)
    return mean_over_texts(f"{AUDIT}{judge.name}_beaten", succeeded, "share", mean_interval(succeeded))


def _means(judge: str, measure: str, columns: Table) -> Iterator[Result]:
    """Yield the mean of each column over the texts that have it, with its interval."""
    for column, values in columns.items():
        known = values[~np.isnan(values)].astype(np.float64)
        if column != "row" and len(known):
            yield _result(judge, measure, column, known, mean_interval(known))


def _curves(judge: str, measure: str, columns: Table) -> Iterator[Result]:
    """Yield the means of columns that are curves to draw, with ribbons: thirty of a measure, so all in one go.

    Texts without a number have none in any column. Places on the map have no mean that says anything.
    """
    names = [name for name in columns if name != "row" and not name.startswith(MAP)]
    values = np.stack([columns[name].astype(np.float64) for name in names], axis=1)
    values = values[~np.isnan(values).any(axis=1)]
    if not len(values):
        return
    lows, highs = percentile_band(lambda weights: weights @ values / weights.sum(axis=1, keepdims=True), len(values))
    for column, known, low, high in zip(names, values.T, lows.tolist(), highs.tolist(), strict=True):
        yield _result(judge, measure, column, known, (low, high) if len(values) > 1 else None)


def _result(judge: str, measure: str, column: str, known: Array, interval: tuple[float, float] | None) -> Result:
    name, _, detail = column.partition("@")
    return mean_over_texts(f"{AUDIT}{judge}_{name}", known, name, interval, measure, detail or None)


def _scores(run: Run, judged: Mapping[str, Mapping[str, Table]]) -> dict[str, dict[str, Scores]]:
    """Return each judge's numbers for each measure, text by text, more is better; masking's scores are ACU.

    Random importance is left out: every judge tells it from the others, which is no sign that they agree on those.
    """
    scores: dict[str, dict[str, Scores]] = {}
    file = require_whole(run.observations, MEASURE_AGAIN)
    if file.exists():
        table = pyarrow.parquet.read_table(file).sort_by([("row", "ascending")])
        names, areas = table["measure"].to_numpy(zero_copy_only=False), table["acu"].to_numpy()
        rows = table["row"].to_numpy()
        scores["masking: ACU"] = {
            name: Scores(rows[names == name], areas[names == name]) for name in dict.fromkeys(names.tolist())
        }
    for judge in JUDGES.values():
        for column, more_is_better in judge.scores.items():
            found = {}
            for measure, columns in judged[judge.name].items():
                like = [values for name, values in columns.items() if name.partition("@")[0] == column]
                if like and measure != "random":
                    size = np.mean([np.abs(one) if judge.scored_by_size else one for one in like], axis=0)
                    found[measure] = Scores(columns["row"], size if more_is_better else -size)
            if found:
                scores[f"{judge.name}: {column.replace('_', ' ')}"] = found
    return scores
