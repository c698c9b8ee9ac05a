"""Performance of a classifier: the papers' metrics, and the class majority."""

from collections.abc import Callable, Mapping
from types import MappingProxyType, ModuleType

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from faithmeter.errors import InputError, nearest
from faithmeter.statistics import Weights

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
DRAWS = 499


def _scores() -> ModuleType:
    """Return sklearn's metrics, imported where a score is asked for: that takes as long as to explain a text."""
    from sklearn import metrics

    return metrics


METRICS: Mapping[str, Callable[[ArrayLike, ArrayLike], float]] = MappingProxyType(
    {
        "accuracy": lambda gold, predicted: float(_scores().accuracy_score(gold, predicted)),
        "macro-f1": lambda gold, predicted: float(
            _scores().f1_score(gold, predicted, average="macro", zero_division=0)
        ),
        "micro-f1": lambda gold, predicted: float(
            _scores().f1_score(gold, predicted, average="micro", zero_division=0)
        ),
        "matthews": lambda gold, predicted: float(_scores().matthews_corrcoef(gold, predicted)),
    }
)


def require_metric(metric: str) -> str:
    """Return the name if it is a metric; raise InputError with the known ones if not."""
    if metric not in METRICS:
        raise InputError(f"There is no metric {metric!r}.{nearest(metric, METRICS)} Choose from {', '.join(METRICS)}.")
    return metric


def performance(metric: str, gold: ArrayLike, predicted: ArrayLike) -> float:
    """Return the task's metric of the predicted classes; higher is better for every one of them."""
    return METRICS[require_metric(metric)](gold, predicted)


def weighted_performance(metric: str, gold: Ints, predicted: Ints) -> Callable[[Weights], Floats]:
    """Return a function of weights: the (weights' rows, columns of `predicted`) performance of weighted observations.

    `gold` is (n,), `predicted` (n, columns) and the weights (resamples, n): how often each observation counts. With
    weights of one it equals `performance`; with many rows it bootstraps a whole masking curve in matrix products. What
    does not depend on the weights is made once, for they come in many parts.
    """
    require_metric(metric)
    if metric in ("accuracy", "micro-f1"):  # the same thing where each text has one class
        correct = (predicted == gold[:, None]).astype(np.float64)
        return lambda weights: weights @ correct / weights.sum(axis=1, keepdims=True)
    classes, columns = np.union1d(gold, predicted), predicted.shape[1]
    golden, answers = np.searchsorted(classes, gold), np.searchsorted(classes, predicted)
    right = answers == golden[:, None]
    # 1 where an observation, in a column, is of a class: most are 0, so time and memory do not grow with the classes
    is_gold = _one_hot(golden[:, None], len(classes))
    is_predicted, is_both = _one_hot(answers, len(classes)), _one_hot(answers, len(classes), right)

    def reached(weights: Weights) -> Floats:
        shape = (len(weights), columns, len(classes))
        counts = ((weights @ is_predicted).reshape(shape), (weights @ is_both).reshape(shape))
        gold_count = np.broadcast_to((weights @ is_gold)[:, None], shape)
        return _of_counts(metric, gold_count, *counts, weights.sum(axis=1, keepdims=True))

    return reached


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


def majority_performance(metric: str, train_labels: ArrayLike, test_labels: ArrayLike) -> float:
    """Return the performance on test of always predicting train's majority class (Madsen et al., 2024, Sec. 5.1)."""
    gold = np.asarray(test_labels)
    return performance(metric, gold, np.full_like(gold, _most_frequent(train_labels)))


def _most_frequent(labels: ArrayLike) -> int:
    values, counts = np.unique(np.asarray(labels), return_counts=True)
    return int(values[counts.argmax()])


def below_majority_p_value(metric: str, train_labels: ArrayLike, gold: Ints, predicted: Ints) -> float:
    """Return how often chance alone would let answers as good as the class majority do as badly as these, or worse.

    By accuracy and micro-F1 it is McNemar's test, exact and one-sided: of the texts on which either the model or the
    majority is right, not both, the model has so few. By the other metrics the two answers to each text change places
    at random, and the share of such draws with as large a distance is the p-value. Both are paired.
    """
    blind = np.full_like(gold, _most_frequent(train_labels))
    if require_metric(metric) in ("accuracy", "micro-f1"):
        right, lucky = predicted == gold, blind == gold
        return float(scipy.stats.binom.cdf((right & ~lucky).sum(), (right != lucky).sum(), 0.5))
    swapped = np.random.default_rng(0).random((len(gold), DRAWS + 1)) < 0.5
    swapped[:, 0] = False
    ours, majority = (np.where(swapped, *pair) for pair in ((blind[:, None], predicted[:, None]),
                                                            (predicted[:, None], blind[:, None])))  # fmt: skip
    ones = np.ones((1, len(gold)))
    ahead = weighted_performance(metric, gold, ours)(ones)[0] - weighted_performance(metric, gold, majority)(ones)[0]
    return float(np.mean(ahead <= ahead[0] + 1e-12))


def majority_p_value(metric: str, train_labels: ArrayLike, gold: Ints, predicted: Ints) -> float:
    """Return how often chance alone would let answers that do not depend on the text do as well as these.

    Of such answers the class majority is the best by accuracy and micro-F1. There it is McNemar's test, exact and
    one-sided: of the texts on which either the model or the majority is right, not both, the model has so many as a
    fair coin seldom gives. It is paired, so few texts of an uneven task are enough. By macro-F1 and Matthews'
    coefficient guessing does as well as the majority or better (on two even classes a coin has a macro-F1 of 1/2, the
    majority of 1/3), so to beat that shows nothing: there the model's own answers are dealt out to the texts at random,
    and the share of these permutations that do as well is the p-value. Both hold their level on any number of texts.
    """
    if require_metric(metric) in ("accuracy", "micro-f1"):
        right, blind = predicted == gold, gold == _most_frequent(train_labels)
        return float(scipy.stats.binom.sf((right & ~blind).sum() - 1, (right != blind).sum(), 0.5))
    classes = np.union1d(gold, predicted)
    golden, answers = np.searchsorted(classes, gold), np.searchsorted(classes, predicted)
    random = np.random.default_rng(0)
    dealt = [answers, *(random.permutation(answers) for _ in range(DRAWS))]
    both = np.array([np.bincount(golden[one == golden], minlength=len(classes)) for one in dealt], dtype=np.float64)
    gold_count, answer_count = (
        np.bincount(one, minlength=len(classes)).astype(np.float64) for one in (golden, answers)
    )
    reached, *by_chance = _of_counts(metric, gold_count, answer_count, both, np.array(float(len(gold)))).tolist()
    return float(np.mean([True, *(value >= reached - 1e-12 for value in by_chance)]))
