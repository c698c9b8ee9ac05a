"""Audit: judge explanations of one run by other methods of the literature, and whether the judges agree.

Every judged batch is a file, so an interrupted audit resumes and gives the same results.
"""

import dataclasses
import hashlib
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet

from faithmeter.attacks.kinds import DEFAULT_KINDS
from faithmeter.attacks.search import BUDGET, attack_texts, check_settings
from faithmeter.data.batch import Batch, Encoded, Ints
from faithmeter.data.splits import Splits, load_splits
from faithmeter.errors import InputError, nearest
from faithmeter.files import is_done, new_folder, only_one, write_bytes, write_json
from faithmeter.importance.measure import ImportanceMeasure
from faithmeter.importance.table import IMPORTANCE_MEASURES, ON_REQUEST, ORDER_ONLY, distinct, explaining
from faithmeter.judges.drift import Space, fit_space
from faithmeter.judges.judge import Bench, Judge, Need
from faithmeter.judges.known_token import PLACES, SOLVED, known_token_splits, truth_of, with_own_token
from faithmeter.judges.rationales import TASK_MARKS, marks_of, rationale_tokens, rationales_of
from faithmeter.judges.table import JUDGES
from faithmeter.masking import Mask, Purpose, random_stream
from faithmeter.models.classifier import Classifier, load_classifier
from faithmeter.performance import performance
from faithmeter.problems import CLASSES, require_classes
from faithmeter.progress import Reporter, Silent
from faithmeter.runs.run import Run, RunLike, opened
from faithmeter.runs.settings import of_model, require_same
from faithmeter.runs.shards import TOKENS_AT_ONCE, Shards, as_parquet
from faithmeter.runs.texts import encode, given_measures
from faithmeter.runs.timing import WORTH_SAYING, duration, seconds_per_token
from faithmeter.studies.judgement_rows import (
    KNOWN_TOKEN,
    SPACE,
    attacked_texts,
    store_agreement,
    store_judgements,
)
from faithmeter.training.config import ADVERSARIAL, TrainingConfig
from faithmeter.training.loop import fine_tune
from faithmeter.training.start import fresh_classifier, training_defaults

FORMAT = 1  # of the stored columns; other formats do not mix with it
KNOWN_TOKEN_ROWS = 4000  # to learn the known token from: plenty for one word


@dataclass(frozen=True)
class AuditOptions:
    """What to judge, and by which judges; by default all judges and measures that apply and are not expensive.

    `rows` is the number of test texts, drawn at random; by default each judge has its own. `place` is where the known
    token goes; `rationales` the column with human rationales; `adversary_steps` the steps of attacks on explanations;
    `attacks` and `budget` set the attacks on texts; `other` is another run of the same training with another seed.
    `scores` are files with explanations from elsewhere, for judges that ask for none of another text or model.
    """

    judges: tuple[str, ...] | None = None
    measures: tuple[str | ImportanceMeasure, ...] | None = None
    rows: int | None = None
    seed: int = 0
    place: str = "end"
    rationales: str | None = None
    adversary_steps: int = 500
    attacks: tuple[str, ...] = DEFAULT_KINDS
    budget: float = BUDGET
    other: str | Path | None = None
    scores: tuple[str | Path, ...] = ()

    def __post_init__(self) -> None:
        check_settings(self.attacks, self.budget)
        for name in self.judges or ():
            if name not in JUDGES:
                raise InputError(f"There is no judge {name!r}.{nearest(name, JUDGES)} There are {', '.join(JUDGES)}.")
        if self.place not in PLACES:
            raise InputError(f"There is no place {self.place!r}: choose {' or '.join(PLACES)}.")


def audit(path: RunLike, options: AuditOptions | None = None, *, reporter: Reporter | None = None) -> Run:
    """Judge importance measures on a run's test texts by several judges, and store their numbers as result rows."""
    run, options, reporter = opened(path), options or AuditOptions(), reporter or Silent()
    classifier = run.classifier()
    measures = [IMPORTANCE_MEASURES["random"], *_measures(options, classifier)]
    judges = _judges(run, options) if classifier.gradients else _judges_of_answers(run, options)
    if options.judges is None and run.config.problem.name != CLASSES:
        left_out = [judge.name for judge in JUDGES.values() if judge.needs_classes and not judge.on_request]
        reporter.note(
            f"Left out, because they need a model that chooses one of several classes: {', '.join(left_out)}."
        )
    for judge in judges:
        if not any(judge.fits(one) for one in measures if one.name != "random"):
            raise InputError(f"{judge.name} can judge none of these measures: name others, or leave out this judge.")
    run.judgements.mkdir(exist_ok=True)
    with only_one(run.path):
        plain = _as_it_is(run, options, classifier, reporter)
        # what can be refused is refused before any work is done
        benches = {
            judge.name: _CHECKED[judge.needs](run, options, plain) if judge.needs in _CHECKED else plain
            for judge in judges
        }
        if options.scores:
            given = _given(run, options, classifier, [(judge, benches[judge.name]) for judge in judges], reporter)
            measures = [measures[0], *distinct([*measures[1:], *given], classifier)]
        settings = {judge.name: _same_settings(run, judge, options, benches[judge.name]) for judge in judges}
        for judge in judges:
            folder, bench = run.judgements / judge.name, benches[judge.name]
            folder.mkdir(exist_ok=True)
            write_json(folder / "settings.json", settings[judge.name])
            if judge.needs in _MADE:
                bench = _MADE[judge.needs](run, options, judge, bench, reporter)
            _judge_all(run, judge, bench, [one for one in measures if judge.can_judge(one)], options, reporter)
            store_judgements(run, judge)
        store_agreement(run)
    return run


def _measures(options: AuditOptions, classifier: Classifier) -> list[ImportanceMeasure]:
    """Return the measures to judge; each has a folder of its name, and a name of the table means that row of it."""
    if options.measures is None:
        # beam search takes as long as all the others, and `search` gives the same order
        left_out = (*ORDER_ONLY, *ON_REQUEST)
        return [IMPORTANCE_MEASURES[name] for name in explaining(classifier) if name not in left_out]
    found = distinct(options.measures, classifier)
    for one in found:
        if IMPORTANCE_MEASURES.get(one.name, one) is not one:
            raise InputError(f"{one.name} is the name of another measure: give yours a different name.")
        if not re.fullmatch(r"[\w-]+", one.name) or one.name in ("model", "checkpoints"):
            raise InputError(f"{one.name!r} cannot be the name of a measure here: use letters, digits, - and _.")
    return found


def _given(
    run: Run, options: AuditOptions, classifier: Classifier, benches: Sequence[tuple[Judge, Bench]], reporter: Reporter
) -> list[ImportanceMeasure]:
    """Return explanations from elsewhere as measures, for the texts of all judges that can judge them."""
    able = [(judge, bench) for judge, bench in benches if judge.shares_explanations]
    if not able:
        raise InputError(
            "None of these judges can judge explanations from elsewhere, because they ask for explanations of other "
            f"texts or models: {', '.join(name for name, judge in JUDGES.items() if judge.shares_explanations)} can."
        )
    rows = np.unique(np.concatenate([_rows(bench, options.rows or judge.rows, options.seed) for judge, bench in able]))
    return given_measures(options.scores, classifier, run.data().test, able[0][1].test, rows, reporter)


def _judges_of_answers(run: Run, options: AuditOptions) -> list[Judge]:
    """Return the judges of a quantised model: those that need no other weights or gradients than it has."""
    judges = _judges(run, options)
    unfit = next((judge.name for judge in judges if not judge.shares_explanations), None)
    if unfit is not None and options.judges is not None:
        raise InputError(f"The judge {unfit} changes or trains weights, which a quantised model does not allow.")
    return [judge for judge in judges if judge.shares_explanations]


def _judges(run: Run, options: AuditOptions) -> list[Judge]:
    """Return the judges that were named, or all but those on request and those that lack what they judge by."""
    if options.judges is not None:
        chosen = [JUDGES[name] for name in options.judges]
        for judge in chosen:
            if judge.needs_classes:
                require_classes(run.config.problem, f"The judge {judge.name}")
        return chosen
    lacking = set()
    if options.rationales is None and run.config.data.resolved().name not in TASK_MARKS:
        lacking.add(Need.RATIONALES)
    if options.other is None:
        lacking.add(Need.SECOND_RUN)
    if run.config.prompt is not None:  # there is no training of it
        lacking.add(Need.KNOWN_TOKEN)
    usual = [judge for judge in JUDGES.values() if not judge.on_request and judge.needs not in lacking]
    return [judge for judge in usual if run.config.problem.name == CLASSES or not judge.needs_classes]


# ------------------------------------------------------------------------------------------------- benches


def _as_it_is(run: Run, options: AuditOptions, classifier: Classifier, reporter: Reporter) -> Bench:
    test = encode(classifier, run.data().test, "test", reporter)
    return Bench(classifier, test, run.in_distribution_test(), options.seed, adversary_steps=options.adversary_steps)


def _with_rationales(run: Run, options: AuditOptions, plain: Bench) -> Bench:
    """Return the run's model and texts, with the tokens that people marked."""
    config = run.config
    marks = marks_of(config.data.resolved(), options.rationales)
    second = marks.context_columns if config.data.both_texts else ()
    test = load_splits(config.data, keep=(*marks.columns, *second), labels_known=True).test
    contexts = list(test["context"]) if "context" in test.column_names else None
    beside = rationales_of(test, marks, "context") if second else None
    truth = rationale_tokens(plain.classifier, list(test["text"]), contexts, rationales_of(test, marks), beside)
    return dataclasses.replace(plain, truth=truth)


def _with_attacked_texts(run: Run, options: AuditOptions, judge: Judge, plain: Bench, reporter: Reporter) -> Bench:
    """Return the run's model, with the texts that are judged attacked; those of an audit that was stopped are kept."""
    test, file = run.data().test, attacked_texts(run, judge)
    texts = list(test["text"])
    contexts = list(test["context"]) if "context" in test.column_names else None
    rows = _rows(plain, options.rows or judge.rows, options.seed)
    if not is_done(file, reporter.warn):
        with reporter.bar("attack", len(rows)) as advance:
            found = attack_texts(
                plain.classifier,
                [texts[row] for row in rows],
                None if contexts is None else [contexts[row] for row in rows],
                kinds=options.attacks,
                budget=options.budget,
                seed=options.seed,
                rows=rows,
                progress=advance,
            )
        columns = {"row": rows, "attacked": list(found.texts), "succeeded": found.succeeded}
        write_bytes(file, as_parquet(pyarrow.table(columns)))
    for one in pyarrow.parquet.read_table(file).to_pylist():
        texts[one["row"]] = one["attacked"]
    # other texts have other answers and explanations than those that are known
    return dataclasses.replace(
        plain, test=plain.classifier.encode(texts, contexts, list(test["label"])), known={}, answers={}, made={}
    )


def _with_second_run(run: Run, options: AuditOptions, plain: Bench) -> Bench:
    """Return the run's model and texts with a model that differs only in the seed; reject any other."""
    if options.other is None:
        raise InputError("The judge other-seed needs a run of the same training with another seed: `--other RUN2`.")
    other = Run(options.other)
    ours, theirs = run.config, other.config
    differing = {
        "data": ours.fingerprint != theirs.fingerprint,
        "labels": ours.labels != theirs.labels,
        "model": ours.model != theirs.model,
        "word vectors": ours.vectors != theirs.vectors,
        "training": _but_the_seed(ours.training) != _but_the_seed(theirs.training),
    }
    found = [name for name, differs in differing.items() if differs]
    if found:
        raise InputError(
            f"{other.path} has other {' and '.join(found)} than {run.path}: only the seed may differ. "
            f"`faithmeter train RUN2 --seed 1` with all other options as for {run.path} makes one."
        )
    if other.weights == run.weights or (ours.training is not None and ours.seed == theirs.seed):
        raise InputError(
            f"{other.path} has the same seed or the same weights as {run.path}, so a comparison shows nothing. "
            "Train with another --seed."
        )
    classifier, test = other.classifier(), plain.test
    as_read = _encoded(classifier, run.data().test)
    same_ids = np.array_equal(as_read.ids, test.ids) and np.array_equal(as_read.sequence, test.sequence)
    if not same_ids or classifier.mask_token_id != plain.classifier.mask_token_id:
        raise InputError(
            f"The model of {other.path} tokenises the texts differently from that of {run.path} (another tokenizer or "
            "--max-length), so their explanations cannot be compared."
        )
    return dataclasses.replace(plain, other=classifier)


def _but_the_seed(training: TrainingConfig | None) -> TrainingConfig | None:
    return None if training is None else dataclasses.replace(training, seed=0)


def _with_space(run: Run, options: AuditOptions, judge: Judge, plain: Bench, reporter: Reporter) -> Bench:
    """Return the bench with where the original texts lie; fitted once, so that what is judged later is on one map."""
    file = run.judgements / judge.name / SPACE
    if not is_done(file, reporter.warn):
        fit_space(plain.classifier, plain.test, seed=options.seed).save(file)
    return dataclasses.replace(plain, space=Space.load(file))


def _with_known_token(run: Run, options: AuditOptions, judge: Judge, plain: Bench, reporter: Reporter) -> Bench:
    """Return a model of the run's kind that was trained to read one known word, and texts with that word in them.

    Where that is the run's own task, it is the run's own model and texts.
    """
    folder = run.judgements / judge.name
    config = run.config
    if config.data.resolved().known_token:
        return _with_own_token(run, folder, plain, reporter)
    if config.prompt is not None:
        raise InputError(
            "The judge known-token trains a model of its own, and a prompted model is not trained: ask others."
        )
    given = run.data()
    splits = known_token_splits(given, place=options.place, seed=options.seed)
    for note in splits.notes[len(given.notes) :]:
        reporter.note(note)
    if not is_done(folder / "model", reporter.warn):
        _learn_known_token(run, splits, folder, reporter)
    classifier = load_classifier(str(folder / "model"), splits.labels, max_length=config.max_length)
    classifier.both_texts = config.data.both_texts
    test = encode(classifier, splits.test, "test", reporter)
    return Bench(classifier, test, None, options.seed, truth_of(classifier, splits.test))


def _with_own_token(run: Run, folder: Path, plain: Bench, reporter: Reporter) -> Bench:
    """Return the run's model and texts with the word that tells each label, and keep how well the model reads it."""
    split = with_own_token(run.data().test, run.config.labels)
    bench = dataclasses.replace(plain, truth=truth_of(plain.classifier, split))
    if not is_done(folder / KNOWN_TOKEN, reporter.warn):
        _keep_accuracy(folder, plain.classifier, _with_the_word(plain.classifier, split), reporter)
    return bench


def _keep_accuracy(folder: Path, classifier: Classifier, test: Encoded, reporter: Reporter) -> None:
    """Store how well a model reads the known token, and warn where that is not what decides."""
    reached = performance("accuracy", test.labels, classifier.predict(test).argmax(dim=-1).cpu().numpy())
    write_json(folder / KNOWN_TOKEN, {"accuracy": reached, "rows": len(test)})
    if reached < SOLVED:
        reporter.warn(
            f"the model reads the known token in only {100 * reached:.1f} % of texts, so other tokens may decide: "
            "the results of this judge are uncertain."
        )


def _learn_known_token(run: Run, splits: Splits, folder: Path, reporter: Reporter) -> None:
    """Train as the run was trained, but for attacked texts, and keep the model and how well it does."""
    config = run.config
    training = config.training or training_defaults(config.model, config.data.resolved())
    # an attack may change the very word that is to be found
    training = dataclasses.replace(training, robust=tuple(kind for kind in training.robust if kind != ADVERSARIAL))
    few = splits.train.select(range(min(KNOWN_TOKEN_ROWS, len(splits.train))))
    classifier = fresh_classifier(
        config.model,
        splits,
        seed=training.seed,
        max_length=config.max_length,
        vectors=config.vectors,
        lora=training.adapter,
    )
    reporter.note(f"The judge {folder.name} trains its own model, on {len(few)} texts.")
    parts = (few, splits.validation, splits.test)
    # where a long text was cut before the word, there is nothing to learn or to find
    train, validation, test = (_with_the_word(classifier, part) for part in parts)
    if not min(len(train), len(validation), len(test)):
        raise InputError(
            "Every text is truncated before the known token at its end: pass `--place anywhere`, or use a run with a "
            "larger --max-length."
        )
    fine_tune(
        classifier,
        train,
        validation,
        training,
        metric="accuracy",
        checkpoints=folder / "checkpoints",
        reporter=reporter,
    )
    with new_folder(folder / "model", sum_all=True) as new:
        classifier.save(new)
        _keep_accuracy(new, classifier, test, reporter)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def _with_the_word(classifier: Classifier, split: datasets.Dataset) -> Encoded:
    """Return the texts of a known-token split in which the word is left."""
    rows = np.flatnonzero(_true_tokens(_encoded(classifier, split), truth_of(classifier, split)))
    return _encoded(classifier, split.select(rows))


def _encoded(classifier: Classifier, split: datasets.Dataset) -> Encoded:
    return encode(classifier, split, "", Silent())


def _true_tokens(encoded: Encoded, truth: Mask) -> Ints:
    """Return how many tokens of each row are known to matter."""
    return np.bincount(np.repeat(np.arange(len(encoded)), encoded.lengths)[truth], minlength=len(encoded))


# what a judge's bench gets by what it needs: first what may be refused, then what takes work and is kept in its folder
_CHECKED: Mapping[Need | None, Callable[[Run, AuditOptions, Bench], Bench]] = {
    Need.RATIONALES: _with_rationales,
    Need.SECOND_RUN: _with_second_run,
}
_MADE: Mapping[Need | None, Callable[[Run, AuditOptions, Judge, Bench, Reporter], Bench]] = {
    Need.ATTACKED_TEXTS: _with_attacked_texts,
    Need.SPACE: _with_space,
    Need.KNOWN_TOKEN: _with_known_token,
}


# ------------------------------------------------------------------------------------------------- judging


def _same_settings(run: Run, judge: Judge, options: AuditOptions, bench: Bench) -> dict[str, Any]:
    """Return what a judge works with; refuse to mix that with stored judgements of other settings or weights."""
    folder = run.judgements / judge.name
    settings: dict[str, Any] = {
        "rows": options.rows or judge.rows,
        "seed": options.seed,
        **of_model(run, FORMAT),
    }
    if judge.needs is Need.SECOND_RUN:
        assert options.other is not None
        settings["other_weights"] = Run(options.other).weights
    for name in judge.settings:
        value = getattr(options, name)
        settings[name] = ",".join(value) if isinstance(value, tuple) else value
    if judge.tests_masked:
        masf = bench.masf
        settings["in_distribution"] = None if masf is None else f"{masf.form}, {masf.rows} rows, seed {masf.seed}"
    if judge.needs is Need.KNOWN_TOKEN and run.config.data.resolved().known_token:
        if options.place != "end":
            raise InputError("The known token of this task is at the end of each text: leave out --place.")
        settings["own_token"] = True
    if judge.needs is Need.RATIONALES:
        assert bench.truth is not None
        settings["marks"] = hashlib.sha256(bench.truth.tobytes()).hexdigest()[:16]
    require_same(folder, run.judgement_settings.get(judge.name, {}), settings)
    # where the other run is may change, if its weights do not
    return settings | ({"other": str(options.other)} if judge.needs is Need.SECOND_RUN else {})


def _judge_all(
    run: Run,
    judge: Judge,
    bench: Bench,
    measures: Sequence[ImportanceMeasure],
    options: AuditOptions,
    reporter: Reporter,
) -> None:
    """Judge the measures on the judge's rows, leaving out the batches that are done."""
    rows = _rows(bench, options.rows or judge.rows, options.seed)
    seconds = _estimated_seconds(judge, bench, measures, rows)
    if seconds > WORTH_SAYING and not any((run.judgements / judge.name / one.name).is_dir() for one in measures):
        reporter.note(
            f"{judge.name}, {len(measures)} measures on {len(rows)} texts, will take about {duration(seconds)}."
        )
    with reporter.bar(judge.name, len(rows) * len(measures)) as advance:
        for one in measures:
            if one is not IMPORTANCE_MEASURES.get(one.name):  # a function may have changed under its name
                shutil.rmtree(run.judgements / judge.name / one.name, ignore_errors=True)

            def judged(_: int, batch: Batch, one: ImportanceMeasure = one) -> bytes:
                return as_parquet(pyarrow.table({"row": batch.rows.numpy(), **judge.judge(bench, batch, one)}))

            Shards(run.judgements / judge.name / one.name).fill(
                bench.test.batches(TOKENS_AT_ONCE, rows), judged, advance=advance, warn=reporter.warn
            )


def _estimated_seconds(judge: Judge, bench: Bench, measures: Sequence[ImportanceMeasure], rows: Ints) -> float:
    """Return about how long a judge will take; what is explained already, or by who knows whom, counts for nothing."""
    pace, total = seconds_per_token(bench.classifier, bench.test), 0.0
    explained = {name for name, _ in bench.known}
    maskable = bench.test.maskable_counts
    for row in rows.tolist():
        tokens = int(maskable[row])
        explaining = [
            0.0 if one.name in explained and judge.shares_explanations else one.passes(tokens)
            for one in measures
            if one.passes is not None
        ]
        passes = sum(judge.passes(bench, each) for each in explaining)
        total += passes * int(bench.test.lengths[row])
    return total * pace


def _rows(bench: Bench, count: int, seed: int) -> Ints:
    """Return the texts to judge, drawn at random; of texts with a known truth, only those in which it is."""
    order = random_stream(seed, Purpose.AUDITED_ROWS).permutation(len(bench.test))
    if bench.truth is not None:
        order = order[_true_tokens(bench.test, bench.truth)[order] > 0]
        if not len(order):
            raise InputError("No test text has a known important token, so there is nothing to compare with.")
    return order[:count]
