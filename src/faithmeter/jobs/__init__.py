"""The jobs people come with, each a page of plain calls. The command line only parses and prints."""

from faithmeter.data import DataSpec
from faithmeter.in_distribution import summary
from faithmeter.jobs.adopting import adopt
from faithmeter.jobs.checking import check
from faithmeter.jobs.explaining import explain, read_texts
from faithmeter.jobs.measuring import MeasureOptions, measure
from faithmeter.jobs.reporting import report
from faithmeter.jobs.serving import serve
from faithmeter.jobs.summarising import pool
from faithmeter.jobs.training import TrainingOptions, resume, train

__all__ = [
    "DataSpec",
    "MeasureOptions",
    "TrainingOptions",
    "adopt",
    "check",
    "explain",
    "measure",
    "pool",
    "read_texts",
    "report",
    "resume",
    "serve",
    "summary",
    "train",
]
