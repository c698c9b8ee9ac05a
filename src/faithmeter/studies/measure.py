"""Measure: mask what each importance measure calls important, step by step, and measure how fast performance falls.

Every finished batch is a file, so memory is constant and a killed measurement resumes at the next batch. Results do not
depend on how the work was split or interrupted.
"""

import dataclasses
import functools
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
import torch
from torch import Tensor

from faithmeter.data.batch import Batch, Encoded, Ints
from faithmeter.data.units import CHUNK, CHUNKED, TOKEN, require_units
from faithmeter.errors import InputError, require_choice
from faithmeter.files import is_done, only_one, sum_of
from faithmeter.importance.completeness import TEXTS, zero_baseline_caution
from faithmeter.importance.elsewhere import FAMILY, name_of
from faithmeter.importance.measure import ONCE, Explain, ImportanceMeasure, even_shares
from faithmeter.importance.table import IMPORTANCE_MEASURES, distinct
from faithmeter.in_distribution.masf import MaSF
from faithmeter.masking import STEPS, Purpose, random_stream
from faithmeter.measuring.curves import held_by_the_most_important, masking_walk, require_target
from faithmeter.models.classifier import Classifier
from faithmeter.models.operators import OPERATORS
from faithmeter.problems import require_one_output
from faithmeter.progress import OnlyWarnings, Reporter, Silent
from faithmeter.reports.card import store_card
from faithmeter.reports.evidence import conclusion, trusted
from faithmeter.runs.commands import command_to_train_on
from faithmeter.runs.engines import cores, gpus, one_thread, work_through
from faithmeter.runs.measurements import measured_texts
from faithmeter.runs.results import rows_of
from faithmeter.runs.run import BEFORE, Run, RunLike, opened
from faithmeter.runs.settings import differing, of_model, require_same
from faithmeter.runs.shards import TOKENS_AT_ONCE, Shards, as_parquet
from faithmeter.runs.texts import encode, given_measures, in_units
from faithmeter.runs.timing import WORTH_SAYING, duration, estimated_seconds, seconds_per_token
from faithmeter.studies.faithfulness_rows import store_faithfulness
from faithmeter.studies.judgement_rows import store_agreement
from faithmeter.studies.operator_rows import store_operators
from faithmeter.studies.until_certain import Pair, Rounds, cut_at_looks

FLOAT32 = "float32"
DTYPES = {FLOAT32: torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
FORMAT = 2  # of the stored columns; other formats do not mix with it
WORTH_PROCESSES = 60  # seconds of work from which on it is worth starting processes, which takes some ten
MOST_WORKERS = 8  # by default: each holds the libraries and the model, about a gigabyte
SECONDS_OF_A_PIECE = 10  # of work that a process is given at a time, if there are enough batches
MOST_PIECES = 8  # per walk and process: each piece opens the run again


@dataclass(frozen=True)
class MeasureOptions:
    """What to measure; by default all measures that can explain the model, except those `ON_REQUEST`.

    `rows` and `beam_rows` are numbers of test texts, drawn at random; beam search is expensive, so it may have fewer.
    `by` is what is masked and explained as a whole: a token, word, sentence, or chunk of at most `chunk` tokens.
    `until_certain` measures in rounds up to `rows` texts: a measure that surely is not the most faithful is dropped,
    and it ends once more texts would change nothing. Beam search on fewer texts takes no part in that.

    `scores` are files with explanations from elsewhere (see `importance.elsewhere`), measured beside the others. They
    are made once, so every recursive measure is then also measured explained once, as `NAME-once`.

    `dtype` is what the model computes in: 16 bits are faster on a GPU that has units for them, and round more.

    `operators` are the ways to remove tokens that are measured, one after the other, each with its own random baseline;
    by default the one that the model was trained with, or the mask token.
    """

    measures: tuple[str | Explain | ImportanceMeasure, ...] | None = None
    target: str = "gold"
    rows: int | None = None
    beam_rows: int | None = None
    random_runs: int = 5
    seed: int = 0
    without_check: bool = False
    by: str = TOKEN
    chunk: int = CHUNK
    until_certain: bool = False
    scores: tuple[str | Path, ...] = ()
    dtype: str = FLOAT32
    operators: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.operators:
            require_choice("operator", name, OPERATORS)
        if self.dtype not in DTYPES:
            raise InputError(f"There is no precision {self.dtype!r} to measure in: choose {' or '.join(DTYPES)}.")
        require_target(self.target)
        if self.random_runs < 1:
            raise InputError("At least one random draw is needed as the baseline.")
        require_units(self.by, self.chunk)


def measure(
    path: RunLike,
    options: MeasureOptions | None = None,
    *,
    workers: int | None = 1,
    reporter: Reporter | None = None,
) -> Run:
    """Measure the faithfulness of importance measures on a run's test split.

    One of `workers` is this process, on all cores. Several are processes on one core each, which is faster, and on one
    of several GPUs each, in turn; None means one per core, at most `MOST_WORKERS`, or one per GPU, but only this
    process on a single GPU or for little work. Results are the same up to the last digits, which depend on the number
    of threads. Processes write warnings to standard error. A script that
    uses them needs the usual `if __name__ == "__main__"`. A function of your own is always measured in this process.
    So is everything if `until_certain`, because each round waits for what the one before has decided. Objects in memory
    are checked first.
    """
    run, options, reporter = opened(path), options or MeasureOptions(), reporter or Silent()
    names = list(dict.fromkeys(options.operators)) or [run.operator]
    if len(names) > 1:
        for name in names:
            run.by(name).classifier()  # which refuses an operator that does not fit, before hours of work
    for name in names:
        if len(names) > 1:
            reporter.note(f"Removing tokens by {name}:")
        test = _measure_by(run.by(name), dataclasses.replace(options, operators=(name,)), workers, reporter)
    with only_one(run.path):
        store_operators(run, test)
    return run


def _measure_by(run: Run, options: MeasureOptions, workers: int | None, reporter: Reporter) -> Encoded:
    """Measure with one operator, which is that of the run, and return the test texts."""
    if run.held is not None:
        workers = 1  # other processes do not have the model
    with only_one(run.path):
        work = _begin(run, options, reporter)
        if options.until_certain and workers not in (None, 1):
            reporter.note("Measuring in one process: each round waits for what the one before has decided.")
        if workers == 1 or options.until_certain:
            _measure(work, reporter)
            return work.test
    with only_one(run.path, together=True):
        divided = _measure_at_once(work, workers, reporter)
    # what is left, and the sum: where it was divided on one thread as there, so that times can be compared
    with only_one(run.path), one_thread() if divided else nullcontext():
        _measure(work, reporter)
    return work.test


Walk = tuple[str, ImportanceMeasure, int, Ints]  # its name, the measure, its seed and the rows


@dataclass(frozen=True)
class _Work:
    """A run, and everything needed to measure it."""

    run: Run
    options: MeasureOptions
    classifier: Classifier
    test: Encoded
    masf: MaSF | None
    walks: list[Walk]


def _begin(run: Run, options: MeasureOptions, reporter: Reporter) -> _Work:
    """Load the run, reject what cannot be measured, and store the settings."""
    if not run.checked and not options.without_check:
        raise InputError(
            f"{run.path} has no in-distribution test, so its masking curves cannot be trusted. "
            f"Run `faithmeter check {run.path}` first, or pass --without-check to measure anyway."
        )
    masf, checked = run.in_distribution_test(), bool(rows_of(run.results, "check_p_value"))
    if trusted(run.results) is False:
        remedy = command_to_train_on(run)
        reporter.warn(
            "masking is out-of-distribution for this model, so its curves say little about explanations. "
            + (
                "The texts are from another domain than its training data."
                if remedy is None
                else f"Fine-tune it on the same data to get a model that understands masks: `{remedy}`."
            )
        )
    if trusted(run.results) is None and run.checked and (checked or run.operator == run.own_operator):
        reporter.warn(conclusion(run.results))
    classifier, splits = _in_precision(run.classifier(), options.dtype), run.data(reporter)
    if options.target not in classifier.problem.explained:
        raise InputError(
            f"The target {options.target!r} is a class, and this model has {classifier.problem.head}. "
            f"{classifier.problem.explained['gold']} Leave out --target."
        )
    if options.dtype != FLOAT32 and masf is not None:
        reporter.note(
            f"The in-distribution test was fitted in {FLOAT32}: that texts are atypical may here be the rounding of "
            f"{options.dtype}."
        )
    measures = distinct(options.measures, classifier)
    test = in_units(
        encode(classifier, splits.test, "test", reporter), classifier, splits.test, options.by, options.chunk
    )
    if options.scores:
        require_one_output(classifier.problem, "A file of scores")
        measures = _with_scores(options, measures, classifier, splits.test, test, reporter)
    functions = run.measurement_settings.get("asked", {}).get("functions", ())
    if options.until_certain:
        measures = _with_earlier(run, measures)
        _require_two(options, measures, test)
    _require_same_settings(run, options, measures)
    for one in measures:
        # a function may have changed under its name, and does not answer for the measure of the table
        if not _known_by_name(one) or one.name in functions:
            shutil.rmtree(run.measurements / one.name, ignore_errors=True)
    if options.until_certain:  # its texts may be others than those of an earlier call, which has more draws
        options = dataclasses.replace(options, random_runs=run.measurement_settings["asked"]["random_runs"])
    walks = _walks(options, measures, test)
    some = test.batch(walks[0][-1][:TEXTS])
    caution = zero_baseline_caution(classifier, some, measures)
    if caution is not None:
        reporter.warn(caution)
    return _Work(run, options, classifier, test, masf, walks)


def _in_precision(classifier: Classifier, dtype: str) -> Classifier:
    """Return a run's model, which is in float32, so that it computes in another precision."""
    if dtype == FLOAT32:
        return classifier
    if not classifier.gradients:
        raise InputError(f"A quantised model cannot be measured in {dtype}: leave out --dtype.")
    classifier.model.to(DTYPES[dtype])
    return classifier


def _with_scores(
    options: MeasureOptions,
    measures: Sequence[ImportanceMeasure],
    classifier: Classifier,
    split: datasets.Dataset,
    test: Encoded,
    reporter: Reporter,
) -> list[ImportanceMeasure]:
    """Return the measures, those that are recursive also explained once, and the explanations from elsewhere."""
    names = [one.name for one in measures]
    once = [IMPORTANCE_MEASURES[name + ONCE] for name in names if name + ONCE in IMPORTANCE_MEASURES]
    given = given_measures(options.scores, classifier, split, test, _rows_of(FAMILY, options, test), reporter)
    every = [*measures, *(one for one in once if one.name not in names), *given]
    return distinct(every, classifier)


def _measure(work: _Work, reporter: Reporter) -> None:
    """Measure in this process what is left, and turn all measurements into result rows."""
    run, decided = work.run, None
    if work.options.until_certain:
        decided = _measure_in_rounds(work, reporter)
    else:
        _measure_all(work, work.walks, reporter)
    store_faithfulness(run, work.test, _finished(work, reporter), work.masf, decided)
    if run.operator == run.own_operator:  # the card and the judges are of that one
        store_card(run)
        if run.judgements.is_dir():
            store_agreement(run)  # of other judges with these curves, which may be another now


def _measure_all(work: _Work, walks: Sequence[Walk], reporter: Reporter) -> None:
    """Measure what is left of these walks."""
    # only what an absolute form will ask for, and only until it has: it is as large as the texts
    pace, known = seconds_per_token(work.classifier, work.test), Known(one.absolute_of for _, one, _, _ in walks)
    for walk in walks:
        name, one, _, rows = walk
        begun = (work.run.measurements / name).is_dir()
        seconds = None if begun else estimated_seconds(one, work.test, rows, pace)
        if seconds is not None and seconds > WORTH_SAYING:
            reporter.note(f"{name} on {len(rows)} texts will take about {duration(seconds)}.")
        _measure_one(work, walk, known, reporter)


def _measure_in_rounds(work: _Work, reporter: Reporter) -> set[Pair]:
    """Measure until it is certain which measures may be best; then the random draws, on all texts that any has.

    Return the pairs of which the first was found to be surely better.
    """
    run, chosen = work.run, _rows_of("random", work.options, work.test)
    at_random = [walk for walk in work.walks if walk[0].startswith("random.")]
    walks = [walk for walk in work.walks if not walk[0].startswith("random.")]
    compared = _compared(work.options, [one for _, one, _, _ in walks], work.test)
    beside = [name for name, *_ in walks if name not in compared]
    rounds, measured = Rounds(compared, chosen, work.options.seed), dict[str, Walk]()
    for texts in rounds.looks.texts:
        now = [_first(walk, texts) for walk in walks if walk[0] in (*rounds.left, *beside)]
        _measure_all(work, now, reporter)
        measured |= {walk[0]: walk for walk in now}
        decision = rounds.look(run, work.test)
        if decision.stop is not None:
            break
    assert decision.stop is not None  # at the last look, if not before
    # an earlier call, which compared fewer measures, may have come further
    stored = max(measured_texts(folder) for folder in run.measurements.iterdir() if folder.is_dir())
    end = next(look for look in rounds.looks.texts if look >= max(stored, texts))
    at_random = [_first(walk, end) for walk in at_random]
    _measure_all(work, at_random, reporter)
    spent = sum(_token_passes(walk, work.test) for walk in (*measured.values(), *at_random))
    saved = 1 - spent / sum(_token_passes(walk, work.test) for walk in work.walks)
    ended = f"{texts} of {len(chosen)} texts: {decision.stop.value}; {saved:.0%} of the passes were saved"
    reporter.note(f"Measured until certain, on {ended}. May be best: {', '.join(rounds.left)}.")
    if beside:
        reporter.note(f"{', '.join(beside)} has fewer texts, so it took no part in that decision.")
    settings = run.measurement_settings
    run.store_measurement_settings({**settings, "asked": {**settings["asked"], "ended": ended}})
    return rounds.ahead


def _first(walk: Walk, texts: int) -> Walk:
    name, one, seed, rows = walk
    return name, one, seed, rows[:texts]


def _token_passes(walk: Walk, test: Encoded) -> float:
    """Return about how many tokens go through the model on a walk; of an unknown measure only what is predicted."""
    _, one, _, rows = walk
    known = estimated_seconds(one, test, rows, 1.0)
    return float((STEPS + 1) * test.lengths[rows].sum()) if known is None else known


def _compared(options: MeasureOptions, measures: Sequence[ImportanceMeasure], test: Encoded) -> list[str]:
    """Return the measures that have all texts, so that they can be compared after every round."""
    texts = len(_rows_of("random", options, test))
    return [one.name for one in measures if len(_rows_of(one.name, options, test)) == texts]


def _with_earlier(run: Run, measures: Sequence[ImportanceMeasure]) -> list[ImportanceMeasure]:
    """Return the measures of earlier calls and these: the best is sought among all of them."""
    asked, named = run.measurement_settings.get("asked", {}), [one.name for one in measures]
    before = [name for name in asked.get("measures", ()) if name not in (*asked["functions"], *named)]
    return [*(IMPORTANCE_MEASURES[name] for name in before if name in IMPORTANCE_MEASURES), *measures]


def _require_two(options: MeasureOptions, measures: Sequence[ImportanceMeasure], test: Encoded) -> None:
    if len(_compared(options, measures, test)) < 2:
        raise InputError(
            "To measure until it is certain which measure is best takes two measures or more that have the same texts: "
            "name more with --measures, or measure without --until-certain."
        )


def _finished(work: _Work, reporter: Reporter) -> list[str]:
    """Return every finished walk, of earlier calls and of this one.

    All were made with the same settings, so their rows stand beside one another; one more measure takes none away.
    """
    named = [name for name, *_ in work.walks]
    asked = work.run.measurement_settings["asked"]
    at_random = [f"random.{number}" for number in range(asked["random_runs"])]
    folders = sorted(folder.name for folder in work.run.measurements.iterdir() if folder.is_dir())
    finished = []
    for name in dict.fromkeys((*at_random, *asked["measures"], *folders)):
        folder, rows = work.run.measurements / name, _rows_of(name.split(".")[0], work.options, work.test)
        if name in named:
            finished.append(name)
        elif folder.is_dir() and is_done(folder, reporter.warn):
            if measured_texts(folder) in np.cumsum([len(part) for part in _parts(work, rows)]):
                finished.append(name)
            else:
                reporter.note(f"{name} is unfinished, so it is left out: name it in --measures to resume it.")
    return finished


def _measure_at_once(work: _Work, workers: int | None, reporter: Reporter) -> bool:
    """Measure what is left in several processes, except functions, which cannot be sent to them.

    Return whether there was enough to do to start any.
    """
    places = workers or (min(cores(), MOST_WORKERS) if work.classifier.device.type == "cpu" else gpus())
    walks = [walk for walk in work.walks if _known_by_name(walk[1])]
    named = tuple(one.name for _, one, _, _ in walks if one.name != "random")
    if places < 2 or not named:
        return False
    with one_thread():
        pace = seconds_per_token(work.classifier, work.test)
    pieces = dict[tuple[str, int, int], float]()  # a walk, the part and of how many -> about how many seconds it takes
    costs = dict[str, float]()
    for name, one, _, rows in walks:
        batches = sum(1 for _ in _batches(work, rows))
        done = _shards(work.run, name).done(batches, reporter.warn)
        seconds = estimated_seconds(one, work.test, rows, pace) or 0
        parts = max(1, min(batches, MOST_PIECES * places, round(seconds / SECONDS_OF_A_PIECE)))
        left = [(name, part, parts) for part in range(parts) if not all(done[part::parts])]
        pieces |= dict.fromkeys(left, seconds / parts)
        costs[name] = len(left) * seconds / parts
    places, total, longest = min(places, len(pieces)), sum(costs.values()), max(costs, key=costs.__getitem__)
    if places < 2 or (workers is None and total < WORTH_PROCESSES):
        return False
    reporter.note(
        f"Measuring with {places} processes: about {duration(total / places)}, of which "
        f"{duration(costs[longest] / places)} for {longest}."
    )
    part = functools.partial(_measure_piece, str(work.run.path), dataclasses.replace(work.options, measures=named))
    longest_first = sorted(pieces, key=lambda piece: -pieces[piece])  # so that no process is left alone with one
    with reporter.bar("Measuring", len(pieces)) as advance:
        work_through(
            longest_first, lambda _: None, part, workers=places, finished=lambda _: advance(1), reporter=reporter
        )
    return True


def _known_by_name(one: ImportanceMeasure) -> bool:
    """Whether a measure is that of the table, and not a user's function or variant."""
    return one is IMPORTANCE_MEASURES.get(one.name)


def _measure_piece(path: str, options: MeasureOptions, piece: tuple[str, int, int]) -> None:
    measure_part(path, options, *piece, reporter=OnlyWarnings())


def _walks(options: MeasureOptions, measures: Sequence[ImportanceMeasure], test: Encoded) -> list[Walk]:
    """Return the walks; the random draws come first."""
    walks = [
        (f"random.{number}", IMPORTANCE_MEASURES["random"], options.seed + number, _rows_of("random", options, test))
        for number in range(options.random_runs)
    ]
    return walks + [(one.name, one, options.seed, _rows_of(one.name, options, test)) for one in measures]


def _rows_of(measure: str, options: MeasureOptions, test: Encoded) -> Ints:
    """Return the texts that a measure is measured on."""
    chosen = random_stream(options.seed, Purpose.MEASURED_ROWS).permutation(len(test))[: options.rows]
    return chosen[: options.beam_rows] if measure == "beam" else chosen


def begin_measuring(path: str | Path, options: MeasureOptions) -> None:
    """Store what a run will be measured with, before several processes measure parts of it; refuse what `measure` does.

    So the processes only read the settings, and no two write them at once.
    """
    run = _opened_by(path, options)
    if options.until_certain:
        raise InputError(
            "What is measured in parts cannot be measured until it is certain: use `measure` in one piece."
        )
    _loaded.cache_clear()  # the in-distribution test may be another than this process knows
    with only_one(run.path):
        _require_same_settings(run, options, distinct(options.measures, run.classifier()))


def _opened_by(path: str | Path, options: MeasureOptions) -> Run:
    """Return the run with the operator that is measured: a part is of one."""
    if len(options.operators) > 1:
        raise InputError("A part of a measurement is of one operator: name one.")
    return Run(path, *options.operators)


class Pilot(Run):
    """A run as its pilot sees it: measurements lie apart, so that they fix no settings of those that follow."""

    @property
    def measurements(self) -> Path:
        """What the pilot has measured."""
        return self.path / "pilot"


def measure_pilot(path: str | Path, options: MeasureOptions, reporter: Reporter) -> Pilot:
    """Measure without random draws and without result rows, for a plan; an older pilot of other settings is removed."""
    pilot = Pilot(path)
    with only_one(pilot.path):
        if differing(pilot.measurement_settings or BEFORE, _settings(pilot, options)):
            shutil.rmtree(pilot.measurements, ignore_errors=True)
        work = _begin(pilot, options, reporter)
        _measure_all(work, [walk for walk in work.walks if not walk[0].startswith("random.")], reporter)
    return pilot


def measure_part(
    path: str | Path, options: MeasureOptions, name: str, part: int, parts: int, *, reporter: Reporter | None = None
) -> None:
    """Measure every `parts`-th batch of one measure, from number `part` on; `random` stands for `random.0` and so on.

    `measure` with the same options then finds these batches done, and its rows are the same as if it had measured them
    itself: the batches are cut alike, and an absolute form explains anew what it would otherwise take from its signed
    form, which gives the same numbers. `begin_measuring` comes first.
    """
    run = _opened_by(path, options)
    settings = _settings(run, options)
    if not run.measurement_settings or differing(run.measurement_settings, settings):
        raise InputError(f"{path} is not measured with these settings: `begin_measuring` stores them, once, before.")
    reporter = reporter or Silent()
    with only_one(run.path, together=True):
        loaded = (str(path), run.operator, settings["weights"], options.by, options.chunk, options.dtype)
        classifier, test, masf = _loaded(*loaded)
        classifier.memory.warn = reporter.warn
        walks = _walks(options, distinct(options.measures, classifier), test)
        work = _Work(run, options, classifier, test, masf, walks)
        for walk in walks:
            if name in (walk[0], walk[0].split(".")[0]):
                _measure_one(work, walk, Known(()), reporter, part, parts)


@functools.lru_cache(maxsize=1)  # a process that measures several parts of a run loads its model and texts once
def _loaded(
    path: str, operator: str, _weights: str, by: str, chunk: int, dtype: str
) -> tuple[Classifier, Encoded, MaSF | None]:
    run = Run(path, operator)
    classifier, split = _in_precision(run.classifier(), dtype), run.data().test
    test = in_units(encode(classifier, split, "test", Silent()), classifier, split, by, chunk)
    return classifier, test, run.in_distribution_test()


def _measure_one(work: _Work, walk: Walk, known: "Known", reporter: Reporter, part: int = 0, parts: int = 1) -> None:
    """Measure one importance measure on the rows, leaving out the batches that are done, or of another part."""
    name, one, seed, rows = walk
    # another form of a measure under its name, as with fewer steps, neither gives nor takes
    shared = _known_by_name(one)

    def walked(number: int, batch: Batch) -> bytes:
        if work.classifier.problem.each_output:
            return as_parquet(_outputs_table(work.classifier, batch, one, seed, work.masf))
        watch = Stopwatch(one, known.pop(one.absolute_of, number) if shared else None)
        table = _walk_table(work.classifier, batch, watch, seed, work.options.target, work.masf)
        known.keep(one.name, number, watch.first if shared else None)
        return as_parquet(table)

    # a user's function may do what it likes with the model
    still = work.classifier.weights_stand_still() if shared else nullcontext()
    with still, reporter.bar(name, len(rows)) as advance:
        _shards(work.run, name).fill(
            _batches(work, rows),
            walked,
            advance=advance,
            warn=reporter.warn,
            share=(part, parts),
        )


def _parts(work: _Work, rows: Ints) -> list[Ints]:
    """Return the rows as they are measured: all at once, or in rounds."""
    if not work.options.until_certain:
        return [rows]
    return cut_at_looks(rows, len(_rows_of("random", work.options, work.test)))


def _batches(work: _Work, rows: Ints) -> Iterator[Batch]:
    """Yield the rows in batches, whose numbers do not change with how many rounds there will be."""
    for part in _parts(work, rows):
        yield from work.test.batches(TOKENS_AT_ONCE, part)


def _shards(run: Run, name: str) -> Shards:
    return Shards(run.measurements / name)


def _walk_table(
    classifier: Classifier, batch: Batch, watch: "Stopwatch", seed: int, target: str, masf: MaSF | None
) -> pyarrow.Table:
    """Return a row for each text and step: prediction, the target's probability, p-values, seconds.

    `held` is the sparsity of the first explanation: the share of all importance that the tokens masked by then hold,
    each an even share of its unit's.
    """
    targets = batch.labels if target == "gold" else classifier.predict_with_features(batch)[0].argmax(dim=-1)
    columns: dict[str, list[Tensor]] = {}
    for step, masked in enumerate(masking_walk(classifier, batch, watch.measure, targets, seed=seed)):
        logits, features = classifier.predict_with_features(masked)
        found = {
            "row": batch.rows,
            "step": torch.full_like(batch.rows, step),
            "predicted": logits.argmax(dim=-1),
            "probability": logits.softmax(dim=-1).gather(1, targets[:, None])[:, 0],
        }
        if masf is not None:
            own, outside = masf.walk_p_values(masked, features, step)
            found |= {"p_own": own, "p_outside": outside}
        for key, value in found.items():
            columns.setdefault(key, []).append(value)
    if watch.first is not None:
        columns["held"] = list(held_by_the_most_important(even_shares(batch, watch.first[0]), batch.maskable).T)
    table = {key: torch.cat(values).numpy() for key, values in columns.items()}
    table["seconds"] = np.full(len(table["row"]), watch.seconds / len(table["row"]))
    return pyarrow.table(table)


def _outputs_table(
    classifier: Classifier, batch: Batch, measure: ImportanceMeasure, seed: int, masf: MaSF | None
) -> pyarrow.Table:
    """Return a row for each text and step, where every output is explained: several labels, or a number.

    Each label is masked by its own explanation, so there is a walk per label, and `score:2` is the probability of the
    third label on the third walk (of a number, the number). Its p-values and sparsity are named like that, too. Masking
    at random is of no label: one walk gives the scores of all.
    """
    outputs, columns, seconds = range(len(classifier.labels)), dict[str, list[Tensor]](), 0.0
    for walk in [tuple(outputs)] if measure.family == "random" else [(output,) for output in outputs]:
        watch, targets = Stopwatch(measure, None), torch.full_like(batch.rows, walk[0])
        for step, masked in enumerate(masking_walk(classifier, batch, watch.measure, targets, seed=seed)):
            logits, features = classifier.predict_with_features(masked)
            scores = classifier.problem.scores(logits)
            found = {f"score:{output}": scores[:, output] for output in walk}
            if walk[0] == 0:
                found |= {"row": batch.rows, "step": torch.full_like(batch.rows, step)}
            if masf is not None:
                own, outside = masf.walk_p_values(masked, features, step)
                found |= {f"p_own:{walk[0]}": own, f"p_outside:{walk[0]}": outside}
            for key, value in found.items():
                columns.setdefault(key, []).append(value)
        if watch.first is not None:
            held = held_by_the_most_important(even_shares(batch, watch.first[0]), batch.maskable)
            columns[f"held:{walk[0]}"] = list(held.T)
        seconds += watch.seconds
    table = {key: torch.cat(values).numpy() for key, values in columns.items()}
    table["seconds"] = np.full(len(table["row"]), seconds / len(table["row"]))
    return pyarrow.table(table)


class Known:
    """Explanations of the unmasked texts of a batch, and their time, which absolute forms reuse.

    It is kept of the measures that are `asked` for, and handed out once.
    """

    def __init__(self, asked: Iterable[str | None]) -> None:
        self.asked = set(asked)
        self.said: dict[tuple[str | None, int], tuple[Tensor, float]] = {}

    def keep(self, name: str, batch: int, said: tuple[Tensor, float] | None) -> None:
        """Keep a measure's explanation of a batch, if its absolute form needs it."""
        if said is not None and name in self.asked:
            self.said[name, batch] = said

    def pop(self, name: str | None, batch: int) -> tuple[Tensor, float] | None:
        """Return and remove a measure's explanation of a batch, if it is kept."""
        return self.said.pop((name, batch), None)


class Stopwatch:
    """A measure whose explanations are timed. It reuses its signed form's explanations of the unmasked texts.

    The time that took counts for both forms, as if each had been measured alone.
    """

    def __init__(self, one: ImportanceMeasure, signed: tuple[Tensor, float] | None) -> None:
        self.measure = dataclasses.replace(one, explain=self.explain)
        self.seconds = 0.0
        self.first: tuple[Tensor, float] | None = None
        self._explain, self._signed = one.explain, signed

    def explain(self, classifier: Classifier, batch: Batch, targets: Tensor, seed: int) -> Tensor:
        """Explain as the measure does, and record the time."""
        if self.first is None and self._signed is not None:
            importance, spent = self._signed[0].abs(), self._signed[1]
        else:
            started = time.perf_counter()
            importance = self._explain(classifier, batch, targets, seed)
            spent = time.perf_counter() - started
        self.first = self.first or (importance, spent)
        self.seconds += spent
        return importance


def _settings(run: Run, options: MeasureOptions) -> dict[str, Any]:
    """Return what all measurements of a run have in common."""
    settings = {"target": options.target, "rows": options.rows, "beam_rows": options.beam_rows, "seed": options.seed}
    settings |= {"by": options.by, "chunk": options.chunk if options.by == CHUNKED else None}
    settings |= {"until_certain": options.until_certain}  # whose batches are cut in rounds
    settings |= {"dtype": options.dtype}
    settings |= {"checked": run.checked, "max_length": run.config.max_length}
    settings["in_distribution"] = sum_of(run.in_distribution_folder) if run.checked else None
    # earlier versions judged whole units at the step of the walk: their p-values do not mix with these
    settings["judged_at"] = "the share that is masked" if run.checked and options.by != TOKEN else None
    return settings | of_model(run, FORMAT)


def _require_same_settings(run: Run, options: MeasureOptions, measures: Sequence[ImportanceMeasure]) -> None:
    """Raise InputError if stored measurements have other settings or another model."""
    settings, stored = _settings(run, options), run.measurement_settings
    require_same(run.measurements, stored, settings)
    for other in map(run.by, OPERATORS):  # which are compared with each other, on the same texts
        if other.measurement_settings:
            require_same(other.measurements, other.measurement_settings, settings)
    # the options of all calls together, for the commands in the report
    before, named = stored.get("asked", {}), [one.name for one in measures]
    functions = {name for name in before.get("functions", ()) if name not in named}
    asked = {
        "measures": list(dict.fromkeys((*before.get("measures", ()), *named))),
        "functions": sorted(functions | {one.name for one in measures if not _known_by_name(one)}),
        "random_runs": max(before.get("random_runs", 0), options.random_runs),
        "without_check": options.without_check,
        "scores": before.get("scores", {})
        | {name_of(Path(file)): str(Path(file).resolve()) for file in options.scores},
    }
    run.store_measurement_settings({**settings, "asked": asked})
