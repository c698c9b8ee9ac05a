"""Explain: which words of a text decided the prediction?"""

import json
import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from faithmeter.cli.options import either, load_libraries, names_in, refuse_early
from faithmeter.cli.printing import console, errors, print_explanation, terminal
from faithmeter.errors import InputError, require_choice


def explain(
    run: Annotated[Path, Argument(help="A trained run.")],
    text: Annotated[str | None, Argument(help="The text.  [default: lines of --file, or of standard input]")] = None,
    context: Annotated[str | None, Option(help="The second text of a pair.")] = None,
    file: Annotated[
        Path | None, Option(help="Texts to explain: one per line, or a table with the run's columns.")
    ] = None,
    measure: Annotated[
        str | None,
        Option(help=f"{', '.join(names_in('importance.table.IMPORTANCE_MEASURES'))}.  [default: the most faithful]"),
    ] = None,
    budget: Annotated[
        float | None,
        Option(metavar="SECONDS", help="Use the most faithful measure that needs at most this per text."),
    ] = None,
    target: Annotated[str, Option(help="Class to explain: predicted, or a class name.")] = "predicted",
    tokens: Annotated[bool, Option("--tokens", help="Show tokens instead of words.")] = False,
    by: Annotated[
        str | None,
        Option(help=f"Explain by {either('data.units.UNITS')}.  [default: as the run was measured, or token]"),
    ] = None,
    chunk: Annotated[int | None, Option(min=1, help="Maximum tokens per chunk.  [default: as measured, or 16]")] = None,
    orders: Annotated[
        int, Option(help="Random orders to test each explanation against: 19 or more, or 0 for no test.")
    ] = 99,
    operator: Annotated[
        str | None,
        Option(
            help=f"How tokens are removed: {either('models.operators.OPERATORS')}.  [default: as in training, or mask]"
        ),
    ] = None,
    as_json: Annotated[bool, Option("--json", help="One JSON object per line, for machines.")] = False,
) -> None:
    """Explain texts: which words decided the prediction?

    Each explanation is printed with its own faithfulness.
    """
    texts, contexts = _texts(run, text, context, file)
    refuse_early(measures=measure)
    from faithmeter.explaining.options import ExplainOptions, require_target
    from faithmeter.runs.directory import settings_of

    options = ExplainOptions(target=target, by=by, chunk=chunk, orders=orders)
    if operator is not None:
        require_choice("operator", operator, names_in("models.operators.OPERATORS"))
    require_target(target, settings_of(run)["labels"])
    load_libraries()  # after all that can be refused without them
    from faithmeter.studies import explain as study

    reporter = terminal(errors if as_json else console)  # standard output has JSON only
    found = study.explain(
        run, texts, contexts, options, measure=measure, budget=budget, operator=operator, reporter=reporter
    )
    for explanation in found:
        if as_json:
            print(json.dumps(explanation.as_row(), ensure_ascii=False))
        else:
            print_explanation(explanation, tokens)


def _texts(run: Path, text: str | None, context: str | None, file: Path | None) -> tuple[list[str], list[str] | None]:
    """Return the texts to explain and their contexts, from the arguments, a file, or standard input."""
    from faithmeter.data.splits import DataSpec
    from faithmeter.data.tables import lines_of
    from faithmeter.runs.directory import read_texts, require_pairs, settings_of

    data = DataSpec(**settings_of(run)["data"])
    if text is None and file is not None and file.suffix != ".txt":
        return read_texts(data, file)
    require_pairs(data, contexts=context is not None)
    if text is not None:
        return [text], None if context is None else [context]
    try:
        lines = list(sys.stdin) if file is None else lines_of(file)
    except UnicodeDecodeError as error:
        raise InputError(f"Standard input is not {error.encoding}: convert it, for example with `iconv`.") from error
    texts = [line.rstrip("\n") for line in lines if line.strip()]
    if not texts:
        raise InputError("There is no text to explain: give a text, a file with --file, or lines on standard input.")
    return texts, None if context is None else [context] * len(texts)
