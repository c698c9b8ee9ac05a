"""Estimates of the time of a suite's jobs, from a few mini-batches and forward passes timed on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from faithmeter.importance.table import IMPORTANCE_MEASURES, distinct
from faithmeter.judges.judge import Need
from faithmeter.judges.table import JUDGES
from faithmeter.masking import STEPS
from faithmeter.measuring.retraining import RANDOM
from faithmeter.progress import Silent
from faithmeter.runs.texts import encode, in_units
from faithmeter.runs.timing import epoch_seconds, estimated_seconds, seconds_per_token
from faithmeter.studies.audit import KNOWN_TOKEN_ROWS
from faithmeter.studies.check import ROWS

if TYPE_CHECKING:
    from faithmeter.data.batch import Encoded
    from faithmeter.data.splits import Splits
    from faithmeter.studies.suite.jobs import Job, Plan
from faithmeter.runs.stages import CHECK, JUDGE, MEASURE, RETRAIN, TRAIN
from faithmeter.training.start import fresh_classifier, training_defaults, with_classes_of

SAMPLE = 500  # rows of each split that are tokenised and timed; the others are taken to be like them
SMALL = 2.0  # seconds that a job takes at least, which loads a model and writes a file
PASSES_OF_A_JUDGE = 2 * STEPS  # about: most mask at a few ratios and predict again


@dataclass(frozen=True)
class Pace:
    """How fast a model is on a task: seconds for an epoch, and for a token through the model; and a sample of texts."""

    epoch: float
    token: float
    sample: Encoded
    rows: dict[str, int]


def pace_of(plan: Plan, splits: Splits) -> Pace:
    """Time an untrained model on a few texts; refuse measures that cannot explain it."""
    fitting, _ = with_classes_of(plan.model, splits)
    classifier = fresh_classifier(plan.model, fitting, seed=0, max_length=plan.max_length, vectors=plan.vectors)
    if plan.measured is not None:
        distinct(plan.measured.measures, classifier)
    few = {name: getattr(fitting, name) for name in ("train", "test")}
    rows = {name: len(getattr(fitting, name)) for name in ("train", "validation", "test")}
    few = {name: split.select(range(min(SAMPLE, rows[name]))) for name, split in few.items()}
    train, test = (encode(classifier, split, name, Silent()) for name, split in few.items())
    if plan.measured is not None:
        test = in_units(test, classifier, few["test"], plan.measured.by, plan.measured.chunk)
    batch_size = plan.training.over(training_defaults(plan.model, splits.task, lora=plan.training.lora)).batch_size
    epoch = epoch_seconds(classifier, train, batch_size) * rows["train"] / len(train)
    return Pace(epoch, seconds_per_token(classifier, test), test, rows)


def seconds_of(job: Job, pace: Pace) -> float:
    """Return about how long a job takes."""
    plan, tokens = job.plan, float(pace.sample.lengths.mean())
    if job.kind in (TRAIN, RETRAIN):
        epochs = plan.training.epochs or training_defaults(plan.model, plan.data.resolved()).epochs
        return SMALL + epochs * pace.epoch
    if job.kind == CHECK:
        asked = min(plan.check_rows or ROWS, pace.rows["validation"]) + pace.rows["test"]
        return SMALL + asked * (STEPS + 1) * tokens * pace.token
    if job.kind == MEASURE:
        return SMALL + _measuring(job, pace) / job.parts
    if job.kind == JUDGE:
        return SMALL + _judging(plan, pace, tokens)
    return SMALL


def _measuring(job: Job, pace: Pace) -> float:
    options = job.plan.measured
    assert options is not None
    rows = min(options.rows or pace.rows["test"], pace.rows["test"])
    if job.measure == "beam" and options.beam_rows is not None:
        rows = min(rows, options.beam_rows)
    times = options.random_runs if job.measure == RANDOM else 1
    sample = np.arange(len(pace.sample))
    one = estimated_seconds(IMPORTANCE_MEASURES[job.measure], pace.sample, sample, pace.token) or 0.0
    return times * one * rows / len(sample)


def _judging(plan: Plan, pace: Pace, tokens: float) -> float:
    options = plan.audited
    assert options is not None
    words = int(pace.sample.maskable.sum()) // len(pace.sample)
    found = [IMPORTANCE_MEASURES[str(name)] for name in options.measures or ()]
    explaining = sum(_passes(one.passes, words) for one in found)
    total = 0.0
    for name in options.judges or ():
        rows = min(options.rows or JUDGES[name].rows, pace.rows["test"])
        total += rows * (explaining + len(found) * PASSES_OF_A_JUDGE) * tokens * pace.token
        if JUDGES[name].needs is Need.KNOWN_TOKEN and not plan.data.resolved().known_token:
            epochs = plan.training.epochs or training_defaults(plan.model, plan.data.resolved()).epochs
            total += epochs * pace.epoch * min(1.0, KNOWN_TOKEN_ROWS / pace.rows["train"])
    return total


def _passes(passes: object, words: int) -> float:
    return float(passes(words)) if callable(passes) else 0.0


def time_left(left: Sequence[float], *, places: int, estimated: float, taken: float) -> float:
    """Return how long it will still take: what was estimated, times how wrong the estimate was of what is done."""
    wrong = taken / estimated if estimated > 0 and taken > 0 else 1.0
    return max(sum(left) * wrong / places, max(left, default=0.0) * wrong)
