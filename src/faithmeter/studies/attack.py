"""Attack: change words of a run's test texts until the prediction changes, and store how often that succeeds."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet

from faithmeter.attacks.kinds import DEFAULT_KINDS
from faithmeter.attacks.search import BUDGET, Attack, attack_texts, check_settings
from faithmeter.data.batch import Ints
from faithmeter.files import only_one, require_whole, write_bytes
from faithmeter.masking import Purpose, random_stream
from faithmeter.progress import Reporter, Silent
from faithmeter.reports.attack import AFTER, BEFORE, QUERIES, SUCCESS, UNTRIED, WORDS
from faithmeter.runs.results import ATTACK, Result, mean_over_texts
from faithmeter.runs.run import ATTACK_AGAIN, ATTACK_SETTINGS, Run
from faithmeter.runs.settings import of_model
from faithmeter.runs.shards import as_parquet
from faithmeter.statistics import mean_interval

ROWS = 200
FORMAT = 1  # of the stored columns


def attack(
    path: str | Path,
    *,
    rows: int = ROWS,
    kinds: Sequence[str] = DEFAULT_KINDS,
    budget: float = BUDGET,
    seed: int = 0,
    reporter: Reporter | None = None,
) -> Run:
    """Attack test texts of a run, drawn at random; those of an earlier call are replaced.

    Texts that are already misclassified are not attacked. The attacked texts are in `RUN/attacks.parquet`
    (`attacked_rows` reads them), and the results in the result rows of kind `attack`.
    """
    check_settings(kinds, budget)
    run = Run(path)
    with only_one(run.path):
        return _attack(run, rows, kinds, budget, seed, reporter or Silent())


def _attack(run: Run, rows: int, kinds: Sequence[str], budget: float, seed: int, reporter: Reporter) -> Run:
    classifier, test = run.classifier(), run.data().test
    classifier.memory.warn = reporter.warn
    # the same texts as the judges', so that their numbers can be compared
    order = random_stream(seed, Purpose.AUDITED_ROWS).permutation(len(test))[:rows]
    chosen = test.select(order)
    texts, labels = list(chosen["text"]), np.array(chosen["label"], dtype=np.int64)
    contexts = list(chosen["context"]) if "context" in chosen.column_names else None
    with reporter.bar("attack", len(texts)) as advance:
        found = attack_texts(
            classifier, texts, contexts, labels, kinds=kinds, budget=budget, seed=seed, rows=order, progress=advance
        )
    settings = {
        "rows": rows, "kinds": ",".join(kinds), "budget": budget, "seed": seed, **of_model(run, FORMAT),
    }  # fmt: skip
    columns = {
        "row": order,
        "text": texts,
        **({} if contexts is None else {"context": contexts}),
        "attacked": list(found.texts),
        "label": labels,
        **{name: getattr(found, name) for name in ("before", "after", "succeeded", "skipped", "changed", "words")},
        "queries": found.queries,
        "tried": found.tried,
    }
    table = pyarrow.table(columns).replace_schema_metadata({ATTACK_SETTINGS: json.dumps(settings)})
    write_bytes(run.attacks, as_parquet(table))
    run.store_results((ATTACK,), _results(found, labels))
    return run


def attacked_rows(run: Run) -> list[dict[str, Any]]:
    """Return the attacked texts of a run, one row each, with the names of the classes; none where there are none."""
    if not run.attacks.exists():
        return []
    labels, file = run.config.labels, require_whole(run.attacks, ATTACK_AGAIN)
    found = pyarrow.parquet.read_table(file).to_pylist()
    return [{**row, **{name: labels[row[name]] for name in ("label", "before", "after")}} for row in found]


def _results(found: Attack, labels: Ints) -> list[Result]:
    """Return the numbers of an attack, each with its interval over texts."""
    attacked, beaten = ~found.skipped, found.succeeded
    columns = {
        BEFORE: (found.before == labels, "accuracy"),
        AFTER: (found.after == labels, "accuracy"),
        SUCCESS: (beaten[attacked], "share"),
        WORDS: ((found.changed / np.maximum(found.words, 1))[beaten], "share"),
        UNTRIED: (found.tried[attacked] == 0, "share"),
        QUERIES: (found.queries[attacked], "queries"),
    }
    known = {detail: (values.astype(np.float64), metric) for detail, (values, metric) in columns.items() if len(values)}
    return [
        mean_over_texts(ATTACK, values, metric, mean_interval(values), detail=detail)
        for detail, (values, metric) in known.items()
    ]
