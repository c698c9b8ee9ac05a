"""faithmeter: which explanation of your text classifier can you believe? Faithfulness measured, with statistics."""

from faithmeter.batch import Batch, Encoded
from faithmeter.classifier import Classifier, load_classifier
from faithmeter.data import DataSpec, Splits, load_splits
from faithmeter.errors import InputError
from faithmeter.jobs import TrainingOptions, resume, train
from faithmeter.performance import METRICS, majority_performance, performance
from faithmeter.results import Result
from faithmeter.run import Run
from faithmeter.small_encoder import small_classifier
from faithmeter.tasks import TASKS, Task
from faithmeter.training import TrainingConfig, fine_tune

__version__ = "0.1.0"

__all__ = [
    "METRICS",
    "TASKS",
    "Batch",
    "Classifier",
    "DataSpec",
    "Encoded",
    "InputError",
    "Result",
    "Run",
    "Splits",
    "Task",
    "TrainingConfig",
    "TrainingOptions",
    "fine_tune",
    "load_classifier",
    "load_splits",
    "majority_performance",
    "performance",
    "resume",
    "small_classifier",
    "train",
]
