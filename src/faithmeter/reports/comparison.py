"""The section on ways of training: the same model and data, trained in several ways, compared.

Most numbers on explanations come from masked texts, so they are meaningful only for a model that understands masks.
The in-distribution test tells which models do; the section says so before it compares anything.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.figure import Figure

from faithmeter.in_distribution.p_values import smallest_of
from faithmeter.reports.evidence import trusted
from faithmeter.reports.figures import PALETTE, RANDOM, drawn, new_figure
from faithmeter.reports.parts import Section, Table
from faithmeter.reports.sentences import names as listed
from faithmeter.reports.sentences import recommended
from faithmeter.runs.results import Rows, find, most_faithful, number, rows_of, within_bounds
from faithmeter.statistics import LEVEL, student_interval

UNCHECKED, FEW = "not checked", "checked on too few texts"  # where it is unknown whether masks are understood


@dataclass(frozen=True)
class Way:
    """One way in which a model was trained: its name, its pooled result rows, those of each seed, and seconds."""

    name: str
    rows: Rows
    trainings: Mapping[int, Rows]
    seconds: float | None


@dataclass(frozen=True)
class Compared:
    """A number that each measure has under each way of training."""

    kind: str
    name: str
    title: str
    more_is_better: bool


RACU = Compared("racu", "racu", "RACU", True)
FLIP = Compared("audit_fidelity_masked_until_flip", "flip", "masked until the prediction changes", False)
FLIP_OUTSIDE = "audit_fidelity_flip_outside"
COMPARED = (
    RACU,
    Compared("audit_erasure_norm_comprehensiveness", "comprehensiveness", "normalised comprehensiveness", True),
    Compared("audit_erasure_norm_sufficiency", "sufficiency", "normalised sufficiency", True),
    FLIP,
    Compared(
        "audit_fidelity-attacked_masked_until_flip",
        "flip-attacked",
        "masked until the prediction changes, attacked",
        False,
    ),
)


def ways_section(ways: Sequence[Way], prefix: str = "") -> Section:
    """Return the effect of several ways of training on performance, the in-distribution test and explanations."""
    tables = [_overall(ways, prefix)]
    tables += [_by_measure(ways, what, prefix) for what in COMPARED if _measures(ways, what)]
    outside = Compared(FLIP_OUTSIDE, "flip-outside", "out-of-distribution where the prediction changes", False)
    if _measures(ways, outside):
        tables.append(_by_measure(ways, outside, prefix))
    shown = [what for what in (RACU, FLIP) if _measures(ways, what)]
    figures = []
    if shown:
        caption = (
            "Each measure under each way of training, with 95 % intervals; hollow: the model does not understand "
            "masks, or that was not checked, or on too few texts, so the number cannot be trusted."
        )
        figures = [drawn(prefix, "ways", caption, lambda: _figure(ways, shown))]
    return Section("What training does to explanations", ways_in_words(ways), tables, figures)


def ways_in_words(ways: Sequence[Way]) -> list[str]:
    """Return the verdict: which models' numbers can be trusted, whether fidelity misleads, and what helped."""
    return [*_believed(ways), *_misleading(ways), *_helped(ways)]


def _believed(ways: Sequence[Way]) -> list[str]:
    good, bad = ([way.name for way in ways if trusted(way.rows) is wanted] for wanted in (True, False))
    unknown = [way.name for way in ways if _understood(way) == UNCHECKED]
    few = [way.name for way in ways if _understood(way) == FEW]
    said = []
    if good:
        said.append(
            f"Masked texts are in-distribution for {listed(good)}: numbers measured by masking can be trusted there."
        )
    if bad:
        said.append(
            f"Masked texts are out-of-distribution for {listed(bad)}: numbers measured by masking there (RACU, "
            "sufficiency, comprehensiveness, tokens to flip) reflect the masks as much as the explanations, and cannot "
            "be compared."
        )
    if unknown:
        said.append(f"Whether masks are understood was not checked for {listed(unknown)}.")
    if few:
        said.append(f"Whether masks are understood was checked on too few texts for a verdict for {listed(few)}.")
    return said


def _understood(way: Way) -> str:
    """Return whether the model of a way of training understands masks, in a word or two."""
    known = trusted(way.rows)
    if known is None:
        return FEW if rows_of(way.rows, "check_p_value") else UNCHECKED
    return "yes" if known else "no"


def _misleading(ways: Sequence[Way]) -> list[str]:
    """Return how far tokens to flip differ between a model that understands masks and one that does not."""
    good, bad = (
        next((way for way in ways if trusted(way.rows) is wanted and rows_of(way.rows, FLIP.kind)), None)
        for wanted in (True, False)
    )
    if good is None or bad is None:
        return []
    both = [name for name in _measures([good], FLIP) if find(bad.rows, FLIP.kind, name)["value"] is not None]
    if not both:
        return []
    measure = most_faithful(good.rows, both) or both[0]
    flips = [number(find(way.rows, FLIP.kind, measure)) for way in (bad, good)]
    strange = [find(way.rows, FLIP_OUTSIDE, measure)["value"] for way in (bad, good)]
    if None in strange:
        return []
    believed = (
        f"of the two numbers, that of {good.name} can be trusted"
        if strange[1] <= 2 * LEVEL
        else f"neither number can be trusted, as texts masked by {measure} are out-of-distribution for {good.name} too"
    )
    return [
        f"By {measure}, the prediction of {bad.name} changes when {flips[0]} of the tokens are masked, and that of "
        f"{good.name} when {flips[1]} are. At the change {100 * strange[0]:.0f} % and {100 * strange[1]:.0f} % of "
        f"the texts are out-of-distribution (chance gives {100 * LEVEL:.0f} %); {believed}."
    ]


def _helped(ways: Sequence[Way]) -> list[str]:
    """Return what each way of training changed, relative to the first whose model understands masks."""
    believed = [way for way in ways if trusted(way.rows)]
    if len(believed) < 2:
        return []
    first, *others = believed
    if min(len(way.trainings) for way in believed) < 2:
        return [
            f"{listed([way.name for way in believed])} were trained once each, which cannot separate a better way of "
            "training from chance: train with several seeds."
        ]
    return [_against(first, way) for way in others]


def _against(first: Way, way: Way) -> str:
    said = []
    change = _differences(first, way, lambda rows: find(rows, "performance", ratio=0.0)["value"])
    if len(change):
        metric = find(first.rows, "performance", ratio=0.0)["metric"]
        said.append(f"performance {_points(change, metric)}")
    for what in COMPARED:
        better, worse = list[str](), list[str]()
        both = [name for name in _measures([first], what) if name in _measures([way], what) and name != "random"]
        for name in both:
            low, high = student_interval(_differences(first, way, partial(_ahead, what=what, measure=name))) or (0, 0)
            if low > 0 or high < 0:
                (better if low > 0 else worse).append(name)
        if both:
            told = [f"{how} for {listed(which)}" for how, which in (("better", better), ("worse", worse)) if which]
            said.append(f"{what.title} {' and '.join(told) if told else 'not significantly changed for any measure'}")
    if first.seconds and way.seconds:
        said.append(f"training takes {way.seconds / first.seconds:.1f} times as long")
    return (
        f"{way.name} against {first.name}, by the lead of each measure over random importance in the same model, "
        "for equal seeds (Student's 95 % intervals, one per number, so one in twenty is chance): "
        f"{'; '.join(said)}."
    )


def _points(change: np.ndarray[tuple[int], np.dtype[np.float64]], metric: str) -> str:
    low, high = within_bounds(student_interval(change), "acu_behind_best", metric) or (None, None)
    sure = "" if low is None or high is None else f" ({100 * low:+.1f} to {100 * high:+.1f})"
    return f"{100 * float(change.mean()):+.1f} points{sure}"


def _ahead(rows: Rows, what: Compared, measure: str) -> float | None:
    """Return how much better a measure does than random importance on the same model; None where that is not known.

    How soon a prediction changes, or a probability falls, also depends on the model: a more stable one needs more
    masks, whatever they are. The lead over random importance can be compared. RACU is already relative to it.
    """
    value, chance = (find(rows, what.kind, name)["value"] for name in (measure, "random"))
    if what is RACU or value is None:
        return value
    return None if chance is None else (value - chance) * (1 if what.more_is_better else -1)


def _differences(
    first: Way, way: Way, number_of: Callable[[Rows], float | None]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return way − first for each seed that both were trained with; none where one lacks the number."""
    pairs = [
        [number_of(one.trainings[seed]) for one in (first, way)] for seed in first.trainings if seed in way.trainings
    ]
    # differences from rounding alone must not look significant
    return np.round([after - before for before, after in pairs if before is not None and after is not None], 9)


def _measures(ways: Sequence[Way], what: Compared) -> list[str]:
    """Return the measures that have the number under any of the ways."""
    return list(dict.fromkeys(row["measure"] for way in ways for row in rows_of(way.rows, what.kind)))


def _overall(ways: Sequence[Way], prefix: str) -> Table:
    cells = []
    for way in ways:
        best, p_values = recommended(way.rows), [row["value"] for row in rows_of(way.rows, "check_p_value")]
        cells.append(
            [
                way.name,
                number(find(way.rows, "performance", ratio=0.0), 3),
                number(find(way.rows, "performance", ratio=0.5), 3),
                f"{smallest_of(p_values):.3f}" if p_values else "not checked",
                _understood(way),
                f"{best}, {number(find(way.rows, 'racu', best))}"
                if best
                else "none"
                if rows_of(way.rows, "acu")
                else "not measured",
                "unknown" if way.seconds is None else f"{way.seconds:.0f}",
            ]
        )
    columns = (
        "training", "unmasked", "half masked", "p-value of masks", "masks understood", "most faithful, RACU",
        "seconds of training",
    )  # fmt: skip
    counts = sorted({len(way.trainings) for way in ways})
    over = f", {' to '.join(map(str, counts))} trainings each, 95 % intervals over them" if counts[-1] > 1 else ""
    return Table(f"{prefix}ways", f"Ways of training{over}", columns, cells)


def _by_measure(ways: Sequence[Way], what: Compared, prefix: str) -> Table:
    cells = [[name, *(number(find(way.rows, what.kind, name)) for way in ways)] for name in _measures(ways, what)]
    good = "higher" if what.more_is_better else "lower"
    hint = "" if what.kind == FLIP_OUTSIDE else f" ({good} is better)"
    doubt = {"yes": "", "no": " (masks not understood)"}
    marked = [way.name + doubt.get(_understood(way), f" (masks {_understood(way)})") for way in ways]
    title = f"{what.title[0].upper()}{what.title[1:]}{hint}"
    return Table(f"{prefix}ways-{what.name}", title, ("measure", *marked), cells)


def _figure(ways: Sequence[Way], shown: Sequence[Compared]) -> Figure:
    """Plot each measure's numbers, one dot per way of training; hollow where the model does not understand masks."""
    every = list(dict.fromkeys(name for what in shown for name in _measures(ways, what) if name != "random"))
    figure, panels = new_figure(3.6 * len(shown) + 1.2, 1.0 + 0.13 * len(every) * len(ways), len(shown))
    for axes, what in zip(panels, shown, strict=True):
        for order, way in enumerate(ways):
            colour, full = PALETTE[order % len(PALETTE)], trusted(way.rows)
            shift = 0.7 * (order / max(1, len(ways) - 1) - 0.5)
            for place, name in enumerate(reversed(every)):
                row = find(way.rows, what.kind, name)
                if row["low"] is not None:
                    axes.plot([row["low"], row["high"]], [place - shift] * 2, color=colour, linewidth=1.2)
                if row["value"] is not None:
                    face = colour if full else "none"
                    axes.plot(row["value"], place - shift, "o", color=colour, markerfacecolor=face, markersize=4)
            if axes is panels[0]:
                axes.plot([], [], "o", color=colour, markerfacecolor=colour if full else "none", label=way.name)
        if what is RACU:
            axes.axvline(0, color=RANDOM, linewidth=1, linestyle="--")
        axes.set_xlabel(what.title)
    panels[0].set_yticks(range(len(every)), list(reversed(every)))
    figure.legend(loc="outside upper left", ncols=2)
    return figure
