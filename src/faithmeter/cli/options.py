"""What commands share: help in panels, the options for data and runs, and libraries that are loaded late."""

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from faithmeter.cli.choices import either, several
from faithmeter.cli.printing import print_performance
from faithmeter.errors import InputError, require_finite

if TYPE_CHECKING:
    from faithmeter.data.splits import DataSpec
    from faithmeter.progress import Reporter

DATA, TRAINED = "Data", "A MODEL in place of a RUN"  # panels of --help
UNBROKEN = "\N{NON-BREAKING HYPHEN}"
MEASURES = f"Importance measures: {several('importance.table.IMPORTANCE_MEASURES')}."


class Command(TyperCommand):
    """A command whose --help groups its options in panels: its own first, then each panel in the order of options."""

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 (classes that typer keeps to itself)
        """Write arguments and options, a section for each panel."""
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
            panel = getattr(parameter, "rich_help_panel", None) or usual
            record = parameter.get_help_record(ctx)
            if record is not None:  # the name of a choice is not broken at its hyphens
                panels.setdefault(panel, []).append((record[0], record[1].replace("-", UNBROKEN)))
        for title, records in panels.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
        formatter.buffer = [text.replace(UNBROKEN, "-") for text in formatter.buffer]


def load_libraries() -> None:
    """Import torch and transformers, which takes seconds, only when there is work to do, and silence their logs."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def required(data: "DataSpec | None") -> "DataSpec":
    """Return the data that the options name; raise InputError if they name none."""
    if data is None:
        raise InputError("Give either --task NAME (see `faithmeter tasks`) or --data FILE, and not both.")
    return data


def names(listed: str) -> tuple[str, ...]:
    """Return the names of an option that lists them."""
    return tuple(name.strip() for name in listed.split(","))


def numbers(listed: str) -> tuple[int, ...]:
    """Return the seeds of an option that lists them."""
    try:
        return tuple(dict.fromkeys(int(name) for name in listed.split(",")))
    except ValueError as error:
        raise InputError(f"Seeds are whole numbers separated by commas, such as 0,1,2; not {listed!r}.") from error


def _data_spec(
    task: Annotated[str | None, typer.Option(help="A named task; `faithmeter tasks` lists them.")] = None,
    data: Annotated[
        str | None, typer.Option(help="Your own csv, tsv, jsonl(.gz) or parquet file, or a folder with train, test ...")
    ] = None,
    validation_data: Annotated[str | None, typer.Option(help="Validation file; else split off --data.")] = None,
    test_data: Annotated[str | None, typer.Option(help="Test file; else split off --data.")] = None,
    data_dir: Annotated[
        str | None, typer.Option(help="Folder with a named task's files: DIR/sst2/train.csv ...")
    ] = None,
    text: Annotated[str, typer.Option(help="Column with the text, which is masked and explained.")] = "text",
    context: Annotated[str | None, typer.Option(help="Column with the second text of a pair; never masked.")] = None,
    label: Annotated[str, typer.Option(help="Column with the label: words or numbers.")] = "label",
    metric: Annotated[str, typer.Option(help=f"With --data: {either('performance.METRICS')}.")] = "accuracy",
    classes: Annotated[str | None, typer.Option(help="Other names for labels: neg=negative,pos=positive.")] = None,
    clean_labels: Annotated[
        bool, typer.Option("--clean-labels", help="Merge labels that differ only in case or surrounding spaces.")
    ] = False,
    train_rows: Annotated[int | None, typer.Option(min=1, help="Number of training texts, drawn at random.")] = None,
    validation_rows: Annotated[int | None, typer.Option(min=1, help="Number of validation texts.")] = None,
    test_rows: Annotated[int | None, typer.Option(min=1, help="Number of test texts.")] = None,
    data_seed: Annotated[int, typer.Option(min=0, help="Seed for generated data, splits and subsets.")] = 0,
) -> "DataSpec | None":
    """Return the data that the options name; None where they name none."""
    given = locals()
    if task is None and data is None:
        defaults = {name: parameter.default for name, parameter in inspect.signature(_data_spec).parameters.items()}
        said = next((name for name, value in given.items() if value != defaults[name]), None)
        if said is not None:
            raise InputError(
                f"--{said.replace('_', '-')} describes data, but no data is named. A run uses the data it was made "
                "with; a model needs --data or --task."
            )
        return None
    from faithmeter.data.splits import DataSpec  # takes seconds

    seed = given.pop("data_seed")
    return DataSpec(**given, seed=seed)


def with_finite_numbers(command: Callable[..., Any]) -> Callable[..., Any]:
    """Make a command reject options that are NaN or infinite."""

    @wraps(command)
    def called(**given: Any) -> Any:  # noqa: ANN401 (whatever the options are)
        require_finite(given)
        return command(**given)

    return called


Data = Annotated[Any, "the options of _data_spec"]


def with_data_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace a command's parameter `data` by the options of `_data_spec`, in their own panel."""
    own, shared = (list(inspect.signature(function).parameters.values()) for function in (command, _data_spec))
    names = [parameter.name for parameter in shared]
    for parameter in shared:
        (option,) = parameter.annotation.__metadata__
        option.rich_help_panel = DATA

    @wraps(command)
    def called(**given: Any) -> None:  # noqa: ANN401 (whatever the options are)
        spec = _data_spec(**{name: given.pop(name) for name in names})
        command(**given, data=spec)

    together = [p.replace(kind=p.KEYWORD_ONLY) for p in (*own, *shared) if p.annotation is not Data]
    called.__signature__ = inspect.Signature(together)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in together}
    return called


# --------------------------------------------------------------------------- a run, or a model trained elsewhere

SUBJECT = "A trained run; or, with --data or --task, the folder or hub name of a trained classifier."
RunOption = Annotated[
    Path | None,
    typer.Option(help="Run directory for the model and its results.  [default: runs/NAME]", rich_help_panel=TRAINED),
]
MaskedBefore = Annotated[
    bool,
    typer.Option("--masked-before", help="The model was fine-tuned on masked texts.", rich_help_panel=TRAINED),
]
MaxLength = Annotated[
    int | None,
    typer.Option(min=1, help="Truncate texts to this many tokens.  [default: 512]", rich_help_panel=TRAINED),
]


def run_of(
    subject: str,
    data: "DataSpec | None",
    run: Path | None,
    masked_before: bool,
    max_length: int | None,
    reporter: "Reporter",
) -> Path:
    """Return the run that a command is given, and create one for a model trained elsewhere."""
    if data is None:
        if run is not None or masked_before or max_length is not None:
            said = "--run, --masked-before and --max-length apply only to a model with --data or --task"
            raise InputError(f"{said}; a run keeps its own settings.")
        return Path(subject)
    path = run or Path("runs") / Path(subject).resolve().name
    if path.resolve() == Path(subject).resolve():
        raise InputError(f"{path} is the model itself: choose another directory for the run with --run.")
    known = path.exists()
    from faithmeter.studies.adopt import adopt

    adopted = adopt(path, subject, data, masked_before=masked_before, max_length=max_length or 512, reporter=reporter)
    if not known:
        print_performance(adopted)
    return path
