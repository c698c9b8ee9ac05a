"""Does a model behave as one that was trained on masked texts? Evidence that does not come from its owner's word.

Randomly masked texts of validation and test are exchangeable, so a test fitted on the ones passes the others whatever
the model is. What a model does with masks is another matter. With everything masked there is nothing to read, and who
was trained on such texts knows that: it answers no worse than the class majority (Madsen et al., 2024, Sec. 5.1), and
is no surer than the classes' shares allow. Neither proves that masks were trained on; each can show that they were not.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from faithmeter.data.batch import Encoded
from faithmeter.in_distribution.limits import EXCESS_ALLOWED
from faithmeter.models.classifier import Classifier
from faithmeter.performance import Floats, Gold, below_majority_p_value, majority_performance, performance
from faithmeter.problems import CLASSES, LABELS, NUMBER, Problem
from faithmeter.statistics import LEVEL, mean_interval


@dataclass(frozen=True)
class AllMasked:
    """What a model does when everything is masked, on `texts` texts.

    `p_value` is how often a model as good as the class majority would do so badly by chance. `excess_loss` is by how
    many nats per text its cross-entropy exceeds that of answering every text with the shares of the classes in
    training; `interval` holds 95 % of it, over texts. Of labels it is the mean over labels. Of a number it is that of
    normal numbers about the answer, with the spread of training: half the squared error in units of their variance.
    """

    texts: int
    performance: float
    majority: float
    p_value: float
    excess_loss: float
    interval: tuple[float, float] | None

    @property
    def knows_nothing_is_there(self) -> bool:
        """Whether nothing here contradicts that the model was trained on masked texts."""
        sure = self.excess_loss if self.interval is None else self.interval[0]
        return self.p_value > LEVEL and sure <= EXCESS_ALLOWED


def _blind_losses(
    problem: Problem, train_labels: np.ndarray[Any, Any], gold: Tensor, outputs: int
) -> tuple[Tensor, float]:
    """Return the loss of each text, answered as training suggests without reading, and what a nat is in that loss.

    One text more of every class, and one with and one without each label: nothing is impossible because training has
    none of it.
    """
    if problem.name == CLASSES:
        counts = np.bincount(train_labels, minlength=outputs) + 1.0
        return -torch.from_numpy(np.log(counts / counts.sum()))[gold], 1.0
    blind, unit = train_labels.mean(axis=0), 2 * float(train_labels.var())
    if problem.name == LABELS:
        shares = (train_labels.sum(axis=0) + 1) / (len(train_labels) + 2)
        blind, unit = np.log(shares / (1 - shares)), 1.0
    return problem.loss(torch.from_numpy(blind).expand_as(gold), gold, "none"), unit


def _worse_p_value(
    problem: Problem, metric: str, train_labels: ArrayLike, encoded: Encoded, predicted: Gold, excess: Floats
) -> float:
    """Return how often a model that does as well as the blind answer would do so badly by chance.

    A class or a label can be answered exactly as training suggests. A number cannot: the mean is the best blind answer,
    and every other is worse by a little, which many texts would show. So of a number it is tested (Student's t) whether
    its excess loss is above what is allowed.
    """
    if problem.name != NUMBER:
        return below_majority_p_value(metric, train_labels, encoded.labels, predicted)
    error = float(excess.std(ddof=1)) / len(excess) ** 0.5 if len(excess) > 1 else 0.0
    if error == 0:
        return float(excess.mean() <= EXCESS_ALLOWED)
    return float(scipy.stats.t.sf((excess.mean() - EXCESS_ALLOWED) / error, len(excess) - 1))


def all_masked(classifier: Classifier, encoded: Encoded, train_labels: ArrayLike, metric: str) -> AllMasked:
    """Return what a model does with texts of which every maskable token is masked: one pass of each."""
    logits = classifier.predict(encoded.masked_by(lambda _, maskable: maskable)).double().cpu()
    gold, problem = torch.from_numpy(encoded.labels), classifier.problem
    predicted = problem.answers(logits).numpy()
    blind, unit = _blind_losses(problem, np.asarray(train_labels), gold, logits.shape[1])
    excess = ((problem.loss(logits, gold, "none") - blind) / unit).numpy()
    return AllMasked(
        texts=len(encoded),
        performance=performance(metric, encoded.labels, predicted),
        majority=majority_performance(metric, train_labels, encoded.labels),
        p_value=_worse_p_value(problem, metric, train_labels, encoded, predicted, excess),
        excess_loss=float(excess.mean()),
        interval=mean_interval(excess, groups=encoded.sources()),
    )
