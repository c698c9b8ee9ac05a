"""Compare: the same model and data, trained in several ways; each checked, measured and judged; then one report."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from faithmeter.data.splits import DataSpec
from faithmeter.errors import InputError
from faithmeter.problems import PROBLEMS, require_classes
from faithmeter.progress import Reporter, Silent
from faithmeter.runs.run import Run
from faithmeter.studies.audit import AuditOptions, audit
from faithmeter.studies.check import check
from faithmeter.studies.measure import MeasureOptions, measure
from faithmeter.studies.report import report
from faithmeter.studies.train import train_or_go_on
from faithmeter.training.config import WAYS, TrainingOptions, way_of
from faithmeter.training.start import training_defaults

MEASURES = ("grad-l2", "x-grad-signed", "x-grad-abs", "ig-signed", "ig-abs", "loo-signed", "loo-abs", "attention")
JUDGES = ("erasure", "fidelity", "fidelity-attacked")


def compare(
    path: str | Path,
    data: DataSpec,
    model: str,
    ways: Sequence[str] = tuple(WAYS),
    seeds: Sequence[int] = (0,),
    options: TrainingOptions | None = None,
    measured: MeasureOptions | None = None,
    audited: AuditOptions | None = None,
    *,
    max_length: int = 512,
    reporter: Reporter | None = None,
    done: Callable[[Run], None] | None = None,
) -> tuple[list[Run], Path]:
    """Train, check, measure and judge each way with each seed, into PATH/WAY-SEED; return the runs and their report.

    Ways with masks train for twice as many epochs: they show each text unmasked only every second time. The same call
    goes on where it was stopped, all ways of a seed before the next, so that what there is can be compared. `done` is
    told each run when it is finished.
    """
    require_classes(PROBLEMS[data.problem], "`faithmeter compare`")
    reporter, options, runs = reporter or Silent(), options or TrainingOptions(), list[Run]()
    taught = {name: _taught(name, options, model, data) for name in ways}  # what can be refused is refused first
    if len(set(taught.values())) < len(taught) or len(taught) < len(ways) or len(set(seeds)) < len(seeds):
        raise InputError("A way of training or a seed is named twice: name each once.")
    measured = measured or MeasureOptions(measures=MEASURES, rows=100)
    audited = audited or AuditOptions(judges=JUDGES, measures=MEASURES, rows=measured.rows)
    for seed in seeds:
        for name in ways:
            folder = Path(path) / f"{name}-{seed}"
            reporter.note(f"{name}, seed {seed}, into {folder}:")
            own = dataclasses.replace(taught[name], seed=seed)
            run = train_or_go_on(folder, data, model, own, max_length=max_length, reporter=reporter)
            if not run.checked:
                check(folder, reporter=reporter)
            measure(folder, measured, reporter=reporter)
            runs.append(audit(folder, audited, reporter=reporter))
            if done is not None:
                done(runs[-1])
    (page,) = report([run.path for run in runs], Path(path) / "report", reporter=reporter)
    return runs, page


def _taught(name: str, options: TrainingOptions, model: str, data: DataSpec) -> TrainingOptions:
    """Return the training options of one way, from those of all."""
    strategy, robust = way_of(name)
    defaults = training_defaults(model, data.resolved(), lora=options.lora)
    epochs = options.epochs or defaults.epochs
    own = dataclasses.replace(
        options, strategy=strategy, robust=robust, epochs=epochs if strategy == "plain" else 2 * epochs
    )
    own.over(defaults)  # refuses what cannot be
    return own
