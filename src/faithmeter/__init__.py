"""faithmeter: which explanations of your text classifier are faithful? Measured, with statistics."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from faithmeter.attacks import Attack, attack_texts
    from faithmeter.data.batch import Batch, Encoded
    from faithmeter.data.splits import DataSpec, Splits, load_splits
    from faithmeter.data.tasks import TASKS, Task
    from faithmeter.errors import InputError
    from faithmeter.explaining.explanation import ExplainOptions, Explanation, explain_texts
    from faithmeter.importance import IMPORTANCE_MEASURES, ImportanceMeasure, as_measure
    from faithmeter.in_distribution import MaSF
    from faithmeter.models.classifier import Classifier, load_classifier
    from faithmeter.models.from_scratch import bilstm_classifier, small_classifier
    from faithmeter.performance import METRICS, majority_performance
    from faithmeter.runs.results import Result
    from faithmeter.runs.run import Run
    from faithmeter.studies.adopt import adopt
    from faithmeter.studies.attack import attack
    from faithmeter.studies.audit import AuditOptions, audit
    from faithmeter.studies.check import check
    from faithmeter.studies.explain import explain
    from faithmeter.studies.faithfulness_rows import pool
    from faithmeter.studies.measure import MeasureOptions, measure
    from faithmeter.studies.report import report
    from faithmeter.studies.roar.experiment import RoarRun
    from faithmeter.studies.roar.roar import RoarOptions, roar
    from faithmeter.studies.select import SelectOptions, select
    from faithmeter.studies.suite.suite import EngineOptions, bench_suite
    from faithmeter.studies.train import TrainingOptions, resume, train
    from faithmeter.studies.transfer import transfer
    from faithmeter.training import TrainingConfig, fine_tune

__version__ = "0.2.0"  # the one place: pyproject.toml reads it here

__all__ = [
    "IMPORTANCE_MEASURES",
    "METRICS",
    "TASKS",
    "Attack",
    "AuditOptions",
    "Batch",
    "Classifier",
    "DataSpec",
    "Encoded",
    "EngineOptions",
    "ExplainOptions",
    "Explanation",
    "ImportanceMeasure",
    "InputError",
    "MaSF",
    "MeasureOptions",
    "Result",
    "RoarOptions",
    "RoarRun",
    "Run",
    "SelectOptions",
    "Splits",
    "Task",
    "TrainingConfig",
    "TrainingOptions",
    "adopt",
    "as_measure",
    "attack",
    "attack_texts",
    "audit",
    "bench_suite",
    "bilstm_classifier",
    "check",
    "explain",
    "explain_texts",
    "fine_tune",
    "load_classifier",
    "load_splits",
    "majority_performance",
    "measure",
    "pool",
    "report",
    "resume",
    "roar",
    "select",
    "small_classifier",
    "train",
    "transfer",
]

_ROOMS = {
    "attacks": ("Attack", "attack_texts"),
    "data.batch": ("Batch", "Encoded"),
    "data.splits": ("DataSpec", "Splits", "load_splits"),
    "data.tasks": ("TASKS", "Task"),
    "errors": ("InputError",),
    "explaining.explanation": ("ExplainOptions", "Explanation", "explain_texts"),
    "importance": ("IMPORTANCE_MEASURES", "ImportanceMeasure", "as_measure"),
    "in_distribution": ("MaSF",),
    "models.classifier": ("Classifier", "load_classifier"),
    "models.from_scratch": ("bilstm_classifier", "small_classifier"),
    "performance": ("METRICS", "majority_performance"),
    "runs.results": ("Result",),
    "runs.run": ("Run",),
    "studies.adopt": ("adopt",),
    "studies.attack": ("attack",),
    "studies.audit": ("AuditOptions", "audit"),
    "studies.check": ("check",),
    "studies.explain": ("explain",),
    "studies.faithfulness_rows": ("pool",),
    "studies.measure": ("MeasureOptions", "measure"),
    "studies.report": ("report",),
    "studies.roar.experiment": ("RoarRun",),
    "studies.roar.roar": ("RoarOptions", "roar"),
    "studies.select": ("SelectOptions", "select"),
    "studies.suite.suite": ("EngineOptions", "bench_suite"),
    "studies.train": ("TrainingOptions", "resume", "train"),
    "studies.transfer": ("transfer",),
    "training": ("TrainingConfig", "fine_tune"),
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 (whatever the name stands for)
    """Import a public name when it is first used: torch and transformers take seconds, and `--help` needs neither."""
    for room, names in _ROOMS.items():
        if name in names:
            return getattr(import_module(f"faithmeter.{room}"), name)
    raise AttributeError(f"module 'faithmeter' has no attribute {name!r}")
