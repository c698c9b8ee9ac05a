"""The formats of a report: one HTML page with styles, figures and texts inside and no script, or files.

Markdown has words and tables, with figures as links to files in the same folder; LaTeX and CSV are of tables alone.
"""

import csv
import io
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import jinja2

from faithmeter.explaining.heat_map import small_curve, visible
from faithmeter.files import write_bytes
from faithmeter.reports.figures import as_bytes, inline_svg
from faithmeter.reports.parts import Section, Table

FORMATS = ("html", "markdown", "latex", "csv", "svg", "png", "pdf")

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
}  # fmt: skip


_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.PackageLoader("faithmeter.reports"),
    autoescape=True,  # all input is text; what the template marks safe was made by this package
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def write_report(out: Path, title: str, content: Sequence[Section], formats: Sequence[str]) -> list[Path]:
    """Write the files of each format."""
    contents: dict[str, bytes] = {}
    tables = [table for section in content for table in section.tables]
    drawn = [figure for section in content for figure in section.figures]
    for name in formats:
        if name == "html":
            contents["report.html"] = render_page(title, content, metadata.version("faithmeter")).encode()
        elif name == "markdown":
            contents["report.md"] = render_markdown(title, content).encode()
            contents |= {f"{figure.name}.svg": as_bytes(figure.figure, "svg") for figure in drawn}
        elif name == "latex":
            contents |= {f"{table.name}.tex": as_latex(table).encode() for table in tables}
        elif name == "csv":
            contents |= {f"{table.name}.csv": as_csv(table).encode() for table in tables}
        else:
            contents |= {f"{figure.name}.{name}": as_bytes(figure.figure, name) for figure in drawn}
    out.mkdir(parents=True, exist_ok=True)
    for name, content_of_file in contents.items():
        write_bytes(out / name, content_of_file)
    return [out / name for name in contents]


def render_page(title: str, sections: Sequence[Section], version: str) -> str:
    """Return the report as HTML."""
    return _ENVIRONMENT.get_template("report.html").render(
        title=title,
        sections=sections,
        version=version,
        table=as_html,
        svg=lambda drawn: inline_svg(drawn.figure, drawn.name, drawn.caption),
        curve=lambda own, random, name: small_curve(own, random, visible(name)),
        text=visible,
    )


def render_markdown(title: str, sections: Sequence[Section]) -> str:
    """Return the report as Markdown: words and tables, with figures as links to files in the same folder."""
    parts = [f"# {plain(title)}"]
    for section in sections:
        parts.append(f"{'#' * (section.level + 1)} {plain(section.title)}")
        parts += map(plain, section.words)
        parts += [f"- Careful: {plain(caution)}" for caution in section.cautions]
        parts += [as_markdown(table) for table in section.tables]
        parts += [f"![{drawn.caption}]({drawn.name}.svg)" for drawn in section.figures]
        parts += [f"    {command}" for command in section.commands]
        parts += [f"**{term}**: {meaning}" for term, meaning in section.terms]
    return "\n\n".join(parts) + "\n"


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
    writer.writerows([inert(cell) for cell in row] for row in (table.columns, *table.rows))
    return buffer.getvalue()


def inert(cell: str) -> str:
    """Return a cell so that a spreadsheet shows it: as it is, or quoted if it would be evaluated."""
    try:
        float(cell)
    except ValueError:
        return f"'{cell}" if cell[:1] in tuple("=+-@\t\r") else cell
    return cell
