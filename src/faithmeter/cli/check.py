"""Check: is masking in-distribution for a model?"""

from typing import Annotated

import typer

from faithmeter.cli.options import SUBJECT, Data, MaskedBefore, MaxLength, RunOption, load_libraries, run_of
from faithmeter.cli.printing import console, print_check
from faithmeter.progress import Terminal


def check(
    subject: Annotated[str, typer.Argument(metavar="RUN|MODEL", help=SUBJECT)],
    data: Data,
    form: Annotated[str, typer.Option(help="calibrated (holds its level) or paper.")] = "calibrated",
    rows: Annotated[int, typer.Option(min=4, help="Validation rows to fit the test on, drawn at random.")] = 6000,
    run: RunOption = None,
    masked_before: MaskedBefore = False,
    max_length: MaxLength = None,
) -> None:
    """Ask whether masking is in-distribution for a model: MaSF, fitted on the validation split."""
    load_libraries()
    from faithmeter.runs.run import Run
    from faithmeter.studies import check as study

    reporter = Terminal(console)
    path = run_of(subject, data, run, masked_before, max_length, reporter)
    verdicts = study.check(path, form=form, rows=rows, reporter=reporter)
    words = study.in_words(path, verdicts) if form == "calibrated" else None
    print_check(verdicts, words, Run(path).results)
