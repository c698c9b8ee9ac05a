"""Explanations of other models: one trained with another seed, and one that has learnt nothing (Li et al., 2023).

A measure that explains what was learnt says much the same of two models that answer alike, and something else of one
with random weights. Only both together count, so the two judges are shown together.
"""

import numpy as np

from faithmeter.data.batch import Batch
from faithmeter.importance.measure import ImportanceMeasure
from faithmeter.judges.judge import (
    Bench,
    By,
    Judge,
    MeasureCaution,
    Need,
    SectionData,
    ShownColumn,
    answers_of,
    few_passes,
)
from faithmeter.judges.ranking import Columns, likeness, rank_correlation
from faithmeter.models.randomised import untrained

SAME, EVERY = "same answer", "all texts"  # on which texts two models are compared
SEED, WEIGHTS = "other-seed", "random-weights"
NEARLY_THE_SAME = 0.7  # rank correlation: about half of the variance of the ranks is shared


def _untrained(bench: Bench, batch: Batch, measure: ImportanceMeasure) -> Columns:
    """Compare with a model of random weights, and that one with its twin, of other random weights (`twins`).

    What two models that have learnt nothing agree on is of the text and the architecture, such as the positions.
    """
    after = []
    for seed in (bench.seed, bench.seed + 1):
        if seed not in bench.fresh:
            bench.fresh[seed] = untrained(bench.classifier, seed)
        after.append(measure.explain(bench.fresh[seed], batch, bench.predicted(batch), bench.seed))
    columns = likeness(bench.explained(batch, measure), after[0], batch.maskable)
    return columns | {"twins": rank_correlation(after[0], after[1], batch.maskable)}


def _other_seed(bench: Bench, batch: Batch, measure: ImportanceMeasure) -> Columns:
    """Compare with a model trained with another seed, on all texts and on those to which both give the same answer.

    Explained is the answer of the model that is judged: where the other gives another, explanations may well differ.
    """
    assert bench.other is not None
    targets = bench.predicted(batch)
    same = (answers_of(bench.other, batch) == targets).double().numpy()
    after = measure.explain(bench.other, batch, targets, bench.seed)
    columns: Columns = {"same_answer": same}
    for name, values in likeness(bench.explained(batch, measure), after, batch.maskable).items():
        columns |= {f"{name}@{SAME}": np.where(same == 1, values, np.nan), f"{name}@{EVERY}": values}
    return columns


_SECTION = SectionData(
    "Another seed and random weights",
    By.CHANGES,
    (
        "Explanations of the model are compared with those of a model trained in the same way with another seed, and "
        "with those of the same model with random weights. A measure that explains what was learnt should agree for "
        "two models with the same predictions, and change with random weights. Only both together are evidence, "
        "because a measure that depends only on the text agrees everywhere.",
        "Two models of random weights have learnt nothing: what their explanations agree on comes from the text and "
        "the architecture, such as the positions of the tokens.",
        "It can show that a measure does not depend on what was learnt. It cannot show that it explains the model "
        "well: two models may predict the same for different reasons, and the other seed and the random weights are "
        "one or two draws, which the intervals do not cover.",
    ),
    (
        ShownColumn("rank_correlation", "other seed", SAME, judge=SEED),
        ShownColumn("top_overlap", "other seed, top quarter", SAME, judge=SEED),
        ShownColumn("rank_correlation", "other seed, all texts", EVERY, judge=SEED),
        ShownColumn("chance_overlap", "top quarter by chance", SAME, judge=SEED),
        ShownColumn("rank_correlation", "random weights", more_is_better=False, judge=WEIGHTS),
        ShownColumn("top_overlap", "random weights, top quarter", more_is_better=False, judge=WEIGHTS),
        ShownColumn("chance_overlap", "top quarter by chance", judge=WEIGHTS),
        ShownColumn("twins", "two of random weights", more_is_better=False, judge=WEIGHTS, optional=True),
    ),
    table="Rank correlation with another model's explanations, and overlap of the top quarter of the tokens",
    caption="Rank correlation with another model's explanations; for the other seed, on texts with equal predictions.",
    layout="other models",
    short="other-models",
    suspects=(
        MeasureCaution(
            "rank_correlation",
            NEARLY_THE_SAME,
            "These rank the tokens nearly the same with random weights as with the trained ones, so they hardly "
            "depend on what was learnt (rank correlation): {measures}.",
            judge=WEIGHTS,
        ),
        MeasureCaution(
            "twins",
            NEARLY_THE_SAME,
            "These rank the tokens nearly the same in two models that have learnt nothing, so much of what they say "
            "may come from positions or the tokens alone (rank correlation): {measures}.",
            judge=WEIGHTS,
        ),
    ),
)
# they rank no measures: the first repeats layer randomisation, and the second is best for a measure that reads no
# model at all
RANDOM_WEIGHTS = Judge(WEIGHTS, 200, _untrained, {}, _SECTION, few_passes, lambda _, explaining: 3 * explaining)
OTHER_SEED = Judge(
    SEED,
    200,
    _other_seed,
    {},
    _SECTION,
    few_passes,
    lambda _, explaining: 2 * explaining + 1,
    Need.SECOND_RUN,
    needs_classes=True,  # two models are compared where they predict the same class
)
