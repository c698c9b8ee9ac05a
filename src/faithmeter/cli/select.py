"""The command `faithmeter select`: parses, calls the study, prints."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from faithmeter.cli.options import MEASURES, load_libraries, names, numbers, refuse_early, several
from faithmeter.cli.printing import hint, print_section, terminal


def select(
    run: Annotated[Path, Argument(help="A trained run.")],
    measures: Annotated[
        str | None,
        Option(help=f"{MEASURES} Random tokens are always included.  [default: the run's most faithful]"),
    ] = None,
    rationales: Annotated[
        str,
        Option(
            help=f"{several('judges.selection.RATIONALES')}. The most important tokens, or the most important "
            "contiguous ones."
        ),
    ] = "top,contiguous",
    length: Annotated[float, Option(help="Share of the tokens to keep, rounded up.")] = 0.2,
    epochs: Annotated[int | None, Option(min=1, help="Epochs of the second models.  [default: the run's]")] = None,
    rows: Annotated[
        int | None, Option(min=2, help="Training texts of the second models, drawn at random.  [default: all]")
    ] = None,
    seeds: Annotated[str, Option(help="Seeds of the second models, separated by commas.")] = "0",
) -> None:
    """Select, then predict (FRESH).

    Trains a second model that reads only the explanations.
    """
    refuse_early(run, measures=measures)
    load_libraries()
    from faithmeter.reports.select import select_sections
    from faithmeter.studies import select as study

    options = study.SelectOptions(
        measures=None if measures is None else names(measures),
        rationales=names(rationales),
        length=length,
        epochs=epochs,
        rows=rows,
        seeds=numbers(seeds),
    )
    done = study.select(run, options, reporter=terminal())
    for section in select_sections(done.results):
        print_section(section)
    hint(f"`faithmeter report {run}` shows it with the other results.")
