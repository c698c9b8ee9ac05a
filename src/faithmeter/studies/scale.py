"""Scale: models of increasing size on one task; each trained, checked and measured, then compared."""

from collections.abc import Callable, Sequence
from pathlib import Path

from faithmeter.data.splits import DataSpec
from faithmeter.errors import InputError
from faithmeter.models.from_scratch import FAMILIES, SHAPES
from faithmeter.progress import Reporter, Silent
from faithmeter.runs.run import Run
from faithmeter.studies.check import check
from faithmeter.studies.measure import MeasureOptions, measure
from faithmeter.studies.report import report
from faithmeter.studies.train import train_or_go_on
from faithmeter.training.config import TrainingOptions


def series(models: Sequence[str]) -> list[str]:
    """Return the models of a series: the name of a family (encoder, t5, gpt2) stands for all its sizes."""
    named: list[str] = []
    for model in models:
        sizes = [name for name, (family, _) in SHAPES.items() if family == model] if model in FAMILIES else [model]
        named += [name for name in sizes if name not in named]
    return named


def scale(
    path: str | Path,
    data: DataSpec,
    models: Sequence[str],
    options: TrainingOptions | None = None,
    measured: MeasureOptions | None = None,
    *,
    max_length: int = 512,
    reporter: Reporter | None = None,
    done: Callable[[Run], None] | None = None,
) -> tuple[list[Run], Path]:
    """Train, check and measure each model of a series, into PATH/MODEL; return the runs and the report on them all.

    The same call goes on where it was stopped. `done` is told each run when it is finished.
    """
    reporter, options, runs = reporter or Silent(), options or TrainingOptions(), list[Run]()
    for model in series(models):
        folder = Path(path) / Path(model).name
        if folder in [run.path for run in runs]:
            raise InputError(f"Two models are named {folder.name}, so their runs would share a folder: name each once.")
        reporter.note(f"{model}, into {folder}:")
        run = train_or_go_on(folder, data, model, options, max_length=max_length, reporter=reporter)
        if not run.checked:
            check(folder, reporter=reporter)
        runs.append(measure(folder, measured, reporter=reporter))
        if done is not None:
            done(runs[-1])
    (page,) = report([run.path for run in runs], Path(path) / "report", reporter=reporter)
    return runs, page
