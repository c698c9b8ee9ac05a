"""Roar: mask the most important tokens, retrain, measure again. A graph of trainings; finished ones are kept."""

import dataclasses
import functools
import hashlib
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faithmeter.data.batch import Encoded
from faithmeter.data.splits import DataSpec, Splits, load_splits
from faithmeter.data.tasks import Task
from faithmeter.errors import InputError, nearest
from faithmeter.files import (
    at_work,
    is_done,
    new_folder,
    only_one,
    wait_until_nobody_is_at_work,
    write_json,
    write_jsonl,
)
from faithmeter.importance.measure import with_steps
from faithmeter.importance.table import IMPORTANCE_MEASURES, NOT_RETRAINED, distinct
from faithmeter.measuring.curves import TARGETS
from faithmeter.measuring.retraining import (
    ALL_MASKED,
    IMPORTANCE,
    PROTOCOLS,
    RANDOM,
    RECURSIVE,
    RELATIVE,
    STEP_KINDS,
    UNMASKED,
    Node,
    explain_split,
    last_step,
    mask_everything,
    mask_split,
    masked_count,
    sparsity,
)
from faithmeter.measuring.synthetic import TEST_ROWS, TRAIN_ROWS, synthetic_curves
from faithmeter.models.classifier import Classifier, load_classifier
from faithmeter.models.from_scratch import FROM_SCRATCH
from faithmeter.models.sources import absolute_model
from faithmeter.performance import performance, require_metric
from faithmeter.problems import PROBLEMS, require_classes
from faithmeter.progress import Reporter, Silent
from faithmeter.reports.formats import write_report
from faithmeter.reports.roar import synthetic_section, synthetic_verdict
from faithmeter.runs.directory import is_roar, refuse_existing
from faithmeter.runs.engines import one_thread, work_through
from faithmeter.runs.texts import encode, say_what_is_odd
from faithmeter.runs.timing import duration, epoch_seconds, seconds_per_token
from faithmeter.studies.roar.experiment import (
    SPLITS,
    RoarConfig,
    RoarRun,
    load_importance,
    load_masks,
    save_importance,
    save_masks,
)
from faithmeter.studies.roar.rows import summarise
from faithmeter.training.config import ADVERSARIAL, TrainingConfig, TrainingOptions
from faithmeter.training.loop import fine_tune
from faithmeter.training.start import fresh_classifier, training_defaults, with_classes_of

Tokenised = dict[str, Encoded]  # by the name of the split


@dataclass(frozen=True)
class RoarOptions:
    """What to retrain for; by default all measures that can explain the model, except the expensive ones.

    `ig_steps` is the number of steps of integrated gradients: 50 in the paper.
    """

    measures: tuple[str, ...] | None = None
    protocols: tuple[str, ...] = PROTOCOLS
    seeds: tuple[int, ...] = (0,)
    steps: str = RELATIVE
    target: str = "gold"
    ig_steps: int = 50

    def __post_init__(self) -> None:
        for name, chosen, known in (
            ("protocol", self.protocols, PROTOCOLS),
            ("kind of steps", (self.steps,), STEP_KINDS),
            ("target", (self.target,), TARGETS),
        ):
            wrong = next((one for one in chosen if one not in known), None)
            if wrong is not None:
                raise InputError(f"There is no {name} {wrong!r}: choose from {', '.join(known)}.")
        if not self.seeds or not self.protocols:
            raise InputError("Name at least one seed and one protocol.")
        if min(self.seeds) < 0 or len(set(self.seeds)) < len(self.seeds):
            raise InputError("Seeds are whole numbers from 0 on, each named once.")
        if self.ig_steps < 1:
            raise InputError("Integrated gradients need at least one step.")


def roar(
    path: str | Path,
    data: DataSpec,
    model: str,
    options: RoarOptions | None = None,
    training: TrainingOptions | None = None,
    *,
    max_length: int = 512,
    vectors: str | None = None,
    workers: int = 1,
    reporter: Reporter | None = None,
) -> RoarRun:
    """Run ROAR and Recursive ROAR in a folder. Finished trainings are kept, so the same call resumes after a crash.

    `workers` processes train in parallel; the results do not depend on their number. A script that uses several needs
    the usual `if __name__ == "__main__":`.
    """
    run = begin_roar(path, data, model, options, training, max_length=max_length, vectors=vectors, reporter=reporter)
    return go_on(run, workers=workers, reporter=reporter)


def begin_roar(
    path: str | Path,
    data: DataSpec,
    model: str,
    options: RoarOptions | None = None,
    training: TrainingOptions | None = None,
    *,
    max_length: int = 512,
    vectors: str | None = None,
    reporter: Reporter | None = None,
) -> RoarRun:
    """Make the folder of an experiment, or open the one that was made alike; nothing is trained yet."""
    options, reporter = options or RoarOptions(), reporter or Silent()
    if not is_roar(Path(path)):
        refuse_existing(Path(path))
    task = data.resolved()
    require_metric(task.metric)
    require_classes(PROBLEMS[task.problem], "`faithmeter roar`")
    own = next((one for one in options.measures or () if one not in IMPORTANCE_MEASURES), None)
    if own is not None:
        raise InputError(f"There is no importance measure {own!r}.{nearest(str(own), IMPORTANCE_MEASURES)}")
    if training is not None and ADVERSARIAL in (training.robust or ()):
        raise InputError(
            "ROAR cannot train with attacked texts: it masks tokens of the training texts, and an attack changes "
            "their words. Leave `adversarial` out."
        )
    # short texts first until they are learnt would train masked data otherwise than unmasked data
    said = dataclasses.replace(
        training or TrainingOptions(), strategy="plain", validation="unmasked", seed=0, curriculum=False
    )
    data = data.as_made_before(RoarRun(path).config.data) if is_roar(Path(path)) else data
    splits, kept = with_classes_of(model, load_splits(data, labels_known=is_roar(Path(path)), reporter=reporter))
    for note in splits.notes:
        reporter.note(note)
    for note in kept:
        reporter.warn(f"{note} Every training starts from its earlier weights, which were trained on unmasked texts.")
    classifier = fresh_classifier(model, splits, seed=0, max_length=max_length, vectors=vectors)
    for note in classifier.notes:
        reporter.note(note)
    names = [one.name for one in distinct(options.measures, classifier)]
    config = RoarConfig(
        data=data.absolute(),
        model=absolute_model(model),
        training=said.over(_training_defaults(model, task, said.lora)),
        labels=splits.labels,
        metric=task.metric,
        fingerprint=fingerprint_with(splits, model, vectors),
        max_length=max_length,
        vectors=vectors and str(Path(vectors).resolve()),
        measures=tuple(name for name in names if options.measures is not None or name not in NOT_RETRAINED),
        protocols=options.protocols,
        seeds=options.seeds,
        steps=options.steps,
        target=options.target,
        ig_steps=options.ig_steps,
    )
    Path(path).mkdir(parents=True, exist_ok=True)
    with only_one(Path(path)):
        return RoarRun.create(path, config)


def _training_defaults(model: str, task: Task, lora: bool | None) -> TrainingConfig:
    """Return the settings of the paper: for a pretrained model 3 epochs, for bAbI 8 (Madsen et al., 2022, Table 5)."""
    found = training_defaults(model, task, lora=lora)
    if model in FROM_SCRATCH:
        return found
    return dataclasses.replace(found, epochs=8 if task.name.startswith("babi") else 3)


def fingerprint_with(splits: Splits, model: str, vectors: str | None) -> str:
    """Return what tells whether data, model files and word vectors are still the same."""
    files = [*sorted(Path(model).glob("*.safetensors")), *([] if vectors is None else [Path(vectors)])]
    found = [splits.fingerprint]
    for file in files:
        with file.open("rb") as opened:
            found.append(hashlib.file_digest(opened, "sha256").hexdigest()[:16])
    return "-".join(found)


def go_on(run: RoarRun, *, workers: int = 1, reporter: Reporter | None = None) -> RoarRun:
    """Do what is left of an experiment, and turn all of it into result rows."""
    with only_one(run.path):
        wait_until_nobody_is_at_work(run.path)
        return _go_on(run, workers, reporter or Silent())


def _go_on(run: RoarRun, workers: int, reporter: Reporter) -> RoarRun:
    every = run.config.nodes()
    left = _left(run, every, reporter)
    if len(left) < len(every):
        reporter.note(f"{len(every) - len(left)} of {len(every)} pieces of work are already done.")
    if left:
        _prepared.cache_clear()  # the files may have changed since this process read them
        _, encoded, classifier = _prepared(str(run.path))
        for name, split in encoded.items():
            say_what_is_odd(split, name, classifier, reporter)
        with one_thread():
            seconds = estimated_seconds(classifier, encoded, left, run.config) / workers
        trainings = sum(node.kind != IMPORTANCE for node in left)
        reporter.note(f"{trainings} trainings, {workers} in parallel: about {duration(seconds)}.")
    for node in every:
        if run.is_done(node):  # a killed process may not have come to it
            tidy(run, node)
    with reporter.bar("Retraining", len(every)) as advance:
        advance(len(every) - len(left))

        def finished(node: Node) -> None:
            outcome = run.outcome(node)
            reached = f"{run.config.metric} {outcome['performance']:.3f}, " if "performance" in outcome else ""
            reporter.note(f"{node.title}: {reached}{outcome['seconds']:.0f} s")
            for warning in outcome.get("warnings", ()):
                reporter.warn(f"{node.title}: {warning}")
            tidy(run, node)
            advance(1)

        work = functools.partial(do, str(run.path))
        work_through(left, lambda n: n.needs, work, workers=workers, finished=finished, reporter=reporter)
    run.store_results(summarise(run))
    return run


def _left(run: RoarRun, every: Sequence[Node], reporter: Reporter) -> list[Node]:
    """Return the work that is not done, or damaged; and the step before such, where its model is gone already."""
    left = {node for node in every if not (run.is_done(node) and is_done(run.folder(node), reporter.warn))}
    for node in reversed(every):  # the later steps first, so that a step that is needed again asks for the one before
        before = node.needs
        if node in left and before is not None and before.kind == RECURSIVE:
            left |= set() if (run.folder(before) / "model").is_dir() else {before}
    return [node for node in every if node in left]


def tidy(run: RoarRun, node: Node) -> None:
    """Remove the model of the step before, which nothing needs any more."""
    if node.kind == RECURSIVE and node.step > 1:
        shutil.rmtree(run.folder(dataclasses.replace(node, step=node.step - 1)) / "model", ignore_errors=True)


@functools.lru_cache(maxsize=1)  # a process reads and tokenises the data once, whatever it trains
def _prepared(path: str) -> tuple[Splits, Tokenised, Classifier]:
    """Return the splits of an experiment, the same tokenised and unmasked, and an untrained classifier."""
    config = RoarRun(path).config
    splits, _ = with_classes_of(config.model, load_splits(config.data, labels_known=True))
    if fingerprint_with(splits, config.model, config.vectors) != config.fingerprint:
        raise InputError(
            f"The data, the model or the word vectors of {path} have changed since it was started. Restore the files, "
            "or start a new experiment."
        )
    classifier = _fresh(config, splits, 0)
    return splits, {name: encode(classifier, getattr(splits, name), name, Silent()) for name in SPLITS}, classifier


def _fresh(config: RoarConfig, splits: Splits, seed: int) -> Classifier:
    return fresh_classifier(
        config.model,
        splits,
        seed=seed,
        max_length=config.max_length,
        vectors=config.vectors,
        lora=config.training.adapter,
    )


def do(path: str, node: Node) -> None:
    """Do one piece of work of an experiment and keep its outcome: all of it or nothing."""
    with at_work(Path(path)):
        run = RoarRun(path)
        _, splits, _ = _prepared(path)
        started = time.perf_counter()
        run.folder(node).parent.mkdir(parents=True, exist_ok=True)
        with new_folder(run.folder(node)) as folder:
            if node.kind == IMPORTANCE:
                outcome = _explain_unmasked(run, node, splits, folder)
            else:
                masked, explaining = _masked_for(run, node, splits)
                outcome = {**_train_and_test(run, node, masked, folder), "seconds_explaining": explaining}
            outcome["seconds"] = time.perf_counter() - started
            write_json(folder / "outcome.json", outcome)


def _explain(run: RoarRun, node: Node, classifier: Classifier, splits: Tokenised) -> dict[str, Any]:
    assert node.measure is not None
    config = run.config
    measure, target = with_steps(IMPORTANCE_MEASURES[node.measure], config.ig_steps), config.target
    return {
        name: explain_split(classifier, split, measure, target=target, seed=_seed(node.seed, name))
        for name, split in splits.items()
    }


def _seed(seed: int, split: str) -> int:
    """Return a seed of the split's own: rows of different splits have the same numbers."""
    return len(SPLITS) * seed + SPLITS.index(split)


def _explain_unmasked(run: RoarRun, node: Node, splits: Tokenised, folder: Path) -> dict[str, Any]:
    importance = _explain(run, node, _load(run, Node(node.seed, UNMASKED)), splits)
    save_importance(folder, importance)
    by_ratio, by_count = sparsity(splits["test"], importance["test"])
    return {"sparsity": by_ratio, "sparsity_tokens": by_count}


def _masked_for(run: RoarRun, node: Node, splits: Tokenised) -> tuple[Tokenised, float]:
    """Return the data that a training is on, and the seconds that went into explaining."""
    if node.kind == UNMASKED:
        return splits, 0.0
    if node.kind == ALL_MASKED:
        return {name: mask_everything(split) for name, split in splits.items()}, 0.0
    started = time.perf_counter()
    if node.kind == RANDOM:
        rank = IMPORTANCE_MEASURES[RANDOM]
        _, _, untrained = _prepared(str(run.path))
        importance = {
            name: explain_split(untrained, split, rank, target="gold", seed=_seed(node.seed, name))
            for name, split in splits.items()
        }
    elif node.kind == RECURSIVE and node.step > 1:
        before = dataclasses.replace(node, step=node.step - 1)
        splits = load_masks(run.folder(before), splits)
        importance = _explain(run, node, _load(run, before), splits)
    else:
        importance = load_importance(run.folder(Node(node.seed, IMPORTANCE, node.measure)))
    steps = run.config.steps
    masked = {name: mask_split(split, importance[name], node.step, steps) for name, split in splits.items()}
    return masked, time.perf_counter() - started


def _train_and_test(run: RoarRun, node: Node, splits: Tokenised, folder: Path) -> dict[str, Any]:
    """Train a fresh model on masked data, and keep it with the masks."""
    config = run.config
    classifier = _fresh(config, _prepared(str(run.path))[0], node.seed)
    started = time.perf_counter()
    outcome = fine_tune(
        classifier,
        splits["train"],
        splits["validation"],
        dataclasses.replace(config.training, seed=node.seed),
        metric=config.metric,
        checkpoints=folder / "checkpoints",
    )
    shutil.rmtree(folder / "checkpoints")
    seconds = time.perf_counter() - started
    predicted = classifier.predict(splits["test"]).argmax(dim=-1).cpu().numpy()
    save_masks(folder, splits)
    if node.kind == UNMASKED or (node.kind == RECURSIVE and node.step < last_step(config.steps)):
        with new_folder(folder / "model", sum_all=True) as model:
            classifier.save(model)
    reached = performance(config.metric, splits["test"].labels, predicted)
    found = {"performance": reached, "rows": len(splits["test"]), "seconds_training": seconds}
    # of a masked training not to converge is what is looked for
    return {**found, "warnings": list(outcome.warnings) if node.kind == UNMASKED else []}


def _load(run: RoarRun, node: Node) -> Classifier:
    config = run.config
    classifier = load_classifier(str(run.folder(node) / "model"), config.labels, max_length=config.max_length)
    classifier.both_texts = config.data.both_texts
    return classifier


def estimated_seconds(classifier: Classifier, splits: Tokenised, left: Sequence[Node], config: RoarConfig) -> float:
    """Return about how long the work will take on one worker, from a few mini-batches and passes that are timed."""
    trainings = sum(node.kind != IMPORTANCE for node in left)
    train = splits["train"]
    total = epoch_seconds(classifier, train, config.training.batch_size) * config.training.epochs * trainings
    pace = seconds_per_token(classifier, splits["test"])
    tokens = sum(int(split.lengths.sum()) for split in splits.values())
    words = int(splits["train"].maskable.sum()) / len(train)
    for node in left:
        if node.kind == IMPORTANCE or (node.kind == RECURSIVE and node.step > 1):
            passes = with_steps(IMPORTANCE_MEASURES[node.measure or RANDOM], config.ig_steps).passes
            masked = masked_count(int(words), node.step, config.steps)
            total += 0 if passes is None else passes(int(words) - masked) * tokens * pace
    return total


def synthetic_roar(
    out: str | Path,
    *,
    seeds: Sequence[int] = (0,),
    train_rows: int = TRAIN_ROWS,
    test_rows: int = TEST_ROWS,
    reporter: Reporter | None = None,
) -> tuple[list[str], Path]:
    """Test both protocols on a problem whose important features are known; return the verdict and the page.

    Write the curves of the synthetic problem into a new folder, as a page and as rows.
    """
    out = Path(out)
    refuse_existing(out)
    curves = {}
    with (reporter or Silent()).bar("Removing features", len(seeds)) as advance:
        for seed in seeds:
            curves[seed] = synthetic_curves(seed, train_rows=train_rows, test_rows=test_rows)
            advance(1)
    rows = (
        {"seed": seed, "order": order, "removed": removed, "accuracy": accuracy}
        for seed, one in curves.items()
        for order, curve in vars(one).items()
        for removed, accuracy in enumerate(curve)
    )
    with new_folder(out) as folder:  # all of it or nothing, so that the same command can be given again
        (page,) = write_report(folder, "Does Recursive ROAR find the truth?", [synthetic_section(curves)], ("html",))
        write_jsonl(folder / "curves.jsonl", rows)
    return synthetic_verdict(curves), out / page.name
