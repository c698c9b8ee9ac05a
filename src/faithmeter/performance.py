"""How well a classifier does: the papers' metrics, and the answer that needs no text (the majority)."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn import metrics

from faithmeter.errors import InputError, nearest

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

METRICS: Mapping[str, Callable[[ArrayLike, ArrayLike], float]] = MappingProxyType(
    {
        "accuracy": lambda gold, predicted: float(metrics.accuracy_score(gold, predicted)),
        "macro-f1": lambda gold, predicted: float(metrics.f1_score(gold, predicted, average="macro", zero_division=0)),
        "micro-f1": lambda gold, predicted: float(metrics.f1_score(gold, predicted, average="micro", zero_division=0)),
        "matthews": lambda gold, predicted: float(metrics.matthews_corrcoef(gold, predicted)),
    }
)


def require_metric(metric: str) -> str:
    """Return the name if there is such a metric, or say which there are."""
    if metric not in METRICS:
        raise InputError(f"There is no metric {metric!r}.{nearest(metric, METRICS)} Choose from {', '.join(METRICS)}.")
    return metric


def performance(metric: str, gold: ArrayLike, predicted: ArrayLike) -> float:
    """Return the task's metric of the predicted classes; higher is better for every one of them."""
    return METRICS[require_metric(metric)](gold, predicted)


def weighted_performance(metric: str, gold: Ints, predicted: Ints, weights: Floats) -> Floats:
    """Return the (weights' rows, columns of `predicted`) performance of weighted observations.

    `gold` is (n,), `predicted` (n, columns) and `weights` (resamples, n): how often each observation counts. With
    weights of one it equals `performance`; with many rows it bootstraps a whole masking curve in matrix products.
    """
    require_metric(metric)
    total = weights.sum(axis=1, keepdims=True)
    if metric in ("accuracy", "micro-f1"):  # the same thing where each text has one class
        return weights @ (predicted == gold[:, None]) / total
    classes = np.union1d(gold, predicted)
    # (resamples, columns, classes): how often a class is gold, predicted, and both
    is_gold = gold[:, None, None] == classes
    is_predicted = predicted[:, :, None] == classes
    gold_count = np.einsum("rn,nkc->rkc", weights, np.broadcast_to(is_gold, is_predicted.shape).astype(float))
    predicted_count = np.einsum("rn,nkc->rkc", weights, is_predicted.astype(float))
    both_count = np.einsum("rn,nkc->rkc", weights, (is_gold & is_predicted).astype(float))
    if metric == "macro-f1":
        present = gold_count + predicted_count > 0
        f1 = np.divide(2 * both_count, gold_count + predicted_count, out=np.zeros_like(both_count), where=present)
        return f1.sum(axis=-1) / present.sum(axis=-1)
    covariance = both_count.sum(axis=-1) * total - (gold_count * predicted_count).sum(axis=-1)
    spread = (total**2 - (gold_count**2).sum(axis=-1)) * (total**2 - (predicted_count**2).sum(axis=-1))
    return np.divide(covariance, np.sqrt(spread), out=np.zeros_like(covariance), where=spread > 0)


def majority_performance(metric: str, train_labels: ArrayLike, test_labels: ArrayLike) -> float:
    """Return the performance on test of always answering the most frequent class of train (FMM Sec. 5.1)."""
    values, counts = np.unique(np.asarray(train_labels), return_counts=True)
    majority = values[counts.argmax()]
    gold = np.asarray(test_labels)
    return performance(metric, gold, np.full_like(gold, majority))
