"""The figures of a report, each drawn from result rows alone: in paper quality, or to stand in a page."""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

import matplotlib as mpl
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from faithmeter.importance.measure import ONCE
from faithmeter.importance.table import IMPORTANCE_MEASURES, ORDER_ONLY, is_signed
from faithmeter.problems import problem_of
from faithmeter.reports.parts import Drawn
from faithmeter.runs.results import Rows, find, measures, rows_of

INK = "#010203"  # stands for the page's own text colour, so that figures follow its dark mode
# Okabe and Ito's colours, distinguishable for the colour-blind; their yellow is too light for lines
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", INK, "#A63A6B", "#8C6D31")
DASHES = ("-", "--", "-.", ":")
RANDOM = "#888888"
WAYS = ("masked", "plain", "only-masking")  # of training, in the order of their colours
MASKED = {0.0: "nothing masked", 0.5: "half masked", 1.0: "all masked"}
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False,
    "axes.titlesize": 10, "legend.frameon": False, "legend.fontsize": 8, "svg.fonttype": "none",
    "text.color": INK, "axes.edgecolor": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.facecolor": "none", "pdf.fonttype": 42,
}  # fmt: skip


def look(name: str) -> dict[str, Any]:
    """Return a measure's colour and dash, the same in every figure and report; random masking is grey."""
    if name == "random":
        return {"color": RANDOM, "linestyle": "-"}
    known = [known for known in IMPORTANCE_MEASURES if known != "random"]
    base = name.removesuffix(ONCE)  # which has the colour of the measure, dotted
    number = known.index(base) if base in known else sum(map(ord, name))
    dash = DASHES[number // len(PALETTE) % len(DASHES)] if base == name else ":"
    return {"color": PALETTE[number % len(PALETTE)], "linestyle": dash}


def new_figure(width: float, height: float, panels: int = 1) -> tuple[Figure, list[Axes]]:
    """Return an empty figure and its panels, side by side."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, panels, sharey=True, squeeze=False)
    return figure, list(axes[0])


def _curve(axes: Axes, rows: Rows, label: str, **look: Any) -> None:  # noqa: ANN401 (matplotlib's own options)
    """Draw values against the masking ratio, with a ribbon where they have intervals."""
    ratios = [100 * row["masking_ratio"] for row in rows]
    axes.plot(ratios, [row["value"] for row in rows], label=label.lstrip("_"), linewidth=1.5, **look)
    if rows and all(row["low"] is not None for row in rows):
        low, high = ([row[end] for row in rows] for end in ("low", "high"))
        axes.fill_between(ratios, low, high, color=look["color"], alpha=0.15, linewidth=0)


def forest(rows: Rows) -> Figure:
    """Draw every measure's RACU (ACU where there is none) with its interval, the best on top."""
    kind = "racu" if rows_of(rows, "racu") else "acu"
    names = [name for name in measures(rows) if rows_of(rows, kind, name)]
    figure, (axes,) = new_figure(6.5, 0.6 + 0.28 * len(names))
    for place, name in enumerate(reversed(names)):
        row = find(rows, kind, name)
        if row["low"] is not None:
            axes.plot([row["low"], row["high"]], [place, place], color=look(name)["color"], linewidth=2)
        axes.plot(row["value"], place, "o", color=look(name)["color"], markersize=5)
    axes.axvline(0, color=RANDOM, linewidth=1, linestyle="--")
    if kind == "racu":
        axes.axvline(1, color=RANDOM, linewidth=1, linestyle=":")
    # one measure on few texts must not squeeze all others
    most = max((find(rows, kind, name)["value"] for name in names), default=1.0)
    axes.set_xlim(right=min(axes.get_xlim()[1], max(1.05, 1.5 * most)))
    axes.set_yticks(range(len(names)), list(reversed(names)))
    end = "; dotted: it falls to its end at once" if kind == "racu" else ""
    axes.set_xlabel(f"{kind.upper()}: 0 is as good as random masking{end}")
    return figure


def curves(rows: Rows, metric: str) -> Figure:
    """Draw performance against masking, signed and absolute measures apart, each beside random masking."""
    groups = {"signed measures": [m for m in measures(rows) if is_signed(m)]}
    groups["absolute measures"] = [m for m in measures(rows) if not is_signed(m)]
    groups = {title: names for title, names in groups.items() if names}
    figure, panels = new_figure(3.7 * len(groups), 3.1, len(groups))
    for axes, (title, names) in zip(panels, groups.items(), strict=True):
        _curve(axes, rows_of(rows, "masked_performance", "random"), "random", color=RANDOM)
        for name in names:
            _curve(axes, rows_of(rows, "masked_performance", name), name, **look(name))
        axes.set(title=title, xlabel="tokens masked [%]")
        axes.legend()
    panels[0].set_ylabel(metric)
    return figure


def label_curves(rows: Rows, measure: str, metric: str) -> Figure:
    """Draw the performance on each label as it is masked by its own explanation, dashed where masked at random."""
    found = rows_of(rows, "label_masked_performance")
    figure, (axes,) = new_figure(6.5, 3.1)
    for place, label in enumerate(dict.fromkeys(str(row.get("detail")) for row in found)):
        for name, dash in ((measure, "-"), ("random", "--")):
            own = [row for row in found if row["measure"] == name and row.get("detail") == label]
            shares = [100 * row["masking_ratio"] for row in own]
            look_: dict[str, Any] = {"color": PALETTE[place % len(PALETTE)], "linestyle": dash, "linewidth": 1.5}
            axes.plot(shares, [row["value"] for row in own], label=label.lstrip("_") if dash == "-" else None, **look_)
    axes.set(xlabel="tokens masked [%]", ylabel=metric)
    axes.legend()
    return figure


def out_of_distribution(rows: Rows) -> Figure:
    """Draw the share of texts that are out-of-distribution while each measure masks, and random masking's."""
    figure, (axes,) = new_figure(6.5, 2.9)
    for name in ["random", *measures(rows)]:
        shares = rows_of(rows, "share_out_of_distribution", name)
        ratios, values = ([100 * row[key] for row in shares] for key in ("masking_ratio", "value"))
        axes.plot(ratios, values, label=name, **look(name))
    axes.axhline(5, color=RANDOM, linewidth=1, linestyle=":")
    axes.set(xlabel="tokens masked [%]", ylabel="texts out-of-distribution [%]")
    axes.set_ylim(0, max(10, axes.get_ylim()[1]))
    axes.legend(ncols=2)
    return figure


def p_values(rows: Rows) -> Figure:
    """Draw the p-value of randomly masked texts against the masking ratio (Madsen et al., 2024, Fig. 4)."""
    figure, (axes,) = new_figure(6.5, 2.4)
    found = rows_of(rows, "check_p_value")
    axes.plot([100 * row["masking_ratio"] for row in found], [row["value"] for row in found], "o-", color=PALETTE[0])
    axes.axhline(0.05, color=PALETTE[1], linewidth=1, linestyle="--")
    axes.text(100, 0.06, "5 %", color=PALETTE[1], ha="right", va="bottom")
    axes.set(xlabel="tokens masked [%]", ylabel="p-value", ylim=(0, 1.05))
    return figure


def performance(trainings: Mapping[str, Rows], metric: str) -> Figure:
    """Draw the performance unmasked, half and fully masked beside the class majority (Madsen et al., 2024, Figs. 2, 3).

    `trainings` are rows by the way in which the same model was trained; of one or of several, side by side.
    """
    figure, (axes,) = new_figure(6.5, 1.3 + 0.75 * len(trainings))
    thick = 0.8 / len(trainings)
    majority = find(next(iter(trainings.values())), "majority")["value"]
    if majority is not None:
        axes.axvline(majority, color=RANDOM, linewidth=1.5, linestyle="--", label=problem_of(metric).blind)
    for number, (how, rows) in enumerate(trainings.items()):
        at = {ratio: place + thick * (number - (len(trainings) - 1) / 2) for place, ratio in enumerate(MASKED)}
        found = [(at[row["masking_ratio"]], row) for row in rows_of(rows, "performance")]
        colour = PALETTE[(WAYS.index(how) if how in WAYS else len(WAYS) + number) % len(PALETTE)]
        axes.barh([y for y, _ in found], [row["value"] for _, row in found], 0.9 * thick, color=colour, label=how)
        for y, row in found:
            if row["low"] is not None:
                axes.plot([row["low"], row["high"]], [y, y], color=INK, linewidth=1.5)
            # behind all that is drawn there, or a line would cross it
            end = max(x for x in (row["value"], row["high"], majority) if x is not None)
            axes.annotate(f"{row['value']:.3f}", (end, y), xytext=(4, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(MASKED)), list(MASKED.values()))
    axes.invert_yaxis()
    figure.legend(loc="outside upper left", ncols=4)
    axes.set_xlabel(metric)
    return figure


def convergence(history: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw validation performance against the epoch, masked and not (Madsen et al., 2024, Figs. 16 and 17)."""
    figure, (axes,) = new_figure(6.5, 2.6)
    for number, key in enumerate(("validation_unmasked", "validation_masked")):
        found = [row[key] for row in history if row.get(key) is not None]  # a curriculum's first stages have none
        if found:
            epochs, label = range(1, len(found) + 1), key.replace("_", ", ")
            axes.plot(epochs, found, "o-", markersize=3, label=label, color=PALETTE[number])
    axes.set(xlabel="epoch on all texts", ylabel="validation performance")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend()
    return figure


def cheapest_best(rows: Rows) -> list[str]:
    """Return the Pareto front: the measures than which no cheaper one is as faithful, the cheapest first."""
    points = [(find(rows, "seconds_per_text", m)["value"], find(rows, "acu", m)["value"], m) for m in measures(rows)]
    front: list[str] = []
    best = float("-inf")
    for _, acu, name in sorted(points, key=lambda point: (point[0], -point[1])):
        if acu > best:
            front.append(name)
            best = acu
    return front


def cost(rows: Rows, front: Sequence[str]) -> Figure:
    """Draw faithfulness against cost, and a line through the measures of the Pareto front."""
    figure, (axes,) = new_figure(6.5, 3.0)
    at = {m: (find(rows, "seconds_per_text", m)["value"], find(rows, "acu", m)) for m in measures(rows)}
    on_it = [at[name] for name in front]
    axes.plot([x for x, _ in on_it], [row["value"] for _, row in on_it], color=RANDOM, linewidth=1, zorder=0)
    for name, (seconds, row) in at.items():
        if row["low"] is not None:
            axes.plot([seconds, seconds], [row["low"], row["high"]], color=look(name)["color"], alpha=0.4)
        axes.plot(seconds, row["value"], "o", color=look(name)["color"])
    axes.set_xscale("log")
    axes.margins(x=0.15)
    axes.set(xlabel="seconds per text, for the whole curve", ylabel="ACU")
    _name_points(axes, {name: (seconds, row["value"]) for name, (seconds, row) in at.items()})
    return figure


def _name_points(axes: Axes, points: Mapping[str, tuple[float, float]]) -> None:
    """Write each point's name beside it, at the first of a few places where no other name stands yet."""
    taken: list[tuple[float, float, float, float]] = []
    for name, point in points.items():
        x, y = axes.transData.transform(point)
        width, height = 6.5 * len(name), 11.0  # about, at this size
        places = [(side, up) for up in (3, -11, 14, -22) for side in (5, -5)]
        boxes = [(x + (side if side > 0 else side - width), y + up) for side, up in places]
        spoilt = [
            any(left < r and left + width > l and low < t and low + height > b for l, b, r, t in taken)  # noqa: E741
            for left, low in boxes
        ]
        best = spoilt.index(False) if False in spoilt else 0
        (left, low), (side, up) = boxes[best], places[best]
        taken.append((left, low, left + width, low + height))
        align = "left" if side > 0 else "right"
        axes.annotate(name, point, xytext=(side, up), textcoords="offset points", fontsize=8, ha=align,
                      color=look(name)["color"])  # fmt: skip


def sparsity(rows: Rows) -> Figure:
    """Draw how much of all importance the most important tokens hold (Madsen et al., 2022, App. E)."""
    figure, (axes,) = new_figure(6.5, 2.9)
    for name in measures(rows):
        if name not in ORDER_ONLY:
            _curve(axes, rows_of(rows, "sparsity", name), name, **look(name))
    axes.plot([0, 100], [0, 1], color=RANDOM, linewidth=1, linestyle=":")
    axes.set(xlabel="most important tokens [%]", ylabel="share of all importance")
    axes.legend(ncols=2)
    return figure


# ------------------------------------------------------------------------------------------------------ files


def as_bytes(figure: Figure, kind: str) -> bytes:
    """Return a figure as an svg, png or pdf file, black on white; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    with mpl.rc_context({**STYLE, "svg.hashsalt": "faithmeter"}):
        metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[kind]
        figure.savefig(buffer, format=kind, dpi=200, metadata=metadata, transparent=False, facecolor="white")
    return buffer.getvalue()


def inline_svg(figure: Figure, name: str, description: str) -> str:
    """Return a figure to stand in a page: in the page's text colour, with ids of its own, described for who listens."""
    text = as_bytes(figure, "svg").decode()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    text = re.sub(r'<g id="patch_1">.*?</g>', "", text, count=1, flags=re.DOTALL)  # the white sheet behind it
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", text)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    label = escape(description, quote=True)
    return text.replace("<svg", f'<svg role="img" aria-label="{label}" class="figure"', 1)


def drawn(prefix: str, name: str, caption: str, draw: Callable[[], Figure]) -> Drawn:
    """Draw a figure in the package's style."""
    with rc_context(STYLE):
        figure = draw()
        # laid out once, so that it looks the same in every format
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
    return Drawn(f"{prefix}{name}", caption, figure)
