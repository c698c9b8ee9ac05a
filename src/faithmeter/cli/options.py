"""What commands share: choices and panels of --help, options for data and runs, and libraries that are loaded late."""

import ast
import atexit
import gc
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option
from typer.core import TyperCommand

from faithmeter.cli.printing import print_performance
from faithmeter.errors import InputError, require_finite, require_measure

if TYPE_CHECKING:
    from faithmeter.data.splits import DataSpec
    from faithmeter.progress import Reporter

DATA, TRAINED = "Data", "A MODEL in place of a RUN"  # panels of --help
UNBROKEN = "\N{NON-BREAKING HYPHEN}"
PACKAGE = Path(__file__).parents[1]
Row = tuple[str, frozenset[str]]  # a name, and the flags that are true of it


# --------------------------------------------------------------------------------- the choices that --help lists
# are the names in tables of the package, read from their source: importing a table would load torch, which takes
# seconds, and --help should be immediate. A table is a constant of a module: names, rows whose first argument is a
# name, a dictionary of either, or the rows of another table that have a flag. A new row appears automatically.


def either(table: str) -> str:
    """Return the names of a table, of which one is chosen: `a, b or c`."""
    *first, last = names_in(table)
    return f"{', '.join(first)} or {last}" if first else last


def several(table: str) -> str:
    """Return the names of a table, of which several can be chosen."""
    return f"{', '.join(names_in(table))}; several with commas"


def names_in(table: str) -> tuple[str, ...]:
    """Return the names in a table of the package, such as `training.strategy.STRATEGIES`, in its order."""
    return tuple(name for name, _ in _table(table))


@cache
def _table(table: str) -> tuple[Row, ...]:
    module, _, name = table.rpartition(".")
    for node in _statements(module, name):
        if isinstance(node, ast.ImportFrom) and name in (alias.asname or alias.name for alias in node.names):
            original = next(alias.name for alias in node.names if (alias.asname or alias.name) == name)
            return _table(f"{node.module}.{original}".removeprefix("faithmeter."))
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name) and target.id == name:
                    return _rows(node.value, module)
                unpacked = [ast.unparse(part) for part in target.elts] if isinstance(target, ast.Tuple) else []
                if name in unpacked:
                    return (_rows(node.value, module)[unpacked.index(name)],)
    raise LookupError(f"there is no table {table}")


def _rows(value: ast.expr, module: str) -> tuple[Row, ...]:
    """Return the rows that an expression stands for: its own, or those of what it is made of."""
    match value:
        case ast.Constant(value=str(name)):
            return ((name, frozenset()),)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return tuple(row for part in parts for row in _rows(part, module))
        case ast.Dict(keys=keys):
            return tuple(row for key in keys if key is not None for row in _rows(key, module))
        case ast.Starred(value=table):
            return _rows(table, module)
        case ast.Call(args=[first, *_], keywords=keywords):  # a row, or a MappingProxyType or tuple of a table
            true = {
                str(word.arg) for word in keywords if isinstance(word.value, ast.Constant) and word.value.value is True
            }
            return tuple((name, flags | true) for name, flags in _rows(first, module))
        case ast.DictComp(generators=[rows]) | ast.GeneratorExp(generators=[rows]):  # row.name for row in TABLE
            return tuple(row for row in _rows(rows.iter, module) if all(_holds(test, row) for test in rows.ifs))
        case ast.Name(id=name):
            return _table(f"{module}.{name}")
    raise LookupError(f"{module} has a table that cannot be read without importing it: {ast.unparse(value)[:80]}")


def _holds(test: ast.expr, row: Row) -> bool:
    """Whether a row is one of those that a table is cut down to: `if row.flag`, or `if not row.flag`."""
    match test:
        case ast.Attribute(attr=flag):
            return flag in row[1]
        case ast.UnaryOp(op=ast.Not(), operand=ast.Attribute(attr=flag)):
            return flag not in row[1]
    raise LookupError(f"a table cannot be cut down by {ast.unparse(test)} without importing it")


def _statements(module: str, name: str) -> Iterator[ast.stmt]:
    """Yield the statements at the top of a module that assign or import a name.

    No other is parsed: to parse whole modules took most of the time of --help.
    """
    assigned = re.compile(rf"(?:\w+\s*[,=]\s*)*{name}\b")
    for statement in _cut(module):
        if assigned.match(statement) or (statement.startswith("from ") and name in statement):
            with suppress(SyntaxError):  # a line of a docstring that looks like one
                yield from ast.parse(statement).body


@cache
def _cut(module: str) -> list[str]:
    """Return a module cut before every line that begins with a letter or a decorator."""
    path = PACKAGE.joinpath(*module.split("."))
    source = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
    return re.split(r"\n(?=[^\W\d]|@)", source)


# ------------------------------------------------------------------------------------------ what every command needs

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
    """Import torch and transformers, which takes seconds, only when there is work to do, and silence their logs.

    They make a million objects that stay until the end. Python would look through them for garbage again and again
    while they are imported, and once more when the process ends, which took nearly half of the time of a short command.
    """
    first = "torch" not in sys.modules  # else they are another's, as in a test or a notebook
    if first:
        gc.disable()
    try:
        import transformers.modeling_utils
    finally:
        if first:
            gc.freeze()
            gc.enable()
            atexit.register(gc.freeze)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def refuse_early(*runs: Path, measures: str | None = None) -> None:
    """Refuse what is no run, and names that no measure has: before libraries are loaded, which takes seconds."""
    from faithmeter.runs.directory import require_run

    for run in runs:
        require_run(run)
    for name in () if measures is None else names(measures):
        (once,) = names_in("importance.measure.ONCE")
        require_measure(name.removesuffix(once), names_in("importance.table.IMPORTANCE_MEASURES"))


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
    task: Annotated[str | None, Option(help="A named task; `faithmeter tasks` lists them.")] = None,
    data: Annotated[
        str | None, Option(help="Your own csv, tsv, jsonl(.gz) or parquet file, or a folder with train, test ...")
    ] = None,
    validation_data: Annotated[str | None, Option(help="Validation file; else split off --data.")] = None,
    test_data: Annotated[str | None, Option(help="Test file; else split off --data.")] = None,
    data_dir: Annotated[str | None, Option(help="Folder with a named task's files: DIR/sst2/train.csv ...")] = None,
    text: Annotated[str, Option(help="Column with the text, which is masked and explained.")] = "text",
    context: Annotated[str | None, Option(help="Column with the second text of a pair; not masked.")] = None,
    both_texts: Annotated[
        bool, Option("--both-texts", help="Mask and explain both texts of a pair, the second one too.")
    ] = False,
    label: Annotated[str, Option(help="Column with the class: words or numbers.")] = "label",
    labels: Annotated[
        str | None, Option(help="Several labels at once: 0/1 columns, as in toxic,threat; or one column of lists.")
    ] = None,
    number: Annotated[str | None, Option(help="Column with a number to predict, in place of a class.")] = None,
    group: Annotated[
        str | None,
        Option(help="Column of what several texts share, as their author: kept in one split, counted as one."),
    ] = None,
    metric: Annotated[
        str,
        Option(
            help=f"With --data: {either('performance.METRICS')}.  [default: accuracy; --labels: label-micro-f1; "
            "--number: r2]"
        ),
    ] = "",
    classes: Annotated[str | None, Option(help="Other names for labels: neg=negative,pos=positive.")] = None,
    clean_labels: Annotated[
        bool, Option("--clean-labels", help="Merge labels that differ only in case or surrounding spaces.")
    ] = False,
    train_rows: Annotated[int | None, Option(min=1, help="Number of training texts, drawn at random.")] = None,
    validation_rows: Annotated[int | None, Option(min=1, help="Number of validation texts.")] = None,
    test_rows: Annotated[int | None, Option(min=1, help="Number of test texts.")] = None,
    data_seed: Annotated[int, Option(min=0, help="Seed for generated data, splits and subsets.")] = 0,
    row_order: Annotated[
        str, Option(help=f"Rows of a file before splits: {either('data.splits.ROW_ORDERS')}; file as before 0.2.")
    ] = "content",
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
    from faithmeter.data.splits import DataSpec, require_data
    from faithmeter.performance import require_metric

    seed = given.pop("data_seed")
    spec = DataSpec(**given, seed=seed)
    require_data(spec)  # before the command loads its libraries, which takes seconds
    require_metric(spec.resolved().metric)
    return spec


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
    Option(help="Run directory for the model and its results.  [default: runs/NAME]", rich_help_panel=TRAINED),
]
MaskedBefore = Annotated[
    bool,
    Option("--masked-before", help="The model was fine-tuned on masked texts.", rich_help_panel=TRAINED),
]
MaxLength = Annotated[
    int | None,
    Option(min=1, help="Truncate texts to this many tokens.  [default: 512]", rich_help_panel=TRAINED),
]


def require_subject(subject: str, data: "DataSpec | None", run: Path | None, own_settings: bool) -> None:
    """Refuse a subject that is no run, or where --run and the like do not apply, before libraries are loaded.

    `own_settings` is whether options for a model were given.
    """
    if data is None:
        if run is not None or own_settings:
            said = "--run, --masked-before and --max-length apply only to a model with --data or --task"
            raise InputError(f"{said}; a run keeps its own settings.")
        refuse_early(Path(subject))
    elif _path_of(subject, run).resolve() == Path(subject).resolve():
        raise InputError(
            f"{_path_of(subject, run)} is the model itself: choose another directory for the run with --run."
        )


def _path_of(subject: str, run: Path | None) -> Path:
    return run or Path("runs") / Path(subject).resolve().name


def run_of(
    subject: str,
    data: "DataSpec | None",
    run: Path | None,
    masked_before: bool,
    max_length: int | None,
    reporter: "Reporter",
) -> Path:
    """Return the run that a command is given, and create one for a model trained elsewhere (see `require_subject`)."""
    if data is None:
        return Path(subject)
    path = _path_of(subject, run)
    known = path.exists()
    from faithmeter.studies.adopt import adopt

    adopted = adopt(path, subject, data, masked_before=masked_before, max_length=max_length or 512, reporter=reporter)
    if not known:
        print_performance(adopted)
    return path
