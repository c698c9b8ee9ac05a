"""The command `faithmeter transfer`: parses, calls the job, prints."""

from pathlib import Path
from typing import Annotated

import typer

from faithmeter.cli.options import Data, load_libraries, required
from faithmeter.cli.printing import console, print_performance, print_section
from faithmeter.progress import Terminal


def transfer(
    run: Annotated[Path, typer.Argument(help="A trained and checked run: its model, and what it is at home with.")],
    out: Annotated[Path, typer.Argument(help="The run directory to make: the same model on the other data.")],
    data: Data,
) -> None:
    """Out-of-domain: make a run of a run's model on other data, to check, measure and report it there."""
    load_libraries()
    from faithmeter.reports.transfer import transfer_sections
    from faithmeter.studies import transfer as study

    made = study.transfer(run, out, required(data), reporter=Terminal(console))
    print_performance(made)
    for section in transfer_sections(made.results):
        print_section(section)
    console.print(
        f"Next: `faithmeter check {out}`, then `measure`, `audit` and `report` as on any run.", soft_wrap=True
    )
