"""Prints tables and messages to the terminal. Nothing is computed here."""

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from faithmeter.problems import NUMBER
from faithmeter.progress import SafeConsole, Terminal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from faithmeter.explaining.explanation import Explanation, Piece
    from faithmeter.in_distribution.verdict import Verdict
    from faithmeter.reports.parts import Section
    from faithmeter.reports.parts import Table as ReportTable
    from faithmeter.runs.results import Rows
    from faithmeter.runs.run import Run

console = SafeConsole(highlight=False)
errors = SafeConsole(stderr=True, highlight=False)
quiet: ContextVar[bool] = ContextVar("quiet", default=False)  # set by `faithmeter --quiet`


def terminal(to: Console = console) -> Terminal:
    """Return the reporter that prints progress to the terminal; with --quiet it prints only warnings."""
    return Terminal(to, quiet=quiet.get())


def hint(text: str) -> None:
    """Print a note that is not a result, such as what to do next; --quiet suppresses it."""
    terminal().note(text)


def print_performance(run: "Run") -> None:
    """Print the performance of a run's model, masked and unmasked."""
    from faithmeter.runs.results import find

    rows, config = run.results, run.config
    table = Table(title=f"{config.subject}, {config.how}", box=None)
    table.add_column("tokens masked")
    table.add_column(f"test {config.metric}", justify="right")
    for ratio, name in ((0.0, "none"), (0.5, "50 %, at random"), (1.0, "100 %")):
        table.add_row(name, f"{find(rows, 'performance', ratio=ratio)['value']:.3f}")
    table.add_row(config.problem.blind, f"{find(rows, 'majority')['value']:.3f}")
    console.print(table)
    library = "peft" if config.training is not None and config.training.lora else "transformers"
    console.print(f"Run: {run.path}. Model, for {library}: {run.model_folder}.", soft_wrap=True)


def print_check(verdicts: "Sequence[Verdict]", words: str | None, rows: "Rows") -> None:
    """Print the verdict at every masking ratio, and its summary; None where the test allows no verdict.

    The run's result rows include the test against unmasked texts, if there is one.
    """
    from faithmeter.runs.results import find, rows_of

    table = Table(box=None)
    for column in ("tokens masked", "texts below 5 %", "texts OOD", "p-value", "Simes p"):
        table.add_column(column, justify="right", no_wrap=True)
    for verdict in verdicts:
        table.add_row(
            f"{10 * verdict.step} %",
            f"{100 * verdict.random.share_below:.1f} %",
            f"{100 * verdict.anywhere.share_below:.1f} %",
            "none" if words is None else f"{verdict.anywhere.dataset_p_value:.3f}",
            f"{verdict.random.simes_p_value:.3f}",
        )
    console.print(table)
    shares = rows_of(rows, "check_unmasked_share_out_of_distribution")
    if shares:
        beside = Table(title="Against unmasked texts", title_justify="left", box=None)
        for column in ("tokens masked", "texts OOD", "p-value"):
            beside.add_column(column, justify="right", no_wrap=True)
        for row in shares:
            ratio = row["masking_ratio"]
            p_value = find(rows, "check_unmasked_p_value", ratio=ratio)["value"]
            beside.add_row(f"{100 * ratio:.0f} %", f"{100 * row['value']:.1f} %", f"{p_value:.3f}")
        console.print(beside)
    if words is not None:
        console.print(words, soft_wrap=True, markup=False)


def print_faithfulness(rows: "Rows") -> None:
    """Print the measures of one run, or of several pooled, the most faithful first."""
    from faithmeter.runs.results import find, letters, measures, number, over_each, p_in_words, rows_of

    pooled = any(row["over"] == "seeds" for row in rows)
    table = Table(box=None, padding=(0, 1, 0, 0))  # narrow: intervals and letters in 80 columns
    alike = ["alike"] if rows_of(rows, "best_set") else []
    for column in ("measure", *alike, "ACU (95 %)", "RACU (95 %)", "s/text", "OOD", "p", "runs" if pooled else "texts"):
        table.add_column(column, justify="left" if column in ("measure", "alike") else "right", no_wrap=True)
    found = [find(rows, "acu", name) for name in measures(rows)]
    for acu in found:
        name = acu["measure"]
        out = [row["value"] for row in rows_of(rows, "share_out_of_distribution", name)]
        p_value = find(rows, "walk_p_value", name)["value"]
        table.add_row(
            name,
            *([letters(rows, name)] if alike else []),
            number(acu),
            number(find(rows, "racu", name)),
            f"{find(rows, 'seconds_per_text', name)['value']:.3f}",
            f"{100 * max(out):.0f} %" if out else "?",
            "?" if p_value is None else p_in_words(p_value).replace(" 0", ""),
            str(acu["n"]),
        )
    console.print(table)
    from faithmeter.reports.sentences import (
        baseline_in_words,
        explained_once,
        verdict,
    )  # here: importing it loads torch

    console.print(
        f"{'Measures that share a letter cannot be told apart. ' if alike else ''}"
        "ACU: area by which performance falls faster than under random masking; RACU: that, relative to an immediate "
        f"fall. Intervals over {over_each(found)}. s/text: seconds to explain one text along the "
        "whole curve. OOD: largest share of out-of-distribution texts at any step; p: p-value of all steps together. "
        f"{baseline_in_words(rows)}",
        soft_wrap=True,
    )
    console.print("\n".join((*explained_once(rows), *verdict(rows))), soft_wrap=True, markup=False)


def _number(value: float | None) -> str:
    return "none" if value is None or value != value else f"{value:.3f}"


def print_explanation(explanation: "Explanation", tokens: bool) -> None:
    """Print the text coloured: orange supports the class, blue opposes it, stronger means more important.

    A warning precedes a truncated text; warnings about all explanations of a run are printed once by its study.
    """
    if explanation.cut is not None:
        console.print(f"Warning: {explanation.cut}", style="yellow", markup=False, soft_wrap=True)
    pieces = explanation.tokens if tokens else explanation.pieces
    beside = explanation.context_tokens if tokens else explanation.context_pieces
    strongest = max((abs(piece.importance) for piece in (*pieces, *beside)), default=0.0) or 1.0
    console.print(_painted(explanation.text, pieces, strongest), soft_wrap=True)
    if beside and explanation.context is not None:
        console.print(_painted(explanation.context, beside, strongest), soft_wrap=True)
    answer = f"{explanation.predicted} (p({explanation.target}) = {explanation.probability:.3f})"
    if explanation.problem == NUMBER:
        answer = explanation.answer
    p_value = "not tested" if explanation.p_value is None else f"{explanation.p_value:.3f}"
    console.print(
        f"{answer} by {explanation.measure}; "
        f"faithfulness of this explanation: ACU {explanation.acu:.3f}, RACU {_number(explanation.racu)}; "
        f"in-distribution p-value: {p_value}",
        soft_wrap=True,
        markup=False,
    )
    if explanation.against_orders is not None:
        console.print(explanation.against_orders, soft_wrap=True, markup=False)
    top = sorted((*pieces, *beside), key=lambda piece: -abs(piece.importance))[:5]
    console.print("  ".join(f"{piece.text} {piece.importance:+.3f}" for piece in top), soft_wrap=True, markup=False)


def _painted(text: str, pieces: "Sequence[Piece]", strongest: float) -> Text:
    """Return a text with its pieces coloured; `strongest` is the importance of the fullest colour."""
    painted, end = Text(), 0
    for piece in pieces:
        painted.append(text[end : piece.start])
        share = abs(piece.importance) / strongest
        red, green, blue = (213, 94, 0) if piece.importance > 0 else (0, 114, 178)
        shade = ",".join(str(round(255 + share * (channel - 255))) for channel in (red, green, blue))
        painted.append(piece.text, style=f"black on rgb({shade})")
        end = piece.end
    painted.append(text[end:])
    return painted


def print_table(table: "ReportTable") -> None:
    """Print a table of a report."""
    shown = Table(title=table.title, box=None)
    for place, column in enumerate(table.columns):
        shown.add_column(column, justify="right" if place else "left", overflow="fold")
    for row in table.rows:
        shown.add_row(*row)
    console.print(shown)


def print_section(section: "Section") -> None:
    """Print a section of a report: its title, tables and sentences."""
    console.print(f"\n{section.title}", style="bold", markup=False)
    for table in section.tables:
        print_table(table)
    for sentence in (*section.words, *section.cautions):
        console.print(sentence, markup=False, soft_wrap=True)


def print_tasks(rows: "Sequence[dict[str, Any]]") -> None:
    """Print the named tasks."""
    table = Table(box=None, pad_edge=False)
    for column in rows[0]:
        table.add_column(column, no_wrap=column != "about")
    for row in rows:
        table.add_row(*map(str, row.values()))
    console.print(table)
    console.print(
        "\ndata: `hub` needs a connection; `files` means --data-dir DIR; `package` needs the extra `sentiment`."
    )
