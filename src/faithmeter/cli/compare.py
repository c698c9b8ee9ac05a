"""The command `faithmeter compare`: parses, calls the job, prints."""

from pathlib import Path
from typing import Annotated, Any

import typer

from faithmeter.cli.options import Data, load_libraries, names, numbers, required
from faithmeter.cli.printing import console, print_performance, print_section
from faithmeter.progress import Terminal


def compare(
    folder: Annotated[Path, typer.Argument(help="The folder for the runs and their report; goes on where it was.")],
    data: Data,
    model: Annotated[str, typer.Option(help="As for `train`.")] = "small",
    ways: Annotated[
        str | None,
        typer.Option(
            help="plain, masked, robust, explanation-guided (whose loss, as it is, flattens attention), adversarial, "
            "combined, or spelt as masked+vat; several with commas.  [default: those six]"
        ),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas: each way is trained with each.")] = "0",
    measures: Annotated[
        str | None, typer.Option(help="Importance measures, separated by commas.  [default: eight quick ones]")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Test rows to measure and to judge on.")] = 100,
    judges: Annotated[
        str | None, typer.Option(help="As for `audit`.  [default: erasure, fidelity, fidelity-attacked]")
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(help="Passes over the data; ways with masks take twice as many.  [default: the task's]"),
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="[default: the model's]")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows at a time.  [default: the model's]")] = None,
    max_length: Annotated[int, typer.Option(help="Longest text in tokens; longer ones are cut.")] = 512,
) -> None:
    """Train one model in several ways, and compare accuracy, the test of masks, faithfulness, fidelity and time."""
    data = required(data)
    load_libraries()
    from faithmeter.studies import compare as study
    from faithmeter.studies.audit import AuditOptions
    from faithmeter.studies.measure import MeasureOptions
    from faithmeter.studies.report import compared
    from faithmeter.studies.train import TrainingOptions

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
        names(ways) if ways is not None else tuple(study.WAYS),
        numbers(seeds),
        options,
        measured,
        audited,
        max_length=max_length,
        reporter=Terminal(console),
        done=show,
    )
    for section in compared([run.path for run in runs]):
        print_section(section)
    console.print(f"\nThe report that draws it all: {page}", soft_wrap=True)
