"""The small search behind the strengths of robust training: SST2 and MiniLM, one loss and one strength at a time.

python benchmarks/robust_training.py DIR trains a model for each row of the table and judges it on 100 test sentences by
normalised comprehensiveness and sufficiency, the mean of three measures. Masks are shown in training (the strategy
`masked`), or these numbers would be about masks. Goes on where it was stopped; the runs stay in --runs.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from faithmeter import AuditOptions, DataSpec, TrainingOptions, audit
from faithmeter.jobs.checking import check
from faithmeter.jobs.training import train_or_go_on
from faithmeter.progress import Silent
from faithmeter.results import find

MEASURES = ("x-grad-abs", "ig-signed", "loo-signed")
SEARCHED: tuple[tuple[str, dict[str, float]], ...] = (
    ("", {}),
    ("igr", {"igr_weight": 1e-4}),
    ("igr", {"igr_weight": 1e-3}),
    ("igr", {"igr_weight": 1e-2}),
    ("vat", {"vat_weight": 1.0, "vat_radius": 0.01}),
    ("vat", {"vat_weight": 1.0, "vat_radius": 0.03}),
    ("vat", {"vat_weight": 1.0, "vat_radius": 0.1}),
    ("explanation-guided", {"guided_weight": 0.03}),
    ("explanation-guided", {"guided_weight": 0.1}),
    ("explanation-guided", {"guided_weight": 0.3}),
    ("adversarial", {"adversarial_share": 0.1}),
    ("adversarial", {"adversarial_share": 0.3}),
)


class _Lines(Silent):
    def note(self, message: str) -> None:
        print("   ", message, flush=True)


def main() -> None:
    """Train, judge, and print a line for each strength."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_dir", help="the folder with sst2/")
    parser.add_argument("--runs", type=Path, default=Path("runs/robust-search"))
    parser.add_argument("--rows", type=int, default=2000, help="training sentences")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    data = DataSpec(task="sst2", data_dir=given.data_dir, train_rows=given.rows, validation_rows=500)
    seconds = {}
    print("| loss | strength | unmasked | half masked | comprehensiveness | sufficiency | training time |")
    print("|---|---|---|---|---|---|---|")
    for loss, strengths in SEARCHED:
        name = "-".join((loss or "none", *(f"{value:g}" for value in strengths.values()), str(given.seed)))
        options = TrainingOptions(
            robust=(loss,) if loss else (), epochs=given.epochs, learning_rate=1e-4, batch_size=32, seed=given.seed,
            **strengths,
        )  # fmt: skip
        run = train_or_go_on(given.runs / name, data, "minilm", options, reporter=_Lines())
        if not run.checked:
            check(run.path)
        rows = audit(run.path, AuditOptions(judges=("erasure",), measures=MEASURES, rows=100)).results
        seconds[loss] = sum(row["seconds"] for row in run.history)
        judged = [
            np.mean([find(rows, f"audit_erasure_norm_{what}", measure)["value"] for measure in MEASURES])
            for what in ("comprehensiveness", "sufficiency")
        ]
        said = ", ".join(f"{key.replace('_', ' ')} {value:g}" for key, value in strengths.items())
        performance = [find(rows, "performance", ratio=ratio)["value"] for ratio in (0.0, 0.5)]
        numbers = " | ".join(f"{value:.3f}" for value in (*performance, *judged))
        print(f"| {loss or 'none'} | {said} | {numbers} | {seconds[loss] / seconds['']:.1f} |", flush=True)


if __name__ == "__main__":
    main()
