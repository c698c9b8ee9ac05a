"""The command `faithmeter transfer`: parses, calls the job, prints."""

from pathlib import Path
from typing import Annotated

import typer

from faithmeter.cli.options import Data, load_libraries, required
from faithmeter.cli.printing import hint, print_performance, print_section, terminal


def transfer(
    run: Annotated[Path, typer.Argument(help="A trained and checked run: its model, and its own domain.")],
    out: Annotated[Path, typer.Argument(help="The run directory to make: the same model on the other data.")],
    data: Data,
) -> None:
    """Take a run's model to other data, out of its domain.

    Makes a run of it, to check, measure and report there.
    """
    load_libraries()
    from faithmeter.reports.transfer import transfer_sections
    from faithmeter.studies import transfer as study

    made = study.transfer(run, out, required(data), reporter=terminal())
    print_performance(made)
    for section in transfer_sections(made.results):
        print_section(section)
    hint(f"Next: `faithmeter check {out}`, then `measure`, `audit` and `report` as on any run.")
