"""Result rows: flat, one number each. Reports see nothing else."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from faithmeter.runs.kinds import kind_of

Row = Mapping[str, Any]
Rows = Sequence[Row]


@dataclass(frozen=True, kw_only=True)
class Result:
    """One measured number with its description.

    `kind` is a row of `KINDS`, such as `acu`, or a column of a judge's; `masking_ratio` the share of maskable tokens
    masked, None if not applicable; `n` the number of texts or runs; `measure` the importance measure; `low` and `high`
    a 95 % interval, over `over` (`seeds` or `observations`); `tokens` the number of masked tokens if counted instead of
    a ratio; `detail` identifies it within its kind and measure, such as the layer whose weights were replaced.
    """

    kind: str
    value: float
    metric: str
    split: str = "test"
    masking_ratio: float | None = None
    n: int
    measure: str | None = None
    low: float | None = None
    high: float | None = None
    over: str | None = None
    tokens: int | None = None
    detail: str | None = None

    def __post_init__(self) -> None:
        kind_of(self.kind)

    def as_row(self) -> dict[str, Any]:
        """Return the result as a line of `results.jsonl`; a number that does not exist (nan) is None there."""
        return {**asdict(self), "value": None if self.value != self.value else self.value}


def rows_of(rows: Rows, kind: str, measure: str | None = None) -> list[Row]:
    """Return the rows of a kind that have a value, of one measure where it is named; there must be such a kind."""
    kind_of(kind)
    return [
        row
        for row in rows
        if row["kind"] == kind and row["value"] is not None and (measure is None or row["measure"] == measure)
    ]


def key_of(row: Row) -> tuple[str, str | None, float | None, str | None]:
    """Return what tells a row from every other row of its run."""
    return row["kind"], row["measure"], row["masking_ratio"], row.get("detail")


def find(
    rows: Rows, kind: str, measure: str | None = None, ratio: float | None = None, detail: str | None = None
) -> Row:
    """Return the row of a kind, measure, masking ratio and detail, where it has them; one without value for none.

    There must be such a kind: a name that is misspelt is an error, and not a number that was not measured.
    """
    kind_of(kind)
    wanted = (kind, measure, ratio, detail)
    found = (row for row in rows if key_of(row) == wanted)
    return next(found, {"value": None, "low": None, "high": None, "over": None, "n": 0})


def number(row: Row, digits: int = 2) -> str:
    """Return a row's value with its interval."""
    if row["value"] is None:
        return "none"
    interval = "" if row["low"] is None else f" ({row['low']:.{digits}f}–{row['high']:.{digits}f})"
    return f"{row['value']:.{digits}f}{interval}"


def most_faithful(rows: Rows, among: Collection[str] | None = None) -> str | None:
    """Return the measure whose ACU is surely the largest; None where nothing was measured. `among` limits the choice.

    By the lower end of its interval, so that a measure does not win by having been measured on a few texts only; one
    on so few that it has no interval wins only where no other is there.
    """
    areas = [row for row in rows if row["kind"] == "acu" and (among is None or row["measure"] in among)]
    if not areas:
        return None

    def surely(row: Row) -> tuple[bool, float]:
        known = row["low"] is not None and row["low"] < row["high"]
        return known, row["low"] if known else row["value"]

    return str(max(areas, key=surely)["measure"])
