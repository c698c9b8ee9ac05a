"""Is masked text in-distribution for a model? MaSF in two forms, and the verdict on a whole split."""

from faithmeter.in_distribution.behaviour import AllMasked, all_masked, beside_unmasked
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
from faithmeter.in_distribution.power import Power, power, random_words, shuffled
from faithmeter.in_distribution.verdict import (
    DatasetTest,
    Footing,
    Verdict,
    dataset_verdict,
    footing,
    smallest_of,
    summary,
    too_few,
)

__all__ = [
    "LEVEL",
    "AllMasked",
    "DatasetTest",
    "Footing",
    "MaSF",
    "Power",
    "Verdict",
    "all_masked",
    "beside_unmasked",
    "dataset_verdict",
    "fisher",
    "fit_calibrated",
    "fit_paper",
    "footing",
    "masked_at_random",
    "neighbouring_steps",
    "power",
    "random_words",
    "shuffled",
    "simes",
    "smallest_of",
    "step_features",
    "summary",
    "too_few",
]
