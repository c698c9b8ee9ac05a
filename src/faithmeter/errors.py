"""The exception for input that cannot be used."""

import difflib
import math
from collections.abc import Iterable, Mapping


class InputError(Exception):
    """Something the user gave cannot be used.

    The message says what is wrong, why, and what to do. The command line prints it in one line and exits with 2;
    it never shows a traceback for it.
    """


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ` Did you mean 'x'?` for the known name that looks most like `name`, or nothing."""
    by_lower = {k.lower(): k for k in known}
    matches = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    return f" Did you mean {by_lower[matches[0]]!r}?" if matches else ""


def require_choice(what: str, name: str, known: Iterable[str]) -> None:
    """Raise InputError for a name that is none of those to choose from."""
    if name not in (known := tuple(known)):
        raise InputError(f"There is no {what} {name!r}: choose from {', '.join(known)}.")


def require_measure(name: str, known: Iterable[str]) -> None:
    """Raise InputError for a name that no importance measure has."""
    if name not in (known := tuple(known)):
        raise InputError(f"There is no importance measure {name!r}.{nearest(name, known)}")


def require_finite(settings: Mapping[str, object]) -> None:
    """Raise InputError for a setting that is NaN or infinite: NaN would pass every other check."""
    for name, value in settings.items():
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, float) and not math.isfinite(one):
                raise InputError(f"The value {one} of {name.replace('_', ' ')} is not a finite number: give one.")


def first_line(error: Exception) -> str:
    """Return the first line of another library's error message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def is_text(value: str) -> bool:
    """Whether a string can be written: halves of characters cannot."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
