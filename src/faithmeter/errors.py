"""The one exception that means: the input cannot be used as it is."""

import difflib
from collections.abc import Iterable


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


def first_line(error: Exception) -> str:
    """Return what an error of another library says, without its further paragraphs."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
