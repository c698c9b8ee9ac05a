"""Results: flat rows, one number each, and the table of their kinds. Reports see nothing else.

A kind's row gives its title, bounds, which direction is better and how runs are pooled. A new kind is a row here, and
an unknown kind is an error.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, NotRequired, TypedDict, cast

from faithmeter.errors import nearest
from faithmeter.masking import MASK
from faithmeter.statistics import LEVEL, Array

Bounds = tuple[float, float]
INFINITE = float("inf")
SHARE, SIGNED, COUNT, ANY = (0.0, 1.0), (-1.0, 1.0), (0.0, INFINITE), (-INFINITE, INFINITE)


class Pooling(Enum):
    """How the numbers of several trainings, alike but for the seed, become one."""

    MEAN = "the mean"
    BOOTSTRAP = "the mean, with the BCa interval of the papers"
    STUDENT = "the mean, with Student's interval: of two or three trainings the bootstrap holds 95 % in 3 of 4 cases"
    SMALLEST_P = "the smallest p-value times their number"
    SMALLEST = "the smallest"
    LARGEST = "the largest"
    ANEW = "found anew from the pooled rows"


@dataclass(frozen=True)
class Kind:
    """A kind of result. `bounds` None means those of the row's metric; `more_is_better` None that neither is."""

    title: str
    pooling: Pooling
    bounds: Bounds | None = None
    more_is_better: bool | None = None
    difference: bool = False  # of two numbers of its metric


# Between what a number of a metric lies: the metrics of tasks, and the columns of judges.
METRIC_BOUNDS: Mapping[str, Bounds] = MappingProxyType(
    {
        **dict.fromkeys(("accuracy", "macro-f1", "micro-f1", "share", "p"), SHARE),
        **dict.fromkeys(("label-micro-f1", "label-macro-f1", "label-map"), SHARE),
        **dict.fromkeys(("matthews", "spearman", "pearson"), SIGNED),
        "r2": (-INFINITE, 1.0),
        **dict.fromkeys(("seconds", "tokens", "texts", "queries", "draws"), COUNT),
        "nats": ANY,
        # of judges: rank correlations, differences of two probabilities, shares of texts or tokens, cosine distances
        **dict.fromkeys(("rank_correlation", "cascading", "independent", "inserted", "removed"), SIGNED),
        **dict.fromkeys(("sufficiency", "comprehensiveness", "probability_change", "plus", "minus"), SIGNED),
        **dict.fromkeys(
            ("norm_sufficiency", "norm_comprehensiveness", "sufficiency_outside", "comprehensiveness_outside",
             "tokens_to_flip", "never_flips", "masked_until_flip", "flip_outside", "outside", "held", "top_overlap",
             "chance_overlap", "same_answer", "overlap", "mean_rank", "precision_at_truth", "average_precision",
             "rank_change", "random_rank_change", "beaten", "insertion", "focus", "soft_norm_comprehensiveness",
             "soft_norm_sufficiency"),
            SHARE,
        ),
        **dict.fromkeys(("drift", "distance_to_data"), (0.0, 2.0)),
        **dict.fromkeys(("top_k_sum_change", "random_top_k_sum_change"), ANY),
    }
)  # fmt: skip

AUDIT = "audit_"  # a judge's columns are kinds of their own: audit_JUDGE_COLUMN
AGREEMENT = "audit_agreement"
ATTACK = "attack"
SELECT, ABOVE_RANDOM, SELECT_FULL, TRAINED_ON = SELECT_KINDS = (
    "select", "select_above_random", "select_full", "select_trained_on",
)  # fmt: skip
TRANSFER, TRANSFER_MAJORITY = TRANSFER_KINDS = ("transfer", "transfer_majority")
# the numbers of texts that the in-distribution test was fitted on and applied to; earlier runs have none
VALIDATION_TEXTS, TEST_TEXTS = CHECKED_TEXTS = ("check_validation_texts", "check_test_texts")
# the same test against unmasked texts, for a model that only --masked-before says was trained on masks
UNMASKED = ("check_unmasked_p_value", "check_unmasked_share_out_of_distribution")
# what the same test finds in spoilt texts: random words in half of the places, words out of order, another domain
POWER = ("check_power_words", "check_power_shuffled", "check_power_other")
# known by construction: whether, and by whose word, a model was trained on masks (the row's `detail`)
TRAINED_ON_MASKS = "trained_on_masks"
MASKED, PLAIN, CLAIMED, UNKNOWN = "masked", "plain", "claimed", "unknown"
OTHERWISE = "otherwise"  # trained on removed tokens, but these are removed in another way
# how a model behaves with everything masked: that it is worse than the class majority, and its excess confidence
ALL_MASKED_P, ALL_MASKED_LOSS = BEHAVIOUR = ("all_masked_p_value", "all_masked_excess_loss")
PER_RATIO = ("check_p_value", "check_simes_p_value", "check_share_atypical", "check_share_out_of_distribution")

EXPLAINED_ONCE = "explained_once"
# between ways to remove tokens: how often a measure wins by each, and how alike two of them rank the measures
WIN_RATE, OPERATOR_RANKS = "win_rate", "operator_rank_correlation"

_JUDGED = Kind("what a judge says", Pooling.STUDENT)
_RETRAINED = {
    "performance": Kind("performance after retraining", Pooling.BOOTSTRAP, more_is_better=False),
    "acu": Kind("area by which performance lies below that of random masking", Pooling.BOOTSTRAP, None, True, True),
    "racu": Kind("that area, relative to an immediate fall", Pooling.BOOTSTRAP, ANY, True),
    "p_value": Kind("that the area is above 0 by chance", Pooling.SMALLEST_P, SHARE, False),
    "rise": Kind("by how much performance rises again while more is masked", Pooling.MEAN, None, False, True),
}
KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "performance": Kind("performance, masked at random", Pooling.BOOTSTRAP, more_is_better=True),
        "majority": Kind("performance of always answering the most frequent class", Pooling.MEAN),
        # that all trainings learnt something, not that one did
        "majority_p_value": Kind("that the model beats the majority by chance", Pooling.LARGEST, SHARE, False),
        "check_p_value": Kind("p-value of randomly masked texts", Pooling.SMALLEST_P, SHARE, True),
        "check_simes_p_value": Kind("the same by Simes, as in the paper", Pooling.SMALLEST_P, SHARE, True),
        "check_share_atypical": Kind("texts unlike randomly masked ones of this ratio", Pooling.MEAN, SHARE, False),
        "check_share_out_of_distribution": Kind("texts unlike those of any ratio", Pooling.MEAN, SHARE, False),
        # one run's many texts are no verdict on another
        **dict.fromkeys(CHECKED_TEXTS, Kind("texts of the in-distribution test", Pooling.SMALLEST, COUNT, True)),
        "check_unmasked_p_value": Kind("p-value against unmasked texts", Pooling.SMALLEST_P, SHARE, True),
        "check_unmasked_share_out_of_distribution": Kind("texts unlike unmasked ones", Pooling.MEAN, SHARE, False),
        "check_power_words": Kind("texts found with random words in half of the places", Pooling.MEAN, SHARE, True),
        "check_power_shuffled": Kind("texts found with their words out of order", Pooling.MEAN, SHARE, True),
        "check_power_other": Kind("texts found of another domain", Pooling.MEAN, SHARE, True),
        TRAINED_ON_MASKS: Kind("whether it was trained on masked texts", Pooling.SMALLEST, SHARE),
        ALL_MASKED_P: Kind("that it is no worse than the majority, all masked", Pooling.SMALLEST_P, SHARE, True),
        ALL_MASKED_LOSS: Kind("loss above that of the class frequencies, all masked", Pooling.LARGEST, ANY, False),
        "acu": Kind("ACU", Pooling.BOOTSTRAP, None, True, True),
        "racu": Kind("RACU", Pooling.BOOTSTRAP, ANY, True),
        # of several labels, each by itself; detail: the label
        "label_acu": Kind("ACU of one label", Pooling.BOOTSTRAP, None, True, True),
        "label_racu": Kind("RACU of one label", Pooling.BOOTSTRAP, ANY, True),
        "label_masked_performance": Kind("performance on one label", Pooling.BOOTSTRAP, more_is_better=False),
        "acu_behind_best": Kind("by how much ACU lies behind the best", Pooling.ANEW, None, False, True),
        # detail: the other measure
        "acu_difference": Kind("by how much ACU is larger than another's", Pooling.ANEW, None, True, True),
        "best_set": Kind("whether a measure may be the best", Pooling.ANEW, SHARE, True),
        "acu_cross_fitted": Kind("ACU of the best on texts that did not choose it", Pooling.ANEW, None, True, True),
        "masked_performance": Kind("performance, masked by a measure", Pooling.BOOTSTRAP, more_is_better=False),
        "random_spread": Kind("standard deviation of a random draw's ACU", Pooling.MEAN, COUNT),
        "baseline_share": Kind("share of ACU's variance that is noise of random draws", Pooling.MEAN, SHARE, False),
        "draws_needed": Kind("random draws that make it less than a tenth", Pooling.LARGEST, COUNT, False),
        "seconds_per_text": Kind("seconds to explain a text along its curve", Pooling.MEAN, COUNT, False),
        "token_passes": Kind("tokens that went through the model per text", Pooling.MEAN, COUNT, False),
        "share_atypical": Kind("texts unlike randomly masked ones of this ratio", Pooling.MEAN, SHARE, False),
        "share_out_of_distribution": Kind("texts unlike those of any ratio", Pooling.MEAN, SHARE, False),
        "walk_random_p_value": Kind(
            "p-value against random masking of the same ratio", Pooling.SMALLEST_P, SHARE, True
        ),
        "walk_p_value": Kind("that a measure's masked texts are unlike any by chance", Pooling.SMALLEST_P, SHARE, True),
        # only where some could be and are not, or are from elsewhere: then the detail is their file
        EXPLAINED_ONCE: Kind("whether a measure is not explained again on masked texts", Pooling.SMALLEST, SHARE),
        "sparsity": Kind("share of all importance in the top tokens", Pooling.MEAN, SHARE),
        WIN_RATE: Kind("texts whose area is larger than by random removal", Pooling.STUDENT, SHARE, True),
        # detail: the two operators
        OPERATOR_RANKS: Kind("rank correlation of measures between two operators", Pooling.STUDENT, SIGNED),
        AGREEMENT: Kind("rank correlation of two judges", Pooling.STUDENT, SIGNED),
        ATTACK: Kind("what attacks on texts came to", Pooling.STUDENT),
        SELECT: Kind("performance on rationales alone", Pooling.STUDENT, more_is_better=True),
        ABOVE_RANDOM: Kind("that, above random rationales", Pooling.STUDENT, None, True, True),
        SELECT_FULL: Kind("performance on the full text", Pooling.STUDENT, more_is_better=True),
        TRAINED_ON: Kind("texts that second models learnt from", Pooling.STUDENT, COUNT),
        TRANSFER: Kind("performance at home and elsewhere", Pooling.STUDENT, more_is_better=True),
        TRANSFER_MAJORITY: Kind("the class majority of each", Pooling.STUDENT),
        **{f"roar_{name}": kind for name, kind in _RETRAINED.items()},
        **{f"recursive_roar_{name}": kind for name, kind in _RETRAINED.items()},
        "roar_sparsity": Kind("share of all importance in the top tokens", Pooling.BOOTSTRAP, SHARE),
        "roar_sparsity_tokens": Kind("the same by the number of tokens", Pooling.BOOTSTRAP, SHARE),
        "roar_not_converged": Kind("trainings with a warning", Pooling.MEAN, COUNT, False),
        "roar_trainings": Kind("trainings", Pooling.MEAN, COUNT),
        "roar_seconds_training": Kind("seconds of training", Pooling.MEAN, COUNT, False),
        "roar_seconds_explaining": Kind("seconds of explaining", Pooling.MEAN, COUNT, False),
    }
)


def kind_of(name: str) -> Kind:
    """Return the kind of that name; a name that is no kind is an error, and not a row without a value."""
    if name in KINDS:
        return KINDS[name]
    if name.startswith(AUDIT):  # a new judge has its own columns
        return _JUDGED
    raise ValueError(f"There is no kind of result {name!r}.{nearest(name, KINDS)}")


def bounds_of(name: str, metric: str) -> Bounds:
    """Return between what a number of this kind and metric lies."""
    kind = kind_of(name)
    low, high = kind.bounds or METRIC_BOUNDS.get(metric, ANY)
    return (low - high, high - low) if kind.difference else (low, high)


def within_bounds(interval: Bounds | None, kind: str, metric: str) -> Bounds | None:
    """Return an interval without what no number of its kind and metric can be: no accuracy is above 1.

    Student's interval does not know where a number ends.
    """
    if interval is None:
        return None
    low, high = bounds_of(kind, metric)
    return max(low, interval[0]), min(high, interval[1])


# -------------------------------------------------------------------------------------------------------------- rows


class Row(TypedDict):
    """A result as it is stored; `Result` says what each field is. A row without a value has None there."""

    kind: str
    value: Any  # float | None
    metric: str
    split: str
    masking_ratio: Any  # float | None
    n: int
    measure: Any  # str | None
    low: Any  # float | None
    high: Any  # float | None
    over: str | None
    tokens: int | None
    detail: NotRequired[Any]  # str | None; rows of the first runs have none
    groups: NotRequired[int]  # only where texts are of groups
    operator: NotRequired[str]  # only where tokens were not removed by the mask token


Rows = Sequence[Row]


@dataclass(frozen=True, kw_only=True)
class Result:
    """One measured number with its description.

    `kind` is a row of `KINDS`, such as `acu`, or a column of a judge's; `masking_ratio` the share of maskable tokens
    masked, None if not applicable; `n` the number of texts or runs; `measure` the importance measure; `low` and `high`
    a 95 % interval, over `over` (`seeds` or `observations`); `tokens` the number of masked tokens if counted instead of
    a ratio; `detail` identifies it within its kind and measure, such as the layer whose weights were replaced; `groups`
    how many groups of texts (stories, authors) the interval is over, None where each text is independent of the others;
    `operator` how tokens were removed, which a row says only where it was not by the mask token.
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
    groups: int | None = None
    operator: str = MASK

    def __post_init__(self) -> None:
        kind_of(self.kind)

    def as_row(self) -> Row:
        """Return the result as a line of `results.jsonl`; a number that does not exist (nan) is None there."""
        row = {**asdict(self), "value": None if self.value != self.value else self.value}
        if self.groups is None:
            del row["groups"]
        if self.operator == MASK:
            del row["operator"]
        return cast(Row, row)


def mean_over_texts(
    kind: str, each: Array, metric: str, interval: Bounds | None, measure: str | None = None, detail: str | None = None
) -> Result:
    """Return the mean of a number that `each` text has, with its interval over the texts."""
    low, high = interval or (None, None)
    return Result(
        kind=kind, value=float(each.mean()), metric=metric, n=len(each), measure=measure, low=low, high=high,
        over="observations", detail=detail,
    )  # fmt: skip


def rows_of(rows: Rows, kind: str, measure: str | None = None) -> list[Row]:
    """Return the rows of a kind that have a value, of one measure where it is named; there must be such a kind."""
    kind_of(kind)
    return [
        row
        for row in rows
        if row["kind"] == kind and row["value"] is not None and (measure is None or row["measure"] == measure)
    ]


def operator_of(row: Row) -> str:
    """Return how tokens were removed for a row; those of earlier versions know the mask token only."""
    return row.get("operator", MASK)


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
    return next(found, Result(kind=kind, value=float("nan"), metric="", n=0).as_row())


def number(row: Row, digits: int = 2) -> str:
    """Return a row's value with its interval."""
    if row["value"] is None:
        return "none"
    interval = "" if row["low"] is None else f" ({row['low']:.{digits}f}–{row['high']:.{digits}f})"
    return f"{row['value']:.{digits}f}{interval}"


def p_in_words(p_value: float) -> str:
    """Return a p-value as it is shown: never as 0."""
    return "< 0.001" if p_value < 0.001 else f"{p_value:.3f}"


def over_what(row: Row) -> str:
    """Return what the interval of a row is over, in words: so many texts, groups of texts, or trainings."""
    if row["over"] == "seeds":
        return f"{row['n']} trainings"
    groups = row.get("groups")
    return f"{row['n']} texts" if groups is None else f"{groups} groups of texts"


def over_each(rows: Rows) -> str:
    """Return what the intervals of several rows are over, in words and without numbers, which differ between rows."""
    if any(row["over"] == "seeds" for row in rows):
        return "trainings"
    grouped = any(row.get("groups") is not None for row in rows)
    return "groups of texts, which are those of one story or author" if grouped else "texts"


def most_faithful(rows: Rows, among: Collection[str] | None = None) -> str | None:
    """Return the measure whose ACU is surely the largest; None where nothing was measured. `among` limits the choice.

    None wins that another is surely ahead of, on the texts of both. Of the rest it is the one whose interval has the
    highest lower end. A measure with fewer than half as many texts as another of them is no candidate: its texts may be
    the easy ones. One on so few that it has no interval wins only where no other is there.
    """
    areas = [row for row in rows if row["kind"] == "acu" and (among is None or row["measure"] in among)]
    if not areas:
        return None
    first = unbeaten(rows, [row["measure"] for row in areas])
    areas = [row for row in areas if row["measure"] in first] or areas
    areas = [row for row in areas if 2 * row["n"] >= max(other["n"] for other in areas)]

    def surely(row: Row) -> tuple[bool, float]:
        known = row["low"] is not None and row["low"] < row["high"]
        return known, row["low"] if known else row["value"]

    return str(max(areas, key=surely)["measure"])


def letters(rows: Rows, measure: str) -> str:
    """Return the letters of a measure, which it shares with those that it cannot be told apart from; "" of old runs."""
    return next((row.get("detail") or "" for row in rows_of(rows, "best_set", measure)), "")


def surely_ahead(rows: Rows) -> set[tuple[str, str]]:
    """Return the pairs of measures of which the first is surely more faithful; empty for runs of earlier versions."""
    own = {row["measure"]: {*re.findall(r"\(\d+\)|.", row.get("detail") or "")} for row in rows_of(rows, "best_set")}
    pairs = ((row["measure"], str(row.get("detail"))) for row in rows_of(rows, "acu_difference") if row["value"] > 0)
    return {
        (first, second) for first, second in pairs if first in own and second in own and not own[first] & own[second]
    }


def unbeaten(rows: Rows, among: Collection[str]) -> list[str]:
    """Return the measures, of these, that may be best: none of the others is surely ahead of them."""
    beaten = {second for first, second in surely_ahead(rows) if first in among}
    return [measure for measure in among if measure not in beaten]


def measures(rows: Rows) -> list[str]:
    """Return the measures: the one to use, the others by ACU, and last those that were rejected."""
    best = most_faithful(rows, among=accepted(rows))

    def place(row: Row) -> tuple[bool, bool, float]:
        return rejected(rows, row["measure"]), row["measure"] != best, -row["value"]

    return [row["measure"] for row in sorted(rows_of(rows, "acu"), key=place)]


def rejected(rows: Rows, measure: str) -> bool:
    """Whether the texts that a measure masks are out-of-distribution, at a level that holds over all its steps."""
    p_value = find(rows, "walk_p_value", measure)["value"]
    return p_value is not None and p_value <= LEVEL


def accepted(rows: Rows) -> list[str]:
    """Return the measures whose masked texts were not rejected as out-of-distribution."""
    return [row["measure"] for row in rows_of(rows, "acu") if not rejected(rows, row["measure"])]
