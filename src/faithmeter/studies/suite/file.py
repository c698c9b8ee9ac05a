"""Suite files: plain TOML files that name tasks, models, seeds, ways of training, measures and judges.

Every key is the name of a command's option, so there is no separate vocabulary; docs/suites.md lists them. Errors name
the table they are in.
"""

import dataclasses
import math
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from faithmeter.data.splits import DataSpec
from faithmeter.data.tables import lines_of
from faithmeter.errors import InputError, nearest
from faithmeter.importance.table import IMPORTANCE_MEASURES, NOT_RETRAINED
from faithmeter.judges.judge import Need
from faithmeter.judges.table import JUDGES
from faithmeter.reports.formats import FORMATS
from faithmeter.studies.audit import AuditOptions
from faithmeter.studies.check import FORMS, ROWS
from faithmeter.studies.measure import MeasureOptions
from faithmeter.studies.roar.roar import RoarOptions
from faithmeter.studies.select import SelectOptions
from faithmeter.training.config import TrainingOptions, way_of

READY = resources.files("faithmeter.studies.suite") / "ready"
BY_WAYS = ("strategy", "robust", "seed")  # settings of training that `ways` and `seeds` say
PATHS = ("data", "validation_data", "test_data", "data_dir")
Names = tuple[str, ...]
Seeds = tuple[int, ...]


@dataclass(frozen=True)
class SuiteTask:
    """A task by the name of its folder, its data, and the judges that only it can have.

    Its own `measures` and `rows` stand in place of those of [measure] and [audit].
    """

    name: str
    data: DataSpec
    judges: Names = ()
    measures: Names = ()
    rows: int | None = None


@dataclass(frozen=True)
class SuiteModel:
    """A model by the name of its folder."""

    name: str
    model: str
    vectors: str | None = None


@dataclass(frozen=True)
class Suite:
    """What is to be done: every task with every model, way and seed.

    What is None is not done: no `measured`, no masking curves; no `retrained`, no retraining. `training` is by way.
    """

    name: str
    about: str
    tasks: tuple[SuiteTask, ...]
    models: tuple[SuiteModel, ...]
    ways: Names
    seeds: Seeds
    max_length: int
    shards: int
    training: Mapping[str, TrainingOptions]
    check_form: str
    check_rows: int
    measured: MeasureOptions | None
    audited: AuditOptions | None
    selected: SelectOptions | None
    retrained: RoarOptions | None
    retraining: TrainingOptions
    formats: Names
    examples: bool


def ready_suites() -> list[str]:
    """Return the names of the suites that come along."""
    return sorted(file.name.removesuffix(".toml") for file in READY.iterdir() if file.name.endswith(".toml"))


def suite_text(name: str | Path) -> tuple[str, Path]:
    """Return what a suite file says, and the folder that its paths are relative to; a bare name is of a ready one."""
    path = Path(name)
    if path.is_file():
        return "".join(lines_of(path)), path.resolve().parent
    if str(name) in ready_suites():
        return (READY / f"{name}.toml").read_text(encoding="utf-8"), Path.cwd()
    raise InputError(
        f"There is no suite {str(name)!r}, neither a file nor an included one."
        f"{nearest(str(name), ready_suites())} There are {', '.join(ready_suites())}; "
        "`faithmeter bench-suite --show NAME` prints one to copy."
    )


def read_suite(name: str | Path, *, data_dir: str | Path | None = None) -> Suite:
    """Read a suite from a file, or an included one by its name; an error names its place in the file.

    `data_dir` is where named tasks have their files, unless they say so themselves.
    """
    text, folder = suite_text(name)
    try:
        said = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{name} is not TOML: {error}.") from error
    try:
        return _suite(said, Path(str(name)).stem, folder, data_dir)
    except _FaultError as error:
        raise InputError(f"{name}, {error}") from error


class _FaultError(Exception):
    """What is wrong, and in which table."""


def _suite(said: dict[str, Any], name: str, folder: Path, data_dir: str | Path | None) -> Suite:
    top = "at the top"
    tables = {key: _table(said.pop(key, None), key) for key in ("training", "check", "measure", "audit", "select")}
    tables |= {key: _table(said.pop(key, None), key) for key in ("roar", "report")}
    tasks, models = said.pop("tasks", None), said.pop("models", None)
    hints: dict[str, Any] = {"name": str, "about": str, "ways": Names, "seeds": Seeds, "max_length": int, "shards": int}
    own = _checked(said, hints, top, also=(*tables, "tasks", "models"))
    ways, seeds = own.get("ways", ("masked",)), own.get("seeds", (0,))
    _distinct(ways, "way", top)
    _distinct(seeds, "seed", top)
    if min(seeds) < 0 or own.get("shards", 1) < 1 or own.get("max_length", 512) < 2:
        raise _FaultError(f"{top}: seeds are whole numbers from 0 on, shards 1 or more, max_length 2 or more.")
    taught = _training(tables["training"] or {}, ways)
    check = _checked(tables["check"] or {}, {"form": str, "rows": int}, "[check]")
    if check.get("form", FORMS[0]) not in FORMS or check.get("rows", ROWS) < 4:
        raise _FaultError(f"[check]: form is {' or '.join(FORMS)}, and rows are 4 or more.")
    measured = _options(MeasureOptions, tables["measure"], "[measure]", leave_out=("without_check", "until_certain"))
    known = () if measured is None else measured.measures or ()
    if measured is not None and not known:
        raise _FaultError(f"[measure]: name the measures: {', '.join(IMPORTANCE_MEASURES)}.")
    audited = _options(AuditOptions, tables["audit"], "[audit]", leave_out=("other",), measures=known)
    if audited is not None and audited.judges is None:
        raise _FaultError(f"[audit]: name the judges: {', '.join(JUDGES)}.")
    second = [name for name in (audited.judges or () if audited else ()) if JUDGES[name].needs is Need.SECOND_RUN]
    if second and len(seeds) < 2:
        raise _FaultError(f"[audit]: the judge {second[0]} compares two seeds, and the suite has one: name more seeds.")
    retrained, retraining = _retraining(tables["roar"], seeds, known)
    report = _checked(tables["report"] or {}, {"formats": Names, "examples": bool}, "[report]")
    _known(report.get("formats", ()), FORMATS, "format", "[report]")
    read_tasks, read_models = _tasks(tasks, folder, data_dir), _models(models, folder)
    if not any((measured, audited, retrained, tables["select"] is not None)):
        raise _FaultError("there is nothing to do: add [measure], [audit], [select] or [roar].")
    return Suite(
        name=own.get("name", name),
        about=own.get("about", ""),
        tasks=read_tasks,
        models=read_models,
        ways=ways,
        seeds=seeds,
        max_length=own.get("max_length", 512),
        shards=own.get("shards", 1),
        training=taught,
        check_form=check.get("form", FORMS[0]),
        check_rows=check.get("rows", ROWS),
        measured=measured,
        audited=audited,
        selected=_options(SelectOptions, tables["select"], "[select]"),
        retrained=retrained,
        retraining=retraining,
        formats=report.get("formats", ("html",)),
        examples=report.get("examples", True),
    )


def _training(table: dict[str, Any], ways: Names) -> dict[str, TrainingOptions]:
    """Return the training options of each way: those of all, overridden by its own table."""
    own = {way: _table(table.pop(way, None), f"training.{way}") or {} for way in ways}
    wrong = next((key for key, value in table.items() if isinstance(value, dict)), None)
    if wrong is not None:
        raise _FaultError(f"[training.{wrong}]: {wrong!r} is not one of the suite's ways.{nearest(wrong, ways)}")
    for_all = _fields(TrainingOptions, table, "[training]", leave_out=BY_WAYS, also=ways)
    taught = dict[str, TrainingOptions]()
    for way in ways:
        strategy, robust = _say(way_of, way, where="at the top")
        for_one = _fields(TrainingOptions, own[way], f"[training.{way}]", leave_out=BY_WAYS)
        taught[way] = TrainingOptions(**{**for_all, **for_one, "strategy": strategy, "robust": robust})
    same = next((way for way in ways if list(taught.values()).count(taught[way]) > 1), None)
    if same is not None:
        raise _FaultError(f"at the top: the way {same!r} is the same training as another one; leave one out.")
    return taught


def _retraining(
    table: dict[str, Any] | None, seeds: Seeds, known: Sequence[Any]
) -> tuple[RoarOptions | None, TrainingOptions]:
    """Return what is retrained for, and how each training goes."""
    if table is None:
        return None, TrainingOptions()
    hints = {name: typing.get_type_hints(TrainingOptions)[name] for name in ("epochs", "learning_rate", "batch_size")}
    fields = {key: table.pop(key) for key in list(table) if key in hints}
    training = TrainingOptions(**_checked(fields, hints, "[roar]"))
    options = _options(RoarOptions, table, "[roar]", leave_out=("seeds",), seeds=seeds, also=hints)
    assert options is not None
    if options.measures is None:
        options = dataclasses.replace(options, measures=tuple(one for one in known if one not in NOT_RETRAINED))
    if not options.measures:
        raise _FaultError("[roar]: name the measures to retrain for.")
    return options, training


def _tasks(listed: object, folder: Path, data_dir: str | Path | None) -> tuple[SuiteTask, ...]:
    found = []
    for number, said in enumerate(_listed(listed, "tasks"), start=1):
        where = f"task {number}"
        table = {"task": said} if isinstance(said, str) else dict(said)
        hints: dict[str, Any] = {"name": str, "judges": Names, "measures": Names, "rows": int}
        own = _checked({key: table.pop(key) for key in hints if key in table}, hints, where)
        given = _fields(DataSpec, table, where, also=hints)
        if given.get("task") is not None and data_dir is not None:
            given.setdefault("data_dir", str(Path(data_dir).resolve()))
        given |= {key: str(folder / given[key]) for key in PATHS if given.get(key) is not None}
        data = DataSpec(**given)
        resolved = _say(data.resolved, where=where)
        _known(own.get("judges", ()), JUDGES, "judge", where)
        _known(own.get("measures", ()), IMPORTANCE_MEASURES, "importance measure", where)
        if own.get("rows", 1) < 1:
            raise _FaultError(f"{where}: rows is the number of texts to measure and judge on, 1 or more.")
        found.append(SuiteTask(data=data, **{"name": resolved.name, **own}))
    _distinct([one.name for one in found], "task", "tasks")
    _folders([one.name for one in found], "task", "tasks")
    return tuple(found)


def _models(listed: object, folder: Path) -> tuple[SuiteModel, ...]:
    found = []
    for number, said in enumerate(_listed(listed, "models"), start=1):
        where = f"model {number}"
        given = (
            {"model": said}
            if isinstance(said, str)
            else _checked(said, dict.fromkeys(("name", "model", "vectors"), str), where)
        )
        if "model" not in given:
            raise _FaultError(f"{where}: `model` is missing, a name on the hub, a folder, or a shape such as 'small'.")
        model = given["model"]
        if (folder / model).is_dir():
            model = str((folder / model).resolve())
        vectors = given.get("vectors")
        name = given.get("name", Path(model).name)
        found.append(SuiteModel(name, model, None if vectors is None else str((folder / vectors).resolve())))
    _distinct([one.name for one in found], "model", "models")
    _folders([one.name for one in found], "model", "models")
    return tuple(found)


# ------------------------------------------------------------------------------------- tables and their values


def _table(said: object, name: str) -> dict[str, Any] | None:
    if said is not None and not isinstance(said, dict):
        raise _FaultError(f"{name} is a table of settings: write [{name}] and one setting per line.")
    return None if said is None else dict(said)


def _listed(said: object, name: str) -> list[Any]:
    if not isinstance(said, list) or not said or not all(isinstance(one, str | dict) for one in said):
        raise _FaultError(f"at the top: name one or more {name}, as in {name} = ['…'].")
    return said


def _options(
    kind: type[Any],
    table: dict[str, Any] | None,
    where: str,
    *,
    leave_out: Iterable[str] = (),
    also: Iterable[str] = (),
    **defaults: Any,  # noqa: ANN401 (fields of any kind)
) -> Any:  # noqa: ANN401 (what `kind` makes)
    """Return the options that a table says; None where it is not there."""
    if table is None:
        return None
    given = {**{k: v for k, v in defaults.items() if v}, **_fields(kind, table, where, leave_out=leave_out, also=also)}
    _known(given.get("measures") or (), IMPORTANCE_MEASURES, "importance measure", where)
    return _say(kind, where=where, **given)


def _fields(
    kind: type[Any], table: dict[str, Any], where: str, *, leave_out: Iterable[str] = (), also: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the fields of a dataclass that a table names, each of the type that it has there."""
    hints = {name: hint for name, hint in typing.get_type_hints(kind).items() if name not in leave_out}
    if "measures" in hints:
        hints["measures"] = Names  # a file can name no function
    return _checked(table, hints, where, also=also)


def _checked(
    table: dict[str, Any], hints: Mapping[str, Any], where: str, *, also: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the settings of a table; refuse one that there is not, or of another type."""
    found = {}
    for key, value in table.items():
        if key not in hints:
            known = sorted({*hints, *also})
            raise _FaultError(
                f"{where}: there is no setting {key!r}.{nearest(key, known)} There are {', '.join(known)}."
            )
        wanted = _as(value, hints[key])
        if wanted is None:
            raise _FaultError(f"{where}: {key} = {value!r} is not {_in_words(hints[key])}.")
        found[key] = wanted
    return found


def _kinds(hint: Any) -> list[Any]:  # noqa: ANN401 (a type hint)
    kinds = list(typing.get_args(hint)) if isinstance(hint, types.UnionType) else [hint]
    return [kind for kind in kinds if kind is not type(None)]


def _as(value: object, hint: Any) -> object:  # noqa: ANN401
    """Return a value of TOML as the type that is wanted; None where it is not of it."""
    for kind in _kinds(hint):
        if typing.get_origin(kind) is tuple:
            (each, _) = typing.get_args(kind)
            if isinstance(value, list) and value and all(type(one) is each for one in value):
                return tuple(value)
        elif type(value) is kind or (kind is float and type(value) is int):
            return None if isinstance(value, float) and not math.isfinite(value) else value
    return None


def _in_words(hint: Any) -> str:  # noqa: ANN401
    words = {str: "a text in quotes", int: "a whole number", float: "a finite number", bool: "true or false"}
    words |= {Names: "a list of names", Seeds: "a list of whole numbers"}
    return " or ".join(words.get(kind, "of that kind") for kind in _kinds(hint))


def _known(named: Iterable[str], known: Iterable[str], what: str, where: str) -> None:
    listed = list(known)
    for name in named:
        if name not in listed:
            raise _FaultError(
                f"{where}: there is no {what} {name!r}.{nearest(name, listed)} There are {', '.join(listed)}."
            )


def _distinct(named: Sequence[Any], what: str, where: str) -> None:
    twice = next((name for name in named if list(named).count(name) > 1), None)
    if twice is not None:
        raise _FaultError(f"{where}: the {what} {twice!r} is named twice; name each once, or give one another `name`.")


def _folders(named: Iterable[str], what: str, where: str) -> None:
    """Refuse names that are no names of folders: runs would be written elsewhere, or be hidden."""
    for name in named:
        if not name.strip() or name.startswith(".") or not name.isprintable() or set(name) & set("/\\:"):
            raise _FaultError(
                f"{where}: the {what} {name!r} is the name of a folder, so it has no slash, backslash, colon or "
                "control character, and does not begin with a dot: give it another `name`."
            )


def _say(make: Any, *given: Any, where: str, **named: Any) -> Any:  # noqa: ANN401 (any call)
    """Call, and add the place in the file to an error."""
    try:
        return make(*given, **named)
    except InputError as error:
        raise _FaultError(f"{where}: {error}") from error
