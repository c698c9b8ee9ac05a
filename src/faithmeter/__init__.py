"""faithmeter: which explanations of your text classifier are faithful? Measured, with statistics."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from faithmeter.data.batch import Batch
    from faithmeter.data.splits import DataSpec
    from faithmeter.data.tasks import Task
    from faithmeter.errors import InputError
    from faithmeter.explaining.explanation import Explanation, explain_texts
    from faithmeter.explaining.options import ExplainOptions
    from faithmeter.importance.measure import ImportanceMeasure
    from faithmeter.importance.table import IMPORTANCE_MEASURES
    from faithmeter.in_distribution.masf import MaSF
    from faithmeter.models.classifier import Classifier, load_classifier
    from faithmeter.runs.results import Result
    from faithmeter.runs.run import Run
    from faithmeter.studies.adopt import adopt
    from faithmeter.studies.attack import attack
    from faithmeter.studies.audit import AuditOptions, audit
    from faithmeter.studies.check import check
    from faithmeter.studies.explain import explain
    from faithmeter.studies.faithfulness_rows import pool
    from faithmeter.studies.in_memory import as_run
    from faithmeter.studies.measure import MeasureOptions, measure
    from faithmeter.studies.report import report
    from faithmeter.studies.roar.roar import RoarOptions, roar
    from faithmeter.studies.select import SelectOptions, select
    from faithmeter.studies.suite.suite import EngineOptions, bench_suite
    from faithmeter.studies.train import resume, train
    from faithmeter.studies.transfer import transfer
    from faithmeter.training.config import TrainingOptions

__version__ = "0.2.0"  # the one place: pyproject.toml reads it here

__all__ = [
    "IMPORTANCE_MEASURES",
    "AuditOptions",
    "Batch",
    "Classifier",
    "DataSpec",
    "EngineOptions",
    "ExplainOptions",
    "Explanation",
    "ImportanceMeasure",
    "InputError",
    "MaSF",
    "MeasureOptions",
    "Result",
    "RoarOptions",
    "Run",
    "SelectOptions",
    "Task",
    "TrainingOptions",
    "adopt",
    "as_run",
    "attack",
    "audit",
    "bench_suite",
    "check",
    "explain",
    "explain_texts",
    "load_classifier",
    "measure",
    "pool",
    "report",
    "resume",
    "roar",
    "select",
    "train",
    "transfer",
]

_MODULES = {
    "data.batch": ("Batch",),
    "data.splits": ("DataSpec",),
    "data.tasks": ("Task",),
    "errors": ("InputError",),
    "explaining.explanation": ("Explanation", "explain_texts"),
    "explaining.options": ("ExplainOptions",),
    "importance.measure": ("ImportanceMeasure",),
    "importance.table": ("IMPORTANCE_MEASURES",),
    "in_distribution.masf": ("MaSF",),
    "models.classifier": ("Classifier", "load_classifier"),
    "runs.results": ("Result",),
    "runs.run": ("Run",),
    "studies.adopt": ("adopt",),
    "studies.attack": ("attack",),
    "studies.audit": ("AuditOptions",),
    "studies.faithfulness_rows": ("pool",),
    # these are the studies of the same names, which also take objects in memory
    "studies.in_memory": ("as_run", "audit", "check", "explain", "measure", "report"),
    "studies.measure": ("MeasureOptions",),
    "studies.roar.roar": ("RoarOptions", "roar"),
    "studies.select": ("SelectOptions", "select"),
    "studies.suite.suite": ("EngineOptions", "bench_suite"),
    "studies.train": ("resume", "train"),
    "studies.transfer": ("transfer",),
    "training.config": ("TrainingOptions",),
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 (whatever the name stands for)
    """Import a public name when it is first used: torch and transformers take seconds, and `--help` needs neither."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"faithmeter.{module}"), name)
    raise AttributeError(f"module 'faithmeter' has no attribute {name!r}")
