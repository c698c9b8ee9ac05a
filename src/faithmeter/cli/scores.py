"""Scores: write explanations of test texts to a file."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from faithmeter.cli.options import either, load_libraries, refuse_early
from faithmeter.cli.printing import console, terminal


def scores(
    run: Annotated[Path, Argument(help="A trained run.")],
    out: Annotated[Path, Option(help="The file to write: .jsonl, .csv or .parquet.")],
    measure: Annotated[
        str | None, Option(help="Importance measure, as of `faithmeter measure`.  [default: the most faithful]")
    ] = None,
    target: Annotated[
        str, Option(help=f"Class whose logit is explained: {either('measuring.curves.TARGETS')}.")
    ] = "gold",
    rows: Annotated[int | None, Option(min=1, help="Number of test texts, as of `measure`.  [default: all]")] = None,
    seed: Annotated[int, Option(min=0, help="Seed for the choice of texts, as of `measure`.")] = 0,
) -> None:
    """Write the scores of a measure to a file, token by token.

    `faithmeter measure RUN --scores FILE` judges such a file, whoever wrote it.
    """
    refuse_early(run, measures=measure)
    load_libraries()
    from faithmeter.runs.run import Run
    from faithmeter.studies import scores as study

    options = study.ScoresOptions(measure or Run(run).measure_to_use, target, rows, seed)
    console.print(f"Scores: {study.scores(run, out, options, reporter=terminal())}", soft_wrap=True, markup=False)
