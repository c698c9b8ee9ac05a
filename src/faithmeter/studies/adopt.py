"""Adopt: make a run of a model trained elsewhere, so that it can be checked and measured like any other."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from faithmeter.data.splits import DataSpec, Splits, load_splits
from faithmeter.errors import InputError
from faithmeter.files import new_folder
from faithmeter.models.classifier import Classifier, head_of, load_classifier, outputs_of
from faithmeter.models.from_scratch import FROM_SCRATCH
from faithmeter.models.sources import absolute_model, require_no_pickled_head
from faithmeter.performance import require_metric
from faithmeter.problems import PROBLEMS
from faithmeter.progress import Reporter, Silent
from faithmeter.runs.commands import command_to_train
from faithmeter.runs.directory import refuse_existing
from faithmeter.runs.run import Run, RunConfig
from faithmeter.runs.texts import encode
from faithmeter.studies.train import by_chance, store_performance


def adopt(
    path: str | Path,
    model: str,
    data: DataSpec,
    *,
    masked_before: bool = False,
    max_length: int = 512,
    reference: Run | None = None,
    reporter: Reporter | None = None,
) -> Run:
    """Make a run of a trained classifier, by folder or hub name, with data to judge it on.

    The model is copied into the run, so that results stay valid. An existing run of the same model and data is returned
    unchanged. `masked_before` states that the model was fine-tuned on masked texts, which cannot be verified: masked
    texts are then the reference of the in-distribution test, otherwise only unmasked ones. `reference` is the run that
    trained the model, if this data is of another domain: its in-distribution test is used.
    """
    home = None if reference is None else str(reference.path.resolve())
    reporter, path, model, data = reporter or Silent(), Path(path), absolute_model(model), data.absolute()
    if (path / "config.json").is_file():
        asked = {
            "model": model,
            "data": data.as_made_before(Run(path).config.data),
            "masked_before": masked_before,
            "max_length": max_length,
            "training": None,
            "reference": home,
        }
        return _made_before(path, asked, reference)
    refuse_existing(path)
    task = data.resolved()
    require_metric(task.metric)
    classes = _outputs(path, model, data, task.problem, max_length)
    splits = with_classes(load_splits(data, reporter=reporter), classes)
    classifier = load_classifier(model, splits.labels, problem=task.problem, max_length=max_length)
    config = RunConfig(
        data=data,
        model=model,
        training=None,
        labels=splits.labels,
        metric=task.metric,
        fingerprint=splits.fingerprint,
        max_length=max_length,
        masked_before=masked_before,
        reference=home,
    )
    for note in splits.notes:
        reporter.note(note)
    for note in classifier.notes:
        reporter.warn(note)
    store_adopted(path, config, classifier, splits, reporter, reference)
    return Run(path)


def store_adopted(
    path: Path,
    config: RunConfig,
    classifier: Classifier,
    splits: Splits,
    reporter: Reporter,
    reference: Run | None = None,
) -> None:
    """Store a model that is not trained here as a run, with its performance; warn if that may be chance."""
    classifier.both_texts = config.data.both_texts
    with new_folder(path) as folder:  # atomic: there is no half-made run to resume
        run = Run.create(folder, config)
        run.store_model(classifier)
        if reference is not None:
            shutil.copytree(reference.in_distribution_folder, run.in_distribution_folder)
        test = encode(classifier, splits.test, "test", reporter)
        store_performance(run, np.array(splits.train["label"]), test, reporter)
    chance = by_chance(Run(path).results)
    if chance is not None:
        order = f"Is the order of its {config.problem.name} right ({', '.join(splits.labels)}), and is this its data?"
        reporter.warn(f"{chance} {order}" if len(splits.labels) > 1 else f"{chance} Is this its data?")


def _outputs(path: Path, model: str, data: DataSpec, problem: str, max_length: int) -> tuple[str, ...]:
    """Return the classes or labels of a trained model; refuse one that answers something else than the data has."""
    found = None if model in FROM_SCRATCH else outputs_of(model, problem)
    if found is not None:
        return found
    require_no_pickled_head(model)
    other = None if model in FROM_SCRATCH else next((name for name in PROBLEMS if outputs_of(model, name)), None)
    if other is not None:
        raise InputError(
            f"{model} has {head_of(model)}, and the data has {problem}, so its answers would be misread. Name the "
            f"column that it answers with {PROBLEMS[other].option}; or give it a new head: "
            f"`{command_to_train(path, data, model, max_length)}`."
        )
    head = "no weights yet" if model in FROM_SCRATCH else head_of(model)
    raise InputError(
        f"{model} has {head}, so it has nothing to explain. Train it first: "
        f"`{command_to_train(path, data, model, max_length)}`."
    )


def _made_before(path: Path, asked: Mapping[str, object], reference: Run | None) -> Run:
    """Return the existing run, if it has the same settings; raise InputError if not."""
    run = Run(path)
    differing = [name.replace("_", " ") for name, value in asked.items() if getattr(run.config, name) != value]
    if reference is not None and not differing and run.weights != reference.weights:
        differing = ["weights, for its model was trained anew"]
    if differing:
        raise InputError(
            f"{path} is a run with another {' and '.join(differing)}. Use the same options, or choose another "
            f"directory{' with --run' if reference is None else ''}."
        )
    return run


def with_classes(loaded: Splits, classes: Sequence[str]) -> Splits:
    """Return the data with the model's classes; refuse data that has others."""
    splits = loaded.in_order_of(classes)
    if splits is None:
        raise InputError(
            f"The model's {loaded.task.problem} ({', '.join(classes)}) are not those of the data "
            f"({', '.join(loaded.labels)}). Rename the labels of the data, or number them from 0 in the model's order."
        )
    return splits
