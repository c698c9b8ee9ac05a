"""faithmeter: which explanation of your text classifier can you believe? Faithfulness measured, with statistics."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from faithmeter.attacks import Attack, attack_texts
    from faithmeter.batch import Batch, Encoded
    from faithmeter.classifier import Classifier, load_classifier
    from faithmeter.data import DataSpec, Splits, load_splits
    from faithmeter.errors import InputError
    from faithmeter.explanation import Explanation, explain_texts
    from faithmeter.from_scratch import bilstm_classifier, small_classifier
    from faithmeter.importance import IMPORTANCE_MEASURES, ImportanceMeasure, as_measure
    from faithmeter.in_distribution import MaSF
    from faithmeter.jobs import (
        AuditOptions,
        EngineOptions,
        MeasureOptions,
        RoarOptions,
        SelectOptions,
        TrainingOptions,
        adopt,
        attack,
        audit,
        bench_suite,
        check,
        explain,
        measure,
        pool,
        report,
        resume,
        roar,
        select,
        train,
        transfer,
    )
    from faithmeter.performance import METRICS, majority_performance
    from faithmeter.results import Result
    from faithmeter.roar_run import RoarRun
    from faithmeter.run import Run
    from faithmeter.tasks import TASKS, Task
    from faithmeter.training import TrainingConfig, fine_tune

__version__ = "0.1.0"

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
    "attacks": (
        "Attack",
        "attack_texts",
    ),
    "batch": (
        "Batch",
        "Encoded",
    ),
    "classifier": (
        "Classifier",
        "load_classifier",
    ),
    "data": (
        "DataSpec",
        "Splits",
        "load_splits",
    ),
    "errors": ("InputError",),
    "explanation": (
        "Explanation",
        "explain_texts",
    ),
    "importance": (
        "IMPORTANCE_MEASURES",
        "ImportanceMeasure",
        "as_measure",
    ),
    "in_distribution": ("MaSF",),
    "jobs": (
        "AuditOptions",
        "EngineOptions",
        "MeasureOptions",
        "RoarOptions",
        "SelectOptions",
        "TrainingOptions",
        "adopt",
        "attack",
        "audit",
        "bench_suite",
        "check",
        "explain",
        "measure",
        "pool",
        "report",
        "resume",
        "roar",
        "select",
        "train",
        "transfer",
    ),
    "performance": (
        "METRICS",
        "majority_performance",
    ),
    "results": ("Result",),
    "roar_run": ("RoarRun",),
    "run": ("Run",),
    "from_scratch": ("bilstm_classifier", "small_classifier"),
    "tasks": (
        "TASKS",
        "Task",
    ),
    "training": (
        "TrainingConfig",
        "fine_tune",
    ),
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 (whatever the name stands for)
    """Import a public name when it is first used: torch and transformers take seconds, and `--help` needs neither."""
    for room, names in _ROOMS.items():
        if name in names:
            return getattr(import_module(f"faithmeter.{room}"), name)
    raise AttributeError(f"module 'faithmeter' has no attribute {name!r}")
