"""What `measure` has stored of a walk, read as arrays and as the curve that it is."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet

from faithmeter.masking import STEPS
from faithmeter.measuring.curves import Curve
from faithmeter.runs.run import Run
from faithmeter.runs.shards import read_shards

Table = dict[str, np.ndarray[Any, np.dtype[Any]]]
ANSWERS = ("row", "predicted", "probability")  # the columns that a curve is made of, where a text has one class


def read_measurement(run: Run, name: str, columns: Sequence[str] | None = None) -> Table:
    """Return a measure's stored columns as (observations, steps + 1) arrays, in the order of the dataset rows.

    All of them, or those that are named, of which `row` must be one.
    """
    remedy = "`faithmeter measure` with the same options computes it again."
    table = read_shards(run.measurements / name, remedy, columns and [*columns, "step"])
    assert table is not None
    table = table.sort_by([("row", "ascending"), ("step", "ascending")])
    return {column: table[column].to_numpy().reshape(-1, STEPS + 1) for column in columns or table.column_names}


def answer_columns(run: Run) -> tuple[str, ...]:
    """Return the stored columns that a curve is made of: of labels and numbers, the score of each output."""
    if not run.config.problem.each_output:
        return ANSWERS
    return ("row", *(f"score:{output}" for output in range(len(run.config.labels))))


def curve_of(table: Table) -> Curve:
    """Return the curve that a measurement's stored columns are."""
    if "predicted" in table:
        return Curve(table["predicted"], table["probability"].astype(np.float64))
    scores = np.stack(each_output(table, "score"), axis=-1).astype(np.float64)
    # a number has no probability: how far it is from that of the unmasked text says as much, whichever way it moves
    near = scores if scores.shape[-1] > 1 else -np.abs(scores - scores[:, :1])
    return Curve(scores, np.moveaxis(near, -1, 1))


def each_output(table: Table, column: str) -> list[np.ndarray[Any, np.dtype[Any]]]:
    """Return the columns of that name, one per output that has it; of a text with one class, the only one."""
    found = [table[f"{column}:{output}"] for output in range(len(table)) if f"{column}:{output}" in table]
    return found or ([table[column]] if column in table else [])


def measured_texts(folder: Path) -> int:
    """Return of how many texts a walk is stored."""
    return sum(pyarrow.parquet.read_metadata(shard).num_rows for shard in folder.glob("*.parquet")) // (STEPS + 1)
