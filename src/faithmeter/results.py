"""Result rows: flat, one number each. Reports see nothing else."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Result:
    """One measured number and what it is of.

    `kind` says what was measured (`performance`, `majority`, `acu` ...); `masking_ratio` the share of maskable tokens
    masked, None where that means nothing; `n` the number of observations behind it; `measure` the importance measure
    it is of; `low` and `high` a 95 % interval, over what `over` says (`seeds` or `observations`).
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

    def as_row(self) -> dict[str, Any]:
        """Return the result as a line of `results.jsonl`."""
        return asdict(self)


def find(rows: Sequence[dict[str, Any]], kind: str, masking_ratio: float | None = None) -> float:
    """Return the value of the one row of this kind and ratio."""
    (row,) = [row for row in rows if row["kind"] == kind and row["masking_ratio"] == masking_ratio]
    return float(row["value"])
