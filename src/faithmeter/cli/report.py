"""Report: which importance measure is faithful, on one page."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from faithmeter.cli.options import load_libraries, refuse_early, several
from faithmeter.cli.printing import console, terminal


def report(
    runs: Annotated[
        list[Path], Argument(metavar="RUN...", help="Runs; those that differ only in the seed are pooled.")
    ],
    out: Annotated[Path | None, Option(help="Folder for the report.  [default: RUN/report]")] = None,
    formats: Annotated[str, Option("--format", help=f"{several('reports.formats.FORMATS')}.")] = "html",
    examples: Annotated[bool, Option(help="Explain a few test texts by several measures.")] = True,
) -> None:
    """Write a report: which importance measure to use, and why.

    One self-contained HTML page.
    """
    chosen = [name.strip() for name in formats.split(",")]
    from faithmeter.runs.directory import is_roar

    refuse_early(*(path for path in runs if not is_roar(path)))
    load_libraries()
    from faithmeter.studies import report as study

    files = study.report(runs, out or runs[0] / "report", formats=chosen, examples=examples, reporter=terminal())
    for file in files:
        console.print(str(file), soft_wrap=True, markup=False)
