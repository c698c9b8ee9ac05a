"""The section of a report on select-then-predict: performance of a model that reads only the explanations."""

from faithmeter.reports.parts import Section, Table
from faithmeter.runs.results import ABOVE_RANDOM, SELECT, SELECT_FULL, TRAINED_ON, Row, Rows, find, number, rows_of

CANNOT = (
    "It shows whether the few tokens that a measure chooses are enough for the task: the second model predicts from "
    "them alone, so they are its faithful explanation by construction. It cannot show that the first model used them: "
    "they were chosen for its prediction, and the choice itself may reveal that prediction."
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
        "Every text was reduced to the tokens that a measure calls most important for the prediction, anywhere (top) "
        "or side by side (contiguous), and a second model of the same kind was trained on these alone. "
        f"{_trained_on(rows)}",
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
    """Return how many texts the second models were trained on: with fewer than the first, they may do worse."""
    (row,) = rows_of(rows, TRAINED_ON)
    fewer = row["over"] != "seeds" and row["value"] < row["n"]
    of = f" of the {row['n']:,} that the first one was trained on" if fewer else ""
    return f"It was trained on {row['value']:,.0f} texts{of}, {row['detail']}."


def _verdict(rows: Rows, detail: str) -> str:
    """Return which measure keeps the most performance, and whether that is significantly more than random tokens."""
    reached = [row for row in rows_of(rows, SELECT) if row["detail"] == detail]
    random = find(rows, SELECT, "random", detail=detail)
    named = [row for row in reached if row["measure"] != "random"]
    if not named:
        return f"{detail}: random tokens keep {number(random, 3)}."
    best = max(named, key=lambda row: row["value"])
    above: Row = find(rows, ABOVE_RANDOM, best["measure"], detail=detail)
    sure = above["low"] is not None and above["low"] > 0
    how = "significantly more than" if sure else "not significantly more than"
    return (
        f"{detail}: with {best['measure']} a second model reaches {best['value']:.3f}, {how} with random tokens "
        f"({number(random, 3)}); the full text gives {number(find(rows, SELECT_FULL), 3)}."
    )
