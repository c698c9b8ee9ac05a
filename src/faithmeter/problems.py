"""What a model answers: one of several classes, several labels at once, or a number. A row of a table for each.

The row says what the outputs of the head (its logits) mean: what is predicted, what it is learnt by, what is explained.
Everything else asks the row. `problem_type` is transformers' name, as in a model's config. Torch is imported where a
loss is computed, since a command that only looks at its data has no need of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from faithmeter.errors import InputError, nearest

if TYPE_CHECKING:
    from torch import Tensor

CLASSES, LABELS, NUMBER = "classes", "labels", "number"


@dataclass(frozen=True)
class Problem:
    """What a model answers.

    `answers` are the (rows,) classes, or the (rows, outputs) numbers, that performance is computed of; `scores` the
    (rows, outputs) probabilities, or the number itself; `loss(logits, gold, reduction)` is that of each row (`none`) or
    their `sum`. `right` says which rows are answered right, and is None where an answer is only nearer or farther.

    `metrics` are the names of those in `performance` that it can be measured by, the usual one first.

    Of `classes` one output is explained for each text, that of the true or the predicted class. Otherwise each output
    is explained for every text (`each_output`), and gold answers are (rows, outputs) numbers.

    The rest are words: `what` is asked for (as in "the true class"), the head, the option that names such data, the
    answer that does not depend on the text (in a table and in a sentence), how its loss with everything masked compares
    (well or badly), and what is explained, by the target of a measurement.
    """

    name: str
    problem_type: str
    what: str
    head: str
    option: str
    metrics: tuple[str, ...]
    answers: Callable[[Tensor], Tensor]
    scores: Callable[[Tensor], Tensor]
    loss: Callable[[Tensor, Tensor, str], Tensor]
    right: Callable[[Tensor, Tensor], Tensor] | None
    blind: str
    blindly: str
    all_masked: tuple[str, str]
    explained: Mapping[str, str]
    each_output: bool = False


def _cross_entropy(logits: Tensor, gold: Tensor, reduction: str) -> Tensor:
    from torch.nn import functional

    return functional.cross_entropy(logits, gold, reduction=reduction)


def _binary_cross_entropy(logits: Tensor, gold: Tensor, reduction: str) -> Tensor:
    """Return the mean over labels, so that it does not grow with how many labels there are."""
    from torch.nn import functional

    return _reduced(
        functional.binary_cross_entropy_with_logits(logits, gold.to(logits.dtype), reduction="none"), reduction
    )


def _squared_error(logits: Tensor, gold: Tensor, reduction: str) -> Tensor:
    return _reduced((logits - gold.to(logits.dtype)).square(), reduction)


def _reduced(losses: Tensor, reduction: str) -> Tensor:
    """Return (rows, outputs) losses as the mean over outputs of each row, or as the sum of these."""
    each = losses.mean(dim=-1)
    return each.sum() if reduction == "sum" else each


_TABLE = (
    Problem(
        CLASSES,
        "single_label_classification",
        "class",
        "a head that chooses one of several classes (softmax)",
        "--label COLUMN",
        ("accuracy", "macro-f1", "micro-f1", "matthews"),
        answers=lambda logits: logits.argmax(dim=-1),
        scores=lambda logits: logits.softmax(dim=-1),
        loss=_cross_entropy,
        right=lambda logits, gold: logits.argmax(dim=-1) == gold,
        blind="class majority",
        blindly="always predicting the most frequent class",
        all_masked=(
            "about as confident as the class frequencies allow",
            "much more confident than the class frequencies allow",
        ),
        explained=MappingProxyType(
            {
                "gold": "Explained is the true class of each text.",
                "predicted": "Explained is the class that the model predicts.",
            }
        ),
    ),
    Problem(
        LABELS,
        "multi_label_classification",
        "label",
        "a multi-label head, whose labels do not exclude each other (a sigmoid each)",
        "--labels COLUMN,COLUMN,...",
        ("label-micro-f1", "label-macro-f1", "label-map"),
        answers=lambda logits: logits.sigmoid(),
        scores=lambda logits: logits.sigmoid(),
        loss=_binary_cross_entropy,
        right=lambda logits, gold: ((logits > 0) == (gold > 0)).all(dim=-1),
        blind="label frequencies",
        blindly="answering every text with the labels' frequencies",
        all_masked=(
            "about as confident as the label frequencies allow",
            "much more confident than the label frequencies allow",
        ),
        explained=MappingProxyType({"gold": "Explained is the logit of every label, on every text."}),
        each_output=True,
    ),
    Problem(
        NUMBER,
        "regression",
        "number",
        "a regression head, whose answer is a number",
        "--number COLUMN",
        ("r2", "pearson", "spearman"),
        answers=lambda logits: logits,
        scores=lambda logits: logits,
        loss=_squared_error,
        right=None,
        blind="mean number",
        blindly="answering every text with the mean number",
        all_masked=(
            "about as near to the truth as the mean number",
            "much farther from the truth than the mean number",
        ),
        explained=MappingProxyType({"gold": "Explained is the number that the model answers."}),
        each_output=True,
    ),
)
PROBLEMS: Mapping[str, Problem] = MappingProxyType({problem.name: problem for problem in _TABLE})


def problem_of(metric: str) -> Problem:
    """Return the problem that a metric is of; that of an old or empty name is of classes."""
    return next((problem for problem in _TABLE if metric in problem.metrics), PROBLEMS[CLASSES])


def metric_for(problem: str, metric: str) -> str:
    """Return the metric of a problem that is asked for, the usual one where none is, or raise InputError.

    `macro-f1` of labels is `label-macro-f1`.
    """
    fitting = PROBLEMS[problem].metrics
    found = next((name for name in (metric, f"label-{metric}") if name in fitting), fitting[0] if not metric else None)
    if found is None:
        raise InputError(
            f"There is no metric {metric!r} for {PROBLEMS[problem].option}.{nearest(metric, fitting)} "
            f"Choose from {', '.join(fitting)}."
        )
    return found


def problem_in(config: Any) -> Problem:  # noqa: ANN401 (transformers' config, which is not imported here)
    """Return what a model with this config answers. Where it does not say, one output is a number, as in transformers.

    A config with several outputs that does not say is of classes.
    """
    said = getattr(config, "problem_type", None)
    known = next((problem for problem in _TABLE if problem.problem_type == said), None)
    return known or PROBLEMS[NUMBER if config.num_labels == 1 else CLASSES]


def says_nothing(config: Any) -> bool:  # noqa: ANN401
    """Whether a config leaves open whether its several outputs are classes or labels: then the data decides."""
    return getattr(config, "problem_type", None) is None and config.num_labels > 1


def require_classes(problem: Problem, what: str) -> None:
    """Refuse to do something that needs one class per text, with a model that answers something else."""
    if problem.name != CLASSES:
        raise InputError(
            f"{what} needs a model that chooses one of several classes, and this one has {problem.head}. "
            "Train, check, measure, explain and report work with it, and so do the judges of an audit that need no "
            "classes."
        )


def require_one_output(problem: Problem, what: str) -> None:
    """Refuse what has one explanation per text, where every label has its own."""
    if problem.name == LABELS:
        raise InputError(
            f"{what} has one explanation per text, and this model has {problem.head}: each label has an explanation of "
            "its own. Use a model of classes or of a number."
        )


def gold_in_words(problem: Problem, labels: Sequence[str], gold: Any) -> str:  # noqa: ANN401 (a class, or numbers)
    """Return a gold answer in words: a class, the labels that a text has, or a number."""
    if problem.name == CLASSES:
        return labels[gold]
    return in_words(problem, labels, gold)


def in_words(problem: Problem, labels: Sequence[str], scores: Sequence[float]) -> str:
    """Return what a model with these scores predicts, in words; of labels those above one half."""
    if problem.name == CLASSES:
        return labels[max(range(len(labels)), key=lambda number: scores[number])]
    if problem.name == NUMBER:
        return f"{scores[0]:.4g}"
    return ", ".join(name for name, score in zip(labels, scores, strict=True) if score > 0.5) or "none of the labels"
