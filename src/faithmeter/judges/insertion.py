"""Insertion: how soon does the prediction come back when tokens are unmasked, the most important first?

Petsiuk et al. (2018), for tokens: the start is the fully masked text in place of a blurred image. Read from its end,
the curve is that of masking the least important tokens first (Samek et al., 2017).
"""

import torch
from torch import Tensor

from faithmeter.data.batch import Batch
from faithmeter.importance.measure import ImportanceMeasure
from faithmeter.in_distribution.masf import MaSF
from faithmeter.judges.judge import Bench, By, Judge, SectionData, ShownColumn
from faithmeter.judges.maskings import probabilities
from faithmeter.judges.ranking import Columns, ranks
from faithmeter.masking import STEPS, masked_count
from faithmeter.models.classifier import Classifier


def insertion(classifier: Classifier, batch: Batch, importance: Tensor, *, masf: MaSF | None = None) -> Columns:
    """Return the area under the curve of m(top tokens kept, all others masked), from none kept to all.

    m is the probability of the class that is predicted for the whole text. At each tenth the masked tokens are those
    least important, rounded down as in a masking curve; the area is by the trapezoidal rule, from 0 to 1. High is good.

    - `insertion`: that area. nan for a row without maskable tokens.
    - with `masf`, `outside`: the share of the masked texts that are out-of-distribution.
    """
    rank = ranks(importance.to(batch.maskable.device), batch.maskable)
    sizes = batch.maskable.sum(dim=1).tolist()
    variants = []
    for step in range(STEPS + 1):
        kept = torch.tensor([size - masked_count(size, step) for size in sizes], device=rank.device)
        variants.append(batch.masked | (batch.maskable & (rank >= kept[:, None])))
    probability, strange = probabilities(classifier, batch, torch.stack(variants), masf)
    columns = {"insertion": torch.trapezoid(probability.double(), dx=1 / STEPS, dim=0)}
    if strange is not None:
        columns["outside"] = strange[1:].double().mean(dim=0)
    empty = (~batch.maskable.any(dim=1)).cpu()
    return {name: column.masked_fill(empty, torch.nan).numpy() for name, column in columns.items()}


def _judge(bench: Bench, batch: Batch, measure: ImportanceMeasure) -> Columns:
    return insertion(bench.classifier, batch, bench.explained(batch, measure), masf=bench.masf)


INSERTION = Judge(
    "insertion",
    200,
    _judge,
    {"insertion": True},
    SectionData(
        "Insertion",
        By.MASKED_TEXTS,
        (
            "All tokens are masked and then unmasked, the most important first. The sooner the probability of the "
            "predicted class comes back, the larger the area under its curve.",
            "It shows whether the top tokens bring the prediction back. It cannot tell this from a class that is "
            "predicted for masked texts anyway, so areas cannot be compared across models or with 0.",
        ),
        (ShownColumn("insertion", "area under the insertion curve"),),
        table="Unmasking, the most important tokens first",
        caption="Area under the probability while tokens are unmasked, the most important first; dashed: random.",
        outside=(
            (
                "outside",
                "Up to {share} % of the masked texts of insertion are out-of-distribution for this model ({measure}; "
                "chance gives {chance} %): it says little there.",
            ),
        ),
    ),
    tests_masked=True,
    needs_classes=True,
    shares_explanations=True,
)
