"""The small search behind the strengths of robust training: SST2 and MiniLM, one loss and one strength at a time.

python benchmarks/robust_training.py DIR trains a model for each row of the table and judges it on 50 test sentences by
normalised comprehensiveness and sufficiency, the mean of three measures. Masks are shown in training (the strategy
`masked`), or these numbers would be about masks. Goes on where it was stopped; the runs stay in --runs.

python benchmarks/robust_training.py DIR --cost tells what each loss costs instead: the CPU time of a training with it
over that of one without, on one core. Each round trains once with each, in turn; the median of the rounds is printed.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

import numpy as np
import torch
from timing import cpu_seconds

from faithmeter import AuditOptions, DataSpec, TrainingOptions, audit, train
from faithmeter.progress import Silent
from faithmeter.runs.results import find
from faithmeter.studies.train import train_or_go_on

MEASURES = ("x-grad-abs", "ig-signed", "loo-signed")
JUDGED = 50  # test sentences
SEARCHED: tuple[tuple[str, dict[str, float]], ...] = (
    ("", {}),
    ("igr", {"igr_weight": 1e-4}),
    ("igr", {"igr_weight": 1e-3}),
    ("igr", {"igr_weight": 1e-2}),
    ("vat", {"vat_weight": 1.0, "vat_radius": 0.01}),
    ("vat", {"vat_weight": 1.0, "vat_radius": 0.03}),
    ("vat", {"vat_weight": 1.0, "vat_radius": 0.1}),
    ("explanation-guided", {"guided_weight": 0.1}),
    ("explanation-guided", {"guided_weight": 0.3}),
    ("explanation-guided", {"guided_weight": 1.0}),
    ("adversarial", {"adversarial_share": 0.1}),
    ("adversarial", {"adversarial_share": 0.3}),
)


class _Lines(Silent):
    def note(self, message: str) -> None:
        print("   ", message, flush=True)


def cost(data_dir: str, rows: int, rounds: int = 3) -> None:
    """Print what each loss costs."""
    data = DataSpec(task="sst2", data_dir=data_dir, train_rows=rows, validation_rows=20, test_rows=20)
    losses = tuple(dict.fromkeys(loss for loss, _ in SEARCHED))
    ratios: dict[str, list[float]] = {loss: [] for loss in losses if loss}
    for _ in range(rounds):
        seconds = {}
        for loss in losses:
            # attacked texts come in from the second epoch on
            options = TrainingOptions(robust=(loss,) if loss else (), epochs=2, learning_rate=1e-4, batch_size=32)
            with tempfile.TemporaryDirectory() as folder:
                seconds[loss] = cpu_seconds(lambda at=folder, how=options: train(Path(at) / "run", data, "minilm", how))
        for loss in ratios:
            ratios[loss].append(seconds[loss] / seconds[""])
    print("| loss | CPU time of a training, of one without |")
    print("|---|---|")
    for loss, found in ratios.items():
        print(f"| `{loss}` | {statistics.median(found):.1f} |")


def main() -> None:
    """Train, judge, and print a line for each strength; or what each loss costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_dir", help="the folder with sst2/")
    parser.add_argument("--runs", type=Path, default=Path("runs/robust-search"))
    parser.add_argument("--rows", type=int, default=1000, help="training sentences")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cost", action="store_true", help="what each loss costs, and no search")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.cost:
        cost(given.data_dir, given.rows)
        return
    data = DataSpec(task="sst2", data_dir=given.data_dir, train_rows=given.rows, validation_rows=200)
    print("| loss | strength | unmasked | half masked | comprehensiveness | sufficiency |")
    print("|---|---|---|---|---|---|")
    for loss, strengths in SEARCHED:
        name = "-".join((loss or "none", *(f"{value:g}" for value in strengths.values()), str(given.seed)))
        options = TrainingOptions(
            robust=(loss,) if loss else (), epochs=given.epochs, learning_rate=1e-4, batch_size=32, seed=given.seed,
            **strengths,
        )  # fmt: skip
        run = train_or_go_on(given.runs / name, data, "minilm", options, reporter=_Lines())
        # no in-distribution test: with masks shown in training it would only say the same of every row
        rows = audit(run.path, AuditOptions(judges=("erasure",), measures=MEASURES, rows=JUDGED)).results
        judged = [
            np.mean([find(rows, f"audit_erasure_norm_{what}", measure)["value"] for measure in MEASURES])
            for what in ("comprehensiveness", "sufficiency")
        ]
        said = ", ".join(f"{key.replace('_', ' ')} {value:g}" for key, value in strengths.items())
        performance = [find(rows, "performance", ratio=ratio)["value"] for ratio in (0.0, 0.5)]
        numbers = " | ".join(f"{value:.3f}" for value in (*performance, *judged))
        print(f"| {loss or 'none'} | {said} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
