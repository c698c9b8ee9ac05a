"""Check: is masking in-distribution for a model?"""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from faithmeter.cli.options import (
    SUBJECT,
    Data,
    MaskedBefore,
    MaxLength,
    RunOption,
    either,
    load_libraries,
    names_in,
    require_subject,
    run_of,
)
from faithmeter.cli.printing import print_check, terminal
from faithmeter.errors import require_choice


def check(
    subject: Annotated[str, Argument(metavar="RUN|MODEL", help=SUBJECT)],
    data: Data,
    form: Annotated[str, Option(help=f"{either('studies.check.FORMS')}; calibrated holds its level.")] = "calibrated",
    rows: Annotated[int, Option(min=4, help="Validation texts to fit the test on, drawn at random.")] = 6000,
    other: Annotated[
        Path | None,
        Option(help="A file of texts from another domain (a table with a column `text`): how many are found?"),
    ] = None,
    operator: Annotated[
        str | None,
        Option(
            help=f"How tokens are removed: {either('models.operators.OPERATORS')}.  [default: as in training, or mask]"
        ),
    ] = None,
    run: RunOption = None,
    masked_before: MaskedBefore = False,
    max_length: MaxLength = None,
) -> None:
    """Test whether masked texts are in-distribution for a model.

    Fits MaSF on the validation split. Without it a masking curve cannot be trusted.
    """
    require_subject(subject, data, run, masked_before or max_length is not None)
    require_choice("form", form, names_in("studies.check.FORMS"))
    if operator is not None:
        require_choice("operator", operator, names_in("models.operators.OPERATORS"))
    if other is not None:
        from faithmeter.data.tables import require_table

        require_table(other)
    load_libraries()
    from faithmeter.data.tables import texts_of
    from faithmeter.runs.run import Run
    from faithmeter.studies import check as study

    reporter = terminal()
    elsewhere = [] if other is None else texts_of(other)
    path = run_of(subject, data, run, masked_before, max_length, reporter)
    verdicts = study.check(path, form=form, rows=rows, other=elsewhere, operator=operator, reporter=reporter)
    words = study.in_words(path, operator) if form == "calibrated" else None
    print_check(verdicts, words, Run(path, operator).results)
