"""A report as one self-contained HTML page: styles, figures and texts are inside, and there is no script."""

from collections.abc import Sequence

import jinja2

from faithmeter.explaining.heat_map import visible
from faithmeter.explaining.small_curve import small_curve
from faithmeter.reports import figures
from faithmeter.reports.formats import as_html, as_markdown, plain
from faithmeter.reports.parts import Section

_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.PackageLoader("faithmeter.reports"),
    autoescape=True,  # all input is text; what the template marks safe was made by this package
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def render_page(title: str, sections: Sequence[Section], version: str) -> str:
    """Return the report as HTML."""
    return _ENVIRONMENT.get_template("report.html").render(
        title=title,
        sections=sections,
        version=version,
        table=as_html,
        svg=lambda drawn: figures.inline_svg(drawn.figure, drawn.name, drawn.caption),
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
