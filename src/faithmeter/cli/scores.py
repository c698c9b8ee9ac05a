"""Scores: write explanations of test texts to a file."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from faithmeter.cli.options import either, load_libraries, refuse_early
from faithmeter.cli.printing import console, terminal
from faithmeter.errors import InputError


def scores(
    run: Annotated[Path, Argument(help="A trained run.")],
    out: Annotated[Path, Option(help="The file to write: .jsonl, .csv or .parquet.")],
    measure: Annotated[
        str | None, Option(help="Importance measure, as of `faithmeter measure`.  [default: the most faithful]")
    ] = None,
    self_explanation: Annotated[
        bool, Option("--self-explanation", help="In place of a measure, ask a prompted model which words decided.")
    ] = False,
    question: Annotated[
        str | None,
        Option(
            help="How it is asked; slots {text}, {answer}, {context}.  [default: the run's prompt, then `Key words:`]"
        ),
    ] = None,
    new_tokens: Annotated[int | None, Option(min=1, help="Tokens that its answer has at most.  [default: 32]")] = None,
    target: Annotated[
        str | None,
        Option(
            help=f"Class that is explained: {either('measuring.curves.TARGETS')}.  "
            "[default: gold; of a self-explanation predicted]"
        ),
    ] = None,
    rows: Annotated[int | None, Option(min=1, help="Number of test texts, as of `measure`.  [default: all]")] = None,
    seed: Annotated[int, Option(min=0, help="Seed for the choice of texts, as of `measure`.")] = 0,
) -> None:
    """Write scores to a file: of a measure, or a model's own.

    `faithmeter measure RUN --scores FILE` judges such a file, whoever wrote it.
    """
    if self_explanation and measure is not None:
        raise InputError("A self-explanation is made by no measure: give --measure or --self-explanation, not both.")
    if (question or new_tokens) is not None and not self_explanation:
        raise InputError("--question and --new-tokens are for a model that is asked: add --self-explanation.")
    refuse_early(run, measures=measure)
    load_libraries()
    from faithmeter.runs.run import Run
    from faithmeter.studies import scores as study
    from faithmeter.studies.self_explanation import NEW_TOKENS, SelfExplanationOptions
    from faithmeter.studies.self_explanation import self_explanation as asked

    if self_explanation:
        spelt = None if question is None else question.replace("\\n", "\n")
        asking = SelfExplanationOptions(spelt, new_tokens or NEW_TOKENS, target or "predicted", rows, seed)
        written = asked(run, out, asking, reporter=terminal())
    else:
        options = study.ScoresOptions(measure or Run(run).measure_to_use, target or "gold", rows, seed)
        written = study.scores(run, out, options, reporter=terminal())
    console.print(f"Scores: {written}", soft_wrap=True, markup=False)
