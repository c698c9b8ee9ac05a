"""Prompt: make a run of a language model that is asked by a template, so that it can be checked and measured."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from torch import Tensor

from faithmeter.data.splits import DataSpec, Splits, load_splits
from faithmeter.errors import InputError, nearest
from faithmeter.masking import Purpose, random_stream
from faithmeter.models.classifier import Classifier
from faithmeter.models.prompt import CONTEXT, Prompt, prompted, read_language_model
from faithmeter.models.sources import absolute_model
from faithmeter.performance import require_metric
from faithmeter.problems import PROBLEMS, require_classes
from faithmeter.progress import Reporter, Silent
from faithmeter.runs.directory import refuse_existing
from faithmeter.runs.run import Run, RunConfig
from faithmeter.runs.texts import encode
from faithmeter.studies.adopt import store_adopted

NONE, EMPTY, MEDIAN = "none", "empty", "median"
CALIBRATIONS = (NONE, EMPTY, MEDIAN)
CALIBRATION_TEXTS = 500  # validation texts whose scores have the median


@dataclass(frozen=True)
class PromptOptions:
    """How a language model is asked: the template, a word for each class, examples and calibration.

    `words` gives other words than the names of the classes. `shots` training texts, as many of each class as can be,
    are shown answered before each text. `calibration` subtracts from the score of a class what it gets without any
    text (`empty`; Zhao et al., 2021), or the median of what it gets over validation texts (`median`), which needs no
    labels.
    """

    template: str
    words: Mapping[str, str] | None = None
    shots: int = 0
    calibration: str = NONE
    seed: int = 0

    def __post_init__(self) -> None:
        if self.calibration not in CALIBRATIONS:
            raise InputError(
                f"There is no calibration {self.calibration!r}.{nearest(self.calibration, CALIBRATIONS)} "
                f"Choose from {', '.join(CALIBRATIONS)}."
            )
        if self.shots < 0:
            raise InputError("The number of examples must be 0 or more.")


def prompt(
    path: str | Path,
    data: DataSpec,
    model: str,
    options: PromptOptions,
    *,
    max_length: int = 512,
    reporter: Reporter | None = None,
) -> Run:
    """Make a run of a causal language model with a prompt, and test it, masked and unmasked; nothing is trained."""
    reporter, path = reporter or Silent(), Path(path)
    refuse_existing(path)
    task = data.resolved()
    require_metric(task.metric)
    require_classes(PROBLEMS[task.problem], "A prompt")
    splits = load_splits(data, reporter=reporter)
    asked = _prompt(options, splits)
    language_model, tokenizer = read_language_model(model)
    classifier = Classifier(*prompted(language_model, tokenizer, asked), max_length=max_length)
    _require_room(classifier, options)
    offsets = _offsets(classifier, splits, options.calibration, reporter)
    classifier.model.config.offsets = offsets
    config = RunConfig(
        data=data.absolute(),
        model=absolute_model(model),
        training=None,
        labels=splits.labels,
        metric=task.metric,
        fingerprint=splits.fingerprint,
        max_length=max_length,
        prompt={
            "template": options.template,
            "words": [f"{label}={word}" for label, word in asked.words.items()],
            "shots": options.shots,
            "calibration": options.calibration,
            "seed": options.seed,
        },
    )
    for note in splits.notes:
        reporter.note(note)
    tokens = [len(ids) for ids in classifier.model.config.word_ids]
    reporter.note(f"The prompt has {_prompt_tokens(classifier)} tokens, and the words of the classes {tokens}.")
    store_adopted(path, config, classifier, splits, reporter)
    return Run(path)


def _prompt(options: PromptOptions, splits: Splits) -> Prompt:
    """Return the prompt with its examples; refuse words for other classes and slots that the data does not fill."""
    given = dict(options.words or {})
    unknown = [name for name in given if name not in splits.labels]
    if unknown:
        raise InputError(
            f"There is no class {unknown[0]!r} in the data.{nearest(unknown[0], splits.labels)} "
            f"Its classes are {', '.join(splits.labels)}."
        )
    words = {label: given.get(label, label) for label in splits.labels}
    pairs = "context" in splits.train.column_names
    empty = Prompt(options.template, words)
    if pairs != (CONTEXT in options.template):
        raise InputError(
            f"The data has {'pairs' if pairs else 'single texts'}, and the template has "
            f"{'no' if pairs else 'a'} slot {CONTEXT}: {'add one' if pairs else 'leave it out'}."
        )
    examples = tuple(
        empty.filled(row["text"], row.get("context"), splits.labels[row["label"]])
        for row in _drawn(splits.train, options.shots, len(splits.labels), options.seed)
    )
    return Prompt(options.template, words, examples)


def _drawn(train: datasets.Dataset, shots: int, classes: int, seed: int) -> list[dict[str, Any]]:
    """Return training rows at random, the classes in turn."""
    if shots > len(train):
        raise InputError(f"There are {len(train)} training texts, and {shots} examples were asked for.")
    order = random_stream(seed, Purpose.PROMPT_EXAMPLES).permutation(len(train))
    labels = np.array(train["label"])[order]
    # the n-th text of every class before the n+1-th of any
    turns = np.zeros(len(order), dtype=np.int64)
    for label in range(classes):
        turns[labels == label] = np.arange(int((labels == label).sum()))
    chosen = order[np.argsort(turns, kind="stable")[:shots]]
    return [train[int(row)] for row in chosen]


def _prompt_tokens(classifier: Classifier) -> int:
    return int(classifier.encode([""], [""] if CONTEXT in classifier.model.config.template else None).lengths[0])


def _require_room(classifier: Classifier, options: PromptOptions) -> None:
    asked = len(classifier.tokenizer("")["input_ids"])
    longest = max(len(ids) for ids in classifier.model.config.word_ids)
    if asked + longest >= classifier.max_length:
        raise InputError(
            f"The prompt alone has {asked} tokens, and the limit is {classifier.max_length}: shorten it, show fewer "
            f"examples than {options.shots}, or raise --max-length."
        )


def _offsets(classifier: Classifier, splits: Splits, calibration: str, reporter: Reporter) -> list[float]:
    """Return what is added to the log-likelihood of each class's word."""
    if calibration == NONE:
        return [0.0] * len(splits.labels)
    if calibration == EMPTY:
        pairs = CONTEXT in classifier.model.config.template
        return _centred_offsets(classifier.predict(classifier.encode([""], [""] if pairs else None)))
    few = splits.validation.select(range(min(CALIBRATION_TEXTS, len(splits.validation))))
    return _centred_offsets(classifier.predict(encode(classifier, few, "validation", reporter)))


def _centred_offsets(scores: Tensor) -> list[float]:
    """Return minus the median over texts of each class's score, relative to the mean of the classes.

    With two classes, half of the texts are then answered with each. Relative to the mean, because the likelihood of a
    text's continuation as a whole says nothing of the classes.
    """
    relative = (scores - scores.mean(dim=1, keepdim=True)).cpu().numpy()
    return [-float(one) for one in np.median(relative, axis=0)]
