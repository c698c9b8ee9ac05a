"""What a run directory says by itself, read without torch or transformers, so that wrong input is refused at once."""

import json
import re
from pathlib import Path
from typing import Any

from faithmeter.data.splits import DataSpec, as_text, require_columns, require_text
from faithmeter.data.tables import read_rows
from faithmeter.errors import InputError
from faithmeter.files import LOCK

FORMAT = 1
HALF_WRITTEN = re.compile(r"\.(environment|config)\.json\.[0-9a-f]{8}\.part")  # as `files.write_bytes` names them


def require_run(path: Path) -> dict[str, Any]:
    """Return the settings of a run, as they are stored; refuse a directory that is none."""
    if not (path / "config.json").is_file():
        raise InputError(f"{path} is not a run: it has no config.json. `faithmeter train {path} ...` creates one.")
    stored = read_config(path)
    if is_roar(path):
        raise InputError(f"{path} is a ROAR experiment, not a run: `faithmeter report {path}` shows it.")
    if "format" not in stored:
        raise InputError(f"{path} is a model, not a run: `faithmeter check {path} --data FILE` creates a run for it.")
    return dict(stored)


def settings_of(path: Path) -> dict[str, Any]:
    """Return the settings of a run that this version can read."""
    stored = require_run(path)
    if stored.pop("format") != FORMAT:
        raise InputError(f"{path} was made by another version of faithmeter, whose runs cannot be read.")
    return stored


def is_roar(path: Path) -> bool:
    """Whether a folder holds an experiment of retraining (`roar_run.RoarRun`)."""
    if not (path / "config.json").is_file():
        return False
    stored = read_config(path)
    return isinstance(stored, dict) and stored.get("kind") == "roar"


def read_config(path: Path) -> Any:  # noqa: ANN401 (of a run, an experiment, or a model)
    """Return the settings of a run directory."""
    file = path / "config.json"
    try:  # people may edit a run's, so it has no checksum; a model's has one, and may have been edited all the same
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(
            f"{file} is damaged: it cannot be read as JSON. Restore it from a copy, or make a new run."
        ) from error


def _is_of_a_beginning(file: Path) -> bool:
    """Whether a file is surely one that is left of a beginning which was killed before the config.json was there."""
    if file.name == LOCK or HALF_WRITTEN.fullmatch(file.name):
        return True
    if file.name != "environment.json":
        return False
    try:
        stored = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(stored, dict) and "faithmeter" in (stored.get("packages") or ())


def refuse_existing(path: Path) -> None:
    """Refuse a path that already holds something else than the beginning that a killed process left."""
    if path.is_dir() and all(map(_is_of_a_beginning, path.iterdir())):
        return
    if is_roar(path):
        raise InputError(f"{path} holds a ROAR experiment, and nothing is overwritten. Choose another name.")
    if (path / "config.json").is_file() and not (path / "model").is_dir():
        raise InputError(f"{path} holds an unfinished training: resume it with `faithmeter train {path} --resume`.")
    if path.exists():
        raise InputError(f"{path} already exists, and nothing is overwritten. Choose another name or remove it first.")


def require_pairs(data: DataSpec, *, contexts: bool) -> None:
    """Refuse texts without a context where a run's model takes pairs, and texts with one where it does not."""
    pairs = data.resolved().context is not None
    if pairs != contexts:
        raise InputError(
            "This model takes pairs: give a context with each text (--context)."
            if pairs
            else "This model takes single texts: leave the context out."
        )


def read_texts(data: DataSpec, file: Path) -> tuple[list[str], list[str] | None]:
    """Read the texts, and the contexts of pairs, of a table with the columns that a run's data has."""
    task = data.resolved()
    rows = read_rows(file)
    if not rows:
        raise InputError(f"{file} has no rows.")
    columns = [task.text] if task.context is None else [task.text, task.context]
    require_columns(rows[0], columns, str(file))
    require_text(rows, columns, str(file))
    texts = [as_text(row[task.text]) for row in rows]
    return texts, None if task.context is None else [as_text(row[task.context]) for row in rows]
