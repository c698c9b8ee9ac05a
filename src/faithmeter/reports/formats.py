"""A table of a report, and its formats: HTML, Markdown, LaTeX, CSV."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from faithmeter.explaining.heat_map import visible

FORMATS = ("html", "markdown", "latex", "csv", "svg", "png", "pdf")

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """A titled table of words; the first column names its rows, the others are numbers."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def as_html(table: Table) -> str:
    """Return the table for a page."""
    head = "".join(f'<th scope="col">{visible(column)}</th>' for column in table.columns)
    body = "".join(
        f'<tr><th scope="row">{visible(row[0])}</th>{"".join(f"<td>{visible(cell)}</td>" for cell in row[1:])}</tr>'
        for row in table.rows
    )
    return (
        f'<div class="wide"><table><caption>{visible(table.title)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def as_markdown(table: Table) -> str:
    """Return the table for a README, with its title over it."""
    title = [plain(table.title), ""] if table.title else []
    head, *body = ("| " + " | ".join(map(plain, line)) + " |" for line in (table.columns, *table.rows))
    return "\n".join([*title, head, "|" + " --- |" * len(table.columns), *body])


def plain(text: str) -> str:
    """Return a string escaped so that Markdown shows it literally."""
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>#!|" else c for c in " ".join(text.split()))


def as_latex(table: Table) -> str:
    """Return the table for a paper (booktabs)."""
    lines = [" & ".join("".join(_LATEX.get(c, c) for c in cell) for cell in row) + r" \\" for row in table.rows]
    head = " & ".join("".join(_LATEX.get(c, c) for c in cell) for cell in table.columns) + r" \\"
    caption = "".join(_LATEX.get(c, c) for c in table.title)
    return "\n".join(
        [
            r"\begin{table}", r"\centering", rf"\caption{{{caption}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}", r"\toprule", head, r"\midrule", *lines,
            r"\bottomrule", r"\end{tabular}", r"\end{table}", "",
        ]
    )  # fmt: skip


def as_csv(table: Table) -> str:
    """Return the table as CSV. A cell that a spreadsheet would evaluate is quoted as text."""
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerows([_inert(cell) for cell in row] for row in (table.columns, *table.rows))
    return buffer.getvalue()


def _inert(cell: str) -> str:
    try:
        float(cell)
    except ValueError:
        return f"'{cell}" if cell[:1] in tuple("=+-@\t\r") else cell
    return cell
