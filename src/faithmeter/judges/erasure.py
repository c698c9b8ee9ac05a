"""Erasure: how a prediction changes when only the important tokens are kept, or when they are removed.

Sufficiency and comprehensiveness (DeYoung et al., 2020; Oxford thesis, 2022, Definitions 2.1 and 2.2), and their
normalised forms (Carton et al., 2020; used by Li et al., 2023). Both look at masked texts, which a model may never have
met: where an in-distribution test is given, how many of them are out-of-distribution stands beside the numbers.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from faithmeter.data.batch import Batch
from faithmeter.errors import InputError
from faithmeter.importance.measure import ImportanceMeasure
from faithmeter.in_distribution.masf import MaSF
from faithmeter.judges.judge import Bench, By, Judge, SectionData, ShownColumn
from faithmeter.judges.maskings import NO_SCALE, probabilities, tokens_of
from faithmeter.judges.ranking import Columns, ranks
from faithmeter.models.classifier import Classifier

RATIOS = (0.05, 0.10, 0.20, 0.50)


def erasure(
    classifier: Classifier,
    batch: Batch,
    importance: Tensor,
    *,
    ratios: Sequence[float] = RATIOS,
    masf: MaSF | None = None,
) -> Columns:
    """Return sufficiency and comprehensiveness of every row; m(x) is the probability of the class predicted for it.

    - `sufficiency`: mean over ratios of m(x) − m(all but the top k masked). Low is good: the top k suffice.
    - `comprehensiveness`: mean over ratios of m(x) − m(the top k masked). High is good: nothing else would have done.
    - `norm_sufficiency`, `norm_comprehensiveness`: with suff = 1 − max(0, drop) and suff0 that of the fully masked
      text, (suff − suff0)/(1 − suff0) and max(0, drop)/(1 − suff0) of every ratio, clipped to [0, 1]; then their mean.
      High is good for both. nan where masking everything costs no probability: there is no scale then.
    - with `masf`, `sufficiency_outside` and `comprehensiveness_outside`: the share of the ratios at which the masked
      text is out-of-distribution.

    k is rounded up (`tokens_of`), ties go to the lowest position. A row without maskable tokens is nan.
    """
    if not ratios or not all(0 < ratio <= 1 for ratio in ratios):
        raise InputError("Give at least one ratio for erasure, above 0 and at most 1.")
    kept, removed = _maskings(batch, importance, ratios)
    nothing, everything = batch.masked, batch.masked | batch.maskable
    variants = torch.stack((nothing, everything, *kept, *removed))  # (2 + 2·ratios, rows, tokens)
    probability, outside = probabilities(classifier, batch, variants, masf)
    drops = (probability[0] - probability[1:]).double()
    none, (keep, remove) = drops[0], drops[1:].split(len(ratios))
    scale = none.masked_fill(none < NO_SCALE, torch.nan)
    columns = {
        "sufficiency": keep.mean(dim=0),
        "comprehensiveness": remove.mean(dim=0),
        "norm_sufficiency": (1 - keep.clamp_min(0) / scale).clamp(0, 1).mean(dim=0),
        "norm_comprehensiveness": (remove.clamp_min(0) / scale).clamp(0, 1).mean(dim=0),
    }
    if outside is not None:
        strange_kept, strange_removed = outside[2:].double().split(len(ratios))
        columns["sufficiency_outside"] = strange_kept.mean(dim=0)
        columns["comprehensiveness_outside"] = strange_removed.mean(dim=0)
    empty = (~batch.maskable.any(dim=1)).cpu()
    return {name: column.masked_fill(empty, torch.nan).numpy() for name, column in columns.items()}


def _maskings(batch: Batch, importance: Tensor, ratios: Sequence[float]) -> tuple[list[Tensor], list[Tensor]]:
    """Return for each ratio what is masked when the top k tokens are kept, and when they are removed."""
    rank = ranks(importance.to(batch.maskable.device), batch.maskable)
    sizes = batch.maskable.sum(dim=1).tolist()
    kept, removed = [], []
    for ratio in ratios:
        top = rank < torch.tensor([tokens_of(ratio, size) for size in sizes], device=rank.device)[:, None]
        kept.append(batch.masked | (batch.maskable & ~top))
        removed.append(batch.masked | (batch.maskable & top))
    return kept, removed


def _judge(bench: Bench, batch: Batch, measure: ImportanceMeasure) -> Columns:
    return erasure(bench.classifier, batch, bench.explained(batch, measure), masf=bench.masf)


def _caution(column: str) -> tuple[str, str]:
    return (
        f"{column}_outside",
        f"Up to {{share}} % of the masked texts of {column} are out-of-distribution for this model ({{measure}}; "
        "chance gives {chance} %): it says little there.",
    )


ERASURE = Judge(
    "erasure",
    200,
    _judge,
    {"comprehensiveness": True, "sufficiency": False},
    SectionData(
        "Sufficiency and comprehensiveness",
        By.MASKED_TEXTS,
        (
            "Comprehensiveness: decrease of the predicted class's probability when the most important tokens are "
            "masked; higher is better. Sufficiency: the decrease when only they are kept; lower is better.",
            "They show the model's predictions without these tokens. They cannot tell whether the probability falls "
            "because the tokens mattered or because the masked text is out-of-distribution, and cannot be compared "
            "across models unless the models understand masks.",
        ),
        (
            ShownColumn("comprehensiveness", "comprehensiveness"),
            ShownColumn("sufficiency", "sufficiency (lower is better)", more_is_better=False),
            ShownColumn("norm_comprehensiveness", "normalised comprehensiveness"),
            ShownColumn("norm_sufficiency", "normalised sufficiency"),
        ),
        table="Sufficiency and comprehensiveness",
        caption="Decrease of probability without the important tokens, and with only them.",
        outside=(_caution("comprehensiveness"), _caution("sufficiency")),
    ),
    tests_masked=True,
    needs_classes=True,
    shares_explanations=True,
)
