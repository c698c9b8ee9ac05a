"""Scores: write a measure's explanations of test texts to a file, as `--scores` of `measure` and `audit` reads them."""

import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
import torch
from torch import Tensor

from faithmeter.data.batch import Encoded, Ints
from faithmeter.data.tables import Row
from faithmeter.errors import InputError
from faithmeter.files import write_bytes
from faithmeter.importance.elsewhere import OF
from faithmeter.importance.table import as_measure, distinct
from faithmeter.masking import Purpose, random_stream
from faithmeter.measuring.curves import require_target
from faithmeter.models.classifier import Classifier
from faithmeter.problems import require_one_output
from faithmeter.progress import Reporter, Silent
from faithmeter.runs.run import Run
from faithmeter.runs.shards import TOKENS_AT_ONCE, as_parquet
from faithmeter.runs.texts import encode

KINDS = (".jsonl", ".csv", ".parquet")


@dataclass(frozen=True)
class ScoresOptions:
    """What is explained, by which measure; the texts are those that `measure` chooses with the same rows and seed."""

    measure: str = "loo-signed"
    target: str = "gold"
    rows: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        as_measure(self.measure)
        require_target(self.target)


def scores(
    path: str | Path, out: str | Path, options: ScoresOptions | None = None, *, reporter: Reporter | None = None
) -> Path:
    """Explain a run's test texts once, and write a line per text: its number, its tokens, their spans and scores.

    The kind of file is that of its name: jsonl, csv or parquet.
    """
    run, out, options, reporter = Run(path), Path(out), options or ScoresOptions(), reporter or Silent()
    require_kind(out)
    require_one_output(run.config.problem, "A file of scores")
    if options.target not in run.config.problem.explained:
        raise InputError(f"{run.config.problem.explained['gold']} Leave out --target.")
    classifier, split = run.classifier(), run.data().test
    (measure,) = distinct([options.measure], classifier)
    test = encode(classifier, split, "test", reporter)
    chosen = chosen_rows(test, options.rows, options.seed)
    lines = dict[int, dict[str, Any]]()
    with reporter.bar(measure.name, len(chosen)) as advance:
        for batch in test.batches(TOKENS_AT_ONCE, chosen):  # as `measure` cuts them, so that the numbers are the same
            targets = torch.zeros_like(batch.rows) if classifier.problem.each_output else batch.labels
            if options.target != "gold":
                targets = classifier.predict_with_features(batch)[0].argmax(dim=-1)
            importance = measure.explain(classifier, batch, targets, options.seed).cpu()
            for place, row in enumerate(batch.rows.tolist()):
                target = classifier.labels[int(targets[place])]
                lines[row] = _line(classifier, split[row], row, target, batch.maskable[place], importance[place])
            advance(len(batch))
    store([lines[row] for row in chosen.tolist()], out)
    return out


def require_kind(out: Path) -> None:
    """Refuse a file of another kind than can be written."""
    if out.suffix not in KINDS:
        raise InputError(f"{out}: name a file that ends in {', '.join(KINDS)}.")


def chosen_rows(test: Encoded, rows: int | None, seed: int) -> Ints:
    """Return the rows that `measure` chooses with the same seed and number of texts."""
    return random_stream(seed, Purpose.MEASURED_ROWS).permutation(len(test))[:rows]


def store(lines: list[dict[str, Any]], out: Path) -> None:
    """Write lines to a file of the kind that its name says."""
    write_bytes(out, _as_file(lines, out.suffix))


def _line(
    classifier: Classifier, said: Row, row: int, target: str, maskable: Tensor, importance: Tensor
) -> dict[str, Any]:
    """Return what is written of a text: what it says, and each maskable token with its characters and its score."""
    pair: Row = {name: said[name] for name in ("text", "context") if name in said}
    (encoding,) = classifier.encodings(pair["text"], pair.get("context"))
    places = maskable.nonzero()[:, 0].tolist()
    return {
        "row": row,
        **pair,
        "target": target,
        "tokens": [encoding.tokens[place] for place in places],
        "spans": [list(encoding.offsets[place]) for place in places],
        **({"of": [OF[encoding.sequence_ids[place]] for place in places]} if classifier.both_texts else {}),
        "scores": importance[places].tolist(),
    }


def _as_file(lines: list[dict[str, Any]], kind: str) -> bytes:
    """Return lines as the bytes of a file; lists in a csv are written as in JSON."""
    if kind == ".parquet":
        return as_parquet(pyarrow.Table.from_pylist(lines))
    if kind == ".jsonl":
        return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    for line in lines:
        writer.writerow({k: json.dumps(v, ensure_ascii=False) if isinstance(v, list) else v for k, v in line.items()})
    return text.getvalue().encode()
