"""The section of a report on attacked texts: how often the prediction was changed, and at what cost."""

from faithmeter.reports.parts import Section, Table
from faithmeter.runs.results import ATTACK, Rows, find, number, rows_of

BEFORE, AFTER, SUCCESS, WORDS, UNTRIED, QUERIES = (
    "accuracy before", "accuracy after", "success rate", "share of words changed", "texts with nothing to try",
    "queries a text",
)  # fmt: skip


def attack_sections(rows: Rows, prefix: str = "") -> list[Section]:
    """Return what attacks on the run's texts did; nothing where there were none."""
    if not rows_of(rows, ATTACK):
        return []
    over = "trainings" if any(row["over"] == "seeds" for row in rows_of(rows, ATTACK)) else "texts"
    cells = [
        [detail, number(row, 1 if detail == QUERIES else 3), str(row["n"])]
        for detail in (BEFORE, AFTER, SUCCESS, WORDS, UNTRIED, QUERIES)
        if (row := find(rows, ATTACK, detail=detail))["value"] is not None
    ]
    title = f"Attacks on test texts; 95 % intervals over {over}"
    said = [
        "Words are changed, the most important first, until the prediction changes or the budget is spent. Texts that "
        "were already misclassified are not attacked. The share of words is over the texts on which the attack "
        "succeeded.",
        "It shows how easily these attacks change the model's predictions. It cannot show that the attacked texts keep "
        "their meaning: the nearest neighbour of a word may be its opposite.",
    ]
    untried = find(rows, ATTACK, detail=UNTRIED)["value"]
    cautions = (
        [
            f"{100 * untried:.0f} % of the attacked texts withstood only because this budget allowed no change (a swap "
            "changes two words; a word of two letters cannot be misspelt): give a larger --budget or more --kinds "
            "before calling the model robust."
        ]
        if untried
        else []
    )
    table = Table(f"{prefix}attack", title, ("", "value", over), cells)
    return [Section("Attacked texts", said, [table], cautions=cautions)]
