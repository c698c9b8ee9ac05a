"""A judge's section of a report, made from its row: a table and a figure of the numbers shown, and its words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from faithmeter.reports.figures import RANDOM, drawn, look, new_figure
from faithmeter.reports.parts import Section, Table
from faithmeter.runs.results import AUDIT, find, number, rows_of
from faithmeter.statistics import LEVEL

if TYPE_CHECKING:
    from faithmeter.judges.drift import Points
    from faithmeter.judges.judge import Judge, SectionData, ShownColumn
    from faithmeter.runs.results import Row, Rows

UNCHECKED = "Whether these masked texts are in-distribution was not checked: run `faithmeter check`."


@dataclass(frozen=True)
class Shown:
    """A number to plot: its kind, its name for readers, and the detail that identifies it within its kind."""

    kind: str
    title: str
    detail: str | None = None
    more_is_better: bool = True


@dataclass(frozen=True)
class Judged:
    """The result rows of a report, and the judge whose section is made from them; `points` are for drift's map."""

    rows: Rows
    judge: Judge
    prefix: str = ""
    points: Points | None = None

    @property
    def section(self) -> SectionData:
        """Return the section's settings in the judge's row."""
        return self.judge.section

    @property
    def file(self) -> str:
        """Return the name of the section's files, without the report's prefix."""
        return self.section.short or self.judge.name

    def kind(self, column: str, judge: str | None = None) -> str:
        """Return the kind of the result rows of a column, the judge's own or another's."""
        return f"{AUDIT}{judge or self.judge.name}_{column}"

    def shown(self, columns: Sequence[ShownColumn] | None = None) -> list[Shown]:
        """Return the numbers to show, without optional ones that no measure has."""
        every = [
            (one, self.kind(one.column, one.judge)) for one in (self.section.shown if columns is None else columns)
        ]
        return [
            Shown(kind, one.title, one.detail, one.more_is_better)
            for one, kind in every
            if not one.optional or rows_of(self.rows, kind)
        ]

    def words(self) -> list[str]:
        """Return the section's paragraphs, with the numbers of its remarks filled in."""
        said = list(self.section.words)
        for remark in self.section.remarks:
            value = find(self.rows, self.kind(remark.column))["value"]
            sentence = "" if value is None else remark.words.format(value=100 * value)
            said = [paragraph.replace(f"{{{remark.column}}}", sentence) for paragraph in said]
        return [paragraph for paragraph in said if paragraph]

    def cautions(self) -> list[str]:
        """Return what to be careful about: masked texts out-of-distribution or unchecked, numbers too low or high."""
        found = []
        for remark in self.section.remarks:
            value = find(self.rows, self.kind(remark.column))["value"]
            if value is not None and value < remark.least:
                found.append(remark.caution)
        every = [(rows_of(self.rows, self.kind(column)), caution) for column, caution in self.section.outside]
        for shares, caution in every:
            worst = _surely_outside(shares)
            if worst is not None:
                found.append(
                    caution.format(
                        share=f"{100 * worst['value']:.0f}",
                        measure=worst["measure"],
                        detail=worst["detail"],
                        chance=f"{100 * LEVEL:.0f}",
                    )
                )
        if every and not all(shares for shares, _ in every):
            found.append(UNCHECKED)
        for suspect in self.section.suspects:
            rows = rows_of(self.rows, self.kind(suspect.column, suspect.judge))
            sure = [row for row in rows if row["low"] is not None and row["low"] > suspect.above]
            if sure:
                named = ", ".join(
                    f"{row['measure']} ({row['value']:.2f})" for row in sorted(sure, key=lambda row: -row["value"])
                )
                found.append(suspect.words.format(measures=named))
        return found


def _surely_outside(shares: Sequence[Row]) -> Row | None:
    """Return the measure with the largest share significantly above chance; None if there is none."""
    sure = [row for row in shares if row["low"] is not None and row["low"] > LEVEL]
    return max(sure, key=lambda row: row["value"], default=None)


def ranked(judged: Judged) -> list[Section]:
    """Return a section with a table of the numbers shown, sorted by the first, and a figure of the first two.

    Empty if this judge has no results.
    """
    rows, section, shown = judged.rows, judged.section, judged.shown()
    names = measures_by(rows, shown[0])
    if not names:
        return []
    figure = drawn(judged.prefix, judged.file, section.caption, lambda: forest(rows, names, shown[:2]))
    return [Section(section.title, judged.words(), [table(judged, names, shown)], [figure], cautions=judged.cautions())]


def measures_by(rows: Rows, first: Shown) -> list[str]:
    """Return the measures that have a number, the best first; random importance is ranked among them."""
    found = [row for row in rows_of(rows, first.kind) if row.get("detail") == first.detail]
    return [row["measure"] for row in sorted(found, key=lambda row: row["value"], reverse=first.more_is_better)]


def table(judged: Judged, names: Sequence[str], shown: Sequence[Shown], note: str = "") -> Table:
    """Return a table with one line per measure and one column per number shown; `note` ends its title."""
    rows = judged.rows
    cells = [[one, *(number(find(rows, what.kind, one, detail=what.detail)) for what in shown)] for one in names]
    known = find(rows, shown[0].kind, names[0], detail=shown[0].detail)
    over = f"{known['n']} {'trainings' if known['over'] == 'seeds' else 'texts'}"
    title = f"{judged.section.table}; 95 % intervals over {over}{note}"
    return Table(f"{judged.prefix}{judged.file}", title, ("measure", *(what.title for what in shown)), cells)


def forest(rows: Rows, names: Sequence[str], shown: Sequence[Shown]) -> Figure:
    """Plot numbers with intervals: one panel per number, one line per measure, the best on top; random is dashed."""
    figure, panels = new_figure(3.3 * len(shown) + 0.6, 0.7 + 0.26 * len(names), len(shown))
    for axes, what in zip(panels, shown, strict=True):
        for place, name in enumerate(reversed(names)):
            row, colour = find(rows, what.kind, name, detail=what.detail), look(name)["color"]
            if row["low"] is not None:
                axes.plot([row["low"], row["high"]], [place, place], color=colour, linewidth=2)
            if row["value"] is not None:
                axes.plot(row["value"], place, "o", color=colour, markersize=5)
        chance = find(rows, what.kind, "random", detail=what.detail)["value"]
        if chance is not None:
            axes.axvline(chance, color=RANDOM, linewidth=1, linestyle="--")
        axes.set_xlabel(what.title)
    panels[0].set_yticks(range(len(names)), list(reversed(names)))
    return figure
