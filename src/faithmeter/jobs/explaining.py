"""Explain: one text or many, with the run's most faithful measure."""

from collections.abc import Sequence
from pathlib import Path

from faithmeter.data import as_text, require_columns
from faithmeter.errors import InputError, nearest
from faithmeter.explanation import Explanation, explain_texts
from faithmeter.importance import as_measure
from faithmeter.run import Run
from faithmeter.tables import read_rows


def explain(
    path: str | Path,
    texts: Sequence[str],
    contexts: Sequence[str] | None = None,
    *,
    measure: str | None = None,
    target: str = "predicted",
    seed: int = 0,
) -> list[Explanation]:
    """Explain texts with a run's model; `measure` defaults to the one that was found most faithful on it."""
    run = Run(path)
    chosen = as_measure(measure or run.measure_to_use)
    labels = run.config.labels
    if target != "predicted" and target not in labels:
        raise InputError(f"There is no class {target!r}.{nearest(target, labels)} It has {', '.join(labels)}.")
    pairs = run.config.data.resolved().context is not None
    if pairs != (contexts is not None):
        raise InputError(
            "This model takes pairs: give a context with each text (--context)."
            if pairs
            else "This model takes single texts: leave the context out."
        )
    masf = run.in_distribution_test()
    return explain_texts(run.classifier(), texts, contexts, measure=chosen, target=target, masf=masf, seed=seed)


def read_texts(path: str | Path, file: Path) -> tuple[list[str], list[str] | None]:
    """Read the texts, and the contexts of pairs, of a table with the columns that the run's data has."""
    task = Run(path).config.data.resolved()
    rows = read_rows(file)
    if not rows:
        raise InputError(f"{file} holds no row.")
    columns = [task.text] if task.context is None else [task.text, task.context]
    require_columns(rows[0], columns, str(file))
    texts = [as_text(row[task.text]) for row in rows]
    return texts, None if task.context is None else [as_text(row[task.context]) for row in rows]
