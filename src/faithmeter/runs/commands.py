"""Commands as people type them, made of the settings that a run keeps: one rule for every option of every command."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from faithmeter.data.splits import DataSpec
from faithmeter.runs.run import Run


def as_command(command: str, *arguments: object, options: Mapping[str, Any]) -> str:
    """Return a command of faithmeter, quoted for a shell.

    An option is `--name value`, with commas between the values of a list; True is a flag alone. What is None, False or
    empty is left out: it is what the command does unasked.
    """
    parts = ["faithmeter", command, *map(str, arguments)]
    for name, value in options.items():
        if value is None or value is False or value == ():
            continue
        parts.append(f"--{name.replace('_', '-')}")
        if value is not True:
            parts.append(",".join(map(str, value)) if isinstance(value, list | tuple) else str(value))
    return shlex.join(parts)


def shown_path(value: str | Path) -> str:
    """Return a path as others may see it: from the current folder if it is in it, else its name; others as they are.

    Where files are on someone's machine says who that is, and helps nobody else.
    """
    path = Path(value)
    if not path.is_absolute():
        return str(value)
    if path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    return str(Path(*path.parts[-2 if path.name == "model" else -1 :]))  # RUN/model says more than model


def shown_command(command: str) -> str:
    """Return a command with its paths as others may see them."""
    return shlex.join(map(shown_path, shlex.split(command)))


def command_to_train(path: str | Path, data: DataSpec, model: str | Path, max_length: int) -> str:
    """Return the command that trains a model on data, by masked fine-tuning."""
    return as_command("train", path, options={**data.options, "model": model, "max_length": max_length})


def command_to_train_on(run: Run) -> str | None:
    """Return the command that fine-tunes a run's model with masking, on its data.

    None where that is no way out, because the texts are of another domain than the model's own.
    """
    config = run.config
    if config.reference is not None:
        return None
    return command_to_train(f"{run.path}-masked", config.data, run.model_folder, config.max_length)
