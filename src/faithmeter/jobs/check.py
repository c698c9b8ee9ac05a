"""Check: is masking in-distribution for this model? Fits the in-distribution test and asks it about the test split."""

from pathlib import Path

import torch

from faithmeter.in_distribution import at_any_step, fit_calibrated, masked_at_random, step_features
from faithmeter.jobs.train import encode
from faithmeter.progress import Reporter, Silent
from faithmeter.run import Run
