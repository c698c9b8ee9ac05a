"""A text with its tokens coloured by importance, and its small masking curve: HTML for a report, a page or a notebook.

Orange supports the class, blue opposes it, a stronger colour means more important; colour-blind readers can tell them
apart. The colour is mixed into the page's background, so it is readable in dark mode too.
"""

import unicodedata
from collections.abc import Iterable, Sequence
from html import escape

FOR, AGAINST = "213,94,0", "0,114,178"
Span = tuple[int, int, float]


def visible(text: str) -> str:
    """Return text as HTML in which every character is seen and none does anything.

    Control characters (null bytes, bidirectional overrides) are shown as pictures or code points: left in, some would
    turn the text around them, and none of them may stand in HTML.
    """
    return "".join(map(_visible, text))


def _visible(character: str) -> str:
    code = ord(character)
    if character in "\n\t":
        return character
    if code < 0x20:
        return chr(0x2400 + code)  # the picture of the control character
    if unicodedata.category(character) in ("Cc", "Cf", "Cs") and character != "\u200d":  # joins emoji
        return f"⟨U+{code:04X}⟩"
    return escape(character, quote=True)


def heat_map(text: str, spans: Iterable[Span], strongest: float | None = None, first: int = 0) -> str:
    """Return the text with `spans` (start, end, importance) coloured; a page finds span n by its `data-n`.

    `strongest` is the importance of the fullest colour, where that is another text's, and `first` the first number.
    """
    spans = list(spans)
    strongest = strongest or max((abs(importance) for _, _, importance in spans), default=0.0) or 1.0
    parts, at = [], 0
    for number, (start, end, importance) in enumerate(spans, start=first):
        if end <= at:  # pieces of one character share their place in the text
            continue
        parts.append(visible(text[at:start]))
        words, share = visible(text[max(at, start) : end]), abs(importance) / strongest
        colour = f"rgba({FOR if importance > 0 else AGAINST},{0.85 * share:.2f})"
        parts.append(f'<span data-n="{number}" style="background:{colour}" title="{importance:+.3f}">{words}</span>')
        at = end
    parts.append(visible(text[at:]))
    return f'<span class="fm-text" dir="auto">{"".join(parts)}</span>'


WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM, TOP = 260, 110, 26, 12, 22, 8


def small_curve(
    curve: Sequence[float], random_curve: Sequence[float], name: str, band: tuple[Sequence[float], ...] = ()
) -> str:
    """Return the probability of a class as tokens are masked (orange), and under random masking (grey, dashed).

    Values below 0 are of a number: how far it has moved from that of the unmasked text, drawn from 0 down.
    `band` is the lower and the upper end of where random orders lie, drawn as a grey area.
    The line of class `fm-at` stands at the unmasked text, for a page to move by `data-width`; `name`, which must be
    HTML already, is for who listens.
    """
    steps = len(curve) - 1
    lowest = min(0.0, *curve, *random_curve, *(value for values in band for value in values))
    low, high = (lowest, 0.0) if lowest < 0 else (0.0, 1.0)

    def y(value: float) -> float:
        return TOP + (HEIGHT - BOTTOM - TOP) * (high - value) / (high - low)

    def points(values: Sequence[float]) -> str:
        return " ".join(f"{_x(step, steps):.1f},{y(value):.1f}" for step, value in enumerate(values))

    around = ""
    if len(band) == 2 and all(band):
        below, above = (points(values).split(" ") for values in band)
        around = (
            f'<polygon class="fm-band" points="{" ".join((*below, *reversed(above)))}" fill="#888888" opacity=".25"/>'
        )
    grid = "".join(
        f'<text x="{LEFT - 4}" y="{y(value) + 3:.1f}" text-anchor="end">{value:.2g}</text>'
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="currentColor" '
        'stroke-width=".5" opacity=".3"/>'
        for value in (low, (low + high) / 2, high)
    )
    ticks = "".join(
        f'<text x="{_x(step, steps):.1f}" y="{HEIGHT - 6}" text-anchor="middle">{100 * step // steps}</text>'
        for step in (0, steps // 2, steps)
    )
    label = f"Probability while masking: {curve[0]:.2f} unmasked, {min(curve):.2f} at its lowest"
    if lowest < 0:
        label = f"The number while masking: it moves by up to {-min(curve):.2f}"
    return (
        f'<svg class="fm-curve" role="img" aria-label="{name}. {label}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'fill="currentColor" stroke="none" font-size="9">{grid}'
        f"{ticks}{around}"
        f'<polyline points="{points(random_curve)}" fill="none" stroke="#888888" stroke-dasharray="4 3"/>'
        f'<polyline points="{points(curve)}" fill="none" stroke="#D55E00" stroke-width="1.8"/>'
        f'<line class="fm-at" data-left="{LEFT}" data-width="{WIDTH - LEFT - RIGHT}" x1="{LEFT}" x2="{LEFT}" '
        f'y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="currentColor"/></svg>'
    )


def _x(step: int, steps: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * step / steps
