"""Quickstart: the main workflow on included data, from training to the report."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from faithmeter.cli.options import load_libraries
from faithmeter.cli.printing import console, hint, print_check, print_faithfulness, print_performance, terminal

# the paper's; LIME and KernelSHAP, at 200 passes per text and step, would take longer than all of these together
QUICK_MEASURES = (
    "grad-l1", "grad-l2", "x-grad-signed", "x-grad-abs", "ig-signed", "ig-abs", "loo-signed", "loo-abs", "beam"
)  # fmt: skip


def quickstart(
    run: Annotated[Path | None, Argument(help="Run directory to create.  [default: runs/quickstart]")] = None,
    sentiment: Annotated[
        bool, Option("--sentiment", help="Use film reviews and a pretrained model (extra `sentiment`).")
    ] = False,
    seed: Annotated[int, Option(min=0, help="Seed for weights, order and masks.")] = 0,
    data_seed: Annotated[int, Option(min=0, help="Seed for generated data and splits.")] = 0,
    until_certain: Annotated[
        bool,
        Option(
            "--until-certain/--no-until-certain", help="Measure only until it is certain which measures may be best."
        ),
    ] = True,
) -> None:
    """Train, check, measure and report offline, in minutes.

    On generated bAbI-1 questions, with a small encoder and nine importance measures.
    """
    path = run or _free_path(Path("runs") / ("quickstart-sentiment" if sentiment else "quickstart"))
    load_libraries()
    from faithmeter.data.splits import DataSpec
    from faithmeter.runs.run import Run
    from faithmeter.studies.check import check, in_words
    from faithmeter.studies.measure import MeasureOptions, measure
    from faithmeter.studies.report import report
    from faithmeter.studies.train import train
    from faithmeter.training.config import TrainingOptions

    if sentiment:
        data, model = DataSpec(task="rotten-tomatoes", seed=data_seed), "minilm"
        options = TrainingOptions(epochs=4, learning_rate=1e-4, batch_size=32, seed=seed)
        measured = MeasureOptions(QUICK_MEASURES, rows=60, beam_rows=5, until_certain=until_certain)  # a slower model
        hint(f"Masked fine-tuning of MiniLM on Rotten Tomatoes reviews, into {path}.")
        hint("This takes about a quarter of an hour on two cores.")
    else:
        data, model, options = DataSpec(task="babi-1", seed=data_seed), "small", TrainingOptions(seed=seed)
        measured = MeasureOptions(QUICK_MEASURES, rows=200, beam_rows=10, until_certain=until_certain)
        hint(f"Masked fine-tuning of a small encoder on generated bAbI-1 questions, into {path}.")
    reporter = terminal()
    print_performance(train(path, data, model, options, reporter=reporter))
    console.print("\nIs masking in-distribution for this model?")
    verdicts = check(path, reporter=reporter)
    print_check(verdicts, in_words(path), Run(path).results)
    console.print("\nWhich importance measure is faithful to it?")
    print_faithfulness(measure(path, measured, workers=None, reporter=reporter).results)
    (page,) = report([path], path / "report", reporter=reporter)
    console.print(f"\nReport: {page}", soft_wrap=True)


def _free_path(path: Path) -> Path:
    candidates = (path, *(path.with_name(f"{path.name}-{number}") for number in range(2, 1000)))
    return next(candidate for candidate in candidates if not candidate.exists())
