"""The section of a report on select-then-predict: how well a model does that is shown the explanations alone."""

from faithmeter.reports.formats import Table
from faithmeter.reports.parts import Section
from faithmeter.runs.results import ABOVE_RANDOM, SELECT, SELECT_FULL, TRAINED_ON, Row, Rows, find, number, rows_of

CANNOT = (
    "It shows whether the few tokens that a measure chooses are enough to do the task: what a second model answers "
    "rests on them alone, so they are its faithful explanation by construction. It cannot show that they are what the "
    "first model used: they were chosen for its answer, and the choice itself may give that answer away."
)


def select_sections(rows: Rows, prefix: str = "") -> list[Section]:
    """Return the section on second models; none where there are none."""
    found = rows_of(rows, SELECT)
    if not found:
        return []
    details = list(dict.fromkeys(row["detail"] for row in found))
    names = list(dict.fromkeys(row["measure"] for row in found))
    names.sort(key=lambda name: -max(row["value"] for row in found if row["measure"] == name))
    full, majority = number(find(rows, SELECT_FULL), 3), number(find(rows, "majority"), 3)
    cells = [["full text", *[full] * len(details), *[""] * len(details)]]
    for name in names:
        reached = (number(find(rows, SELECT, name, detail=detail), 3) for detail in details)
        above = ("" if name == "random" else number(find(rows, ABOVE_RANDOM, name, detail=d), 3) for d in details)
        cells.append([name, *reached, *above])
    cells.append(["class majority", *[majority] * len(details), *[""] * len(details)])
    columns = ("what the model reads", *details, *(f"above random: {detail}" for detail in details))
    title = f"{found[0]['metric']} on the test texts of models that read rationales; 95 % intervals over {_over(found)}"
    table = Table(f"{prefix}select", title, columns, cells)
    said = [
        "Every text was cut to the tokens that a measure calls the most important for the model's answer, the most "
        "important ones (top) or the best neighbours (contiguous), and a second model of the same kind learnt the task "
        f"from these alone. {_trained_on(rows)}",
        CANNOT,
        *(_verdict(rows, detail) for detail in details),
    ]
    return [Section("Select, then predict", said, [table])]


def _over(found: Rows) -> str:
    over = {row["over"] for row in found}
    if over == {"observations"}:
        return "texts"
    return "trainings" if over == {"seeds"} else "trainings, or texts where one is"


def _trained_on(rows: Rows) -> str:
    """Return from how much the second models learnt: with less than the first, they may do worse for that alone."""
    (row,) = rows_of(rows, TRAINED_ON)
    fewer = row["over"] != "seeds" and row["value"] < row["n"]
    of = f" of the {row['n']:,} that the first one learnt from" if fewer else ""
    return f"It learnt from {row['value']:,.0f} texts{of}, {row['detail']}."


def _verdict(rows: Rows, detail: str) -> str:
    """Return which measure keeps the most, and whether that is surely more than random tokens keep."""
    reached = [row for row in rows_of(rows, SELECT) if row["detail"] == detail]
    random = find(rows, SELECT, "random", detail=detail)
    named = [row for row in reached if row["measure"] != "random"]
    if not named:
        return f"{detail}: random tokens keep {number(random, 3)}."
    best = max(named, key=lambda row: row["value"])
    above: Row = find(rows, ABOVE_RANDOM, best["measure"], detail=detail)
    sure = above["low"] is not None and above["low"] > 0
    how = "surely more than" if sure else "not surely more than"
    return (
        f"{detail}: with {best['measure']} a second model reaches {best['value']:.3f}, {how} with random tokens "
        f"({number(random, 3)}); the full text gives {number(find(rows, SELECT_FULL), 3)}."
    )
