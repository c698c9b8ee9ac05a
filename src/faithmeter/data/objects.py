"""Data in memory: a DataFrame, a `datasets.Dataset`, a dictionary or lists, as the rows that a file would have.

Neither pandas nor datasets is imported: what a table is, is told by what it can do.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from faithmeter.data.splits import SPLITS
from faithmeter.data.tables import Row
from faithmeter.errors import InputError

KINDS = (
    "a DataFrame, a datasets.Dataset, a dictionary of columns, a list of rows, or lists (texts, labels) or "
    "(texts, contexts, labels); or a dictionary of such tables named train, validation and test"
)


def tables_of(data: Any, classes: Sequence[str]) -> dict[str, list[Row]]:  # noqa: ANN401 (whatever a notebook has)
    """Return data in memory as rows by split; a table alone is cut into splits as a file would be.

    Labels that a data set numbers and names have their names where those are the model's `classes`, whatever the order,
    and else their numbers.
    """
    if isinstance(data, Mapping) and data and set(data) <= set(SPLITS):
        return {part: _rows(table, classes) for part, table in data.items()}
    return {"train": _rows(data, classes)}


def _rows(table: Any, classes: Sequence[str]) -> list[Row]:  # noqa: ANN401
    if hasattr(table, "to_dict") and hasattr(table, "columns"):  # of pandas
        return _plain_rows(table.to_dict("records"))
    if hasattr(table, "features") and hasattr(table, "column_names"):  # of datasets
        named = _named_like(table.features, classes)
        return _plain_rows([{**row, **{name: _name(row[name], named[name]) for name in named}} for row in table])
    if isinstance(table, Mapping):
        return _of_columns({str(name): list(column) for name, column in table.items()})
    if isinstance(table, tuple) and len(table) in (2, 3) and not any(isinstance(column, str) for column in table):
        names = ("text", "label") if len(table) == 2 else ("text", "context", "label")
        return _of_columns(dict(zip(names, map(list, table), strict=True)))
    if isinstance(table, Sequence) and all(isinstance(row, Mapping) for row in table) and len(table):
        return _plain_rows(table)
    raise InputError(f"{type(table).__name__} is no data that can be read: give {KINDS}.")


def _of_columns(columns: Mapping[str, list[Any]]) -> list[Row]:
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{length} in {name!r}" for name, length in lengths.items())
        raise InputError(f"The columns of the data have different lengths: {told}. Give one entry per text in each.")
    return _plain_rows([dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)])


def _named_like(features: Mapping[str, Any], classes: Sequence[str]) -> dict[str, list[str]]:
    """Return the names of the numbered labels, by column, that are the names of a model's classes."""
    known = {name.casefold() for name in classes}
    names = {column: list(getattr(feature, "names", None) or ()) for column, feature in features.items()}
    return {column: found for column, found in names.items() if found and {n.casefold() for n in found} <= known}


def _name(label: Any, names: Sequence[str]) -> Any:  # noqa: ANN401
    """Return the name of a numbered label; -1 marks a row without one, and stays."""
    return names[label] if isinstance(label, int) and 0 <= label < len(names) else label


def _plain_rows(rows: Sequence[Mapping[Any, Any]]) -> list[Row]:
    return [{str(name): _plain(value) for name, value in row.items()} for row in rows]


def _plain(value: Any) -> Any:  # noqa: ANN401 (a cell of any table)
    """Return a cell as a file would have it: a number of Python, None where it is missing, lists of those."""
    if hasattr(value, "tolist"):  # of numpy
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if value is None or value != value:  # the last is NaN
        return None
    return value if isinstance(value, str | int | float | bool) else str(value)
