"""The command `faithmeter attack`: parses, calls the study, prints."""

import json
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from faithmeter.cli.options import load_libraries, names, names_in, refuse_early, several
from faithmeter.cli.printing import console, hint, print_section, terminal
from faithmeter.progress import OnlyWarnings

EXAMPLES = 3


def attack(
    run: Annotated[Path, Argument(help="A trained run.")],
    rows: Annotated[int, Option(min=1, help="Test texts to attack, drawn at random.")] = 200,
    kinds: Annotated[
        str | None,
        Option(
            help=f"{several('attacks.kinds.ATTACKS')}.  [default: {','.join(names_in('attacks.kinds.DEFAULT_KINDS'))}]"
        ),
    ] = None,
    budget: Annotated[float, Option(help="Maximum share of a text's words to change, rounded up.")] = 0.2,
    seed: Annotated[int, Option(min=0, help="Seed for the choice of texts and misspellings.")] = 0,
    as_json: Annotated[bool, Option("--json", help="One JSON object per line, for machines.")] = False,
) -> None:
    """Change words of test texts until the prediction changes.

    Reports how often that succeeds and how many words it takes. Attacked texts are kept in the run.
    """
    refuse_early(run)
    load_libraries()
    from faithmeter.reports.attack import attack_sections
    from faithmeter.studies import attack as study

    chosen = {} if kinds is None else {"kinds": names(kinds)}
    reporter = OnlyWarnings() if as_json else terminal()
    attacked = study.attack(run, rows=rows, budget=budget, seed=seed, reporter=reporter, **chosen)
    found = study.attacked_rows(attacked)
    if as_json:
        for row in found:
            print(json.dumps(row, ensure_ascii=False))
        return
    for section in attack_sections(attacked.results):
        print_section(section)
    for row in [row for row in found if row["succeeded"]][:EXAMPLES]:
        console.print(f"\n{row['before']}: {row['text']}", markup=False, highlight=False, soft_wrap=True)
        console.print(f"{row['after']}: {row['attacked']}", markup=False, highlight=False, soft_wrap=True)
    hint(f"\nEvery text is in {attacked.attacks}; `faithmeter report {run}` shows the table.")
