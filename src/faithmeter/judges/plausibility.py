"""Plausibility: does an explanation agree with the words that people marked as the reason?"""

from faithmeter.judges.judge import By, Judge, Need, SectionData, ShownColumn, against_truth

PLAUSIBILITY = Judge(
    "plausibility",
    200,
    against_truth,
    {"average_precision": True},
    SectionData(
        "What people marked",
        By.KNOWN_TRUTH,
        (
            "How well the ranking agrees with the words that people marked as the reason.",
            "It shows whether an explanation looks right to people. It cannot show whether it is what the model does: "
            "a model may be right for other reasons, and an explanation that says so agrees with nobody.",
        ),
        (
            ShownColumn("average_precision", "average precision"),
            ShownColumn("precision_at_truth", "share of marked tokens on top"),
            ShownColumn("mean_rank", "rank that holds them all (low is good)", more_is_better=False),
        ),
        table="Agreement with human reasons",
        caption="Agreement with human reasons; dashed: at random.",
    ),
    needs=Need.RATIONALES,
    settings=("rationales",),
    shares_explanations=True,
)
