"""The command `faithmeter audit`: parses, calls the study, prints."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from faithmeter.cli.options import MEASURES, either, load_libraries, names, names_in, refuse_early, several
from faithmeter.cli.printing import hint, print_section, terminal


def audit(
    run: Annotated[Path, Argument(help="A trained run.")],
    judges: Annotated[
        str | None,
        Option(
            help=f"{several('judges.table.JUDGES')}.  [default: all that apply except "
            f"{' and '.join(names_in('judges.table.ON_REQUEST'))}]"
        ),
    ] = None,
    measures: Annotated[
        str | None,
        Option(
            help=f"{MEASURES}  [default: all but {', '.join(names_in('importance.table.ORDER_ONLY'))}, "
            f"{', '.join(names_in('importance.table.ON_REQUEST'))}]"
        ),
    ] = None,
    rows: Annotated[
        int | None, Option(min=1, help="Test texts per judge, drawn at random.  [default: 20 to 200]")
    ] = None,
    place: Annotated[str, Option(help=f"Where the known token goes: {either('judges.known_token.PLACES')}.")] = "end",
    rationales: Annotated[
        str | None, Option(help="Column of the test data with human rationales; of both texts: COLUMN,CONTEXT_COLUMN.")
    ] = None,
    adversary_steps: Annotated[int, Option(min=1, help="Steps of an adversarial attack on an explanation.")] = 500,
    attacks: Annotated[
        str | None,
        Option(
            help=f"Attacks on texts, as --kinds of `faithmeter attack`: {several('attacks.kinds.ATTACKS')}.  "
            f"[default: {','.join(names_in('attacks.kinds.DEFAULT_KINDS'))}]"
        ),
    ] = None,
    budget: Annotated[float, Option(help="Maximum share of a text's words that an attack changes.")] = 0.2,
    scores: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="Explanations from elsewhere to judge, as of `faithmeter measure`, by judges that need no other.",
        ),
    ] = None,
    other: Annotated[Path | None, Option(help="A run that differs only in the training seed, for other-seed.")] = None,
    seed: Annotated[int, Option(min=0, help="Seed for texts, samples, fresh weights and attacks.")] = 0,
) -> None:
    """Judge explanations by other methods of the literature.

    Reports whether the judges agree. The same command resumes an interrupted audit.
    """
    refuse_early(run, measures=measures)
    load_libraries()
    from faithmeter.reports.audit import audit_sections
    from faithmeter.studies import audit as study

    options = study.AuditOptions(
        judges=None if judges is None else names(judges),
        measures=None if measures is None else names(measures),
        rows=rows,
        seed=seed,
        place=place,
        rationales=rationales,
        adversary_steps=adversary_steps,
        budget=budget,
        **({} if attacks is None else {"attacks": names(attacks)}),
        other=other,
        scores=() if scores is None else names(scores),
    )
    audited = study.audit(run, options, reporter=terminal())
    for section in audit_sections(audited.results):
        print_section(section)
    hint(f"`faithmeter report {run}` shows all of it with figures.")
