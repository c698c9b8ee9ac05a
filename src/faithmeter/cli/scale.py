"""The command `faithmeter scale`: parses, calls the job, prints."""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from faithmeter.cli.options import MEASURES, Data, load_libraries, names, names_in, refuse_early, required
from faithmeter.cli.printing import console, print_faithfulness, print_performance, terminal

FAMILIES, SIZES = "models.from_scratch.FAMILIES", "models.from_scratch.SIZES"


def scale(
    folder: Annotated[Path, Argument(help="Folder for the runs and their report.")],
    data: Data,
    models: Annotated[
        str,
        Option(
            help=f"Models, separated by commas: as for `train`, or a family ({', '.join(names_in(FAMILIES))}) for its "
            f"{', '.join(names_in(SIZES))}."
        ),
    ] = "encoder",
    measures: Annotated[
        str | None,
        Option(help=f"{MEASURES}  [default: all but {', '.join(names_in('importance.table.ON_REQUEST'))}]"),
    ] = None,
    rows: Annotated[int | None, Option(min=1, help="Number of test texts, drawn at random.  [default: all]")] = None,
    beam_rows: Annotated[
        int | None, Option(min=1, help="Test texts for beam search, which is expensive.  [default: --rows]")
    ] = None,
    epochs: Annotated[int | None, Option(help="Epochs.  [default: the task's]")] = None,
    learning_rate: Annotated[float | None, Option(help="[default: the model's]")] = None,
    batch_size: Annotated[int | None, Option(help="Texts per batch.  [default: the model's]")] = None,
    max_length: Annotated[int, Option(help="Truncate texts to this many tokens.")] = 512,
    seed: Annotated[int | None, Option(min=0, help="Seed for weights, order and masks.  [default: 0]")] = None,
) -> None:
    """Train, check and measure models of increasing size.

    One report compares them. The same command resumes an interrupted comparison.
    """
    data = required(data)
    refuse_early(measures=measures)
    load_libraries()
    from faithmeter.studies import scale as study
    from faithmeter.studies.measure import MeasureOptions
    from faithmeter.training.config import TrainingOptions

    options = TrainingOptions(epochs=epochs, learning_rate=learning_rate, batch_size=batch_size, seed=seed)
    chosen = None if measures is None else names(measures)
    measured = MeasureOptions(chosen, rows=rows, beam_rows=beam_rows)

    def show(run: Any) -> None:  # noqa: ANN401 (a Run, whose room takes seconds to import)
        print_performance(run)
        print_faithfulness(run.results)

    _, page = study.scale(
        folder, data, names(models), options, measured, max_length=max_length, reporter=terminal(), done=show
    )
    console.print(f"Report: {page}", soft_wrap=True)
