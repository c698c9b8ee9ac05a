"""The section of a report on ways to remove tokens: do the measures rank alike, whatever stands in a token's place?"""

from collections.abc import Mapping

from matplotlib.figure import Figure

from faithmeter.models.operators import OPERATORS
from faithmeter.reports.evidence import known_masks
from faithmeter.reports.figures import PALETTE, RANDOM, drawn, new_figure
from faithmeter.reports.parts import Section, Table
from faithmeter.runs.results import (
    MASKED,
    OPERATOR_RANKS,
    WIN_RATE,
    Row,
    Rows,
    find,
    measures,
    number,
    over_each,
    p_in_words,
    rejected,
    rows_of,
)


def operator_sections(removals: Mapping[str, Rows], prefix: str = "") -> list[Section]:
    """Return the section; `removals` are the rows of each operator, the model's own first. Empty where it is alone."""
    removals = {name: rows for name, rows in removals.items() if rows_of(rows, "acu")}
    if len(removals) < 2:
        return []
    own = next(iter(removals.values()))
    names = [name for name in measures(own) if all(rows_of(rows, "acu", name) for rows in removals.values())]
    areas = [row for rows in removals.values() for row in rows_of(rows, "acu")]
    tables = [_areas_table(removals, names, prefix), _operators_table(removals, prefix)]
    ranks = rows_of(own, OPERATOR_RANKS)
    if ranks:
        cells = [[str(row.get("detail")), number(row)] for row in ranks]
        title = "Spearman's rank correlation of the measures' ACU between two operators"
        tables.append(Table(f"{prefix}operator-ranks", title, ("operators", "rank correlation"), cells))
    caption = "ACU of each measure by each operator, with 95 % intervals; right of the line is better than random."
    return [
        Section(
            "Does it matter how tokens are removed",
            [
                "The same texts and measures were measured with tokens removed in several ways, each beside its own "
                f"random baseline. {' '.join(f'{name}: {_lower(OPERATORS[name].does)}' for name in removals)}",
                "Texts from which tokens were removed in a way that was not learnt are compared with the model's "
                "untouched texts. A measure that is rejected says little: the model does not know such texts.",
                *_swing(removals),
                f"Intervals are 95 %, over {over_each(areas)}.",
            ],
            tables,
            [drawn(prefix, "operators", caption, lambda: _figure(removals, names))],
        )
    ]


def _lower(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]


def _areas_table(removals: Mapping[str, Rows], names: list[str], prefix: str) -> Table:
    cells = [
        [name, *(number(find(rows, "acu", name), 3) + _doubt(rows, name) for rows in removals.values())]
        for name in names
    ]
    return Table(f"{prefix}operator-areas", "ACU of each measure by each operator", ("measure", *removals), cells)


def _doubt(rows: Rows, name: str) -> str:
    return ", rejected" if rejected(rows, name) else ""


def _operators_table(removals: Mapping[str, Rows], prefix: str) -> Table:
    cells = []
    for name, rows in removals.items():
        areas, p_value = rows_of(rows, "acu"), find(rows, "walk_p_value", "random")["value"]
        worst = max((row["value"] for row in rows_of(rows, "share_out_of_distribution", "random")), default=None)
        worse = [row["measure"] for row in areas if row["high"] is not None and row["high"] < 0]
        cells.append(
            [
                name,
                "yes" if known_masks(rows) == MASKED else "no",
                "not checked" if p_value is None else p_in_words(p_value),
                "not checked" if worst is None else f"{100 * worst:.1f} %",
                f"{sum(rejected(rows, row['measure']) for row in areas)} of {len(areas)}",
                f"{len(worse)} of {len(areas)}",
                number(find(rows, "masked_performance", "random", 1.0)),
            ]
        )
    columns = (
        "operator", "learnt", "p, random removal", "most texts out-of-distribution", "measures rejected",
        "measures worse than random", "performance, all removed",
    )  # fmt: skip
    return Table(f"{prefix}operators", "Each operator: is it in-distribution, and who fails by it", columns, cells)


def _swing(removals: Mapping[str, Rows]) -> list[str]:
    """Return the largest difference of one measure's win rates between two operators, in words."""
    rates: dict[str, dict[str, Row]] = {}
    for operator, rows in removals.items():
        for row in rows_of(rows, WIN_RATE):
            rates.setdefault(row["measure"], {})[operator] = row
    swings = [
        (own[high]["value"] - own[low]["value"], measure, low, high)
        for measure, own in rates.items()
        for low in own
        for high in own
        if low != high
    ]
    if not swings:
        return []
    swing, measure, low, high = max(swings)
    return [
        f"The largest swing of a win rate is {100 * swing:.0f} points: {measure} beats random removal in "
        f"{number(rates[measure][low])} of the texts by {low}, and in {number(rates[measure][high])} by {high}."
    ]


def _figure(removals: Mapping[str, Rows], names: list[str]) -> Figure:
    """Draw the ACU of each measure by each operator, with its interval."""
    figure, (axes,) = new_figure(6.5, 0.8 + 0.14 * len(names) * (len(removals) + 1))
    for order, (operator, rows) in enumerate(removals.items()):
        colour = PALETTE[order % len(PALETTE)]
        for place, name in enumerate(reversed(names)):
            row, height = find(rows, "acu", name), place + 0.35 - 0.7 * order / (len(removals) - 1)
            if row["low"] is not None:
                axes.plot([row["low"], row["high"]], [height, height], color=colour, linewidth=1.5)
            label = operator if place == 0 else None
            axes.plot(row["value"], height, "x" if rejected(rows, name) else "o", color=colour, label=label)
    axes.axvline(0, color=RANDOM, linewidth=1, linestyle="--")
    axes.set_yticks(range(len(names)), list(reversed(names)))
    axes.set_xlabel("ACU: 0 is as good as random removal; cross: rejected")
    axes.legend()
    return figure
