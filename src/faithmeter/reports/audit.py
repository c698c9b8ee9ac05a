"""The sections of a report on other judges: their results, what they can and cannot show, and whether they agree."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from types import MappingProxyType

from matplotlib.figure import Figure

from faithmeter.importance.table import ORDER_ONLY
from faithmeter.judges.drift import Points
from faithmeter.judges.other_models import EVERY, SEED
from faithmeter.judges.table import JUDGES
from faithmeter.reports.drift import drift_sections
from faithmeter.reports.figures import PALETTE, RANDOM, drawn, look, new_figure
from faithmeter.reports.judged import Judged, forest, measures_by, ranked, table
from faithmeter.reports.parts import Section, Table
from faithmeter.runs.results import AGREEMENT, Rows, find, number, rows_of


def audit_sections(rows: Rows, prefix: str = "", points: Points | None = None) -> list[Section]:
    """Return a section per judge that has results, and one on whether they agree; `points` are for drift's map."""
    # judges that share a section are shown once
    by_section = {id(judge.section): judge for judge in JUDGES.values()}
    judges = sorted(by_section.values(), key=lambda judge: judge.section.by)
    found = [LAYOUTS[judge.section.layout](Judged(rows, judge, prefix, points)) for judge in judges]
    return [section for sections in (*found, agreement_sections(rows, prefix)) for section in sections]


def _blocks(judged: Judged) -> list[Section]:
    """Return a section with curves over the blocks of the model that were changed."""
    rows, section, shown = judged.rows, judged.section, judged.shown()
    names = list(dict.fromkeys(row["measure"] for row in rows_of(rows, shown[0].kind)))
    if not names:
        return []
    blocks = [row["detail"] for row in rows_of(rows, shown[0].kind, names[0])]
    ends = _ends(blocks)
    cells = [
        [name, *(number(find(rows, judged.kind(way), name, detail=block)) for way, block in ends)] for name in names
    ]
    columns = ("measure", *(f"{block}, {way}" for way, block in ends))

    def draw() -> Figure:
        figure, panels = new_figure(7.4, 3.1, len(shown))
        for axes, way in zip(panels, shown, strict=True):
            for name in names:
                found = [find(rows, way.kind, name, detail=block) for block in blocks]
                places = [place for place, row in enumerate(found) if row["value"] is not None]
                values = [found[place]["value"] for place in places]
                axes.plot(places, values, label=name, linewidth=1.5, **look(name))
            axes.set_xticks(range(len(blocks)), blocks, rotation=45, ha="right")
            axes.set_title(way.title)
            axes.axhline(0, color=RANDOM, linewidth=1, linestyle=":")
        panels[0].set_ylabel("Spearman's correlation")
        panels[-1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return figure

    tables = [Table(f"{judged.prefix}{judged.file}", section.table, columns, cells)]
    return [Section(section.title, judged.words(), tables, [drawn(judged.prefix, judged.file, section.caption, draw)])]


def _ends(blocks: Sequence[str]) -> list[tuple[str, str]]:
    """Return the columns of the table: only the head, everything, and only the last layer."""
    last = [("independent", block) for block in blocks if block.startswith("layer")][:1]
    return [("cascading", blocks[0]), ("cascading", blocks[-1]), *last]


def _other_models(judged: Judged) -> list[Section]:
    """Return how similar explanations of other models are: one with another seed, and one with random weights."""
    rows, section = judged.rows, judged.section
    alike = rows_of(rows, judged.kind("same_answer", SEED))
    differ = any(row["value"] < 1 for row in alike)
    columns = [one for one in section.shown if one.detail != EVERY or differ]
    by_judge = [judged.shown(list(group)) for _, group in groupby(columns, key=lambda one: one.judge)]
    found = [shown for shown in by_judge if measures_by(rows, shown[0])]
    if not found and not alike:
        return []
    if not found:
        said = [
            "The model of the other seed predicts the same class for no text, so their explanations cannot be compared."
        ]
        return [Section(section.title, said)]
    said = judged.words()
    if alike:
        said.append(
            f"The model of the other seed predicts the same class for {100 * alike[0]['value']:.1f} % of the texts; "
            "the numbers are for those texts, unless all are named."
        )
    # by similarity to the other seed's, or by dissimilarity to random ones; a measure not judged by both leaves a gap
    names = list(dict.fromkeys(name for shown in found for name in measures_by(rows, shown[0])))

    def draw() -> Figure:
        figure = forest(rows, names, [replace(one[0], title=f"rank correlation, {one[0].title}") for one in found])
        limits = [axes.get_xlim() for axes in figure.axes]
        for axes in figure.axes:  # one scale, so that the panels can be compared
            axes.set_xlim(min(low for low, _ in limits), max(high for _, high in limits))
            axes.axvline(0, color=RANDOM, linewidth=1, linestyle=":")
        return figure

    once = list({one.title: one for shown in found for one in shown}.values())
    figure = drawn(judged.prefix, judged.file, section.caption, draw)
    return [Section(section.title, said, [table(judged, names, once)], [figure], cautions=judged.cautions())]


def _sparsity(judged: Judged) -> list[Section]:
    """Return how short explanations are, unless the masking curves already show it."""
    rows, section, shown = judged.rows, judged.section, judged.shown()
    held = shown[0].kind
    names = list(dict.fromkeys(row["measure"] for row in rows_of(rows, held) if row["measure"] not in ORDER_ONLY))
    if not names or rows_of(rows, "sparsity"):
        return []
    shares = [row["detail"] for row in rows_of(rows, held, names[0])]

    def draw() -> Figure:
        figure, (axes,) = new_figure(6.5, 2.9)
        for name in names:
            values = [find(rows, held, name, detail=share)["value"] for share in shares]
            axes.plot([float(share.split()[0]) for share in shares], values, label=name, **look(name))
        axes.plot([0, 100], [0, 1], color=RANDOM, linewidth=1, linestyle=":")
        axes.set(xlabel="most important tokens [%]", ylabel="share of all importance")
        axes.legend(ncols=2)
        return figure

    figure = drawn(judged.prefix, judged.file, section.caption, draw)
    return [Section(section.title, judged.words(), [table(judged, names, shown)], [figure])]


# the layout of a section, by the judge's row; each returns none if the judge has no results
LAYOUTS: Mapping[str, Callable[[Judged], list[Section]]] = MappingProxyType(
    {"ranked": ranked, "blocks": _blocks, "other models": _other_models, "drift": drift_sections, "sparsity": _sparsity}
)


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
