"""Layer randomisation: does an explanation change when the model's learnt weights are randomised?

Adebayo et al. (2018), for texts as in the Oxford thesis (2022), Secs. 2.2.3.3 and 3.3.

Whole blocks (an attention layer with the feed-forward layer behind it) get fresh weights, as before any training:
`cascading` from the head down to the embeddings, each block with all that lie above it; `independent` one at a time.
An explanation that stays as it was does not depend on what was learnt there.

Two tests of Li et al. (2023) compare whole models: `untrained` has fresh weights throughout, and another run was
trained with another seed. Explanations are alike by `rank_correlation` and by `top_overlap`.
"""

from faithmeter.data.batch import Batch
from faithmeter.importance.measure import ImportanceMeasure
from faithmeter.judges.judge import Bench, By, Judge, SectionData, ShownColumn, few_passes
from faithmeter.judges.ranking import Columns, rank_correlation
from faithmeter.models.randomised import blocks, randomised


def _judge(bench: Bench, batch: Batch, measure: ImportanceMeasure) -> Columns:
    targets, before = bench.predicted(batch), bench.explained(batch, measure)
    columns: Columns = {}
    for way in ("cascading", "independent"):
        for block, changed in randomised(bench.classifier, cascading=way == "cascading", seed=bench.seed):
            after = measure.explain(changed, batch, targets, bench.seed)
            columns[f"{way}@{block}"] = rank_correlation(before, after, batch.maskable)
    return columns


RANDOMISATION = Judge(
    "randomisation",
    50,
    _judge,
    {"cascading": False, "independent": False},
    SectionData(
        "Fresh weights",
        By.CHANGES,
        (
            "Blocks of the model get random weights, as before training, and explanations are compared with those of "
            "the trained model. An explanation that does not change does not depend on what was learnt there.",
            "It can show that a measure does not depend on the model's weights. It cannot show that a measure that "
            "changes explains the model well. The fresh weights are one draw, which the intervals do not cover.",
        ),
        (
            ShownColumn("cascading", "cascading from the head", more_is_better=False),
            ShownColumn("independent", "one block at a time", more_is_better=False),
        ),
        table="Rank correlation with the trained model's explanations, with 95 % intervals",
        caption="Rank correlation with the trained model's explanations, by the block that was replaced.",
        layout="blocks",
    ),
    few_passes,
    lambda bench, explaining: (2 * len(blocks(bench.classifier.model)) + 1) * explaining,
    scored_by_size=True,  # an explanation with its sign reversed counts as the same
)
