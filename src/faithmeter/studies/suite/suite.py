"""Bench-suite: a whole benchmark from one file: every task, model, way and seed trained, checked, measured, judged.

Finished jobs are kept and skipped, so the same command resumes after a crash, a cancelled cluster job, or an extension
of the file. The results are the same whatever the engine and the number of workers.
"""

import csv
import functools
import hashlib
import io
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from faithmeter.data.splits import DataSpec, Splits, load_splits
from faithmeter.errors import InputError, require_finite
from faithmeter.files import only_one, wait_until_nobody_is_at_work, write_bytes, write_json
from faithmeter.progress import Reporter, Silent
from faithmeter.reports.formats import inert
from faithmeter.reports.sentences import doubt, recommended
from faithmeter.runs.directory import read_config
from faithmeter.runs.engines import Engine, Processes, ThisProcess, go_through, one_thread, workers_here
from faithmeter.runs.ray_engine import RayCluster
from faithmeter.runs.results import find, number
from faithmeter.runs.run import Run
from faithmeter.runs.settings import differing
from faithmeter.runs.stages import SUMMARISE, TRAIN
from faithmeter.runs.timing import duration
from faithmeter.studies.report import report
from faithmeter.studies.roar.experiment import RoarRun
from faithmeter.studies.roar.roar import fingerprint_with
from faithmeter.studies.suite.estimate import pace_of, seconds_of, time_left
from faithmeter.studies.suite.file import Suite, read_suite, suite_text
from faithmeter.studies.suite.jobs import (
    NO_MODEL,
    Job,
    Plan,
    jobs_of,
    key_of_job,
    mark_file,
    model_in,
    must_agree,
    perform,
    plans,
    read_mark,
    stamp,
)

ENGINES = ("this-process", "processes", "ray")
NAMES = {
    "settings": "settings",
    "data": "data or model files",
    "weights": "weights",
    "tokenizer_and_config": "tokenizer or config",
}
COLUMNS = ("task", "model", "way", "seed", "kind", "measure", "masking_ratio", "tokens", "detail", "metric", "split",
           "value", "low", "high", "over", "n")  # fmt: skip
SECONDS = "seconds"  # the metric of rows that are times, which differ from one machine to the next


@dataclass(frozen=True)
class EngineOptions:
    """Where the jobs run. `workers` is how many at a time; None means one per core, or all that a cluster has room for.

    `address` is that of a Ray cluster (None starts one on this machine); `cpus` and `gpus` are what each of its workers
    requests.
    """

    engine: str = "this-process"
    workers: int | None = None
    address: str | None = None
    cpus: float = 1
    gpus: float = 0

    def __post_init__(self) -> None:
        require_finite(vars(self))
        if self.engine not in ENGINES:
            raise InputError(f"There is no engine {self.engine!r}: choose from {', '.join(ENGINES)}.")
        if self.engine != "ray" and (self.address is not None or (self.cpus, self.gpus) != (1, 0)):
            raise InputError("--address, --cpus and --gpus apply only to a Ray cluster: pass --engine ray.")
        if self.engine == "this-process" and (self.workers or 1) > 1:
            raise InputError("this-process runs one job at a time: for more workers, pass --engine processes or ray.")

    def make(self, work: Callable[[Job], None]) -> Engine[Job]:
        """Return the engine."""
        if self.engine == "ray":
            return RayCluster(work, self.workers, address=self.address, cpus=self.cpus, gpus=self.gpus)
        if self.engine == "this-process":
            return ThisProcess(work)
        return Processes(work, self.workers or workers_here())


@dataclass(frozen=True)
class SuiteOutcome:
    """What a suite led to: its folder, the report, the tables, and what could not be done, in words."""

    out: Path
    page: Path | None
    tables: tuple[Path, ...]
    failures: tuple[str, ...]


def bench_suite(
    suite: str | Path,
    out: str | Path,
    engine: EngineOptions | None = None,
    *,
    data_dir: str | Path | None = None,
    redo: bool = False,
    estimate: bool = True,
    dry_run: bool = False,
    reporter: Reporter | None = None,
) -> SuiteOutcome:
    """Run a suite file in the folder `out`, and write one report and the tables.

    Results with other settings, data, weights or another version are an error, unless `redo` says to remove and repeat
    them. `estimate` times each model first; `dry_run` prints what would be done, and does nothing.
    """
    place = Path(out).resolve()
    asked = _as_begun(read_suite(suite, data_dir=data_dir), place)
    engine, reporter = engine or EngineOptions(), reporter or Silent()
    if place.exists() and not (place / "suite.toml").is_file() and any(_visible(place)):
        raise InputError(f"{out} exists and is not a suite; nothing is overwritten. Choose another folder.")
    if dry_run:
        _plan(asked, place, engine, redo=False, estimate=estimate, reporter=reporter)
        return SuiteOutcome(place, None, (), ())
    place.mkdir(parents=True, exist_ok=True)
    with only_one(place):
        wait_until_nobody_is_at_work(place)
        every, left, seconds = _plan(asked, place, engine, redo=redo, estimate=estimate, reporter=reporter)
        write_bytes(place / "suite.toml", suite_text(suite)[0].encode())
        failures = _do(place, every, left, seconds, engine, reporter)
        whole = _whole(place, every)
        tables = _write_tables(place, whole)
        page = _write_report(asked, place, whole, reporter) if whole else None
    return SuiteOutcome(place, page, tables, tuple(failures))


def _visible(path: Path) -> list[Path]:
    """Return what is in a folder but for locks; a file is itself."""
    return [one for one in path.iterdir() if not one.name.startswith(".")] if path.is_dir() else [path]


# ------------------------------------------------------------------------------------------------- what to do


def _as_begun(suite: Suite, out: Path) -> Suite:
    """Return the suite with the order of rows of what was done before there was a choice, so that it can go on."""
    tasks = []
    for task in suite.tasks:
        found = [*out.glob(f"runs/{task.name}/*/*/config.json"), *out.glob(f"roar/{task.name}/*/config.json")]
        before = [DataSpec.read(read_config(file.parent)["data"]) for file in found]
        tasks.append(replace(task, data=task.data.as_made_before(before[0])) if before else task)
    return replace(suite, tasks=tuple(tasks))


def _plan(
    suite: Suite, out: Path, engine: EngineOptions, *, redo: bool, estimate: bool, reporter: Reporter
) -> tuple[list[Job], list[Job], dict[str, float]]:
    """Return all jobs, those left to do, and an estimate of the time of each; print the totals."""
    fingerprints, seconds = dict[tuple[str, str], str](), dict[str, float]()
    with reporter.bar("Reading the data", len(suite.tasks) * len(suite.models)) as advance:
        for task in suite.tasks:
            # a suite that was begun took them as they are
            splits = load_splits(task.data, labels_known=(out / "suite.toml").is_file())
            for model in suite.models:
                pair = task.name, model.name
                fingerprints[pair] = fingerprint_with(splits, model.model, model.vectors)
                if estimate:
                    seconds |= _estimated(suite, out, {pair: fingerprints[pair]}, splits)
                advance(1)
    every = [job for plan in plans(suite, fingerprints) for job in jobs_of(plan, suite.shards)]
    left, stale = what_is_left(out, every)
    if stale and redo:
        for folder, words in stale.items():
            reporter.warn(f"{folder} was done with another {words}: it is removed and done again.")
            shutil.rmtree(out / folder, ignore_errors=True)
            shutil.rmtree(mark_file(out, folder).with_suffix(""), ignore_errors=True)
        left, stale = what_is_left(out, every)
    if stale:
        (folder, words), *more = stale.items()
        raise InputError(
            f"{out / folder}{f' and {len(more)} more' if more else ''} was done with another {words}, and cannot be "
            "compared with this suite. Choose another folder for the suite, or pass --redo to remove such results and "
            "do them again."
        )
    _say_what_is_left(every, left, seconds, engine, reporter)
    return every, left, seconds


def _estimated(suite: Suite, out: Path, fingerprint: dict[tuple[str, str], str], splits: Splits) -> dict[str, float]:
    """Return about how long the jobs of a model on a task take, where any are left."""
    of_pair = plans(suite, fingerprint)
    left, _ = what_is_left(out, [job for plan in of_pair for job in jobs_of(plan, suite.shards)])
    if not left:
        return {}
    with one_thread():
        pace = pace_of(of_pair[0], splits)
        return {job.name: seconds_of(job, pace) for job in left}


def _say_what_is_left(
    every: Sequence[Job], left: Sequence[Job], seconds: Mapping[str, float], engine: EngineOptions, reporter: Reporter
) -> None:
    places = 1 if engine.engine == "this-process" else engine.workers or workers_here()
    done = f", of which {len(every) - len(left)} are already done" if len(left) < len(every) else ""
    reporter.note(f"{len(every)} jobs in {len({job.plan.folder for job in every})} folders{done}.")
    if left and seconds:
        known = [seconds[job.name] for job in left if job.name in seconds]
        total = duration(time_left(known, places=places, estimated=0, taken=0))
        reporter.note(
            f"They will take about {total}, {places} in parallel, if all cores are as fast as this machine's."
        )


def what_is_left(out: Path, jobs: Sequence[Job]) -> tuple[list[Job], dict[str, str]]:
    """Return the jobs that are not done, and the folders that were done with something else, by what that is.

    A job is done if its mark is there and says the same settings, data and model, if all that it builds on is done,
    and if nothing more is asked of it than it did. If more is, it is left, and takes over what it finds.
    """
    left, stale, undone = list[Job](), dict[str, str](), set[str]()
    models = dict[str, Mapping[str, str | None]]()
    for job in jobs:
        folder, mark = job.plan.folder, read_mark(out, job.name)
        if folder not in models:
            models[folder] = NO_MODEL if mark is None else model_in(out, job.plan)
        weights = models[folder]["weights"]
        if mark is not None and not undone.intersection(job.needs):
            changed = [NAMES[name] for name in differing(mark, must_agree(job, models[folder]))]
            if job.kind == TRAIN and weights not in (mark["made"], None):
                changed.append(NAMES["weights"])
            if changed:
                stale.setdefault(folder, " and ".join(changed))
        lost = job.kind == TRAIN and weights is None  # the model was removed
        if mark is None or lost or undone.intersection(job.needs) or mark["stamp"] != stamp(out, job):
            left.append(job)
            undone.add(job.name)
    return left, stale


# ------------------------------------------------------------------------------------------------- doing it


def _do(
    out: Path, every: Sequence[Job], left: Sequence[Job], seconds: Mapping[str, float], engine: EngineOptions,
    reporter: Reporter,
) -> list[str]:  # fmt: skip
    """Run the jobs that are left, and report each finished one and the time left."""
    by_name = {job.name: job for job in every}
    waiting, failures, begun = {job.name for job in left}, list[str](), time.perf_counter()
    machine = engine.make(functools.partial(perform, str(out)))
    with reporter.bar("Jobs", len(every)) as advance:
        advance(len(every) - len(left))

        def finished(job: Job) -> None:
            waiting.discard(job.name)
            mark = read_mark(out, job.name) or {}
            for warning in mark.get("warnings", ()):
                reporter.warn(f"{job.name}: {warning}")
            known = [seconds[name] for name in waiting if name in seconds]
            estimated = sum(value for name, value in seconds.items() if name not in waiting)
            taken = (time.perf_counter() - begun) * machine.places
            still = time_left(known, places=machine.places, estimated=estimated, taken=taken)
            told = f"; about {duration(still)} left" if known and still > 60 else ""
            reporter.note(f"{len(every) - len(waiting)}/{len(every)} {job.name}: {_found(out, job, mark)}{told}")
            advance(1)

        def failed(job: Job, error: InputError) -> None:
            failures.append(f"{job.name}: {error}")
            reporter.warn(f"{job.name} failed, and jobs that depend on it are skipped: {error}")

        go_through(
            machine,
            left,
            lambda job: [by_name[need] for need in job.needs],
            finished=finished,
            failed=failed,
            reporter=reporter,
            home=lambda job: job.plan.folder,
        )
    return failures


def _found(out: Path, job: Job, mark: Mapping[str, Any]) -> str:
    """Return how long a job took and what it found, in words."""
    took = f"{mark.get('seconds', 0):.0f} s"
    if job.kind != SUMMARISE:
        return took
    rows = Run(out / job.plan.folder).results
    best = recommended(rows)
    if best is None:
        return f"{took}. {doubt(rows)}"
    return f"{took}, {best} is the most faithful, ACU {number(find(rows, 'acu', best))}"


# ------------------------------------------------------------------------------------------ what came of it


def _whole(out: Path, every: Sequence[Job]) -> list[Plan]:
    """Return the plans whose jobs are all done."""
    undone = {job.plan.folder for job in what_is_left(out, every)[0]}
    return list({job.plan.folder: job.plan for job in every if job.plan.folder not in undone}.values())


def result_rows(out: str | Path, whole: Sequence[Plan]) -> list[dict[str, Any]]:
    """Return the result rows of all runs but those that are times, in an order that depends on nothing but the rows.

    Times differ from one machine to the next, and from one engine to the next; everything else may not.
    """
    found = list[dict[str, Any]]()
    for plan in whole:
        folder = Path(out) / plan.folder
        of = {"task": plan.task, "model": plan.model_name, "way": plan.way, "seed": plan.seed}
        rows = RoarRun(folder).results if plan.retrained is not None else Run(folder).results
        found += [{name: {**row, **of}.get(name) for name in COLUMNS} for row in rows if row["metric"] != SECONDS]
    return sorted(found, key=_place)


def _place(row: Mapping[str, Any]) -> tuple[tuple[bool, Any], ...]:
    return tuple((row[name] is not None, row[name] if row[name] is not None else 0) for name in COLUMNS[:11])


def _write_tables(out: Path, whole: Sequence[Plan]) -> tuple[Path, ...]:
    rows = result_rows(out, whole)
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {name: inert(cell) if isinstance(cell, str) else cell for name, cell in row.items()} for row in rows
    )
    write_bytes(out / "tables.csv", text.getvalue().encode())
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    write_bytes(out / "tables.json", f"[\n{lines}\n]\n".encode())
    return out / "tables.csv", out / "tables.json"


def _write_report(suite: Suite, out: Path, whole: Sequence[Plan], reporter: Reporter) -> Path | None:
    """Write the report on all runs, unless it is there and nothing has changed; return its page."""
    keys = [
        [job.name, (read_mark(out, job.name) or {}).get("stamp")] for p in whole for job in jobs_of(p, suite.shards)
    ]
    said = [keys, suite.formats, suite.examples, key_of_job({})]
    made = hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]
    mark, folder = mark_file(out, "report"), out / "report"
    known = json.loads(mark.read_text(encoding="utf-8")) if mark.exists() else {}
    if known.get("key") != made or not all((folder / name).is_file() for name in known["files"]):
        with one_thread():
            files = report(
                [out / plan.folder for plan in whole], folder, formats=suite.formats, examples=suite.examples,
                reporter=reporter,
            )  # fmt: skip
        known = {"key": made, "files": [str(file.relative_to(folder)) for file in files]}
        write_json(mark, known)
    return next((folder / name for name in known["files"]), None)
