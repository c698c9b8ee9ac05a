"""Test ROAR and Recursive ROAR on a problem whose important features are known."""

from collections.abc import Sequence
from pathlib import Path

from faithmeter.files import new_folder, write_jsonl
from faithmeter.measuring.synthetic import TEST_ROWS, TRAIN_ROWS, synthetic_curves
from faithmeter.progress import Reporter, Silent
from faithmeter.reports.roar import synthetic_section, synthetic_verdict
from faithmeter.runs.run import refuse_existing
from faithmeter.studies.report import write_report


def synthetic_roar(
    out: str | Path,
    *,
    seeds: Sequence[int] = (0,),
    train_rows: int = TRAIN_ROWS,
    test_rows: int = TEST_ROWS,
    reporter: Reporter | None = None,
) -> tuple[list[str], Path]:
    """Write the curves of the synthetic problem into a new folder, as a page and as rows; return verdict and page."""
    out = Path(out)
    refuse_existing(out)
    curves = {}
    with (reporter or Silent()).bar("Removing features", len(seeds)) as advance:
        for seed in seeds:
            curves[seed] = synthetic_curves(seed, train_rows=train_rows, test_rows=test_rows)
            advance(1)
    rows = (
        {"seed": seed, "order": order, "removed": removed, "accuracy": accuracy}
        for seed, one in curves.items()
        for order, curve in vars(one).items()
        for removed, accuracy in enumerate(curve)
    )
    with new_folder(out) as folder:  # all of it or nothing, so that the same command can be given again
        (page,) = write_report(folder, "Does Recursive ROAR find the truth?", [synthetic_section(curves)], ("html",))
        write_jsonl(folder / "curves.jsonl", rows)
    return synthetic_verdict(curves), out / page.name
