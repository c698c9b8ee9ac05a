"""Commands as people type them, made of the settings that a run keeps: one rule for every option of every command."""

import shlex
from collections.abc import Mapping
from typing import Any


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
