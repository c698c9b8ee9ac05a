"""Gold answers that are not one class: several labels at once, in 0/1 columns or in a column of lists, or a number.

Until the splits are made, a row holds the names of its labels; then a list of 0 and 1, one for each label. A number is
a list of one.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from faithmeter.data.labels import numbers_first
from faithmeter.errors import InputError
from faithmeter.problems import NUMBER

if TYPE_CHECKING:
    from faithmeter.data.tables import Row
    from faithmeter.data.tasks import Task

YES_OR_NO = {"1": True, "0": False, "1.0": True, "0.0": False, "true": True, "false": False}
BETWEEN_NAMES = re.compile(r"[,;|]")


def names_told(value: Any) -> list[str]:  # noqa: ANN401 (a class, names of labels, or a number)
    """Return the labels that a row has, so that a split can keep a text of each; a number has none."""
    return [value] if isinstance(value, str) else [name for name in value if isinstance(name, str)]


def with_outputs(rows: Sequence[Row], task: Task, where: str) -> list[Row]:
    """Return the rows with their gold answer in the column `task.label`: names of labels, or a number."""
    read = _number if task.problem == NUMBER else _listed if len(task.outputs) == 1 else _ticked
    return [{**row, task.label: read(row, task, f"{where}, row {place}")} for place, row in enumerate(rows, start=1)]


def _number(row: Row, task: Task, where: str) -> list[float]:
    value = row[task.outputs[0]]
    try:
        number = float(str(value).strip())
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        shown = "nothing" if value is None or not str(value).strip() else repr(value)
        raise InputError(
            f"{where}: the column {task.outputs[0]!r} holds {shown} where a number is expected. Correct or remove the "
            "row; or, if the column holds classes, name it with --label."
        )
    return [number]


def _ticked(row: Row, task: Task, where: str) -> list[str]:
    """Return the labels of several 0/1 columns."""
    found = []
    for column in task.outputs:
        ticked = YES_OR_NO.get(str(row[column]).strip().casefold())
        if ticked is None:
            raise InputError(
                f"{where}: the column {column!r} holds {row[column]!r} where 0 or 1 is expected, for whether the text "
                "has that label. Correct or remove the row; one column of classes is named with --label."
            )
        found += [column] if ticked else []
    return found


def _listed(row: Row, task: Task, where: str) -> list[str]:
    """Return the labels of one column of lists; in a csv file as a list of JSON, or with commas between them."""
    column = task.outputs[0]
    value = row[column]
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip().startswith("[") else BETWEEN_NAMES.split(value)
        except json.JSONDecodeError as error:
            raise InputError(f"{where}: the column {column!r} holds {value!r}, which is no list of labels.") from error
    if not isinstance(value, list | tuple):
        raise InputError(
            f"{where}: the column {column!r} holds {value!r} where a list of labels is expected, such as "
            '["toxic", "threat"] or [] for none. Several columns of 0 and 1 are named with commas: --labels '
            "toxic,threat."
        )
    names = [str(name).strip() for name in value]
    return list(dict.fromkeys(name for name in names if name))


def number_outputs(tables: Mapping[str, Sequence[Row]], task: Task, origin: str) -> tuple[tuple[str, ...], list[str]]:
    """Replace names of labels by 0 and 1, in place; return the outputs' names in order, and what is to be told."""
    if task.problem == NUMBER:
        if len({row["label"][0] for row in tables["train"]}) < 2:
            raise InputError(
                f"{origin}: every training row has the number {tables['train'][0]['label'][0]:g}, so there is nothing "
                "to learn."
            )
        return task.outputs, []
    seen = Counter(name for row in tables["train"] for name in row["label"])
    labels = task.outputs if len(task.outputs) > 1 else tuple(sorted(seen, key=numbers_first))
    _require_learnable(tables, labels, seen, task, origin)
    for rows in tables.values():
        for row in rows:
            row["label"] = [int(name in row["label"]) for name in labels]
    tested = {name: sum(row["label"][place] for row in tables["test"]) for place, name in enumerate(labels)}
    unseen = [repr(name) for name, count in tested.items() if not count]
    none = sum(not any(row["label"]) for row in tables["train"])
    notes = [f"{none} of {len(tables['train'])} training rows have none of the labels."] if none else []
    return labels, notes + ([f"No test text has {' or '.join(unseen)}: nothing is measured of it."] if unseen else [])


def _require_learnable(
    tables: Mapping[str, Sequence[Row]], labels: Sequence[str], seen: Counter[str], task: Task, origin: str
) -> None:
    if len(labels) < 2 or (len(task.outputs) == 1 and set(labels) <= set(YES_OR_NO)):
        told = f"({', '.join(labels)})" if labels else "none"
        raise InputError(
            f"{origin}: the column {task.outputs[0]!r} has the labels {told}, and several labels are expected. Name "
            "all their 0/1 columns with commas, as in --labels toxic,threat; a choice between two classes is --label."
        )
    for name in labels:
        if seen[name] in (0, len(tables["train"])):
            which = "no" if seen[name] == 0 else "every"
            raise InputError(
                f"{origin}: {which} training row has the label {name!r}, so there is nothing to learn of it. Add "
                "training rows of the other kind, or leave this label out."
            )
    for part in ("validation", "test"):
        strange = next((name for row in tables[part] for name in row["label"] if name not in seen), None)
        if strange is not None:
            raise InputError(
                f"{origin}: the label {strange!r} is in {part} but never in train, so it cannot be learnt. Add "
                "training rows with it, or remove it."
            )
