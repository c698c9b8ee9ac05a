"""The command `faithmeter compare`: parses, calls the study, prints."""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from faithmeter.cli.options import (
    MEASURES,
    Data,
    load_libraries,
    names,
    names_in,
    numbers,
    refuse_early,
    required,
    several,
)
from faithmeter.cli.printing import console, print_performance, print_section, terminal


def compare(
    folder: Annotated[Path, Argument(help="Folder for the runs and their report.")],
    data: Data,
    model: Annotated[str, Option(help="As for `train`.")] = "small",
    ways: Annotated[
        str | None,
        Option(help=f"{several('training.config.WAYS')}; or combined, as in masked+vat.  [default: all of these]"),
    ] = None,
    seeds: Annotated[str, Option(help="Training seeds, separated by commas.")] = "0",
    measures: Annotated[
        str | None, Option(help=f"{MEASURES}  [default: {', '.join(names_in('studies.compare.MEASURES'))}]")
    ] = None,
    rows: Annotated[int, Option(min=1, help="Test texts to measure and judge on.")] = 100,
    judges: Annotated[
        str | None, Option(help=f"As for `audit`.  [default: {', '.join(names_in('studies.compare.JUDGES'))}]")
    ] = None,
    epochs: Annotated[
        int | None,
        Option(help="Epochs; doubled for ways with masking.  [default: the task's]"),
    ] = None,
    learning_rate: Annotated[float | None, Option(help="[default: the model's]")] = None,
    batch_size: Annotated[int | None, Option(help="Texts per batch.  [default: the model's]")] = None,
    max_length: Annotated[int, Option(help="Truncate texts to this many tokens.")] = 512,
) -> None:
    """Train one model in several ways, and compare them.

    Compares accuracy, the in-distribution test, faithfulness, fidelity and time. The same command resumes an
    interrupted comparison.
    """
    data = required(data)
    refuse_early(measures=measures)
    load_libraries()
    from faithmeter.studies import compare as study
    from faithmeter.studies.audit import AuditOptions
    from faithmeter.studies.measure import MeasureOptions
    from faithmeter.studies.report import compared
    from faithmeter.training.config import WAYS, TrainingOptions

    options = TrainingOptions(epochs=epochs, learning_rate=learning_rate, batch_size=batch_size)
    chosen = names(measures) if measures is not None else study.MEASURES
    measured = MeasureOptions(measures=chosen, rows=rows)
    judged = names(judges) if judges is not None else study.JUDGES
    audited = AuditOptions(judges=judged, measures=chosen, rows=rows)

    def show(run: Any) -> None:  # noqa: ANN401 (a Run, whose room takes seconds to import)
        print_performance(run)

    runs, page = study.compare(
        folder,
        data,
        model,
        names(ways) if ways is not None else tuple(WAYS),
        numbers(seeds),
        options,
        measured,
        audited,
        max_length=max_length,
        reporter=terminal(),
        done=show,
    )
    for section in compared([run.path for run in runs]):
        print_section(section)
    console.print(f"\nReport: {page}", soft_wrap=True)
