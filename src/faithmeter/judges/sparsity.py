"""Sparsity: how few tokens hold most of an explanation's importance?"""

from faithmeter.data.batch import Batch
from faithmeter.importance.measure import ImportanceMeasure
from faithmeter.judges.judge import Bench, By, Judge, SectionData, ShownColumn
from faithmeter.judges.ranking import Columns
from faithmeter.masking import STEPS
from faithmeter.measuring.curves import held_by_the_most_important


def _judge(bench: Bench, batch: Batch, measure: ImportanceMeasure) -> Columns:
    held = held_by_the_most_important(bench.explained(batch, measure), batch.maskable).numpy()
    return {f"held@{10 * step} %": held[:, step] for step in range(1, STEPS)}


SPARSITY = Judge(
    "sparsity",
    200,
    _judge,
    {},
    SectionData(
        "How short the explanations are",
        By.FORM,
        (
            "The higher a curve rises at the left, the fewer tokens hold most of the importance. Dotted: all tokens "
            "equal. A short explanation is easier to read, not more faithful.",
        ),
        tuple(ShownColumn("held", f"top {share}", share) for share in ("10 %", "20 %", "50 %")),
        table="Share of all importance in the top tokens",
        caption="Share of all importance in the top tokens.",
        layout="sparsity",
    ),
    passes=lambda _, explaining: explaining,
    shares_explanations=True,
)
