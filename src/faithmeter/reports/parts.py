"""What a report is made of: sections of words, tables, figures and examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

if TYPE_CHECKING:
    from faithmeter.explaining.explanation import Explanation


@dataclass(frozen=True)
class Table:
    """A titled table of words; the first column names its rows, the others are numbers."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


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
