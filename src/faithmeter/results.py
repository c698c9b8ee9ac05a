"""Result rows: flat, one number each. Reports see nothing else."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Result:
    """One measured number and what it is of.

    `kind` says what was measured (`performance`, `majority`, `acu` ...); `masking_ratio` the share of maskable tokens
    masked, None where that means nothing; `n` the number of observations behind it; `measure` the importance measure
    it is of; `low` and `high` a 95 % interval, over what `over` says (`seeds` or `observations`); `tokens` the number
    of masked tokens where it is counted instead of a ratio.
    """

    kind: str
    value: float
    metric: str
    split: str
    masking_ratio: float | None
    n: int
    measure: str | None = None
    low: float | None = None
    high: float | None = None
    over: str | None = None
    tokens: int | None = None

    def as_row(self) -> dict[str, Any]:
        """Return the result as a line of `results.jsonl`; a number that does not exist (nan) is None there."""
        return {**asdict(self), "value": None if self.value != self.value else self.value}


def find(rows: Sequence[dict[str, Any]], kind: str, masking_ratio: float | None = None) -> float:
    """Return the value of the one row of this kind and ratio."""
    (row,) = [row for row in rows if row["kind"] == kind and row["masking_ratio"] == masking_ratio]
    return float(row["value"])


def most_faithful(rows: Sequence[Mapping[str, Any]], among: Collection[str] | None = None) -> str | None:
    """Return the measure whose ACU is surely the largest; None where nothing was measured. `among` limits the choice.

    By the lower end of its interval, so that a measure does not win by having been measured on a few texts only; one
    on so few that it has no interval wins only where no other is there.
    """
    areas = [row for row in rows if row["kind"] == "acu" and (among is None or row["measure"] in among)]
    if not areas:
        return None

    def surely(row: Mapping[str, Any]) -> tuple[bool, float]:
        known = row["low"] is not None and row["low"] < row["high"]
        return known, row["low"] if known else row["value"]

    return str(max(areas, key=surely)["measure"])
