"""The settings of results, stored with them, so that results of different settings are never mixed."""

from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from faithmeter.errors import InputError
from faithmeter.runs.run import BEFORE, VERSION, Run, require_settings

# not kept before either, nor known: taken to be the same
NOT_KNOWN_BEFORE = ("tokenizer_and_config", "max_length", "in_distribution")


def of_model(run: Run, format_number: int) -> dict[str, Any]:
    """Return the settings that all results of a run's model share, in the format given."""
    return {
        "weights": run.weights,
        "tokenizer_and_config": run.tokenizer_and_config,
        "format": format_number,
        VERSION: metadata.version("faithmeter"),
    }


def differing(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the settings in which stored results differ from the current ones."""
    known = {**BEFORE, **{name: now.get(name) for name in NOT_KNOWN_BEFORE}, **stored, VERSION: now.get(VERSION)}
    return [name for name in now if known.get(name) != now[name]]


def require_same(folder: Path, stored: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to add results to a folder that holds results of other settings, or of settings that are lost."""
    if not stored:
        require_settings(folder)
        return
    changed = differing(stored, now)
    if changed:
        raise InputError(
            f"{folder} holds results with another {' and '.join(changed)}, which cannot be compared with these. Use "
            f"the same settings ({dict(stored)}), or remove {folder} first: what is in it is then computed again."
        )
