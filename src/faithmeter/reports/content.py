"""The content of a report: sections of words, tables and figures, made from result rows, in no format yet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from faithmeter.importance.table import IMPORTANCE_MEASURES
from faithmeter.judges.drift import Points
from faithmeter.performance import METRICS
from faithmeter.problems import NUMBER, problem_of
from faithmeter.reports import figures, sentences
from faithmeter.reports.attack import attack_sections
from faithmeter.reports.audit import audit_sections
from faithmeter.reports.comparison import Way, ways_section
from faithmeter.reports.evidence import conclusion, evidence, worst_step
from faithmeter.reports.figures import drawn
from faithmeter.reports.operators import operator_sections
from faithmeter.reports.parts import Example, Section, Table
from faithmeter.reports.ranked import ranked_table
from faithmeter.reports.select import select_sections
from faithmeter.reports.transfer import transfer_sections
from faithmeter.runs.results import (
    Rows,
    find,
    measures,
    most_faithful,
    number,
    over_each,
    p_in_words,
    rejected,
    rows_of,
)

LABEL_MEASURES = 4  # whose areas the table of labels shows


@dataclass(frozen=True)
class Subject:
    """What is reported: a model on a task, from one training or several seeds, pooled.

    `start` names the model and the data that a training started from, `how` the way of training.
    """

    title: str
    start: str
    how: str
    metric: str
    rows: Rows
    histories: Sequence[Sequence[Mapping[str, Any]]]  # of each training, an epoch each
    trainings: Mapping[int, Rows]  # the rows of each seed
    settings: Sequence[tuple[str, str]]
    commands: Sequence[str]
    validation_rows: int | None
    examples: Sequence[Example] = ()
    about: Sequence[str] = ()  # what is explained and what is masked, in sentences
    points: Points | None = None  # the representations of masked texts
    removals: Mapping[str, Rows] = field(default_factory=dict)  # the rows of each operator, the model's own first


def sections(subjects: Sequence[Subject]) -> list[Section]:
    """Return a report's sections: of each subject, after a comparison where there are several."""
    found = [] if len(subjects) <= 1 else [_comparison(subjects), *training_sections(subjects)]
    for place, subject in enumerate(subjects, 1):
        own = _of_subject(subject, f"{place}-" if len(subjects) > 1 else "")
        found += own if len(subjects) == 1 else [Section(subject.title, level=1), *own]
    return found


def _comparison(subjects: Sequence[Subject]) -> Section:
    """Return RACU of every measure, one column per subject (Madsen et al., 2024, Tables 1 and 11)."""
    every = dict.fromkeys(name for subject in subjects for name in measures(subject.rows))
    measured = [subject for subject in subjects if measures(subject.rows)]
    cells = [[name, *(number(find(subject.rows, "racu", name)) for subject in measured)] for name in every]
    best = [f"{subject.title}: {sentences.verdict(subject.rows)[0]}" for subject in subjects]
    columns = ["measure", *(subject.title for subject in measured)]
    table = Table("racu", "RACU with 95 % intervals, by model and data", columns, cells)
    warns = all(sentences.doubt(subject.rows) for subject in subjects)
    return Section("In short", best, [table] if measured else [], verdict=True, warns=warns)


def training_sections(subjects: Sequence[Subject]) -> list[Section]:
    """Return the effect of ways of training, if there are several (Madsen et al., 2024, Figs. 2 and 3)."""
    groups: dict[str, list[Subject]] = {}
    for subject in subjects:
        groups.setdefault(subject.start, []).append(subject)
    found = []
    for place, same in enumerate((same for same in groups.values() if len(same) > 1), 1):
        prefix = f"{place}-" if place > 1 else ""
        found += [_performance(same, prefix), ways_section([_way(subject) for subject in same], prefix)]
    return found


def _way(subject: Subject) -> Way:
    """Return a subject as one way of training among others."""
    seconds = [sum(row["seconds"] for row in history) for history in subject.histories if history]
    mean = sum(seconds) / len(seconds) if seconds else None
    return Way(subject.how, subject.rows, subject.trainings, mean)


def _performance(same: Sequence[Subject], prefix: str) -> Section:
    """Return the performance of a model, with a table if it was trained in several ways."""
    metric, rows = same[0].metric, {subject.how: subject.rows for subject in same}
    seeds = any(row["over"] == "seeds" for of_one in rows.values() for row in of_one)
    texts = find(same[0].rows, "performance", ratio=0.0)["n"]
    said = f"{metric} on {'the' if seeds else f'all {texts:,}'} test texts" + (
        ", with 95 % intervals over trainings." if seeds else "."
    )
    cells = [
        [how, *(number(find(of_one, "performance", ratio=ratio), 3) for ratio in figures.MASKED)]
        for how, of_one in rows.items()
    ]
    blind = problem_of(metric).blind
    cells.append([blind, *[number(find(same[0].rows, "majority"), 3)] * len(figures.MASKED)])
    several = len(same) > 1
    shown = f"The same, with the {blind}." if several else said
    name = f"{prefix}trainings" if several else f"{prefix}performance"
    of = f", {same[0].title.removesuffix(f', {same[0].how}')}, by how it was trained" if several else ""
    return Section(
        f"How well the model does{of}",
        [
            f"A model that understands masks loses no performance when unmasked, and performs about like the {blind} "
            "when everything is masked."
        ],
        [Table(name, said, ("training", *figures.MASKED.values()), cells)] if several else [],
        [drawn("", name, shown, lambda: figures.performance(rows, metric))],
    )


def _of_subject(subject: Subject, prefix: str) -> list[Section]:
    rows = subject.rows
    cautions = sentences.cautions(rows, subject.validation_rows)
    warns = sentences.recommended(rows) is None
    found = [Section("In short", sentences.verdict(rows), cautions=cautions, verdict=True, warns=warns)]
    found += transfer_sections(rows, prefix)
    if measures(rows):
        found += _measured(subject, prefix)
    found += _checked(subject, prefix)
    found += operator_sections(subject.removals, prefix)
    found += audit_sections(rows, prefix, subject.points)
    found += select_sections(rows, prefix)
    found += attack_sections(rows, prefix)
    found.append(_performance([subject], prefix))
    if any(subject.histories):
        found.append(
            Section(
                "How it was learnt",
                ["Validation performance should have stopped rising; otherwise train longer."],
                figures=[
                    drawn(f"{prefix}{number + 1}-" if number else prefix, "convergence",
                           f"Validation performance by epoch, training {number + 1} of {len(subject.histories)}.",
                           partial(figures.convergence, history))
                    for number, history in enumerate(subject.histories)
                    if history
                ],
            )
        )  # fmt: skip
    settings = Table(
        f"{prefix}settings", "Settings and versions", ("what", "value"), [list(s) for s in subject.settings]
    )
    return [*found, Section("How it was run", tables=[settings], commands=subject.commands)]


def _measured(subject: Subject, prefix: str) -> list[Section]:
    rows, best = subject.rows, sentences.recommended(subject.rows)
    shown = [_examples(subject)] if subject.examples else []
    return [
        _ranking(subject, prefix, best),
        _falling(subject, prefix),
        *_by_label(subject, prefix),
        *shown,
        _price(rows, prefix, best),
        _short(rows, prefix),
    ]


def _ranking(subject: Subject, prefix: str, best: str | None) -> Section:
    rows = subject.rows
    return Section(
        "What was measured" if best is None else "Which measure is faithful",
        [
            *subject.about,
            f"Intervals are 95 %, over {over_each(rows_of(rows, 'acu'))}. Out-of-distribution is the largest share of "
            "such texts at any step, where chance gives up to 5 % at each; the p-value covers all steps.",
            *_told_apart(rows, best),
            *sentences.explained_once(rows),
        ],
        [ranked_table(rows, prefix)],
        [
            drawn(
                prefix,
                "forest",
                "Faithfulness of each measure with its interval; one that reaches the edge continues beyond it.",
                lambda: figures.forest(rows),
            )
        ],
    )


def _told_apart(rows: Rows, best: str | None) -> list[str]:
    """Return what the letters of the table are, and on what measures are compared; nothing where it has none."""
    if best is None or not rows_of(rows, "best_set"):
        return []
    few = min((row["n"] for row in rows_of(rows, "acu_difference")), default=0)
    fewer = few < max(row["n"] for row in rows_of(rows, "best_set"))
    common = f" A pair is compared on the texts of both, {few} at least." if fewer else ""
    return [
        f"Measures that share a letter cannot be told apart; the error of all pairs together is at most 5 %.{common}"
    ]


def _falling(subject: Subject, prefix: str) -> Section:
    rows = subject.rows
    return Section(
        "How performance falls",
        [
            "At each step the most important remaining tokens are masked, and the rest is explained again. The "
            "earlier a curve falls below the grey one, the more faithful the measure. The grey curve is the baseline. "
            f"{sentences.baseline_in_words(rows)}"
        ],
        figures=[
            drawn(prefix, "curves", f"Performance on {counted(rows)} against the share of masked tokens; ribbons are "
                  "95 % intervals.", lambda: figures.curves(rows, subject.metric)),
        ],
    )  # fmt: skip


def _by_label(subject: Subject, prefix: str) -> list[Section]:
    """Return the areas of each label and their curves, where texts have several labels at once."""
    rows = subject.rows
    labels = list(dict.fromkeys(str(row.get("detail")) for row in rows_of(rows, "label_acu")))
    if not labels:
        return []
    shown = measures(rows)[:LABEL_MEASURES]
    cells = [
        [
            label,
            number(find(rows, "label_masked_performance", "random", 0.0, label)),
            *(number(find(rows, "label_acu", name, detail=label)) for name in shown),
        ]
        for label in labels
    ]
    metric = METRICS[subject.metric].of_one
    title = f"The {metric} of each label unmasked, and each measure's ACU on it"
    return [
        Section(
            "Label by label",
            [
                "Each label is masked by its own explanation, on every text, and predicted again. A measure may be "
                "faithful for one label and not for another; a label that few test texts have has a wide interval."
            ],
            [Table(f"{prefix}labels", title, ("label", "unmasked", *(f"ACU, {name}" for name in shown)), cells)],
            [
                drawn(prefix, "label-curves", f"Performance on each label, masked by {shown[0]} (solid) and at random "
                      "(dashed).", lambda: figures.label_curves(rows, shown[0], metric))
            ],
        )
    ]  # fmt: skip


def _price(rows: Rows, prefix: str, best: str | None) -> Section:
    # a measure that was rejected, or does not beat random masking, is not worth its cost
    usable = [name for name in measures(rows) if best is not None and not rejected(rows, name)]
    proven = {name for name in usable if sentences.beats_random(rows, name)}
    front = figures.cheapest_best([row for row in rows if row["measure"] in proven])
    return Section(
        "What it costs",
        [f"No cheaper measure is more faithful than those on the grey line: {sentences.names(front)}."]
        if front
        else [],
        figures=[drawn(prefix, "cost", "Faithfulness against computing time.", lambda: figures.cost(rows, front))],
    )


def _short(rows: Rows, prefix: str) -> Section:
    return Section(
        "How short the explanations are",
        [
            "The higher a curve rises at the left, the fewer tokens hold most of the importance. Dotted: all tokens "
            "equal. Beam search gives an order and no amounts, so it is not shown."
        ],
        figures=[
            drawn(prefix, "sparsity", "Share of all importance in the top tokens.", lambda: figures.sparsity(rows))
        ],
    )


def _examples(subject: Subject) -> Section:
    return Section(
        "Examples",
        [
            _colours(subject.metric),
            f"The texts are those whose explanation by {most_faithful(subject.rows, IMPORTANCE_MEASURES)} has the "
            "largest, the median and the smallest ACU; the measures are the first of the table (beam search only on "
            "short texts).",
        ],
        examples=subject.examples,
    )


def _colours(metric: str) -> str:
    """Return what the colours and the curves of explanations are."""
    problem = problem_of(metric)
    if problem.name == NUMBER:
        return (
            "Orange raises the number, blue lowers it; stronger means more important. Each explanation has its own ACU "
            "(how much farther the number moves from that of the unmasked text than under random masking) and its own "
            "in-distribution p-value. The small curves show how far it moves against the share of masked tokens from 0 "
            "to 100 %, orange for the measure, grey for random masking."
        )
    return (
        f"Orange supports the {problem.what}, blue opposes it; stronger means more important. Each explanation has its "
        f"own ACU (how much faster the probability of the {problem.what} falls than under random masking) and its own "
        "in-distribution p-value. The small curves show the probability from 0 to 1 against the share of masked "
        "tokens from 0 to 100 %, orange for the measure, grey for random masking."
    )


def counted(rows: Rows) -> str:
    """Return the number of texts or trainings measured, in words."""
    numbers = sorted({row["n"] for row in rows_of(rows, "acu")}) or [0]
    many = f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"{numbers[0]}"
    return f"{many} {'trainings' if any(row['over'] == 'seeds' for row in rows) else 'texts'}"


def _checked(subject: Subject, prefix: str) -> list[Section]:
    rows = subject.rows
    lines = evidence(rows, sentences.recommended(rows))
    if not rows_of(rows, "check_p_value"):
        return []
    tables = [
        Table(f"{prefix}evidence", "What the verdict rests on", ("evidence", "what it says"), [*map(list, lines)])
    ]
    tables += _tested(rows, prefix)
    shown = [
        drawn(prefix, "p-values", "p-value of randomly masked test texts; below the line: out-of-distribution.",
               lambda: figures.p_values(rows))
    ]  # fmt: skip
    if any(row["kind"] == "share_out_of_distribution" for row in rows):
        shown.append(
            drawn(prefix, "out-of-distribution", "Texts out-of-distribution when each measure masks; dotted: 5 %.",
                   lambda: figures.out_of_distribution(rows))
        )  # fmt: skip
    return [Section("Is the comparison fair", [conclusion(rows)], tables, shown)]


def _tested(rows: Rows, prefix: str) -> list[Table]:
    """Return the table of the tests of each measure's masked texts; none where nothing was measured."""
    cells = []
    for name in measures(rows):
        worst, p_value = worst_step(rows, name), find(rows, "walk_p_value", name)["value"]
        unlike = find(rows, "walk_random_p_value", name)["value"]
        if worst is None or p_value is None:
            continue
        cells.append(
            [
                name,
                "not tested" if unlike is None else p_in_words(unlike),
                p_in_words(p_value),
                f"{100 * worst['value']:.1f} % (at {100 * worst['masking_ratio']:.0f} % masked)",
                "rejected" if rejected(rows, name) else "not rejected",
            ]
        )
    columns = ("measure", "p, random masking", "p, any ratio", "most texts out-of-distribution", "its masked texts")
    title = "Texts masked by each measure: unlike randomly masked ones, and unlike texts of any masking ratio"
    return [Table(f"{prefix}tested", title, columns, cells)] if cells else []
