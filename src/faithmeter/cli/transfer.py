"""The command `faithmeter transfer`: parses, calls the study, prints."""

from pathlib import Path
from typing import Annotated

from typer import Argument

from faithmeter.cli.options import Data, load_libraries, refuse_early, required
from faithmeter.cli.printing import hint, print_performance, print_section, terminal


def transfer(
    run: Annotated[Path, Argument(help="A trained and checked run.")],
    out: Annotated[Path, Argument(help="Run directory to create: the same model on other data.")],
    data: Data,
) -> None:
    """Apply a run's model to data of another domain.

    Creates a run to check, measure and report on that data.
    """
    data = required(data)
    refuse_early(run)
    load_libraries()
    from faithmeter.reports.transfer import transfer_sections
    from faithmeter.studies import transfer as study

    made = study.transfer(run, out, data, reporter=terminal())
    print_performance(made)
    for section in transfer_sections(made.results):
        print_section(section)
    hint(f"Next: `faithmeter check {out}`, then `measure`, `audit` and `report` as on any run.")
