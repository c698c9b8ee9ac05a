"""The command `faithmeter audit`: parses, calls the job, prints."""

from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperCommand

from faithmeter.cli.options import load_libraries, names
from faithmeter.cli.printing import console, print_section
from faithmeter.progress import Terminal


class AuditCommand(TyperCommand):
    """The command, whose help names the judges of the table: read only when somebody asks, for it loads torch."""

    def get_help(self, ctx: typer.Context) -> str:  # type: ignore[override]
        """Return the help text."""
        from faithmeter.judges.battery import JUDGES

        (option,) = (option for option in self.params if option.name == "judges")
        on_request = " and ".join(sorted(judge.name for judge in JUDGES.values() if judge.on_request))
        option.help = f"{', '.join(JUDGES)}; several with commas.  [default: all that can but {on_request}]"  # type: ignore
        return super().get_help(ctx)


def audit(
    run: Annotated[Path, typer.Argument(help="A trained run.")],
    judges: Annotated[
        str | None,
        typer.Option(help="Names of judges, separated by commas."),
    ] = None,
    measures: Annotated[
        str | None,
        typer.Option(help="Importance measures, separated by commas.  [default: all but beam, search and ensembles]"),
    ] = None,
    rows: Annotated[
        int | None, typer.Option(min=1, help="Test rows for each judge, drawn at random.  [default: 20 to 200]")
    ] = None,
    place: Annotated[str, typer.Option(help="Where the known token goes: end or anywhere.")] = "end",
    rationales: Annotated[
        str | None, typer.Option(help="Column of the test data with what people marked as the reason.")
    ] = None,
    adversary_steps: Annotated[int, typer.Option(min=1, help="Steps of an attack on an explanation.")] = 500,
    attacks: Annotated[
        str | None,
        typer.Option(help="Attacks on texts, as --kinds of `faithmeter attack`.  [default: replace,characters]"),
    ] = None,
    budget: Annotated[float, typer.Option(help="Largest share of a text's words that an attack changes.")] = 0.2,
    other: Annotated[
        Path | None, typer.Option(help="A run that differs in its training's seed alone, for the judge other-seed.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of rows, samples, fresh weights and attacks.")] = 0,
) -> None:
    """Judge explanations in every other way the literature has; do the judges agree? Goes on where it was stopped."""
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
    )
    audited = study.audit(run, options, reporter=Terminal(console))
    for section in audit_sections(audited.results):
        print_section(section)
    console.print(f"`faithmeter report {run}` draws it all.", soft_wrap=True)
