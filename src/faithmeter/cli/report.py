"""Report: which explanation to believe, on one page."""

from pathlib import Path
from typing import Annotated

import typer

from faithmeter.cli.options import load_libraries
from faithmeter.cli.printing import console
from faithmeter.progress import Terminal


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Runs; those that differ in the seed are pooled.")
    ],
    out: Annotated[Path | None, typer.Option(help="Folder for the report.  [default: RUN/report]")] = None,
    formats: Annotated[
        str, typer.Option("--format", help="html, markdown, latex, csv, svg, png, pdf; several with commas.")
    ] = "html",
    examples: Annotated[bool, typer.Option(help="Explain a few test texts by several measures.")] = True,
) -> None:
    """Write a report: which explanation to believe, by how much, and why. One page that needs nothing else."""
    chosen = [name.strip() for name in formats.split(",")]
    load_libraries()
    from faithmeter.studies import report as study

    files = study.report(runs, out or runs[0] / "report", formats=chosen, examples=examples, reporter=Terminal(console))
    for file in files:
        console.print(str(file), soft_wrap=True, markup=False)
