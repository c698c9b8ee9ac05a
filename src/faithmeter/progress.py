"""How long work tells how far it is. The library is silent by default; the command line shows bars and lines."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Advance = Callable[[int], None]
_pause: ContextVar[Callable[[], None] | None] = ContextVar("pause", default=None)


def yield_to_cancellation() -> None:
    """Called between passes through a model: whoever shares it with others may wait here for their turn, or stop."""
    pause = _pause.get()
    if pause is not None:
        pause()


@contextmanager
def pausing(pause: Callable[[], None]) -> Iterator[None]:
    """Call `pause` between the passes of the work inside; what it raises ends the work."""
    token = _pause.set(pause)
    try:
        yield
    finally:
        _pause.reset(token)


class Reporter(Protocol):
    """What a job says while it runs."""

    def note(self, text: str) -> None:
        """Say something worth knowing."""

    def warn(self, text: str) -> None:
        """Say something that may spoil the result."""

    def bar(self, title: str, total: int) -> AbstractContextManager[Advance]:
        """Show how far a piece of work is; yields a function to call with the amount just done."""


class Silent:
    """Says nothing."""

    def note(self, text: str) -> None:
        """Say nothing."""

    def warn(self, text: str) -> None:
        """Say nothing."""

    @contextmanager
    def bar(self, title: str, total: int) -> Iterator[Advance]:  # noqa: ARG002
        """Show nothing."""
        yield lambda done: None  # noqa: ARG005


class OnlyWarnings(Silent):
    """Writes what may spoil the result to standard error, and nothing else: for a process that works for another."""

    def warn(self, text: str) -> None:
        """Write a line."""
        print(f"Warning: {text}", file=sys.stderr, flush=True)


class Terminal:
    """Writes to a terminal: bars while it is one, lines when the output goes to a file; if quiet, warnings alone."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self.console, self.quiet = console, quiet

    def note(self, text: str) -> None:
        """Print a line."""
        if not self.quiet:
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        """Print a line that stands out."""
        self.console.print(f"Warning: {text}", style="yellow", markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def bar(self, title: str, total: int) -> Iterator[Advance]:
        """Show a bar with the time left, and take it away when the work is done."""
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
