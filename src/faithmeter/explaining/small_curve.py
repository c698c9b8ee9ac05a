"""A small masking curve as SVG, for a report or a page: one explanation against random masking."""

from collections.abc import Sequence

WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM, TOP = 260, 110, 26, 12, 22, 8


def small_curve(
    curve: Sequence[float], random_curve: Sequence[float], name: str, band: tuple[Sequence[float], ...] = ()
) -> str:
    """Return the probability of a class as tokens are masked (orange), and under random masking (grey, dashed).

    `band` is the lower and the upper end of where random orders lie, drawn as a grey area.
    The line of class `fm-at` stands at the unmasked text, for a page to move by `data-width`; `name`, which must be
    HTML already, is for who listens.
    """
    steps = len(curve) - 1

    def points(values: Sequence[float]) -> str:
        return " ".join(f"{_x(step, steps):.1f},{_y(value):.1f}" for step, value in enumerate(values))

    around = ""
    if len(band) == 2 and all(band):
        low, high = (points(values).split(" ") for values in band)
        around = f'<polygon class="fm-band" points="{" ".join((*low, *reversed(high)))}" fill="#888888" opacity=".25"/>'
    grid = "".join(
        f'<text x="{LEFT - 4}" y="{_y(value) + 3:.1f}" text-anchor="end">{value:g}</text>'
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{_y(value):.1f}" y2="{_y(value):.1f}" stroke="currentColor" '
        'stroke-width=".5" opacity=".3"/>'
        for value in (0.0, 0.5, 1.0)
    )
    ticks = "".join(
        f'<text x="{_x(step, steps):.1f}" y="{HEIGHT - 6}" text-anchor="middle">{100 * step // steps}</text>'
        for step in (0, steps // 2, steps)
    )
    label = f"Probability while masking: {curve[0]:.2f} unmasked, {min(curve):.2f} at its lowest"
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


def _y(value: float) -> float:
    return TOP + (HEIGHT - BOTTOM - TOP) * (1 - value)
