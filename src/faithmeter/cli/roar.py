"""The command `faithmeter roar`: parses, calls the study, prints."""

import inspect
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from faithmeter.cli.options import (
    MEASURES,
    Data,
    either,
    load_libraries,
    names,
    names_in,
    numbers,
    refuse_early,
    several,
)
from faithmeter.cli.printing import console, hint, print_table, terminal
from faithmeter.errors import InputError


def roar(
    run: Annotated[Path, Argument(help="Folder to create; an existing one is resumed.")],
    data: Data,
    model: Annotated[str, Option(help="As for `train`.")] = "bilstm",
    measures: Annotated[
        str | None,
        Option(help=f"{MEASURES}  [default: all but {', '.join(names_in('importance.table.NOT_RETRAINED'))}]"),
    ] = None,
    protocols: Annotated[
        str,
        Option(
            help=f"{several('measuring.retraining.PROTOCOLS')}. `recursive` explains again at each step, `roar` once."
        ),
    ] = "recursive,roar",
    seeds: Annotated[str, Option(help="Seeds of the trainings, separated by commas.")] = "0",
    steps: Annotated[
        str,
        Option(help=f"{either('measuring.retraining.STEP_KINDS')}: a tenth of the tokens per step, or 1 to 10 tokens."),
    ] = "relative",
    target: Annotated[
        str, Option(help=f"Class whose logit is explained: {either('measuring.curves.TARGETS')}.")
    ] = "gold",
    ig_steps: Annotated[int, Option(min=1, help="Steps of integrated gradients.")] = 50,
    epochs: Annotated[int | None, Option(help="Epochs.  [default: the task's]")] = None,
    learning_rate: Annotated[float | None, Option(help="[default: the model's]")] = None,
    batch_size: Annotated[int | None, Option(help="Texts per batch.  [default: the model's]")] = None,
    vectors: Annotated[str | None, Option(help="For `bilstm`: a file of word vectors.")] = None,
    max_length: Annotated[int, Option(help="Truncate texts to this many tokens.")] = 512,
    workers: Annotated[
        int | None, Option(min=1, help="Trainings in parallel, each on one core.  [default: one per core]")
    ] = None,
    synthetic: Annotated[
        bool, Option("--synthetic", help="Instead, test both protocols on a problem with a known answer.")
    ] = False,
) -> None:
    """Mask the important tokens, retrain, measure again.

    ROAR and Recursive ROAR. `faithmeter roar RUN` resumes an interrupted experiment.
    """
    said = _said(locals())
    refuse_early(measures=measures)
    load_libraries()
    from faithmeter.runs.engines import workers_here
    from faithmeter.studies.report import roar_verdict
    from faithmeter.studies.roar import roar as study
    from faithmeter.studies.roar.experiment import RoarRun
    from faithmeter.studies.roar.roar import synthetic_roar
    from faithmeter.training.config import TrainingOptions

    reporter = terminal()
    if synthetic:
        _refuse(said - {"synthetic", "seeds"}, "the synthetic problem has data and a model of its own")
        sentences, page = synthetic_roar(run, seeds=numbers(seeds), reporter=reporter)
        console.print("\n".join(sentences), markup=False, soft_wrap=True)
        console.print(f"Figure and numbers: {page}", soft_wrap=True)
        return
    workers = workers or workers_here()
    if data is None:
        found = RoarRun(run)
        _refuse(said - {"workers"}, f"{run} resumes with its stored settings, unless the data is named again")
        found = study.go_on(found, workers=workers, reporter=reporter)
    else:
        options = study.RoarOptions(
            measures=None if measures is None else names(measures),
            protocols=names(protocols),
            seeds=numbers(seeds),
            steps=steps,
            target=target,
            ig_steps=ig_steps,
        )
        training = TrainingOptions(epochs=epochs, learning_rate=learning_rate, batch_size=batch_size)
        found = study.roar(
            run, data, model, options, training, max_length=max_length, vectors=vectors, workers=workers,
            reporter=reporter,
        )  # fmt: skip
    table, sentences = roar_verdict(found)
    print_table(table)
    console.print("\n".join(sentences), markup=False, soft_wrap=True)
    hint(f"`faithmeter report {run}` plots the curves.")


def _said(given: dict[str, Any]) -> set[str]:
    """Return the options whose value is not their default."""
    parameters = inspect.signature(roar).parameters
    return {name for name, value in given.items() if name not in ("run", "data") and value != parameters[name].default}


def _refuse(options: set[str], why: str) -> None:
    if options:
        raise InputError(f"--{min(options).replace('_', '-')} has no effect here: {why}.")
