"""The jobs people come with, each a page of plain calls. The command line only parses and prints."""

from faithmeter.data import DataSpec
from faithmeter.jobs.explain import explain
from faithmeter.jobs.measure import MeasureOptions, measure
from faithmeter.jobs.train import TrainingOptions, resume, train

__all__ = ["DataSpec", "MeasureOptions", "TrainingOptions", "explain", "measure", "resume", "train"]
