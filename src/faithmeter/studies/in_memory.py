"""A model, its tokenizer and data in memory become a run, so that every study can judge them.

They are copied: the caller's objects are never changed, and a model that is trained further is another model. The same
objects, unchanged, are found again as the same run as long as the process lives.
"""

import dataclasses
import functools
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import transformers

from faithmeter.data.objects import tables_of
from faithmeter.data.splits import DataSpec, load_splits
from faithmeter.data.tables import Row
from faithmeter.errors import InputError
from faithmeter.files import new_folder, read_json, write_json, write_jsonl
from faithmeter.models.classifier import Classifier
from faithmeter.models.objects import hash_of, model_and_tokenizer, quantised, save_copy
from faithmeter.progress import Reporter, Silent
from faithmeter.runs.directory import refuse_existing
from faithmeter.runs.run import HELD, Run, RunConfig, RunLike, opened
from faithmeter.studies import audit as auditing
from faithmeter.studies import check as checking
from faithmeter.studies import explain as explaining
from faithmeter.studies import measure as measuring
from faithmeter.studies import report as reporting
from faithmeter.studies.adopt import adopt, store_adopted, with_classes

P = ParamSpec("P")
T = TypeVar("T")

TEXTS = "texts"  # the folder of a run with data that was in memory
GIVEN = ".given"
_temporary: list["tempfile.TemporaryDirectory[str]"] = []  # removed when the process ends


def as_run(
    subject: RunLike,
    path: str | Path | None = None,
    *,
    spec: DataSpec | None = None,
    masked_before: bool = False,
    max_length: int = 512,
    reporter: Reporter | None = None,
) -> Run:
    """Return a run of objects in memory, (model, tokenizer, data) or (pipeline, data); a run or its path as it is.

    The run is made at `path`, or in a temporary directory that goes with the process. Data is a DataFrame, a
    `datasets.Dataset`, a dictionary of columns, a list of rows, or lists (texts, labels) or (texts, contexts, labels);
    a dictionary of those by the names train, validation and test; or a `DataSpec`. `spec` names the columns and the
    metric of a table. The model is judged in float32, whatever it is in; adapters of peft are merged into a copy. A
    quantised model is judged as it is, by measures that need no gradients, and has no `path`.
    """
    if not isinstance(subject, tuple) or len(subject) not in (2, 3):
        return opened(subject)
    asked = {"masked_before": masked_before, "max_length": max_length}
    return _of_objects(subject, None if path is None else Path(path), spec or DataSpec(), asked, reporter or Silent())


def _taking_objects(study: Callable[P, T], *, checked: bool = False) -> Callable[P, T]:
    """Return a study that also takes objects in memory, which become a run first; `checked` where it needs a check."""

    @functools.wraps(study)
    def of_run_or_objects(*arguments: P.args, **options: P.kwargs) -> T:
        first, *others = arguments or (None,)
        if not isinstance(first, tuple) or all(isinstance(one, str | Path | Run) for one in first):
            return study(*arguments, **options)
        reporter = cast("Reporter | None", options.get("reporter"))
        made = as_run(first, reporter=reporter)
        unchecked = any(getattr(one, "without_check", False) for one in (*others, *options.values()))
        if checked and not (made.checked or unchecked):
            checking.check(made, reporter=reporter)
        given: Any = (made, *others)
        return study(*given, **options)

    return of_run_or_objects


audit = _taking_objects(auditing.audit)
check = _taking_objects(checking.check)
explain = _taking_objects(explaining.explain)
measure = _taking_objects(measuring.measure, checked=True)
report = _taking_objects(reporting.report)


def _of_objects(
    objects: tuple[Any, ...], path: Path | None, spec: DataSpec, asked: dict[str, Any], reporter: Reporter
) -> Run:
    *held, data = objects
    model, tokenizer = model_and_tokenizer(held[0], held[1] if len(held) > 1 else None)
    classes = [str(name) for _, name in sorted((model.config.id2label or {}).items())]
    tables = None if isinstance(data, DataSpec) else tables_of(data, classes)
    if tables is not None and spec.context is None and isinstance(data, tuple) and len(data) == 3:
        spec = dataclasses.replace(spec, context="context")
    told = data.absolute() if isinstance(data, DataSpec) else spec
    rows = json.dumps([dataclasses.asdict(told), asked, tables], ensure_ascii=True)
    digest = hashlib.sha256((hash_of(model, tokenizer) + rows).encode()).hexdigest()[:16]
    if path is not None and quantised(model):
        raise InputError(
            f"The {type(model).__name__} is quantised, so its weights cannot be stored in {path}. Leave out the "
            "directory: it is then judged as it is in memory, by measures that need no gradients."
        )
    if path is None:
        path = _temporary_folder() / digest / type(model).__name__
        path.parent.mkdir(exist_ok=True)
    if (path / "config.json").is_file():
        if Run(path).config.objects != digest:
            raise InputError(
                f"{path} is a run of another model, other data or other options than these. Choose another directory."
            )
        return Run(path)
    refuse_existing(path)
    if quantised(model):
        return _held(path, model, tokenizer, _stored(told, tables, path.parent), digest, asked, reporter)
    try:
        with new_folder(path) as folder:
            save_copy(model, tokenizer, folder / GIVEN)
            made = adopt(folder / "run", str(folder / GIVEN), _stored(told, tables, folder), **asked, reporter=reporter)
            _settle(made, path.resolve(), folder, digest, with_texts=tables is not None)
    except InputError as error:  # which speaks of the copy
        said = str(error).replace(str((folder / GIVEN).resolve()), f"The {type(model).__name__}")
        raise InputError(said.replace(str(folder / TEXTS), "The data")) from error
    return Run(path)


def _held(
    path: Path,
    model: transformers.PreTrainedModel,
    tokenizer: transformers.PreTrainedTokenizerBase,
    data: DataSpec,
    digest: str,
    asked: dict[str, Any],
    reporter: Reporter,
) -> Run:
    """Make a run of a model that cannot be stored: it stays in memory, and the run with it."""
    classifier = Classifier(model, tokenizer, max_length=asked["max_length"])
    splits = with_classes(load_splits(data, reporter=reporter), classifier.labels)
    config = RunConfig(
        data=data,
        model=type(model).__name__,
        training=None,
        labels=classifier.labels,
        metric=data.resolved().metric,
        fingerprint=splits.fingerprint,
        objects=digest,
        **asked,
    )
    reporter.note("The model is quantised: only measures that need no gradients can explain it.")
    HELD[digest] = classifier
    store_adopted(path, config, classifier, splits, reporter)
    return Run(path)


def _stored(spec: DataSpec, tables: dict[str, list[Row]] | None, folder: Path) -> DataSpec:
    """Return data as later commands find it: tables are written into a folder of the run."""
    if tables is None:
        return spec
    (folder / TEXTS).mkdir(exist_ok=True)
    for part, rows in tables.items():
        write_jsonl(folder / TEXTS / f"{part}.jsonl", rows)
    return dataclasses.replace(spec, data=str(folder / TEXTS))


def _settle(made: Run, path: Path, folder: Path, digest: str, *, with_texts: bool) -> None:
    """Move a run that was made inside of its folder to where it belongs, and let it name its own model and texts."""
    config = read_json(made.path / "config.json", "")
    config |= {"model": str(path / "model"), "objects": digest}
    if with_texts:
        config["data"]["data"] = str(path / TEXTS)
    write_json(made.path / "config.json", config)
    for file in made.path.iterdir():
        file.replace(folder / file.name)
    made.path.rmdir()
    shutil.rmtree(folder / GIVEN)


def _temporary_folder() -> Path:
    """Return a folder of this process."""
    if not _temporary:
        _temporary.append(tempfile.TemporaryDirectory(prefix="faithmeter-"))
    return Path(_temporary[0].name)
