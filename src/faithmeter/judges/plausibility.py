"""Plausibility: does an explanation agree with human rationales?"""

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
            "How well the ranking agrees with human rationales: the words that people marked as the reason.",
            "It shows whether an explanation looks right to people. It cannot show whether it is faithful: a model may "
            "be right for other reasons, and a faithful explanation then agrees with nobody.",
        ),
        (
            ShownColumn("average_precision", "average precision"),
            ShownColumn("precision_at_truth", "share of marked tokens on top"),
            ShownColumn("mean_rank", "rank of the last marked token (lower is better)", more_is_better=False),
        ),
        table="Agreement with human rationales",
        caption="Agreement with human rationales; dashed: random.",
    ),
    needs=Need.RATIONALES,
    settings=("rationales",),
    shares_explanations=True,
)
