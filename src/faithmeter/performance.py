"""How well a classifier does: the papers' metrics, and the answer that needs no text (the majority)."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike
from sklearn import metrics

from faithmeter.errors import InputError, nearest

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


def majority_performance(metric: str, train_labels: ArrayLike, test_labels: ArrayLike) -> float:
    """Return the performance on test of always answering the most frequent class of train (FMM Sec. 5.1)."""
    values, counts = np.unique(np.asarray(train_labels), return_counts=True)
    majority = values[counts.argmax()]
    gold = np.asarray(test_labels)
    return performance(metric, gold, np.full_like(gold, majority))
