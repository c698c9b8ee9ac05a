"""Performance: the papers' metrics for classes, those for labels and numbers, and answers that do not read the text.

Of classes, gold and predicted are class numbers. Of labels and numbers they are (texts, outputs): 0 and 1 beside the
probability of each label, or one number beside another.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType, ModuleType

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from faithmeter.errors import InputError, nearest
from faithmeter.problems import problem_of
from faithmeter.statistics import Weights

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
DRAWS = 499


def _scores() -> ModuleType:
    """Return sklearn's metrics, imported where a score is asked for: that takes as long as to explain a text."""
    from sklearn import metrics

    return metrics


Gold = Ints | Floats  # (texts,) classes, or (texts, outputs)
Weighted = Callable[[Weights], Floats]


@dataclass(frozen=True)
class Metric:
    """A metric; higher is better for every one of them. `problems.PROBLEMS` says which problem it is of.

    `weighted(gold, answers)` is as in `weighted_performance`. `plain(gold, answers)` is the same of each text once,
    where another library computes it.
    """

    name: str
    weighted: Callable[[Gold, Gold], Weighted]
    plain: Callable[[ArrayLike, ArrayLike], float] | None = None
    called: str = ""  # in a sentence, where that is not its name
    of_one: str = ""  # what it is of a single label


def _accuracy(gold: Gold, predicted: Gold) -> Weighted:
    correct = (predicted == gold[:, None]).astype(np.float64)
    return lambda weights: weights @ correct / weights.sum(axis=1, keepdims=True)


def _of_classes(metric: str) -> Callable[[Gold, Gold], Weighted]:
    """Return the weighted form of macro-F1 or Matthews' coefficient."""

    def weighted(gold: Gold, predicted: Gold) -> Weighted:
        classes, columns = np.union1d(gold, predicted), predicted.shape[1]
        golden, answers = np.searchsorted(classes, gold), np.searchsorted(classes, predicted)
        right = answers == golden[:, None]
        # 1 where an observation, in a column, is of a class: most are 0, so time and memory do not grow with classes
        is_gold = _one_hot(golden[:, None], len(classes))
        is_predicted, is_both = _one_hot(answers, len(classes)), _one_hot(answers, len(classes), right)

        def reached(weights: Weights) -> Floats:
            shape = (len(weights), columns, len(classes))
            counts = ((weights @ is_predicted).reshape(shape), (weights @ is_both).reshape(shape))
            gold_count = np.broadcast_to((weights @ is_gold)[:, None], shape)
            return _of_counts(metric, gold_count, *counts, weights.sum(axis=1, keepdims=True))

        return reached

    return weighted


def _one_hot(chosen: Ints, classes: int, where: NDArray[np.bool_] | None = None) -> "scipy.sparse.csr_array":
    """Return (n, columns · classes) zeros and ones of (n, columns) class numbers: 1 at the class, where it counts."""
    n, columns = chosen.shape
    kept = np.ones(chosen.shape, dtype=np.bool_) if where is None else where
    rows, at = np.nonzero(kept)
    ones = np.ones(len(rows))
    return scipy.sparse.csr_array((ones, (rows, at * classes + chosen[kept])), shape=(n, columns * classes))


def _of_counts(metric: str, gold_count: Floats, predicted_count: Floats, both_count: Floats, total: Floats) -> Floats:
    """Return macro-F1 or Matthews' coefficient from how often each class (last) is gold, predicted, and both."""
    if metric == "macro-f1":
        present = gold_count + predicted_count > 0
        f1 = np.divide(2 * both_count, gold_count + predicted_count, out=np.zeros_like(both_count), where=present)
        return f1.sum(axis=-1) / present.sum(axis=-1)
    covariance = both_count.sum(axis=-1) * total - (gold_count * predicted_count).sum(axis=-1)
    spread = (total**2 - (gold_count**2).sum(axis=-1)) * (total**2 - (predicted_count**2).sum(axis=-1))
    return np.divide(covariance, np.sqrt(spread), out=np.zeros_like(covariance), where=spread > 0)


# ------------------------------------------------------------------------------------------------------------ labels


def _label_f1(*, micro: bool) -> Callable[[Gold, Gold], Weighted]:
    """Return the weighted form of F1 over labels: of all decisions together, or the mean of each label's.

    A label is predicted where its probability is above one half. One that no text has and none is given has an F1 of 0.
    """

    def weighted(gold: Gold, answers: Gold) -> Weighted:
        texts, columns, labels = answers.shape
        said, true = answers > 0.5, gold > 0.5
        both = (said & true[:, None]).reshape(texts, -1).astype(np.float64)
        either = (said.astype(np.float64) + true[:, None]).reshape(texts, -1)

        def reached(weights: Weights) -> Floats:
            shape = (len(weights), columns, labels)
            right, any_ = 2 * (weights @ both).reshape(shape), (weights @ either).reshape(shape)
            if micro:
                right, any_ = right.sum(axis=-1, keepdims=True), any_.sum(axis=-1, keepdims=True)
            f1 = np.divide(right, any_, out=np.zeros_like(right), where=any_ > 0)
            mean: Floats = f1.mean(axis=-1)
            return mean

        return reached

    return weighted


def _average_precision(gold: Gold, answers: Gold) -> Weighted:
    """Return the weighted mean over labels of average precision: Σ (R_n − R_(n−1)) P_n, ties of one score together.

    It asks how well the probabilities of a label order the texts, not where they lie. A label that no text has is left
    out of the mean.
    """
    texts, columns, labels = answers.shape

    def of_label(written: Floats, column: int, label: int) -> Floats:
        scores = answers[:, column, label]
        order = np.argsort(-scores, kind="stable")
        last = np.append(np.diff(scores[order]) != 0, True)  # of the texts with the same score
        counted = written[:, order]
        found = np.cumsum(counted * gold[order, label], axis=1)[:, last]
        seen = np.cumsum(counted, axis=1)[:, last]
        precision = np.divide(found, seen, out=np.zeros_like(found), where=seen > 0)
        total = found[:, -1]
        area = (np.diff(found, axis=1, prepend=0.0) * precision).sum(axis=1)
        return np.divide(area, total, out=np.full(len(area), np.nan), where=total > 0)

    def reached(weights: Weights) -> Floats:
        written = _written(weights, texts)
        found = np.array([[of_label(written, column, k) for k in range(labels)] for column in range(columns)])
        known = ~np.isnan(found)
        mean: Floats = np.where(known, found, 0.0).sum(axis=1) / np.maximum(1, known.sum(axis=1))
        return mean.T

    return reached


def _written(weights: Weights, texts: int) -> Floats:
    """Return (rows, texts) weights written out, for what is no sum over texts."""
    written: Floats = np.asarray(weights @ scipy.sparse.eye_array(texts, format="csr"))
    return written


# ----------------------------------------------------------------------------------------------------------- numbers

SAME_NUMBER = 1e-6  # of the spread of the gold numbers: answers that differ by less are rounding


def _r_squared(gold: Gold, answers: Gold) -> Weighted:
    """Return the weighted form of R²: 1 less the squared error relative to that of the mean of the gold numbers."""
    true = gold[:, 0] - gold[:, 0].mean()
    errors, squares = (answers[:, :, 0] - gold) ** 2, true**2

    def reached(weights: Weights) -> Floats:
        total = weights.sum(axis=1, keepdims=True)
        spread = (weights @ squares)[:, None] - (weights @ true)[:, None] ** 2 / total
        missed = weights @ errors
        return np.where(spread > 0, 1 - missed / np.where(spread > 0, spread, 1), 0.0)

    return reached


def _pearson(gold: Gold, answers: Gold) -> Weighted:
    """Return the weighted form of Pearson's correlation; 0 where all answers are the same, as with Matthews'."""
    true = gold[:, 0] - gold[:, 0].mean()
    given = answers[:, :, 0] - answers[:, :, 0].mean(axis=0)
    smallest = (SAME_NUMBER * true.std()) ** 2

    def reached(weights: Weights) -> Floats:
        total = weights.sum(axis=1, keepdims=True)
        sums, own = weights @ given, (weights @ true)[:, None]
        covariance = weights @ (given * true[:, None]) - sums * own / total
        spreads = weights @ given**2 - sums**2 / total, (weights @ true**2)[:, None] - own**2 / total
        known = (spreads[0] > smallest * total) & (spreads[1] > 0)
        return np.where(known, covariance / np.sqrt(np.where(known, spreads[0] * spreads[1], 1)), 0.0)

    return reached


def _spearman(gold: Gold, answers: Gold) -> Weighted:
    """Return the weighted form of Spearman's correlation: Pearson's of mean ranks, of texts counted by weight."""
    grain = SAME_NUMBER * float(gold[:, 0].std()) or 1.0
    columns = [np.round(answers[:, column, 0] / grain) for column in range(answers.shape[1])]

    def ranks(values: Floats) -> Callable[[Weights], Floats]:
        groups, place = np.unique(values, return_inverse=True)
        members = _one_hot(place[:, None], len(groups))

        def of(weights: Weights) -> Floats:
            size = weights @ members
            return (np.cumsum(size, axis=1) - size / 2)[:, place]

        return of

    of_gold, of_answers = ranks(gold[:, 0].astype(np.float64)), [ranks(values) for values in columns]

    def reached(weights: Weights) -> Floats:
        written, total = _written(weights, len(gold)), weights.sum(axis=1, keepdims=True)
        centred = [of(weights) - total / 2 for of in (of_gold, *of_answers)]  # the mean rank is half of the total
        true, *given = centred
        spread = (written * true**2).sum(axis=1)

        def correlation(own: Floats) -> Floats:
            both = spread * (written * own**2).sum(axis=1)
            product = (written * own * true).sum(axis=1)
            return np.divide(product, np.sqrt(both), out=np.zeros_like(product), where=both > 0)

        return np.stack([correlation(own) for own in given], axis=1)

    return reached


# ------------------------------------------------------------------------------------------------------------- table

_TABLE = (
    Metric("accuracy", _accuracy, lambda gold, predicted: float(_scores().accuracy_score(gold, predicted))),
    Metric(
        "macro-f1",
        _of_classes("macro-f1"),
        lambda gold, predicted: float(_scores().f1_score(gold, predicted, average="macro", zero_division=0)),
    ),
    Metric(  # the same as accuracy where each text has one class
        "micro-f1",
        _accuracy,
        lambda gold, predicted: float(_scores().f1_score(gold, predicted, average="micro", zero_division=0)),
    ),
    Metric(
        "matthews",
        _of_classes("matthews"),
        lambda gold, predicted: float(_scores().matthews_corrcoef(gold, predicted)),
        called="Matthews' correlation",
    ),
    Metric("label-micro-f1", _label_f1(micro=True), called="micro-F1 over labels", of_one="F1"),
    Metric("label-macro-f1", _label_f1(micro=False), called="the mean F1 of the labels", of_one="F1"),
    Metric(
        "label-map",
        _average_precision,
        called="the mean average precision of the labels",
        of_one="average precision",
    ),
    Metric("r2", _r_squared, called="R²"),
    Metric("pearson", _pearson, called="Pearson's correlation"),
    Metric("spearman", _spearman, called="Spearman's correlation"),
)
METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _TABLE})


def require_metric(metric: str) -> str:
    """Return the name if it is a metric; raise InputError with the known ones if not."""
    if metric not in METRICS:
        raise InputError(f"There is no metric {metric!r}.{nearest(metric, METRICS)} Choose from {', '.join(METRICS)}.")
    return metric


def performance(metric: str, gold: ArrayLike, predicted: ArrayLike) -> float:
    """Return the task's metric of the answers; higher is better for every one of them."""
    row = METRICS[require_metric(metric)]
    if row.plain is not None:
        return row.plain(gold, predicted)
    true, answers = np.asarray(gold, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    return float(row.weighted(true, answers[:, None])(np.ones((1, len(true))))[0, 0])


def weighted_performance(metric: str, gold: Gold, predicted: Gold) -> Weighted:
    """Return a function of weights: the (weights' rows, columns of `predicted`) performance of weighted observations.

    Of classes `gold` is (n,) and `predicted` (n, columns), else they are (n, outputs) and (n, columns, outputs). The
    weights are (resamples, n): how often each observation counts. With weights of one it equals `performance`; with
    many rows it bootstraps a whole masking curve in matrix products. What does not depend on the weights is made once,
    for they come in many parts.
    """
    return METRICS[require_metric(metric)].weighted(gold, predicted)


# ------------------------------------------------------------------------------- answers that do not read the text


def majority_performance(metric: str, train_labels: ArrayLike, test_labels: ArrayLike) -> float:
    """Return the performance on test of always predicting train's majority class (Madsen et al., 2024, Sec. 5.1).

    Of labels and numbers it is that of always answering their means in train: the labels' frequencies, the mean number.
    """
    gold = np.asarray(test_labels)
    return performance(metric, gold, _blind(metric, train_labels, gold))


def _blind(metric: str, train_labels: ArrayLike, gold: Gold) -> Gold:
    """Return for each text of `gold` the answer that training suggests to who does not read it."""
    if problem_of(metric).each_output:
        return np.broadcast_to(np.asarray(train_labels, dtype=np.float64).mean(axis=0), gold.shape)
    return np.full_like(gold, _most_frequent(train_labels))


def _most_frequent(labels: ArrayLike) -> int:
    values, counts = np.unique(np.asarray(labels), return_counts=True)
    return int(values[counts.argmax()])


def below_majority_p_value(metric: str, train_labels: ArrayLike, gold: Gold, predicted: Gold) -> float:
    """Return how often chance alone would let answers as good as the class majority do as badly as these, or worse.

    By accuracy and micro-F1 it is McNemar's test, exact and one-sided: of the texts on which either the model or the
    majority is right, not both, the model has so few. By the other metrics the two answers to each text change places
    at random, and the share of such draws with as large a distance is the p-value. Both are paired.
    """
    blind = _blind(require_metric(metric), train_labels, gold)
    if metric in ("accuracy", "micro-f1"):
        right, lucky = predicted == gold, blind == gold
        return float(scipy.stats.binom.cdf((right & ~lucky).sum(), (right != lucky).sum(), 0.5))
    swapped = np.random.default_rng(0).random((len(gold), DRAWS + 1)) < 0.5
    swapped[:, 0] = False
    if problem_of(metric).each_output:
        mixed = [
            (np.where(one[:, None], blind, predicted), np.where(one[:, None], predicted, blind)) for one in swapped.T
        ]
        leads = np.array([performance(metric, gold, a) - performance(metric, gold, b) for a, b in mixed])
        return float(np.mean(leads <= leads[0] + 1e-12))
    ours, majority = (np.where(swapped, *pair) for pair in ((blind[:, None], predicted[:, None]),
                                                            (predicted[:, None], blind[:, None])))  # fmt: skip
    ones = np.ones((1, len(gold)))
    ahead = weighted_performance(metric, gold, ours)(ones)[0] - weighted_performance(metric, gold, majority)(ones)[0]
    return float(np.mean(ahead <= ahead[0] + 1e-12))


def majority_p_value(metric: str, train_labels: ArrayLike, gold: Gold, predicted: Gold) -> float:
    """Return how often chance alone would let answers that do not depend on the text do as well as these.

    Of such answers the class majority is the best by accuracy and micro-F1. There it is McNemar's test, exact and
    one-sided: of the texts on which either the model or the majority is right, not both, the model has so many as a
    fair coin seldom gives. It is paired, so few texts of an uneven task are enough. By macro-F1 and Matthews'
    coefficient guessing does as well as the majority or better (on two even classes a coin has a macro-F1 of 1/2, the
    majority of 1/3), so to beat that shows nothing: there the model's own answers are dealt out to the texts at random,
    and the share of these permutations that do as well is the p-value. Both hold their level on any number of texts.
    Labels and numbers are dealt out like that, too.
    """
    if require_metric(metric) in ("accuracy", "micro-f1"):
        right, blind = predicted == gold, gold == _most_frequent(train_labels)
        return float(scipy.stats.binom.sf((right & ~blind).sum() - 1, (right != blind).sum(), 0.5))
    random = np.random.default_rng(0)
    if problem_of(metric).each_output:
        every = [predicted, *(predicted[random.permutation(len(gold))] for _ in range(DRAWS))]
        values = [performance(metric, gold, answers) for answers in every]
        return float(np.mean([value >= values[0] - 1e-12 for value in values]))
    classes = np.union1d(gold, predicted)
    golden, answers = np.searchsorted(classes, gold), np.searchsorted(classes, predicted)
    dealt = [answers, *(random.permutation(answers) for _ in range(DRAWS))]
    both = np.array([np.bincount(golden[one == golden], minlength=len(classes)) for one in dealt], dtype=np.float64)
    gold_count, answer_count = (
        np.bincount(one, minlength=len(classes)).astype(np.float64) for one in (golden, answers)
    )
    reached, *by_chance = _of_counts(metric, gold_count, answer_count, both, np.array(float(len(gold)))).tolist()
    return float(np.mean([True, *(value >= reached - 1e-12 for value in by_chance)]))
