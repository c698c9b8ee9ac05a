"""Estimates of the time of work, from a few forward passes timed on this machine."""

import time

import numpy as np
import torch
from torch import Tensor

from faithmeter.data.batch import Batch, Encoded, Ints
from faithmeter.importance.measure import ImportanceMeasure
from faithmeter.masking import STEPS, Purpose, random_stream
from faithmeter.measuring.curves import walk_passes
from faithmeter.models.classifier import Classifier
from faithmeter.training.curriculum import mini_batches

WORTH_SAYING = 60  # seconds that work takes before its estimate is worth a line


def seconds_per_token(classifier: Classifier, test: Encoded) -> float:
    """Return how long a token takes through the model, timed on texts of middling length."""
    middle = np.argsort(test.lengths, kind="stable")[len(test) // 2 :]
    batch = test.batch(middle[:50]).to(classifier.device)
    rows = torch.arange(len(batch), device=classifier.device)
    classifier.logits_of_masks(batch, rows, batch.masked)  # the first pass of a process is slower
    started = time.perf_counter()
    classifier.logits_of_masks(batch, rows, batch.masked)
    return (time.perf_counter() - started) / int(batch.attention_mask.sum())


def estimated_seconds(one: ImportanceMeasure, test: Encoded, rows: Ints, pace: float) -> float | None:
    """Return about how long a masking walk of these rows will take; None for a measure of which nothing is known."""
    total, units = 0.0, test.unit_counts
    for row in rows:
        passes = walk_passes(one, int(units[row]))
        if passes is None:
            return None
        total += (passes + STEPS + 1) * int(test.lengths[row])
    return total * pace * (1 if one.family == "random" else test.outputs)  # who explains nothing walks once for all


def duration(seconds: float) -> str:
    """Return a length of time in words."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def epoch_seconds(classifier: Classifier, train: Encoded, batch_size: int) -> float:
    """Return about how long a pass over the training data will take, from a few mini-batches that are timed."""
    order = random_stream(0, Purpose.TRAIN_ORDER)
    batches = mini_batches(np.arange(len(train)), train.lengths, batch_size, order)
    tried = batches[: min(6, len(batches))]

    def learn(batch: Batch) -> tuple[Tensor]:
        loss = classifier.problem.loss(classifier.logits(batch), batch.labels, "none").mean()
        loss.backward()
        return (loss.detach()[None],)

    classifier.model.train()
    for number, rows in enumerate(tried):
        if number == len(tried) // 3:  # the first ones of a process are slower
            started = time.perf_counter()
        classifier.memory.through(train.batch(rows), learn)
    seconds = (time.perf_counter() - started) / (len(tried) - len(tried) // 3)
    classifier.model.zero_grad(set_to_none=True)
    classifier.model.eval()
    return seconds * len(batches)
