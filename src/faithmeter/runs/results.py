"""Result rows: flat, one number each. Reports see nothing else."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

Row = Mapping[str, Any]
Bounds = tuple[float, float]
INFINITE = float("inf")
_SHARE, _CORRELATION, _COUNT, _ANY = (0.0, 1.0), (-1.0, 1.0), (0.0, INFINITE), (-INFINITE, INFINITE)
# Between what any number of a metric lies, and so must the ends of its interval.
BOUNDS: Mapping[str, Bounds] = {
    **dict.fromkeys(("accuracy", "macro-f1", "micro-f1", "share", "p"), _SHARE),
    **dict.fromkeys(("matthews", "spearman", "rank_correlation", "cascading", "independent"), _CORRELATION),
    **dict.fromkeys(("seconds", "tokens", "texts", "queries"), _COUNT),
    # of judges: differences of two probabilities, shares of texts or tokens, cosine distances
    **dict.fromkeys(("sufficiency", "comprehensiveness", "probability_change"), (-1.0, 1.0)),
    **dict.fromkeys(
        ("norm_sufficiency", "norm_comprehensiveness", "sufficiency_outside", "comprehensiveness_outside",
         "tokens_to_flip", "never_flips", "masked_until_flip", "flip_outside", "outside", "held", "top_overlap",
         "chance_overlap", "same_answer", "overlap", "mean_rank", "precision_at_truth", "average_precision",
         "rank_change", "random_rank_change"),
        _SHARE,
    ),
    **dict.fromkeys(("drift", "distance_to_data"), (0.0, 2.0)),
    **dict.fromkeys(("top_k_sum_change", "random_top_k_sum_change"), _ANY),
}  # fmt: skip
# kinds that are a difference of two numbers of their metric
DIFFERENCES = ("acu", "acu_behind_best", "performance_difference", "select_above_random")
Rows = Sequence[Row]


@dataclass(frozen=True)
class Result:
    """One measured number and what it is of.

    `kind` says what was measured (`performance`, `majority`, `acu` ...); `masking_ratio` the share of maskable tokens
    masked, None where that means nothing; `n` the number of observations behind it; `measure` the importance measure
    it is of; `low` and `high` a 95 % interval, over what `over` says (`seeds` or `observations`); `tokens` the number
    of masked tokens where it is counted instead of a ratio; `detail` whatever else tells it from others of its kind
    and measure, such as the layer whose weights were replaced.
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
    detail: str | None = None

    def as_row(self) -> dict[str, Any]:
        """Return the result as a line of `results.jsonl`; a number that does not exist (nan) is None there."""
        return {**asdict(self), "value": None if self.value != self.value else self.value}


def within_bounds(interval: Bounds | None, kind: str, metric: str) -> Bounds | None:
    """Return an interval without what no number of its kind and metric can be: no accuracy is above 1.

    Student's interval does not know where a number ends. RACU is a ratio, and ends nowhere.
    """
    if interval is None or kind == "racu":
        return interval
    low, high = BOUNDS.get(metric, _ANY)
    if kind in DIFFERENCES:
        low, high = low - high, high - low
    return max(low, interval[0]), min(high, interval[1])


def rows_of(rows: Rows, kind: str, measure: str | None = None) -> list[Row]:
    """Return the rows of a kind that have a value, of one measure where it is named."""
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
    """Return the row of a kind, measure, masking ratio and detail, where it has them; one without value for none."""
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
