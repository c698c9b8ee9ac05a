"""What a report is made of: sections of words, tables, figures and examples."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib import rc_context
from matplotlib.figure import Figure

from faithmeter.explaining.explanation import Explanation
from faithmeter.reports import figures
from faithmeter.reports.formats import Table


@dataclass(frozen=True)
class Example:
    """A test text, why it was chosen, and its explanations by several measures."""

    reason: str
    gold: str
    explanations: Sequence[Explanation]


@dataclass(frozen=True)
class Drawn:
    """A figure, its file name, and its caption."""

    name: str
    caption: str
    figure: Figure


@dataclass(frozen=True)
class Section:
    """A heading and its content; `verdict` marks the main conclusion.

    `warns` marks a verdict that nothing can be trusted, which must not look like a recommendation.
    """

    title: str
    words: Sequence[str] = ()
    tables: Sequence[Table] = ()
    figures: Sequence[Drawn] = ()
    examples: Sequence[Example] = ()
    commands: Sequence[str] = ()
    cautions: Sequence[str] = ()
    level: int = 2
    terms: Sequence[tuple[str, str]] = ()
    verdict: bool = False
    warns: bool = False


def drawn(prefix: str, name: str, caption: str, draw: Callable[[], Figure]) -> Drawn:
    """Draw a figure in the package's style."""
    with rc_context(figures.STYLE):
        figure = draw()
        # laid out once, so that it looks the same in every format
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
    return Drawn(f"{prefix}{name}", caption, figure)
