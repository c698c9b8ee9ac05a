"""The sections of a report on retraining: ROAR, Recursive ROAR and the synthetic problem."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from faithmeter.measuring.retraining import RECURSIVE, RELATIVE, ROAR
from faithmeter.measuring.synthetic import FEATURES, SyntheticCurves
from faithmeter.reports.figures import PALETTE, RANDOM, drawn, look, new_figure
from faithmeter.reports.parts import Drawn, Section, Table
from faithmeter.reports.sentences import names
from faithmeter.runs.results import Rows, find, number, rows_of
from faithmeter.statistics import LEVEL

TITLES = {RECURSIVE: "Recursive ROAR", ROAR: "ROAR"}
KINDS = {RECURSIVE: "recursive_roar", ROAR: "roar"}
MASKED = "masked fine-tuning"
CONCLUSIONS = {
    "Recursive ROAR": "A curve below the random one means that a measure finds the important tokens; a curve that is "
    "not below it means that the measure is not faithful. Every point is another, retrained model, so it judges the "
    "measure on models of this kind, not on your one model.",
    "ROAR": "A curve below the random one means that a measure finds the important tokens; a curve that is not below "
    "it means nothing, because redundant words may have kept performance up.",
    MASKED: "Masks without retraining, so it judges the measure on the model that is explained; it needs a model that "
    "understands masks.",
}
LEAKAGE = (
    "{measures} ({protocol}): performance rises again while more is masked, by up to {rise:.2f}. The choice of masked "
    "tokens may reveal the class (class leakage); a measure then looks less faithful than it is."
)


@dataclass(frozen=True)
class Retrained:
    """What is reported: a retraining experiment, and the masking curves of the same task without retraining."""

    title: str
    metric: str
    steps: str
    protocols: Sequence[str]
    rows: Rows
    settings: Sequence[tuple[str, str]]
    commands: Sequence[str]
    masked: Rows | None = None
    beside: str | None = None  # the model whose curves these are


def retrained_sections(subject: Retrained, prefix: str = "") -> list[Section]:
    """Return the sections of an experiment: the verdict, curves, areas, sparsity, time, and how it was run."""
    rows = subject.rows
    panels = [TITLES[protocol] for protocol in subject.protocols] + ([MASKED] if subject.masked else [])
    curves = Section(
        "How performance falls when the model is retrained",
        [f"{name}{f' ({subject.beside})' if name == MASKED else ''}: {CONCLUSIONS[name]}" for name in panels],
        figures=[drawn(prefix, "roar", "Performance of retrained models against the masked tokens; ribbons are 95 % "
                       "intervals over trainings.", lambda: _curves(subject, panels))],
        cautions=leaks(subject),
    )  # fmt: skip
    short = Section(
        "How short the explanations are",
        ["Share of all importance in the most important tokens, in the unmasked model. Dotted: all tokens equal."],
        figures=[drawn(prefix, "roar-sparsity", "Share of all importance, by number and by share of tokens.",
                       lambda: _sparsity(rows))],
    )  # fmt: skip
    cost = Section("What it costs", tables=[_times(rows, prefix)])
    settings = Table(
        f"{prefix}roar-settings", "Settings and versions", ("what", "value"), [list(s) for s in subject.settings]
    )
    how = Section("How it was run", tables=[settings], commands=subject.commands)
    return [
        Section(
            "In short",
            verdict(subject),
            tables=[areas_table(subject, prefix)],
            cautions=_cautions(subject),
            verdict=True,
        ),
        curves,
        short,
        cost,
        how,
    ]


def measures_of_rows(rows: Rows, protocols: Sequence[str]) -> list[str]:
    """Return the measures, the most faithful first."""
    areas = rows_of(rows, f"{KINDS[protocols[0]]}_acu")
    return [row["measure"] for row in sorted(areas, key=lambda row: -row["value"])]


def areas_table(subject: Retrained, prefix: str = "") -> Table:
    """Return RACU (ACU where steps are tokens) of every measure by each protocol (Madsen et al., 2022, Table 2)."""
    rows = subject.rows
    what = "racu" if subject.steps == RELATIVE else "acu"
    columns = [f"{what.upper()}, {TITLES[protocol]}" for protocol in subject.protocols]
    cells = [
        [name, *(number(find(rows, f"{KINDS[protocol]}_{what}", name)) for protocol in subject.protocols)]
        for name in measures_of_rows(rows, subject.protocols)
    ]
    if subject.masked and subject.steps == RELATIVE:  # an area over ten tokens compares with none over all of them
        columns.append(f"{what.upper()}, {MASKED}")
        cells = [[*line, number(find(subject.masked, what, line[0]))] for line in cells]
    return Table(
        f"{prefix}roar-areas", f"{what.upper()} with 95 % intervals over trainings", ("measure", *columns), cells
    )


def verdict(subject: Retrained) -> list[str]:
    """Return the verdict of the retraining, in words; corrected for the number of measures (Bonferroni)."""
    sentences = []
    for protocol in subject.protocols:
        title, p_values = TITLES[protocol], rows_of(subject.rows, f"{KINDS[protocol]}_p_value")
        if not p_values:
            sentences.append(f"{title} was run with one seed, so nothing can be concluded: use three or more.")
            continue
        sure = [row["measure"] for row in p_values if row["value"] <= LEVEL / len(p_values)]
        leaking = [row["measure"] for row in rows_of(subject.rows, f"{KINDS[protocol]}_rise")]
        unsure = [row["measure"] for row in p_values if row["measure"] not in (*sure, *leaking)]
        if sure:
            s = "s" if len(sure) == 1 else ""
            sentences.append(f"By {title}, {names(sure)} find{s} the important tokens better than random masking.")
        if unsure:
            was = "was" if len(unsure) == 1 else "were"
            why = "" if protocol == RECURSIVE else ", which does not mean unfaithful"
            sentences.append(f"By {title}, {names(unsure)} {was} not shown to be faithful{why}.")
    return sentences


def _cautions(subject: Retrained) -> list[str]:
    counted = [row["n"] for row in rows_of(subject.rows, f"{KINDS[subject.protocols[0]]}_acu")]
    found = [
        f"{row['value']:.0f} of {row['n']} unmasked trainings were not shown to converge: their curves say little."
        for row in rows_of(subject.rows, "roar_not_converged")
    ]
    if counted and 1 < counted[0] < 10:
        found.append(
            f"Bootstrap intervals over {counted[0]} trainings are narrower than 95 %; the verdict uses Student's test."
        )
    return found


def leaks(subject: Retrained) -> list[str]:
    """Return a caution for the curves that rise again: a sign of class leakage."""
    found = []
    for protocol in subject.protocols:
        risen = rows_of(subject.rows, f"{KINDS[protocol]}_rise")
        if risen:
            largest = max(row["value"] for row in risen)
            told = LEAKAGE.format(
                measures=names([row["measure"] for row in risen]), protocol=TITLES[protocol], rise=largest
            )
            found.append(told)
    return found


def _line(axes: Axes, rows: Rows, name: str) -> None:
    """Draw a curve against the share or the number of tokens, with a ribbon where it has intervals."""
    style = look(name)
    places = [row["tokens"] if row["tokens"] is not None else 100 * row["masking_ratio"] for row in rows]
    axes.plot(places, [row["value"] for row in rows], label=name, linewidth=1.5, **style)
    if rows and all(row["low"] is not None for row in rows):
        low, high = ([row[end] for row in rows] for end in ("low", "high"))
        axes.fill_between(places, low, high, color=style["color"], alpha=0.15, linewidth=0)


def _curves(subject: Retrained, panels: Sequence[str]) -> Figure:
    """Draw every protocol's curves and those of masked fine-tuning (Madsen et al., 2022, Figs. 4, 8 and 9)."""
    figure, axes = new_figure(3.6 * len(panels), 3.1, len(panels))
    every = ["random", *measures_of_rows(subject.rows, subject.protocols)]
    for place, (panel, title) in enumerate(zip(axes, panels, strict=True)):
        for name in every:
            if title == MASKED:
                found = rows_of(subject.masked or (), "masked_performance", name)
            else:
                found = rows_of(subject.rows, f"{KINDS[subject.protocols[place]]}_performance", name)
            if found:
                _line(panel, [{"tokens": None, **row} for row in found], name)
        share = subject.steps == RELATIVE or title == MASKED
        panel.set(title=title, xlabel="tokens masked [%]" if share else "tokens masked")
    axes[0].set_ylabel(subject.metric)
    axes[0].legend()
    return figure


def _sparsity(rows: Rows) -> Figure:
    """Draw sparsity by number and by share of tokens (Madsen et al., 2022, Figs. 5 and 6)."""
    figure, (counted, shared) = new_figure(7.2, 2.9, 2)
    for name in dict.fromkeys(row["measure"] for row in rows_of(rows, "roar_sparsity")):
        _line(counted, rows_of(rows, "roar_sparsity_tokens", name), name)
        _line(shared, rows_of(rows, "roar_sparsity", name), name)
    shared.plot([0, 100], [0, 1], color=RANDOM, linewidth=1, linestyle=":")
    counted.set(xlabel="most important tokens", ylabel="share of all importance")
    shared.set(xlabel="most important tokens [%]")
    counted.legend()
    return figure


def _times(rows: Rows, prefix: str) -> Table:
    """Return the trainings and the time of each measure (Madsen et al., 2022, Table 7)."""
    cells = []
    for row in rows_of(rows, "roar_trainings"):
        training, explaining = (
            find(rows, f"roar_seconds_{what}", row["measure"])["value"] for what in ("training", "explaining")
        )
        each = training / max(1, row["value"])
        cells.append([row["measure"], f"{row['value']:.0f}", f"{each:.1f}", f"{training:.0f}", f"{explaining:.0f}"])
    columns = ("measure", "trainings", "seconds per training", "training [s]", "explaining [s]")
    return Table(f"{prefix}roar-times", "Time, without the trainings that all measures share", columns, cells)


# --------------------------------------------------------------------------------------- the synthetic problem


def synthetic_verdict(curves: Mapping[int, SyntheticCurves]) -> list[str]:
    """Return the verdict of the synthetic problem on both protocols."""
    distance = max(
        abs(found - true) for one in curves.values() for found, true in zip(one.recursive, one.truth, strict=True)
    )
    longer = sum(sum(one.roar) > sum(one.truth) + 0.1 for one in curves.values())
    right = distance <= 0.01
    return [
        f"Recursive ROAR {'finds' if right else 'does not find'} the true curve: they differ by at most "
        f"{distance:.3f} in accuracy, at {FEATURES + 1} points of {len(curves)} seed{'s' if len(curves) > 1 else ''}.",
        f"Plain ROAR stays above the true curve in {longer} of {len(curves)}"
        + (": the remaining ones of the four redundant features keep accuracy up." if longer else "."),
    ]


def synthetic_section(curves: Mapping[int, SyntheticCurves]) -> Section:
    """Return the section on the synthetic problem, with its figure (Madsen et al., 2022, Fig. 3)."""
    lines: dict[str, Callable[[SyntheticCurves], list[float]]] = {
        "ground truth": lambda one: one.truth,
        "Recursive ROAR": lambda one: one.recursive,
        "ROAR": lambda one: one.roar,
        "worst case": lambda one: one.worst,
    }

    def draw() -> Figure:
        figure, axes = new_figure(3.2 * min(3, len(curves)), 2.9, min(3, len(curves)))
        for panel, (seed, one) in zip(axes, curves.items(), strict=False):
            for number_, (name, curve) in enumerate(lines.items()):
                dash = "--" if name == "Recursive ROAR" else "-"
                panel.plot(range(FEATURES + 1), curve(one), label=name, color=PALETTE[number_], linestyle=dash)
            panel.set(title=f"seed {seed}", xlabel="features removed")
        axes[0].set_ylabel("accuracy")
        axes[0].legend()
        return figure

    table = Table(
        "synthetic", "Accuracy by the number of removed features",
        ("curve", *(str(count) for count in range(FEATURES + 1))),
        [
            [f"{name}, seed {seed}", *(f"{value:.3f}" for value in curve(one))]
            for seed, one in curves.items()
            for name, curve in lines.items()
        ],
    )  # fmt: skip
    figures: list[Drawn] = [drawn("", "synthetic", "Accuracy against the number of removed features.", draw)]
    return Section("In short", synthetic_verdict(curves), [table], figures, verdict=True)
