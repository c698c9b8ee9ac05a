"""From a suite to a graph of jobs, and each job done: train → check → measure by shards → summarise → judge → report.

A job that is done leaves a mark, a small file that appears whole or not at all, with what it was done with: settings,
data, weights, version. By the mark the same command resumes, and recognises old results that do not fit.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from faithmeter.data.splits import AS_IN_FILE, BY_CONTENT
from faithmeter.data.units import TOKEN
from faithmeter.files import at_work, write_json
from faithmeter.judges.judge import Need
from faithmeter.judges.table import JUDGES
from faithmeter.measuring.retraining import RANDOM, graph
from faithmeter.models.sources import absolute_model
from faithmeter.progress import Silent
from faithmeter.runs.run import Run
from faithmeter.studies.audit import audit
from faithmeter.studies.check import check
from faithmeter.studies.measure import begin_measuring, measure, measure_part
from faithmeter.studies.roar.experiment import RoarRun
from faithmeter.studies.roar.roar import begin_roar, do, go_on, tidy
from faithmeter.studies.select import select

if TYPE_CHECKING:
    from faithmeter.data.splits import DataSpec
    from faithmeter.measuring.retraining import Node
    from faithmeter.studies.audit import AuditOptions
    from faithmeter.studies.measure import MeasureOptions
    from faithmeter.studies.roar.roar import RoarOptions
    from faithmeter.studies.select import SelectOptions
    from faithmeter.studies.suite.file import Suite, SuiteModel, SuiteTask
    from faithmeter.training.config import TrainingOptions
from faithmeter.runs.stages import BEGIN, CHECK, GATHER, JUDGE, MEASURE, RETRAIN, SELECT, SUMMARISE, TRAIN
from faithmeter.studies.train import train_or_go_on

FORMAT = 1  # of the marks; jobs marked in another format are not taken to be done
NO_MODEL: Mapping[str, str | None] = {"weights": None, "tokenizer_and_config": None}


@dataclass(frozen=True)
class Plan:
    """What all the jobs of one folder are about: a run, or an experiment of retraining where `retrained` is there.

    `fingerprint` is of the data and of the model's files; `other` is the folder of the run with the next seed.
    """

    folder: str
    task: str
    model_name: str
    way: str
    seed: int | None
    data: DataSpec
    fingerprint: str
    model: str
    vectors: str | None
    max_length: int
    training: TrainingOptions
    check_form: str = ""
    check_rows: int = 0
    measured: MeasureOptions | None = None
    audited: AuditOptions | None = None
    selected: SelectOptions | None = None
    retrained: RoarOptions | None = None
    other: str | None = None


@dataclass(frozen=True, eq=False)
class Job:
    """A piece of work that is done in one go; `needs` are the names of those that come first."""

    name: str
    kind: str
    plan: Plan
    needs: tuple[str, ...] = ()
    measure: str = ""
    part: int = 0
    parts: int = 1
    node: Node | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """What may not change under what is done: other settings are other results."""
        plan = self.plan
        shared: dict[str, Any] = {
            "model": absolute_model(plan.model),
            "vectors": plan.vectors,
            "max_length": plan.max_length,
        }
        data = dataclasses.asdict(plan.data.absolute())
        # what was done before labels could be cleaned, texts grouped, rows ordered by content, and several labels or a
        # number predicted is done still
        since = {
            "labels": None,
            "number": None,
            "clean_labels": False,
            "group": None,
            "row_order": BY_CONTENT if plan.data.data is None else AS_IN_FILE,
        }
        shared |= {"data": {name: value for name, value in data.items() if (name, value) not in since.items()}}
        training = {name: value for name, value in vars(plan.training).items() if value is not None}
        if self.kind == TRAIN:
            return {**shared, **training}
        if self.kind == CHECK:
            return {"form": plan.check_form, "rows": plan.check_rows}
        if self.kind in (MEASURE, SUMMARISE):
            assert plan.measured is not None
            # what was measured by token before there were other units is measured still
            units = ("by", "chunk") if plan.measured.by == TOKEN else ()
            return _but(plan.measured, "measures", "random_runs", "without_check", "until_certain", *units)
        if self.kind == JUDGE:
            return {**_but(plan.audited, "judges", "measures", "other")}
        if self.kind == SELECT:
            return _but(plan.selected, "measures", "rationales", "seeds", "length")
        return {**shared, **training, **_but(plan.retrained, "measures", "protocols", "seeds")}

    @property
    def asked(self) -> dict[str, Any]:
        """The settings that may be extended: the job is then done again, and reuses finished work."""
        plan = self.plan
        if self.kind == CHECK:  # which also stores what will be measured with
            return {"measured": plan.measured is not None}
        if self.kind == MEASURE:
            assert plan.measured is not None
            return {"random_runs": plan.measured.random_runs if self.measure == RANDOM else None}
        if self.kind == SUMMARISE:
            return _only(plan.measured, "measures", "random_runs")
        if self.kind == JUDGE:
            return {**_only(plan.audited, "judges", "measures"), "other": plan.other}
        if self.kind == SELECT:
            return _only(plan.selected, "measures", "rationales", "seeds", "length")
        return _only(plan.retrained, "measures", "protocols", "seeds") if self.kind in (BEGIN, GATHER) else {}


def _but(options: Any, *names: str) -> dict[str, Any]:  # noqa: ANN401 (any options)
    return {name: value for name, value in vars(options).items() if name not in names}


def _only(options: Any, *names: str) -> dict[str, Any]:  # noqa: ANN401
    return {name: value for name, value in vars(options).items() if name in names}


# --------------------------------------------------------------------------------------------------- the graph


def plans(suite: Suite, fingerprints: Mapping[tuple[str, str], str]) -> list[Plan]:
    """Return a plan for each folder, all tasks, models and ways of a seed before the next: so what is there compares.

    Only tasks with models that have a fingerprint are planned for.
    """
    pairs = [(task, model) for task in suite.tasks for model in suite.models if (task.name, model.name) in fingerprints]
    runs = (suite.measured, suite.audited, suite.selected) != (None, None, None)
    found = [
        _run_plan(suite, task, model, way, seed, fingerprints)
        for seed in (suite.seeds if runs else ())
        for task, model in pairs
        for way in suite.ways
    ]
    for task, model in pairs if suite.retrained is not None else ():
        found.append(
            Plan(
                f"roar/{task.name}/{model.name}",
                way="retrained",
                seed=None,
                max_length=suite.max_length,
                training=suite.retraining,
                retrained=suite.retrained,
                **_common(task, model, fingerprints),
            )
        )
    return found


def _common(task: SuiteTask, model: SuiteModel, fingerprints: Mapping[tuple[str, str], str]) -> dict[str, Any]:
    return {
        "task": task.name,
        "model_name": model.name,
        "data": task.data,
        "fingerprint": fingerprints[task.name, model.name],
        "model": model.model,
        "vectors": model.vectors,
    }


def _run_plan(
    suite: Suite, task: SuiteTask, model: SuiteModel, way: str, seed: int, fingerprints: Mapping[tuple[str, str], str]
) -> Plan:
    def folder(of: int) -> str:
        return f"runs/{task.name}/{model.name}/{way}-{of}"

    own = {name: value for name in ("measures", "rows") if (value := getattr(task, name))}
    measured = suite.measured and dataclasses.replace(suite.measured, **own)
    audited = suite.audited and dataclasses.replace(suite.audited, **own)
    if audited is not None and task.judges:
        audited = dataclasses.replace(audited, judges=tuple(dict.fromkeys((*(audited.judges or ()), *task.judges))))
    judges = () if audited is None else audited.judges or ()
    others = any(JUDGES[name].needs is Need.SECOND_RUN for name in judges)
    following = suite.seeds[(suite.seeds.index(seed) + 1) % len(suite.seeds)]
    return Plan(
        folder(seed),
        way=way,
        seed=seed,
        max_length=suite.max_length,
        training=dataclasses.replace(suite.training[way], seed=seed),
        check_form=suite.check_form,
        check_rows=suite.check_rows,
        measured=measured,
        audited=audited,
        selected=suite.selected,
        other=folder(following) if others else None,
        **_common(task, model, fingerprints),
    )


def jobs_of(plan: Plan, shards: int) -> Iterator[Job]:
    """Yield the jobs of a folder in an order in which they can be done; each measure is cut into `shards` of them."""
    if plan.retrained is not None:
        yield from _retraining_jobs(plan)
        return

    def name(kind: str) -> str:
        return f"{plan.folder}/{kind}"

    yield Job(name(TRAIN), TRAIN, plan)
    yield Job(name(CHECK), CHECK, plan, (name(TRAIN),))
    before = name(CHECK)
    if plan.measured is not None:
        parts = []
        for measured in (RANDOM, *(str(one) for one in plan.measured.measures or () if one != RANDOM)):
            for part in range(shards):
                parts.append(name(f"{MEASURE}-{measured}-{part + 1}-of-{shards}"))
                yield Job(parts[-1], MEASURE, plan, (before,), measured, part, shards)
        yield Job(name(SUMMARISE), SUMMARISE, plan, tuple(parts))
        before = name(SUMMARISE)
    if plan.audited is not None:
        # judges share one file of results, so one job lets them all judge
        other = () if plan.other is None else (f"{plan.other}/{TRAIN}",)
        yield Job(name(JUDGE), JUDGE, plan, (before, *other))
        before = name(JUDGE)
    if plan.selected is not None:
        yield Job(name(SELECT), SELECT, plan, (before,))


def _retraining_jobs(plan: Plan) -> Iterator[Job]:
    options = plan.retrained
    assert options is not None
    assert options.measures is not None

    def name(node: Node) -> str:
        return f"{plan.folder}/{RETRAIN}-{node.folder.replace('/', '-')}"

    begin = f"{plan.folder}/{BEGIN}"
    yield Job(begin, BEGIN, plan)
    nodes = graph(options.seeds, options.measures, options.protocols, options.steps)
    for node in nodes:
        yield Job(name(node), RETRAIN, plan, (begin, *(() if node.needs is None else (name(node.needs),))), node=node)
    yield Job(f"{plan.folder}/{GATHER}", GATHER, plan, (begin, *map(name, nodes)))


# --------------------------------------------------------------------------------------------------- the marks


def mark_file(out: Path, name: str) -> Path:
    """Return where a job's mark is."""
    return out / "jobs" / f"{name}.json"


def read_mark(out: Path, name: str) -> dict[str, Any] | None:
    """Return a job's mark; None where there is none, or one that cannot be read."""
    try:
        found = json.loads(mark_file(out, name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("format") == FORMAT else None


def must_agree(job: Job, model: Mapping[str, str | None]) -> dict[str, Any]:
    """Return what must be the same for a job that was done to count as done."""
    found = {
        "settings": job.settings,
        "data": job.plan.fingerprint,
        **(NO_MODEL if job.kind == TRAIN else model),  # a training makes it
    }
    return json.loads(json.dumps(found))  # as it is read again: JSON has no tuples


def key_of_job(agreed: Mapping[str, Any]) -> str:
    """Return the content hash of what a job was done with."""
    return hashlib.sha256(json.dumps([FORMAT, agreed], sort_keys=True).encode()).hexdigest()[:16]


def stamp(out: Path, job: Job) -> str:
    """Return a hash of a job's settings and of what it depends on: if it differs, the job is done again."""
    built_on = [[need, (read_mark(out, need) or {}).get("key")] for need in job.needs]
    return hashlib.sha256(json.dumps([job.asked, built_on], sort_keys=True).encode()).hexdigest()[:16]


def model_in(out: Path, plan: Plan) -> Mapping[str, str | None]:
    """Return the hashes of a run's model; none where it is not trained, or is an experiment of many trainings."""
    folder = out / plan.folder
    if plan.retrained is not None or not (folder / "model").is_dir():
        return NO_MODEL
    run = Run(folder)
    return {"weights": run.weights, "tokenizer_and_config": run.tokenizer_and_config}


# ------------------------------------------------------------------------------------------------ doing a job


class Noting(Silent):
    """Keeps the warnings of a job for its mark: who works may be on another machine."""

    def __init__(self) -> None:
        self.warnings = list[str]()

    def warn(self, text: str) -> None:
        """Keep it."""
        self.warnings.append(text)


def perform(out: str, job: Job) -> None:
    """Do one job in the suite's folder, then mark it as done."""
    place, said, started = Path(out), Noting(), time.perf_counter()
    with at_work(place):
        _DOING[job.kind](place, job, said)
        model = model_in(place, job.plan)
        agreed = must_agree(job, model)
        mark = {
            "format": FORMAT,
            "job": job.name,
            "key": key_of_job(agreed),
            **agreed,
            "stamp": stamp(place, job),
            "made": model["weights"] if job.kind == TRAIN else None,
            "faithmeter": metadata.version("faithmeter"),
            "seconds": round(time.perf_counter() - started, 3),
            "machine": platform.node(),
            "warnings": said.warnings,
        }
        file = mark_file(place, job.name)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, mark)


def _train(out: Path, job: Job, said: Noting) -> None:
    plan = job.plan
    (out / plan.folder).parent.mkdir(parents=True, exist_ok=True)
    train_or_go_on(
        out / plan.folder, plan.data, plan.model, plan.training, max_length=plan.max_length, vectors=plan.vectors,
        reporter=said,
    )  # fmt: skip


def _check(out: Path, job: Job, said: Noting) -> None:
    folder = out / job.plan.folder
    if not Run(folder).checked:
        check(folder, form=job.plan.check_form, rows=job.plan.check_rows, reporter=said)
    if job.plan.measured is not None:
        begin_measuring(folder, job.plan.measured)


def _measure(out: Path, job: Job, said: Noting) -> None:
    assert job.plan.measured is not None
    measure_part(out / job.plan.folder, job.plan.measured, job.measure, job.part, job.parts, reporter=said)


def _judge(out: Path, job: Job, said: Noting) -> None:
    options, other = job.plan.audited, job.plan.other
    assert options is not None
    if other is not None:
        options = dataclasses.replace(options, other=out / other)
    audit(out / job.plan.folder, options, reporter=said)


def _begin(out: Path, job: Job, said: Noting) -> None:
    plan = job.plan
    (out / plan.folder).parent.mkdir(parents=True, exist_ok=True)
    begin_roar(
        out / plan.folder, plan.data, plan.model, plan.retrained, plan.training, max_length=plan.max_length,
        vectors=plan.vectors, reporter=said,
    )  # fmt: skip


def _retrain(out: Path, job: Job, said: Noting) -> None:
    run, node = RoarRun(out / job.plan.folder), job.node
    assert node is not None
    if not run.is_done(node):
        do(str(run.path), node)
    said.warnings += [f"{node.title}: {warning}" for warning in run.outcome(node).get("warnings", ())]
    tidy(run, node)


_DOING = {
    TRAIN: _train,
    CHECK: _check,
    MEASURE: _measure,
    SUMMARISE: lambda out, job, said: measure(out / job.plan.folder, job.plan.measured, reporter=said),
    JUDGE: _judge,
    SELECT: lambda out, job, said: select(out / job.plan.folder, job.plan.selected, reporter=said),
    BEGIN: _begin,
    RETRAIN: _retrain,
    # what is done is found done, and turned into result rows
    GATHER: lambda out, job, said: go_on(RoarRun(out / job.plan.folder), reporter=said),
}
