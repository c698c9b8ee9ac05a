"""Plan: how many texts, and minutes, does it take to tell measures apart?"""

import math
from pathlib import Path
from typing import Annotated

from rich.table import Table
from typer import Argument, Option

from faithmeter.cli.options import MEASURES, load_libraries, names, refuse_early
from faithmeter.cli.printing import console, terminal

MANY = 1000  # texts, from which on a plan of a pilot is a guess


def plan(
    run: Annotated[Path, Argument(help="A trained run.")],
    measures: Annotated[
        str | None, Option(help=f"{MEASURES}  [default: those measured, or all that are not expensive]")
    ] = None,
    texts: Annotated[int, Option(min=2, help="Test texts of the pilot, drawn at random.")] = 30,
    power: Annotated[float, Option(help="How likely the difference is to be found.")] = 0.8,
) -> None:
    """Plan how many texts tell importance measures apart.

    From what is measured already, or from a pilot on a few texts, which is kept in RUN/pilot.
    """
    refuse_early(run, measures=measures)
    load_libraries()
    from faithmeter.runs.timing import duration
    from faithmeter.studies import plan as study

    planned = study.plan(
        run, None if measures is None else names(measures), texts=texts, power=power, reporter=terminal()
    )
    table = Table(box=None)
    for column in ("measure", "texts", "all measures on so many"):
        table.add_column(column, justify="left" if column == "measure" else "right", no_wrap=True)
    for name, needed in sorted(planned.texts.items(), key=lambda item: item[1]):
        if math.isinf(needed):
            table.add_row(name, "no difference", "")
        elif needed > MANY:
            table.add_row(name, f"over {MANY:,}", f"over {duration(MANY * planned.seconds_per_text)}")
        else:
            table.add_row(name, f"{needed:.0f}", duration(needed * planned.seconds_per_text))
    console.print(f"On {planned.pilot_texts} texts {planned.ahead} is ahead. To separate each from it:", soft_wrap=True)
    console.print(table)
    enough = [name for name, needed in planned.texts.items() if needed <= planned.test_texts]
    console.print(
        f"texts: how many find the difference with {power:.0%} power at a family-wise level of 5 %, and how long that "
        "takes in one process. Plans of more than about 60 texts are guesses. "
        f"All {planned.test_texts} test texts would separate: {', '.join(enough) or 'none'}.",
        soft_wrap=True,
    )
