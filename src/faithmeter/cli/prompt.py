"""Prompt: a language model that is asked by a template, as a run."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from faithmeter.cli.options import Data, either, load_libraries, names, required
from faithmeter.cli.printing import print_performance, terminal
from faithmeter.errors import InputError


def prompt(
    run: Annotated[Path, Argument(help="Run directory to create; later commands take it.")],
    data: Data,
    template: Annotated[
        str, Option(help="The prompt with a slot {text}, and {context} for pairs; it ends where the answer begins.")
    ],
    model: Annotated[
        str, Option(help="A causal language model: hub name, folder, or `smollm2` (fetched).")
    ] = "smollm2",
    words: Annotated[
        str | None, Option(help="What the model answers: negative=bad,positive=good.  [default: the classes' names]")
    ] = None,
    shots: Annotated[int, Option(min=0, help="Answered training texts to show first, classes in turn.")] = 0,
    calibration: Annotated[
        str, Option(help=f"Of the classes' scores, without labels: {either('studies.prompt.CALIBRATIONS')}.")
    ] = "none",
    max_length: Annotated[int, Option(help="Truncate texts so that the prompt has at most this many tokens.")] = 512,
    seed: Annotated[int, Option(min=0, help="Seed for the choice of examples.")] = 0,
) -> None:
    """Make a run of a prompted language model.

    Nothing is trained: a class's score is the log-likelihood of its word. Only the slot is masked and explained.
    """
    spelt = None if words is None else dict(_pair(one) for one in names(words))
    load_libraries()
    from faithmeter.studies import prompt as study

    options = study.PromptOptions(template.replace("\\n", "\n"), spelt, shots=shots, calibration=calibration, seed=seed)
    print_performance(study.prompt(run, required(data), model, options, max_length=max_length, reporter=terminal()))


def _pair(said: str) -> tuple[str, str]:
    label, equals, word = said.partition("=")
    if not equals:
        raise InputError(
            f"Words are given as class=word with commas between them, such as neg=bad,pos=good; not {said!r}."
        )
    return label, word
