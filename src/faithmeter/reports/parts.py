"""What a report is made of: sections of words, tables, figures and examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

if TYPE_CHECKING:
    from faithmeter.explaining.explanation import Explanation
    from faithmeter.reports.formats import Table


@dataclass(frozen=True)
class Example:
    """A test text, why it was chosen, and its explanations by several measures."""

    reason: str
    gold: str
    explanations: Sequence[Explanation]


@dataclass(frozen=True)
class Drawn:
    """A figure, its file name, and what it shows, in a sentence."""

    name: str
    caption: str
    figure: Figure


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it; `verdict` where it is what a reader came for.

    `warns` where the verdict is that nothing may be believed, which must not look like one that recommends something.
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
