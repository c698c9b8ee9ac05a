"""A text with its tokens coloured by importance, as HTML for a report, a page or a notebook.

Orange supports the class, blue opposes it, a stronger colour means more important; colour-blind readers can tell them
apart. The colour is mixed into the page's background, so it is readable in dark mode too.
"""

import unicodedata
from collections.abc import Iterable
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


def heat_map(text: str, spans: Iterable[Span]) -> str:
    """Return the text with `spans` (start, end, importance) coloured; a page finds span n by its `data-n`."""
    spans = list(spans)
    strongest = max((abs(importance) for _, _, importance in spans), default=0.0) or 1.0
    parts, at = [], 0
    for number, (start, end, importance) in enumerate(spans):
        if end <= at:  # pieces of one character share their place in the text
            continue
        parts.append(visible(text[at:start]))
        words, share = visible(text[max(at, start) : end]), abs(importance) / strongest
        colour = f"rgba({FOR if importance > 0 else AGAINST},{0.85 * share:.2f})"
        parts.append(f'<span data-n="{number}" style="background:{colour}" title="{importance:+.3f}">{words}</span>')
        at = end
    parts.append(visible(text[at:]))
    return f'<span class="fm-text" dir="auto">{"".join(parts)}</span>'
