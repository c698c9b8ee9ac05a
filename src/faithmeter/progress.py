"""Progress of long work. The library is silent by default; the command line shows bars and lines."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Protocol

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.segment import Segment

Advance = Callable[[int], None]
# what terminals obey: escapes and other controls but tab and line end, and marks that turn the direction of writing
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_pause: ContextVar[Callable[[], None] | None] = ContextVar("pause", default=None)


def yield_to_cancellation() -> None:
    """Called between forward passes: work that shares a model with others may wait here for its turn, or stop."""
    pause = _pause.get()
    if pause is not None:
        pause()


@contextmanager
def pausing(pause: Callable[[], None]) -> Iterator[None]:
    """Call `pause` between forward passes of the work inside; an exception that it raises ends the work."""
    token = _pause.set(pause)
    try:
        yield
    finally:
        _pause.reset(token)


def harmless(text: str) -> str:
    """Return a text in which a terminal obeys nothing: its controls are shown as pictures or code points."""
    return CONTROLS.sub(_picture, text)


def _picture(found: re.Match[str]) -> str:
    code = ord(found[0])
    return chr(0x2400 + code) if code < 0x20 else f"⟨U+{code:04X}⟩"


class SafeConsole(Console):
    """A console that obeys only its own styles: texts, labels and paths of others may hold escape sequences."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the pieces to print, with the controls in their texts shown."""
        for piece in super().render(renderable, options):
            yield piece if piece.control else Segment(harmless(piece.text), piece.style)


class Reporter(Protocol):
    """Receives the messages and the progress of a study."""

    def note(self, text: str) -> None:
        """Report a note."""

    def warn(self, text: str) -> None:
        """Report something that may invalidate the result."""

    def bar(self, title: str, total: int) -> AbstractContextManager[Advance]:
        """Show the progress of a piece of work; yields a function to call with the amount just done."""


class Silent:
    """Ignores all messages."""

    def note(self, text: str) -> None:
        """Ignore it."""

    def warn(self, text: str) -> None:
        """Ignore it."""

    @contextmanager
    def bar(self, title: str, total: int) -> Iterator[Advance]:  # noqa: ARG002
        """Show nothing."""
        yield lambda done: None  # noqa: ARG005


class OnlyWarnings(Silent):
    """Writes only warnings, to standard error: for worker processes."""

    def warn(self, text: str) -> None:
        """Write a line."""
        print(f"Warning: {harmless(text)}", file=sys.stderr, flush=True)


class Terminal:
    """Writes to a terminal: bars and lines, or only lines if the output is a file; if quiet, only warnings."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self.console, self.quiet = console, quiet

    def note(self, text: str) -> None:
        """Print a line."""
        if not self.quiet:
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        """Print a coloured line."""
        self.console.print(f"Warning: {text}", style="yellow", markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def bar(self, title: str, total: int) -> Iterator[Advance]:
        """Show a bar with the time left, and remove it when the work is done."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        hidden = self.quiet or not self.console.is_terminal
        with Progress(*columns, console=self.console, transient=True, disable=hidden) as progress:
            task = progress.add_task(title, total=total)
            yield lambda done: progress.advance(task, done)
