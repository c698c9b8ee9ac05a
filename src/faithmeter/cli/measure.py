"""Measure: how faithful are importance measures to a model?"""

from typing import Annotated

from typer import Argument, Option

from faithmeter.cli.options import (
    MEASURES,
    SUBJECT,
    Data,
    MaskedBefore,
    MaxLength,
    RunOption,
    either,
    load_libraries,
    names,
    names_in,
    refuse_early,
    require_subject,
    run_of,
    several,
)
from faithmeter.cli.printing import console, print_faithfulness, terminal
from faithmeter.errors import InputError, require_choice


def measure(
    subjects: Annotated[list[str], Argument(metavar="RUN|MODEL...", help=SUBJECT + " Several seeds are pooled.")],
    data: Data,
    measures: Annotated[
        str | None,
        Option(help=f"{MEASURES}  [default: all but {', '.join(names_in('importance.table.ON_REQUEST'))}]"),
    ] = None,
    target: Annotated[
        str, Option(help=f"Class whose logit is explained: {either('measuring.curves.TARGETS')}.")
    ] = "gold",
    rows: Annotated[int | None, Option(min=1, help="Number of test texts, drawn at random.  [default: all]")] = None,
    beam_rows: Annotated[
        int | None, Option(min=1, help="Test texts for beam search, which is expensive.  [default: --rows]")
    ] = None,
    random_runs: Annotated[int, Option(help="Random draws whose mean is the baseline.")] = 5,
    seed: Annotated[int, Option(min=0, help="Seed for the choice of texts and random masking.")] = 0,
    by: Annotated[str, Option(help=f"Mask and explain by {either('data.units.UNITS')}.")] = "token",
    chunk: Annotated[int, Option(min=1, help="Maximum tokens per chunk; words are not split.")] = 16,
    until_certain: Annotated[
        bool,
        Option(
            "--until-certain",
            help="Measure in rounds, in one process: drop measures that surely are not best, and stop once more texts "
            "would change nothing.",
        ),
    ] = False,
    scores: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="Explanations from elsewhere to judge: row, start, end, score, or row, scores; several with commas.",
        ),
    ] = None,
    without_check: Annotated[bool, Option("--without-check", help="Measure without the in-distribution test.")] = False,
    dtype: Annotated[
        str, Option(help=f"What the model computes in: {either('studies.measure.DTYPES')}; 16 bits round more.")
    ] = "float32",
    operators: Annotated[
        str | None,
        Option(
            help=f"Ways to remove tokens, each measured: {several('models.operators.OPERATORS')}.  [default: as in "
            "training, or mask]"
        ),
    ] = None,
    workers: Annotated[
        int | None,
        Option(min=1, help="Processes.  [default: one per core, at most 8, or per GPU; one under a minute]"),
    ] = None,
    run: RunOption = None,
    masked_before: MaskedBefore = False,
    max_length: MaxLength = None,
) -> None:
    """Measure how faithful importance measures are to a model.

    Gives ACU and RACU with intervals. The same command resumes an interrupted measurement.
    """
    if run is not None and len(subjects) > 1:
        raise InputError("--run is the directory of one model: measure models one by one, then their runs together.")
    for subject in subjects:
        require_subject(subject, data, run, masked_before or max_length is not None)
    refuse_early(measures=measures)
    for operator in () if operators is None else names(operators):
        require_choice("operator", operator, names_in("models.operators.OPERATORS"))
    load_libraries()
    from faithmeter.runs.repetitions import require_repetitions
    from faithmeter.runs.run import Run
    from faithmeter.studies import measure as study
    from faithmeter.studies.faithfulness_rows import pool

    reporter = terminal()
    options = study.MeasureOptions(
        measures=None if measures is None else names(measures),
        target=target,
        rows=rows,
        beam_rows=beam_rows,
        random_runs=random_runs,
        seed=seed,
        without_check=without_check,
        by=by,
        chunk=chunk,
        until_certain=until_certain,
        scores=() if scores is None else names(scores),
        dtype=dtype,
        operators=() if operators is None else names(operators),
    )
    paths = [run_of(subject, data, run, masked_before, max_length, reporter) for subject in subjects]
    if len(paths) > 1:  # before hours of work on what cannot be pooled
        require_repetitions([Run(path) for path in paths])
    measured = []
    for path in paths:
        if len(paths) > 1:
            console.print(f"{path}:")
        measured.append(study.measure(path, options, workers=workers, reporter=reporter))
        for operator in options.operators or (measured[-1].operator,):
            if len(options.operators) > 1:
                console.print(f"\nTokens removed by {operator}:")
            print_faithfulness(measured[-1].by(operator).results)
    for operator in (options.operators or (measured[0].operator,)) if len(measured) > 1 else ():
        by = f", tokens removed by {operator}" if options.operators else ""
        console.print(f"\nAll {len(measured)} runs together{by}:")
        print_faithfulness(pool([one.by(operator) for one in measured]))
