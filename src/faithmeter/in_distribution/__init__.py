"""Is masked text in-distribution for a model? MaSF in two forms, and the verdict on a whole split."""

from faithmeter.in_distribution.masf import (
    LEVEL,
    MaSF,
    fit_calibrated,
    fit_paper,
    masked_at_random,
    neighbouring_steps,
    step_features,
)
from faithmeter.in_distribution.p_values import fisher, simes
from faithmeter.in_distribution.verdict import DatasetTest, Verdict, dataset_verdict, smallest_of, summary, too_few

__all__ = [
    "LEVEL",
    "DatasetTest",
    "MaSF",
    "Verdict",
    "dataset_verdict",
    "fisher",
    "fit_calibrated",
    "fit_paper",
    "masked_at_random",
    "neighbouring_steps",
    "simes",
    "smallest_of",
    "step_features",
    "summary",
    "too_few",
]
