"""The section of a report on whether judges agree."""

from matplotlib.figure import Figure

from faithmeter.reports.figures import PALETTE, drawn, new_figure
from faithmeter.reports.formats import Table
from faithmeter.reports.parts import Section
from faithmeter.runs.results import AGREEMENT, Rows, number, rows_of

FAR_APART, CLOSE = -0.5, 0.5


def agreement_sections(rows: Rows, prefix: str) -> list[Section]:
    """Return how far judges agree in ranking measures; empty with fewer than two judges."""
    found = rows_of(rows, AGREEMENT)
    if not found:
        return []
    over = "trainings" if found[0]["over"] == "seeds" else "texts, for all pairs together"
    pairs = {tuple(row["detail"].split(" | ")): row for row in found}
    names = list(dict.fromkeys(name for pair in pairs for name in pair))
    cells = [[f"{first} / {second}", number(row), str(row["n"])] for (first, second), row in pairs.items()]

    def draw() -> Figure:
        figure, (axes,) = new_figure(2.6 + 0.42 * len(names), 1.6 + 0.36 * len(names))
        for (first, second), row in pairs.items():
            low, high = sorted((names.index(first), names.index(second)))
            colour = PALETTE[1] if row["value"] > 0 else PALETTE[0]
            sure = row["low"] is not None and (row["low"] > 0 or row["high"] < 0)
            axes.plot(low, high, "s", markersize=19, color=colour, alpha=abs(row["value"]), markeredgewidth=0)
            axes.text(low, high, f"{row['value']:+.1f}".replace("0.", "."), ha="center", va="center", fontsize=7,
                      weight="bold" if sure else "normal")  # fmt: skip
        axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
        axes.set_yticks(range(len(names)), names)
        axes.set(xlim=(-0.5, len(names) - 1.5), ylim=(len(names) - 0.5, 0.5))
        return figure

    return [
        Section(
            "Do the judges agree?",
            agreement_words(found),
            [Table(f"{prefix}agreement", f"Rank correlation of two judges over the measures, with 95 % intervals over "
                   f"{over}", ("judges", "correlation", "measures"), cells)],
            [drawn(prefix, "agreement", "Rank correlation of every two judges over the measures; bold: significant.",
                   draw)],
        )
    ]  # fmt: skip


def agreement_words(found: Rows) -> list[str]:
    """Return whether judges agree, in words: with masking curves first, where the run has them."""
    said = [
        "Every judge ranks the measures; two that rank them alike have a correlation near 1. This holds for these "
        "measures on this model. The masking curves explain the class they were measured for, the other judges the "
        "predicted one."
    ]
    found = [row for row in found if row["low"] is not None]
    with_masking = [row for row in found if row["detail"].startswith("masking")]
    for words_, chosen in (
        ("These agree with the masking curves:", [row for row in with_masking if row["low"] > CLOSE]),
        ("These contradict them:", [row for row in with_masking if row["high"] < FAR_APART]),
    ):
        if chosen:
            others = ", ".join(f"{row['detail'].split(' | ')[1]} ({row['value']:+.2f})" for row in chosen)
            said.append(f"{words_} {others}.")
    opposed = [row for row in found if row["high"] < 0]
    said.append(
        f"{len(opposed)} of {len(found)} pairs contradict each other significantly: no judge stands for all of them."
        if opposed
        else f"None of {len(found)} pairs contradict each other significantly."
    )
    return said
