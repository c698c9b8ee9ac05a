"""Explain: one text or many, with the run's most faithful measure, or the most faithful one within a time budget."""

from dataclasses import replace
from pathlib import Path

from faithmeter.data.batch import Encoded, Texts, listed
from faithmeter.data.units import with_units
from faithmeter.errors import InputError
from faithmeter.explaining.explanation import Explanation, explain_texts
from faithmeter.explaining.options import RANDOM_RUNS, ExplainOptions, require_target
from faithmeter.importance.completeness import TEXTS, zero_baseline_caution
from faithmeter.importance.table import IMPORTANCE_MEASURES, as_measure, require_gradients
from faithmeter.masking import STEPS
from faithmeter.measuring.curves import walk_passes
from faithmeter.progress import Reporter, Silent
from faithmeter.reports import sentences
from faithmeter.runs.directory import require_pairs
from faithmeter.runs.results import Rows, find, most_faithful, rows_of
from faithmeter.runs.run import Run, RunLike, opened

EXPENSIVE_TOKENS = 200_000  # from this many through the model on, the cost of a test is worth a word


def explain(
    path: RunLike,
    texts: Texts,
    contexts: Texts | None = None,
    options: ExplainOptions | None = None,
    *,
    measure: str | None = None,
    budget: float | None = None,
    operator: str | None = None,
    reporter: Reporter | None = None,
) -> list[Explanation]:
    """Explain texts with a run's model; `measure` defaults to the run's most faithful one.

    A string is one text, explained as the only one of a list, with a string as its context where the model takes pairs.
    With a `budget` of seconds per text, it is the most faithful one that fits into it (see `within_budget`). An
    `operator` removes tokens in another way than the run's own, in explanations and in their curves.

    If the run's verdict advises against these explanations, the reporter warns first, and `doubt` of each explanation
    says so; `cut` says if a text was truncated.
    """
    run, reporter = opened(path), reporter or Silent()
    run = run if operator is None else run.by(operator)
    if measure is not None and budget is not None:
        raise InputError("A budget chooses the measure: give a budget or a measure, not both.")
    chosen = as_measure(measure or run.measure_to_use)
    options = as_measured(run, options or ExplainOptions())
    require_target(options.target, run.config.labels)
    require_pairs(run.config.data, contexts=contexts is not None)
    texts, contexts = listed(texts, contexts)
    classifier = run.classifier()
    if budget is not None:
        by, chunk = options.units
        encoded = with_units(classifier.encode(texts, contexts), classifier, texts, contexts, by=by, chunk=chunk)
        name, why = within_budget(run.results, encoded, budget, run.path, options.random_runs + options.orders)
        reporter.note(why)
        chosen = IMPORTANCE_MEASURES[name]
    require_gradients([chosen], classifier)
    doubt = sentences.doubt(run.results, chosen.name)
    if doubt is not None:
        reporter.warn(doubt)
    if texts and chosen.from_zero:
        some = classifier.encode(texts[:TEXTS], None if contexts is None else contexts[:TEXTS])
        caution = zero_baseline_caution(classifier, some.batch(range(len(some))), [chosen])
        if caution is not None:
            reporter.warn(caution)
    passes = options.orders * (STEPS - 1) + 2  # at most: nothing and everything masked are the same in all orders
    if options.orders and passes * int(classifier.encode(texts, contexts).lengths.sum()) > EXPENSIVE_TOKENS:
        reporter.note(
            f"Each explanation is tested against {options.orders} random orders: up to {passes * len(texts):,} forward "
            "passes. Fewer orders (--orders 19), or none (--orders 0), are faster."
        )
    masf = run.in_distribution_test()
    found = explain_texts(classifier, texts, contexts, options, measure=chosen, masf=masf)
    return [replace(one, doubt=doubt) for one in found]


def as_measured(run: Run, options: ExplainOptions) -> ExplainOptions:
    """Return the options with the units that the run was measured by, unless they name some themselves."""
    if options.by is not None:
        return options
    settings = run.measurement_settings
    chunk = settings.get("chunk") if options.chunk is None else options.chunk
    return replace(options, by=settings.get("by"), chunk=chunk)


def within_budget(
    rows: Rows, texts: Encoded, budget: float, path: str | Path, random_runs: int = RANDOM_RUNS
) -> tuple[str, str]:
    """Return the most faithful measure that explains each of the texts within so many seconds, and why, in words.

    An explanation comes with its own masking curve, so it takes what `measure` timed: the measure on the text, and anew
    on what is left at each step if it is recursive. `seconds_per_text` over `token_passes` is how long a token takes
    once through the model, on the machine that measured. That, times the passes that a text of this length needs, for
    the explanations, the predictions on the curve and the random curves beside it, times its tokens, is its cost. The
    most expensive of the texts decides. Loading the model is not counted.
    """
    measured = {row["measure"] for row in rows_of(rows, "acu")} & set(IMPORTANCE_MEASURES)
    costs = {name: cost for name in measured if (cost := _seconds(rows, name, texts, random_runs)) is not None}
    if not costs:
        raise InputError(
            f"The time and the faithfulness of explanations of {path} were not measured. Run `faithmeter measure "
            f"{path}` first (finished measurements are kept), or name a measure (--measure)."
        )
    fitting = {name for name, cost in costs.items() if cost <= budget}
    longest = int(texts.lengths.max(initial=0))
    if not fitting:
        cheapest = min(costs, key=lambda name: costs[name])
        raise InputError(
            f"No measure fits into {budget:g} s: the fastest, {cheapest}, takes about {_said(costs[cheapest])} for "
            f"the longest text ({longest} tokens). Give a larger budget, or shorter texts."
        )
    chosen, best = most_faithful(rows, fitting), most_faithful(rows, set(costs))
    assert chosen is not None
    assert best is not None
    why = f"{chosen} explains {'this text' if len(texts) == 1 else 'each text'} in about {_said(costs[chosen])}"
    if chosen == best:
        return chosen, f"{why}; it is the most faithful measure."
    return chosen, (
        f"{why}; it is the most faithful measure that fits into {budget:g} s. "
        f"{best} is more faithful but would take about {_said(costs[best])}."
    )


def _seconds(rows: Rows, name: str, texts: Encoded, random_runs: int) -> float | None:
    """Return how long a measure takes for the most expensive of the texts; None where that was not measured."""
    spent, work = (find(rows, kind, name)["value"] for kind in ("seconds_per_text", "token_passes"))
    if spent is None or not work:
        return None
    beside = (1 + random_runs) * (STEPS + 1)  # its own curve and the random ones
    passes = [walk_passes(IMPORTANCE_MEASURES[name], count) or 0.0 for count in texts.unit_counts.tolist()]
    tokens = [(p + beside) * int(length) for p, length in zip(passes, texts.lengths, strict=True)]
    return float(spent) / float(work) * max(tokens, default=0.0)


def _said(seconds: float) -> str:
    """Return seconds in words, with two digits that count."""
    return f"{seconds:.2g} s" if seconds < 100 else f"{seconds:.0f} s"
