"""Labels as people write them: several spellings of one class are merged, or an error."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from faithmeter.errors import InputError

if TYPE_CHECKING:
    from faithmeter.data.tables import Row

MANY_CLASSES = 20  # from which on decimal fractions among them look like a number to predict
LISTED = 50  # labels that a message names, the most frequent first


def clean_labels(tables: Iterable[Sequence[Row]]) -> list[str]:
    """Merge labels that differ only in case or surrounding spaces, under the most frequent spelling; report which.

    The rows are changed in place.
    """
    every = [row for rows in tables for row in rows]
    spelt = dict[str, str]()
    for name, _ in Counter(row["label"].strip() for row in every).most_common():
        spelt.setdefault(name.casefold(), name)
    changed = Counter[tuple[str, str]]()
    for row in every:
        clean = spelt[row["label"].strip().casefold()]
        changed[row["label"], clean] += 1
        row["label"] = clean
    return [f"{n} rows with the label {old!r} count as {new!r}." for (old, new), n in changed.items() if old != new]


def require_clear_labels(
    tables: Iterable[Sequence[Row]], classes: str | None, origin: str, *, mixed: bool
) -> list[str]:
    """Refuse labels that look like one class in two spellings, but for names that `classes` gives, if to themselves.

    Numbers beside words are one class in two spellings too, unless `mixed` says that they may be; then that is said.
    """
    counts = Counter(row["label"] for rows in tables for row in rows)
    unsaid = set(counts) - {pair.rpartition("=")[2].strip() for pair in (classes or "").split(",")}
    alike = Counter(name.strip().casefold() for name in counts)
    unclear = sorted(name for name in unsaid if alike[name.strip().casefold()] > 1)
    frequent = sorted(counts.items(), key=lambda one: (-one[1], numbers_first(one[0])))
    told = ", ".join(f"{name!r} ({count} rows)" for name, count in frequent[:LISTED])
    if unclear:
        raise InputError(
            f"{origin}: some labels differ only in case or in surrounding spaces: {told}. Pass --clean-labels to merge "
            f"them, or name the class of each: --classes '{unclear[0]}=NAME,...', with the same name for spellings of "
            "one class."
        )
    if len({numbers_first(name)[0] for name in unsaid}) < 2:
        return []
    if not mixed:
        raise InputError(
            f"{origin}: some labels are numbers and others words: {told}. If a class is spelt in two ways, merge them, "
            "as in --classes 1=positive. If each is a separate class, pass --clean-labels, or map the numbers to "
            "themselves: --classes 1=1,2=2."
        )
    return [f"Some labels are numbers and others words, each a class of its own: {told}."]


def decimal_classes(tables: Iterable[Sequence[Row]]) -> list[str]:
    """Return a note if classes look like a number to predict: many, and some of them decimal fractions."""
    names = {row["label"] for rows in tables for row in rows}
    decimal = [name for name in names if numbers_first(name)[0] == 0 and not float(name).is_integer()]
    if len(names) < MANY_CLASSES or not decimal:
        return []
    return [
        f"There are {len(names)} classes, and {decimal[0]!r} is one of them. If the label is a number to predict, name "
        "its column with --number."
    ]


def numbers_first(name: str) -> tuple[int, float, str]:
    """Return what labels are ordered by: numbers by their value, then words (`nan` is one)."""
    try:
        number = float(name)
    except ValueError:
        number = math.nan
    return (0, number, name) if math.isfinite(number) else (1, 0.0, name)


def nameless(classes: Sequence[str]) -> bool:
    """Whether a model's classes have transformers' default names."""
    return all(name == f"LABEL_{number}" for number, name in enumerate(classes))
