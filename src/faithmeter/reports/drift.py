"""The section of a report on drift: how far the representations of masked texts move, and a map."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from faithmeter.judges.drift import SHARES, Points
from faithmeter.reports.figures import INK, RANDOM, drawn, look
from faithmeter.reports.judged import Judged, table
from faithmeter.reports.parts import Section, Table
from faithmeter.runs.results import Rows, find, number, rows_of

DRIFT = "audit_drift_"
SHOWN = (0, 2, 4, 6, 8, 10)  # steps on the map: more would hide each other
TEXTS_SHOWN = 60
CLASSES_SHOWN = 8
# from blue over pink to orange: none too dark for a black page or too light for a white one
COLOURS = LinearSegmentedColormap.from_list("masked", ["#0072B2", "#C9609A", "#E69F00"])
Array = np.ndarray[Any, np.dtype[np.float64]]


def drift_sections(judged: Judged) -> list[Section]:
    """Return the section, with a map if there are points; empty without results of drift."""
    rows, prefix, points, section = judged.rows, judged.prefix, judged.points, judged.section
    moved = {row["measure"]: row["value"] for row in rows_of(rows, f"{DRIFT}drift") if row["detail"] == "50 %"}
    if not moved:
        return []
    names = sorted(moved, key=lambda name: -moved[name])
    figures = [drawn(prefix, judged.file, section.caption, lambda: _curves(rows, names))]
    if points is not None:
        plane, ways = flattened(points)
        figures.append(drawn(prefix, "drift-map", _caption(points, ways), lambda: _map(points, plane, ways)))
    by_measure = table(judged, names, judged.shown(), ". Neither high nor low is better")
    tables = [by_measure, *_beside_the_check(rows, prefix)]
    return [Section(section.title, judged.words(), tables, figures, cautions=judged.cautions())]


def _beside_the_check(rows: Rows, prefix: str) -> list[Table]:
    """Return the drift of random masking with the p-values of the run's check, by ratio; empty if unchecked."""
    checked = {f"{100 * row['masking_ratio']:.0f} %": row["value"] for row in rows_of(rows, "check_p_value")}
    if not checked:
        return []
    cells = []
    for share in SHARES:
        found = [number(find(rows, f"{DRIFT}{kind}", "random", detail=share)) for kind in ("drift", "distance_to_data")]
        outside = find(rows, f"{DRIFT}outside", "random", detail=share)["value"]
        strange = "none" if outside is None else f"{100 * outside:.1f} %"
        p_value = f"{checked[share]:.3f}" if share in checked else "none"
        cells.append([share, "0.00" if share == "0 %" else found[0], found[1], strange, p_value])
    columns = ("masked at random", "drift", "to the data", "out-of-distribution", "p-value of the check")
    return [Table(f"{prefix}drift-check", "Random masking, with the in-distribution test", columns, cells)]


def _curves(rows: Rows, names: Sequence[str]) -> Figure:
    panels = {"drift": "drift", "distance_to_data": "distance to the data", "outside": "out-of-distribution [%]"}
    panels = {kind: title for kind, title in panels.items() if rows_of(rows, f"{DRIFT}{kind}")}
    figure = Figure(figsize=(2.6 * len(panels) + 1.5, 3.1), layout="constrained")
    (every,) = figure.subplots(1, len(panels), squeeze=False)
    for axes, (kind, title) in zip(every, panels.items(), strict=True):
        scale = 100 if kind == "outside" else 1
        for name in names:
            _curve(axes, [find(rows, f"{DRIFT}{kind}", name, detail=share) for share in SHARES], name, scale)
        axes.set(title=title, xlabel="tokens masked [%]")
        if kind == "drift":
            axes.set_ylim(bottom=0)
        if kind == "outside":
            axes.set_ylim(0, max(10, axes.get_ylim()[1]))
            axes.axhline(5, color=RANDOM, linewidth=1, linestyle=":")
    handles, labels = every[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper")
    every[0].set_ylabel("cosine distance")
    return figure


def _curve(axes: Axes, found: Rows, name: str, scale: float) -> None:
    """Plot a measure's curve, from 0 where nothing is masked; random on top."""
    places = [step for step, row in enumerate(found) if row["value"] is not None]
    first = [] if 0 in places else [0]
    at = [10 * step for step in (*first, *places)]
    over = {"zorder": 3, "linewidth": 2.2} if name == "random" else {"linewidth": 1.4}
    middle, low, high = (
        [*(0.0 for _ in first), *(scale * (found[step][end] or 0) for step in places)]
        for end in ("value", "low", "high")
    )
    axes.plot(at, middle, label=name, **{**look(name), **over})
    if all(found[step]["low"] is not None for step in places):
        axes.fill_between(at, low, high, color=look(name)["color"], alpha=0.12, linewidth=0)


# ---------------------------------------------------------------------------------------------------- the map


def flattened(points: Points) -> tuple[dict[str, Array], tuple[str, str]]:
    """Return the (texts, steps, 2) places to draw, and what the two directions are, in words.

    UMAP where it is installed (the extra `umap`), of all points together; else the first two principal components.
    """
    try:
        from umap import UMAP
    except ImportError:
        UMAP = None  # noqa: N806
    sizes = [places.shape[:2] for places in points.places.values()]
    every = np.concatenate([places.reshape(-1, places.shape[-1]) for places in points.places.values()])
    if UMAP is None or len(every) < 4:
        ways = [f"{which} component ({100 * share:.0f} % of the variance)"
                for which, share in zip(("first", "second"), points.shares, strict=False)]  # fmt: skip
        return {name: places[..., :2] for name, places in points.places.items()}, (ways[0], ways[1])
    # one thread and one seed: the same points give the same map
    flat = UMAP(n_components=2, n_neighbors=min(15, len(every) - 1), random_state=0, n_jobs=1).fit_transform(every)
    parts = np.split(np.asarray(flat), np.cumsum([texts * steps for texts, steps in sizes])[:-1])
    found = {name: part.reshape(*size, 2) for name, part, size in zip(points.places, parts, sizes, strict=True)}
    return found, ("UMAP, first direction", "UMAP, second direction")


def _caption(points: Points, ways: tuple[str, str]) -> str:
    few = min(TEXTS_SHOWN, len(points.classes))
    how = "UMAP" if ways[0].startswith("UMAP") else "principal components; UMAP (the extra `umap`) is not installed"
    crosses = " Crosses are out-of-distribution." if points.outside else ""
    return (
        f"{few} texts, whole and masked, each at its place in what the head reads ({how}).{crosses} It shows whether "
        "masked texts leave where whole ones lie; what lies far apart here does not compare with another model's map."
    )


def _map(points: Points, plane: Mapping[str, Array], ways: tuple[str, str]) -> Figure:
    """Draw the places of masked texts, a panel for each who masks, coloured by how much is masked.

    Black lines follow the mean of each class, where means mean something: on principal components.
    """
    figure = Figure(figsize=(3.6 * len(plane) + 1.0, 3.7), layout="constrained")
    (panels,) = figure.subplots(1, len(plane), sharex=True, sharey=True, squeeze=False)
    steps = len(SHARES) - 1
    for axes, (name, places) in zip(panels, plane.items(), strict=True):
        for step in SHOWN:
            here, colour = places[:TEXTS_SHOWN, step], COLOURS(step / steps)
            strange = points.outside[name][:TEXTS_SHOWN, step] == 1 if points.outside else np.zeros(len(here), bool)
            axes.plot(*here[~strange].T, "o", color=colour, markersize=3.5, markeredgewidth=0, alpha=0.85)
            axes.plot(*here[strange].T, "x", color=colour, markersize=4, markeredgewidth=1, alpha=0.9)
        if not ways[0].startswith("UMAP"):
            _paths(axes, points, places)
        axes.set(title="masked at random" if name == "random" else f"masked by {name}", xlabel=ways[0])
        axes.xaxis.set_major_locator(MaxNLocator(5))
    panels[0].set_ylabel(ways[1])
    marks = [Line2D([], [], marker="o", linestyle="", color=COLOURS(step / steps), label=SHARES[step])
             for step in SHOWN]  # fmt: skip
    if points.outside:
        marks.append(Line2D([], [], marker="x", linestyle="", color=RANDOM, label="out-of-\ndistribution"))
    figure.legend(handles=marks, title="masked", loc="outside right upper")
    return figure


def _paths(axes: Axes, points: Points, places: Array) -> None:
    """Draw how the mean of each class moves, and name it where it starts; of many classes the most frequent."""
    classes, counts = np.unique(points.classes, return_counts=True)
    for one in classes[np.argsort(-counts, kind="stable")][:CLASSES_SHOWN]:
        path = places[points.classes == one].mean(axis=0)
        axes.plot(*path.T, color=INK, linewidth=0.8, marker=".", markersize=2.5)
        axes.annotate(points.labels[int(one)], path[0], xytext=(3, 3), textcoords="offset points", fontsize=7,
                      parse_math=False)  # fmt: skip
