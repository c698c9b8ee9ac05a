"""Train: masked fine-tuning of a model on a task, into a run directory."""

import dataclasses
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import datasets
import numpy as np
from accelerate import PartialState

from faithmeter.attacks.search import attack_texts, check_settings
from faithmeter.data.batch import Encoded, Ints
from faithmeter.data.splits import DataSpec, Splits, load_splits
from faithmeter.errors import InputError
from faithmeter.files import only_one
from faithmeter.in_distribution.masf import masked_at_random
from faithmeter.masking import Purpose, random_stream
from faithmeter.models.classifier import Classifier
from faithmeter.models.sources import absolute_model
from faithmeter.performance import majority_p_value, majority_performance, performance, require_metric
from faithmeter.problems import problem_of
from faithmeter.progress import Reporter, Silent
from faithmeter.reports.card import store_card
from faithmeter.runs.directory import refuse_existing
from faithmeter.runs.results import Result, Rows, find
from faithmeter.runs.run import Run, RunConfig
from faithmeter.runs.texts import encode
from faithmeter.statistics import LEVEL
from faithmeter.training.config import ADVERSARIAL, TrainingConfig, TrainingOptions
from faithmeter.training.loop import Attack, fine_tune
from faithmeter.training.start import (
    answers_already,
    fresh_classifier,
    require_trainable,
    training_defaults,
    with_classes_of,
)

DRAWS = {0: 1, 5: 5, 10: 1}  # tenths of the maskable tokens that are masked, and how many random choices of them


def train(
    path: str | Path,
    data: DataSpec,
    model: str,
    options: TrainingOptions | None = None,
    *,
    max_length: int = 512,
    vectors: str | None = None,
    reporter: Reporter | None = None,
) -> Run:
    """Masked fine-tuning of a model on a task, into a new run directory; then test it, masked and unmasked."""
    reporter = _main_process_only(reporter)
    path = Path(path)
    if PartialState().is_main_process:
        refuse_existing(path)
    task = data.resolved()
    require_metric(task.metric)
    options = options or TrainingOptions()
    training = options.over(training_defaults(model, task, lora=options.lora))
    require_trainable(training, task)
    check_settings((training.adversarial_attack,), training.adversarial_budget)
    splits, kept = with_classes_of(model, load_splits(data, reporter=reporter))
    if training.own_answers and not answers_already(model, splits.labels):
        raise InputError(
            f"--own-answers needs a model that already classifies into ({', '.join(splits.labels)}), and {model} does "
            "not: train it on the labels first."
        )
    classifier = fresh_classifier(
        model, splits, seed=training.seed, max_length=max_length, vectors=vectors, lora=training.adapter
    )
    config = RunConfig(
        data=data.absolute(),
        model=absolute_model(model),
        training=training,
        labels=splits.labels,
        metric=task.metric,
        fingerprint=splits.fingerprint,
        max_length=max_length,
        vectors=vectors and str(Path(vectors).resolve()),
    )
    for note in (*splits.notes, *kept, *classifier.notes):
        reporter.note(note)
    path.mkdir(parents=True, exist_ok=True)
    with _alone(path):
        if PartialState().is_main_process:
            Run.create(path, config)
        PartialState().wait_for_everyone()
        return _train_and_test(Run(path), splits, classifier, reporter)


def resume(path: str | Path, *, reporter: Reporter | None = None) -> Run:
    """Resume an interrupted training, to the same weights as without the interruption."""
    run, reporter = Run(path), _main_process_only(reporter)
    with _alone(run.path):
        if run.trained and run.results:
            raise InputError(f"The training of {path} is finished: there is nothing to resume.")
        config, splits = run.config, run.data(reporter)
        if config.training is None:  # trained elsewhere: only its results can be missing
            test = encode(run.classifier(), splits.test, "test", reporter)
            store_performance(run, np.array(splits.train["label"]), test, reporter)
            return run
        classifier = fresh_classifier(
            config.model,
            splits,
            seed=config.training.seed,
            max_length=config.max_length,
            vectors=config.vectors,
            lora=config.training.adapter,
        )
        return _train_and_test(run, splits, classifier, reporter)


def _alone(path: Path) -> AbstractContextManager[None]:
    """Raise InputError if another process works in the run; processes that train together count as one."""
    return only_one(path) if PartialState().is_main_process else nullcontext()


def train_or_go_on(
    path: str | Path,
    data: DataSpec,
    model: str,
    options: TrainingOptions | None = None,
    *,
    max_length: int = 512,
    vectors: str | None = None,
    reporter: Reporter | None = None,
) -> Run:
    """Return a finished run, new or resumed; raise InputError for one with other settings."""
    options, path = options or TrainingOptions(), Path(path)
    if not (path / "config.json").is_file():
        return train(path, data, model, options, max_length=max_length, vectors=vectors, reporter=reporter)
    run = Run(path)
    taught = options.over(training_defaults(model, data.resolved(), lora=options.lora))
    vectors = vectors and str(Path(vectors).resolve())
    found = run.config
    if options.validation is None and found.training is not None:  # a run from before this default keeps its own
        taught = dataclasses.replace(taught, validation=found.training.validation)
    asked = (absolute_model(model), data.absolute().as_made_before(found.data), taught, max_length, vectors)
    if (found.model, found.data, found.training, found.max_length, found.vectors) != asked:
        raise InputError(f"{path} is a run with another model, data or training. Choose another directory.")
    return run if run.trained and run.results else resume(path, reporter=reporter)


def _main_process_only(reporter: Reporter | None) -> Reporter:
    """Return the reporter in the first of the processes that `accelerate launch` started, silence in the others."""
    return reporter if reporter is not None and PartialState().is_main_process else Silent()


def _train_and_test(run: Run, splits: Splits, classifier: Classifier, reporter: Reporter) -> Run:
    config = run.config
    assert config.training is not None
    train_split, validation, test = (
        encode(classifier, getattr(splits, part), part, reporter) for part in ("train", "validation", "test")
    )
    classifier.remove_by(config.training.operator, run.unigrams(train_split))
    outcome = None
    if config.training.own_answers and not run.trained:
        train_split, validation = (
            _with_own_answers(classifier, split, reporter) for split in (train_split, validation)
        )
    if not run.trained:
        outcome = fine_tune(
            classifier,
            train_split,
            validation,
            config.training,
            metric=config.metric,
            checkpoints=run.checkpoints,
            reporter=reporter,
            attack=_attack_on(classifier, splits.train, config.training, reporter),
        )
        for warning in outcome.warnings:
            reporter.warn(warning)
        if PartialState().is_main_process:
            run.finish_training(classifier, outcome.history)
        PartialState().wait_for_everyone()
    if not PartialState().is_main_process:
        return run
    store_performance(run, np.array(splits.train["label"]), test, reporter)
    chance = by_chance(run.results)
    # the best epoch was chosen on the validation texts, which flatters it there: the test texts have the last word
    if chance is not None and (outcome is None or not outcome.warnings):
        reporter.warn(f"{chance} Its explanations may be meaningless.")
    return run


def _with_own_answers(classifier: Classifier, encoded: Encoded, reporter: Reporter) -> Encoded:
    """Return the same texts, each labelled with what the untrained model answers to it unmasked."""
    with reporter.bar("Asking the model", len(encoded)) as advance:
        answers = classifier.predict(encoded, progress=advance).argmax(dim=-1).cpu().numpy()
    return dataclasses.replace(encoded, labels=answers)


def by_chance(rows: Rows) -> str | None:
    """Return a warning if a run's model is not significantly better than the class majority on the test texts.

    None where it surely is; of a run that an older version made, where its number is larger.
    """
    reached, majority = find(rows, "performance", ratio=0.0), find(rows, "majority")["value"]
    p_value = find(rows, "majority_p_value")["value"] or 0.0
    if reached["value"] > majority and p_value <= LEVEL:
        return None
    lucky = f", which may be chance (p = {p_value:.2f})" if reached["value"] > majority else ""
    return (
        f"The model's {reached['metric']} is {reached['value']:.3f} on {reached['n']} test texts{lucky}, and "
        f"{problem_of(reached['metric']).blindly} gives {majority:.3f}."
    )


def _attack_on(
    classifier: Classifier, split: datasets.Dataset, config: TrainingConfig, reporter: Reporter
) -> Attack | None:
    """Return the function that attacks texts for adversarial training; None without it.

    Words are ranked by their gradients, which is quicker, and by default misspelt, not replaced: the nearest neighbour
    of a word is often its opposite, which would teach the wrong label. A text that the model gets wrong anyway stays as
    it is.
    """
    if ADVERSARIAL not in config.robust:
        return None

    def attack(rows: Ints, epoch: int) -> Encoded:
        chosen = split.select(rows)
        contexts = chosen["context"] if "context" in chosen.column_names else None
        with reporter.bar("Attacking", len(rows)) as advance:
            found = attack_texts(
                classifier,
                chosen["text"],
                contexts,
                chosen["label"],
                kinds=(config.adversarial_attack,),
                budget=config.adversarial_budget,
                order="gradient",
                seed=int(random_stream(config.seed, Purpose.ATTACK, epoch).integers(2**31)),
                rows=rows,
                progress=advance,
            )
        return classifier.encode(found.texts, contexts, chosen["label"])

    return attack


def store_performance(run: Run, train_labels: Ints, test: Encoded, reporter: Reporter) -> None:
    """Test a run's model, masked and unmasked, and store its performance and the class majority."""
    config = run.config
    majority = majority_performance(config.metric, train_labels, test.labels)
    # the model as later commands will load it, so that what is tested is what is stored
    classifier = run.classifier()
    classifier.memory.warn = reporter.warn
    results = masked_performance(classifier, test, train_labels, config.metric, config.seed, reporter)
    results.append(Result(kind="majority", value=majority, metric=config.metric, n=len(test)))
    run.store_results(("performance", "majority", "majority_p_value"), results)
    store_card(run)


def masked_performance(
    classifier: Classifier, test: Encoded, train_labels: Ints, metric: str, seed: int, reporter: Reporter
) -> list[Result]:
    """Return the performance with none, half and all of the maskable tokens masked at random.

    Half of the tokens can be chosen in many ways, so that number is the mean of several draws. With none masked, there
    is also the p-value of answers that do not depend on the text.
    """
    results = []
    with reporter.bar("Testing", sum(DRAWS.values()) * len(test)) as advance:
        for step, draws in DRAWS.items():
            values = []
            for draw in range(draws):
                masked = masked_at_random(test, step, (seed, Purpose.EVALUATION_MASKS, draw))
                predicted = classifier.problem.answers(classifier.predict(masked, progress=advance)).cpu().numpy()
                values.append(performance(metric, test.labels, predicted))
                if step == 0:
                    p_value = majority_p_value(metric, train_labels, test.labels, predicted)
                    results.append(Result(kind="majority_p_value", value=p_value, metric="p", n=len(test)))
            results.append(
                Result(
                    kind="performance", value=sum(values) / draws, metric=metric, masking_ratio=step / 10, n=len(test)
                )
            )
    return results
