"""Select, then predict (FRESH; Jain et al., 2020): performance of a model that reads only the explanations.

The run's model is explained on every text, only the rationale is kept, and a second model of the same kind learns the
task from rationales. RUN/select/MEASURE/ keeps the explanations, some hundred texts per file, and the predictions of
each second model: interrupted work resumes and gives the same results.
"""

import dataclasses
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import safetensors.numpy
import torch

from faithmeter.data.batch import Encoded, Ints
from faithmeter.data.splits import SPLITS, Splits
from faithmeter.errors import InputError, nearest
from faithmeter.files import is_done, only_one, require_whole, write_bytes, write_json
from faithmeter.importance.measure import ImportanceMeasure
from faithmeter.importance.table import IMPORTANCE_MEASURES, NOT_RETRAINED, as_measure, distinct
from faithmeter.judges.selection import RATIONALES, Importance, only, rationale
from faithmeter.masking import Purpose, random_stream
from faithmeter.models.classifier import Classifier
from faithmeter.performance import Floats, performance, weighted_performance
from faithmeter.problems import require_classes
from faithmeter.progress import Reporter, Silent
from faithmeter.runs.results import (
    ABOVE_RANDOM,
    SELECT,
    SELECT_FULL,
    SELECT_KINDS,
    TRAINED_ON,
    Result,
    most_faithful,
    within_bounds,
)
from faithmeter.runs.run import DEFAULT_MEASURE, Run
from faithmeter.runs.settings import of_model, require_same
from faithmeter.runs.shards import TOKENS_AT_ONCE, Shards, as_parquet
from faithmeter.runs.texts import encode
from faithmeter.runs.timing import WORTH_SAYING, duration, epoch_seconds, seconds_per_token
from faithmeter.statistics import Weights, bca_interval, student_interval
from faithmeter.training.config import TrainingConfig
from faithmeter.training.curriculum import ROWS_PER_EPOCH
from faithmeter.training.loop import fine_tune
from faithmeter.training.start import fresh_classifier, with_classes_of

FORMAT = 1  # of what is stored; other formats do not mix with it
TEXTS_AT_ONCE = 500  # whose explanations are lost when the work is killed
RANDOM = "random"


@dataclass(frozen=True)
class SelectOptions:
    """What to keep of each text, and how the second model is trained on it.

    The default measure is the run's most faithful one that is not too expensive for thousands of texts; random
    rationales of the same lengths are always included. `length` is the share of the maskable tokens that is kept;
    `rows` and `epochs` are of the second training, by default the run's own; `seeds` those of second models.
    """

    measures: tuple[str, ...] | None = None
    rationales: tuple[str, ...] = tuple(RATIONALES)
    length: float = 0.2
    epochs: int | None = None
    rows: int | None = None
    seeds: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        for name, chosen, known in (
            ("importance measure", self.measures or (), IMPORTANCE_MEASURES),
            ("rationale", self.rationales, RATIONALES),
        ):
            wrong = next((one for one in chosen if one not in known), None)
            if wrong is not None:
                raise InputError(
                    f"There is no {name} {wrong!r}.{nearest(wrong, known)} Choose from {', '.join(known)}."
                )
        if not 0 < self.length <= 1:
            raise InputError(
                f"The length of a rationale is a share of the tokens, above 0 and at most 1; {self.length} is not."
            )
        if not self.rationales or len(set(self.rationales)) < len(self.rationales):
            raise InputError("Name at least one kind of rationale, and each once.")
        if not self.seeds or min(self.seeds) < 0 or len(set(self.seeds)) < len(self.seeds):
            raise InputError("Give at least one seed; seeds are whole numbers from 0, each named once.")
        if self.rows is not None and self.rows < 2:
            raise InputError(f"{self.rows} training texts are too few; give two or more.")


@dataclass(frozen=True)
class _Work:
    """What all the second models share: the run's model, its texts, and how they are trained."""

    run: Run
    classifier: Classifier
    splits: Splits
    encoded: dict[str, Encoded]
    training: TrainingConfig
    options: SelectOptions
    reporter: Reporter

    @property
    def folder(self) -> Path:
        return self.run.selections

    def outcome(self, measure: str, kind: str, seed: int) -> Path:
        """Return where the answers of a second model are, once it is trained."""
        return self.folder / measure / f"{kind}-{self.options.length:g}" / f"seed-{seed}" / "answers.parquet"

    def fresh(self, seed: int) -> Classifier:
        """Return the model as it was before the run trained it."""
        config = self.run.config
        return fresh_classifier(
            config.model,
            self.splits,
            seed=seed,
            max_length=config.max_length,
            vectors=config.vectors,
            lora=self.training.adapter,
        )


def select(path: str | Path, options: SelectOptions | None = None, *, reporter: Reporter | None = None) -> Run:
    """Train second models only on rationales; store their performance, and that of full texts and random tokens."""
    run, options, reporter = Run(path), options or SelectOptions(), reporter or Silent()
    require_classes(run.config.problem, "`faithmeter select`")
    classifier = run.classifier()
    training = second_training(run, options)
    measures = _measures(run, options, classifier)
    run.selections.mkdir(exist_ok=True)
    with only_one(run.path):
        splits = run.data()
        encoded, total = _encoded(classifier, splits, options.rows, reporter), len(splits.train)
        work = _Work(run, classifier, splits, encoded, training, options, reporter)
        settings = _same_settings(work)
        _require_same_vocabulary(work)
        for note in with_classes_of(run.config.model, splits)[1]:
            reporter.warn(f"{note} A second model starts from its earlier weights, which were trained on whole texts.")
        write_json(run.selections / "settings.json", settings)
        _say_how_long(work, measures)
        with reporter.bar("Second models", len(measures) * len(options.rationales) * len(options.seeds)) as advance:
            for one in measures:
                _learn_from_rationales(work, one, advance)
        _store(work, total)
    return run


def second_training(run: Run, options: SelectOptions) -> TrainingConfig:
    """Return the run's own training without masks, because a rationale is a whole text to the second model.

    Without robust losses too: they are meant for explanations, and the second model is not explained.
    """
    training = run.config.training
    if training is None:
        raise InputError(
            f"The model of {run.path} was trained elsewhere, so its initial weights are unknown, and a second model "
            "cannot be trained in the same way. Use a run made by `faithmeter train`."
        )
    return dataclasses.replace(
        training,
        strategy="plain",
        validation="unmasked",
        robust=(),
        tracker=None,
        epochs=training.epochs if options.epochs is None else options.epochs,
    )


def _measures(run: Run, options: SelectOptions, classifier: Classifier) -> list[ImportanceMeasure]:
    """Return the measures that choose rationales, random first."""
    named = options.measures
    if named is None:
        cheap = [name for name in IMPORTANCE_MEASURES if name not in NOT_RETRAINED]
        named = (most_faithful(run.results, among=cheap) or DEFAULT_MEASURE,)
    chosen = [name for name in named if name != RANDOM]
    return [as_measure(RANDOM), *(distinct(chosen, classifier) if chosen else [])]


def _encoded(classifier: Classifier, splits: Splits, rows: int | None, reporter: Reporter) -> dict[str, Encoded]:
    """Return the tokenised splits; of train so many rows, drawn at random."""
    drawn = random_stream(0, Purpose.SELECTED_ROWS).permutation(len(splits.train))[:rows]
    parts = {**{part: getattr(splits, part) for part in SPLITS}, "train": splits.train.select(np.sort(drawn))}
    return {name: encode(classifier, part, name, reporter) for name, part in parts.items()}


def _same_settings(work: _Work) -> dict[str, Any]:
    """Return what all the second models are made with; refuse to mix that with others."""
    settings: dict[str, Any] = {
        "rows": len(work.encoded["train"]),
        "epochs": work.training.epochs,
        **of_model(work.run, FORMAT),
    }
    require_same(work.folder, work.run.selection_settings, settings)
    return settings


def _require_same_vocabulary(work: _Work) -> None:
    """Refuse a beginning that numbers its tokens otherwise than the run's model: rationales are ids, not words."""
    if work.fresh(0).tokenizer.get_vocab() != work.classifier.tokenizer.get_vocab():
        raise InputError(
            f"{work.run.config.model} has another vocabulary than when {work.run.path} was trained from it, so a "
            "second model cannot start from it. Restore it, or train a new run."
        )


# ------------------------------------------------------------------------------------------------- explaining


def _importance(work: _Work, one: ImportanceMeasure, seed: int) -> dict[str, Importance]:
    """Return the importance of every token for the class that the run's model predicts, explained once.

    Random rationales are drawn anew for each second model, and not kept.
    """
    if one.name == RANDOM:
        return {part: _random(work, one, part, seed) for part in SPLITS}
    found = {}
    for part, encoded in work.encoded.items():
        shards = Shards(work.folder / one.name / "importance", ".safetensors", f"{part}-")
        pieces = _pieces(encoded)

        def explained(_: int, rows: Ints, encoded: Encoded = encoded, part: str = part) -> bytes:
            importance = _explained(work.classifier, encoded, rows, one, _seed(0, part))
            return safetensors.numpy.save({"importance": importance})

        with work.reporter.bar(f"{one.name}, {part}", len(encoded)) as advance:
            shards.fill(pieces, explained, advance=advance, warn=work.reporter.warn)
        files = map(shards.file, range(len(pieces)))
        found[part] = np.concatenate([safetensors.numpy.load_file(file)["importance"] for file in files])
    return found


def _pieces(encoded: Encoded) -> list[Ints]:
    """Return the rows of a split, some hundred at a time."""
    return [np.arange(start, min(start + TEXTS_AT_ONCE, len(encoded)))
            for start in range(0, len(encoded), TEXTS_AT_ONCE)]  # fmt: skip


def _seed(seed: int, part: str) -> int:
    """Return a seed of the split's own: rows of different splits have the same numbers."""
    return len(SPLITS) * seed + SPLITS.index(part)


def _random(work: _Work, one: ImportanceMeasure, part: str, seed: int) -> Importance:
    encoded = work.encoded[part]
    return _explained(work.classifier, encoded, np.arange(len(encoded)), one, _seed(seed, part), answers=False)


def _explained(
    classifier: Classifier, encoded: Encoded, rows: Ints, one: ImportanceMeasure, seed: int, answers: bool = True
) -> Importance:
    """Return the importance of each token of neighbouring rows, end to end, for the class predicted for its row."""
    first = encoded.offsets[rows[0]]
    importance = np.zeros(encoded.offsets[rows[-1] + 1] - first, dtype=np.float32)
    for batch in encoded.batches(TOKENS_AT_ONCE, rows):
        targets = batch.labels
        if answers:
            here = batch.to(classifier.device)
            every = torch.arange(len(batch), device=classifier.device)
            targets = classifier.logits_of_masks(here, every, here.masked).argmax(dim=-1).cpu()
        found = one.explain(classifier, batch, targets, seed).cpu().numpy()
        for row, values in zip(batch.rows.tolist(), found, strict=True):
            start, end = encoded.offsets[row] - first, encoded.offsets[row + 1] - first
            importance[start:end] = values[: end - start]
    return importance


# --------------------------------------------------------------------------------------------------- learning


def _learn_from_rationales(work: _Work, one: ImportanceMeasure, advance: Callable[[int], None]) -> None:
    """Train the second models of a measure that are not trained yet."""
    for seed in work.options.seeds:
        tell = work.reporter.warn
        left = [kind for kind in work.options.rationales if not is_done(work.outcome(one.name, kind, seed), tell)]
        advance(len(work.options.rationales) - len(left))
        importance = _importance(work, one, seed) if left else {}
        for kind in left:
            cut = {
                part: only(encoded, rationale(encoded, importance[part], kind, work.options.length))
                for part, encoded in work.encoded.items()
            }
            _learn(work, one.name, kind, seed, cut)
            advance(1)


def _learn(work: _Work, measure: str, kind: str, seed: int, cut: dict[str, Encoded]) -> None:
    """Train a second model on rationales and keep what it answers on those of the test texts."""
    started, metric = time.perf_counter(), work.run.config.metric
    file = work.outcome(measure, kind, seed)
    file.parent.mkdir(parents=True, exist_ok=True)
    second, checkpoints = work.fresh(seed), file.parent / "checkpoints"
    training = dataclasses.replace(work.training, seed=seed)
    outcome = fine_tune(second, cut["train"], cut["validation"], training, metric=metric, checkpoints=checkpoints)
    predicted = second.predict(cut["test"]).argmax(dim=-1).cpu().numpy()
    write_bytes(file, as_parquet(pyarrow.table({"row": np.arange(len(predicted)), "predicted": predicted})))
    shutil.rmtree(checkpoints, ignore_errors=True)
    reached = performance(metric, cut["test"].labels, predicted)
    title = f"{measure}, {kind}, seed {seed}"
    work.reporter.note(f"{title}: {metric} {reached:.3f}, {time.perf_counter() - started:.0f} s")
    for warning in outcome.warnings if measure != RANDOM else ():  # random tokens need not lead anywhere
        work.reporter.warn(f"{title}: {warning}")


def _say_how_long(work: _Work, measures: Sequence[ImportanceMeasure]) -> None:
    """Print an estimate of the time left, if it is long."""
    options, training = work.options, work.training
    left = [
        (one, seed, kind)
        for one in measures
        for seed in options.seeds
        for kind in options.rationales
        if not work.outcome(one.name, kind, seed).exists()
    ]
    if not left:
        return
    seconds = 0.0
    pace = seconds_per_token(work.classifier, work.encoded["test"])
    for one in {one.name: one for one, _, _ in left}.values():
        if one.passes is not None and not (work.folder / one.name / "importance").is_dir():
            seconds += sum(_passed_tokens(encoded, one.passes) for encoded in work.encoded.values()) * pace
    train = work.encoded["train"]
    cut = only(train, rationale(train, np.zeros(len(train.ids), dtype=np.float32), "top", options.length))
    staged = sum(row["stage"] != "all" for row in work.run.history) if training.curriculum else 0
    epochs = training.epochs + staged * ROWS_PER_EPOCH / len(train)
    seconds += epoch_seconds(work.fresh(0), cut, training.batch_size) * epochs * len(left)
    if seconds > WORTH_SAYING:
        work.reporter.note(f"Explaining, and {len(left)} trainings: about {duration(seconds)}.")


def _passed_tokens(encoded: Encoded, passes: Callable[[int], float]) -> float:
    """Return about how many tokens go through the model to explain a split."""
    counts = encoded.maskable_counts
    return float(sum(passes(int(n)) * int(length) for n, length in zip(counts, encoded.lengths, strict=True)))


# -------------------------------------------------------------------------------------------------- summarising


def _store(work: _Work, total: int) -> None:
    """Turn the answers of all second models into result rows: of every measure, kind and length that is there."""
    run, test, training = work.run, work.encoded["test"], work.training
    metric, gold = run.config.metric, test.labels
    full = work.classifier.predict(test).argmax(dim=-1).cpu().numpy()
    results = [
        _result(SELECT_FULL, metric, gold, {0: (full, None)}, None, None),
        Result(
            kind=TRAINED_ON,
            value=float(len(work.encoded["train"])),
            metric="texts",
            split="train",
            n=total,
            detail=f"{training.epochs} epochs",
        ),
    ]
    found = read_answers(run)
    for (measure, detail), answers in found.items():
        results.append(_result(SELECT, metric, gold, {seed: (one, None) for seed, one in answers.items()},
                               measure, detail))  # fmt: skip
        random = found.get((RANDOM, detail), {})
        paired = {seed: (one, random[seed]) for seed, one in answers.items() if seed in random}
        if measure != RANDOM and paired:
            results.append(_result(ABOVE_RANDOM, metric, gold, paired, measure, detail))
    run.store_results(SELECT_KINDS, results)


def read_answers(run: Run) -> dict[tuple[str, str], dict[int, Ints]]:
    """Return what second models answer, by (measure, rationale in words) and seed; random first, then as in tables."""
    kinds, measures = list(RATIONALES), list(IMPORTANCE_MEASURES)
    read = []
    for file in run.selections.glob("*/*/seed-*/answers.parquet"):
        measure, cut, seed = file.parts[-4:-1]
        kind, length = cut.split("-", 1)
        order = measures.index(measure), kinds.index(kind), float(length), int(seed.removeprefix("seed-"))
        read.append((order, file))
    found: dict[tuple[str, str], dict[int, Ints]] = {}
    for (measure_at, kind_at, share, number), file in sorted(read):
        require_whole(file, "`faithmeter select` of this measure, with the same options, computes it again.")
        answers = pyarrow.parquet.read_table(file)["predicted"].to_numpy()
        found.setdefault((measures[measure_at], f"{kinds[kind_at]}, {100 * share:g} %"), {})[number] = answers
    return found


Answers = Mapping[int, tuple[Ints, Ints | None]]  # by seed, with what to compare with


def _result(kind: str, metric: str, gold: Ints, answers: Answers, measure: str | None, detail: str | None) -> Result:
    """Return the mean performance of second models by seed, or by how much it exceeds that of others.

    Several seeds have Student's interval over them, one the bootstrap's over the test texts, paired for a difference.
    """

    def reached(one: Ints, other: Ints | None) -> Callable[[Weights], Floats]:
        columns = one[:, None] if other is None else np.stack((one, other), axis=1)
        weighted = weighted_performance(metric, gold, columns)

        def first_or_difference(weights: Weights) -> Floats:
            values = weighted(weights)
            return values[:, 0] if other is None else values[:, 0] - values[:, 1]

        return first_or_difference

    ones = np.ones((1, len(gold)))
    values = np.array([reached(*pair)(ones)[0] for pair in answers.values()])
    several = len(values) > 1
    if several:
        interval = within_bounds(student_interval(values), kind, metric)
    else:
        ((only_one_, other),) = answers.values()
        interval = bca_interval(reached(only_one_, other), len(gold))
    low, high = interval or (None, None)
    return Result(
        kind=kind,
        value=float(values.mean()),
        metric=metric,
        n=len(values) if several else len(gold),
        measure=measure,
        low=low,
        high=high,
        over="seeds" if several else "observations",
        detail=detail,
    )
