"""Does masked fine-tuning cost accuracy, and does it teach masks? The table and figure of docs/masked-fine-tuning.md.

    python benchmarks/masked_performance.py --data-dir DIR --runs runs/study

trains what is not there yet (SST2: 2 strategies, 3 seeds; davidson-hate: 2 strategies, 1 seed; about an hour on one
core), prints the table as Markdown and what masked fine-tuning gains with half of the tokens masked, and draws the
figure. DIR holds one folder a dataset, as for `faithmeter train`.
"""

import argparse
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt

from faithmeter import DataSpec, Run, TrainingOptions, train
from faithmeter.cli.main import console
from faithmeter.in_distribution.masf import masked_at_random
from faithmeter.masking import STEPS, Purpose
from faithmeter.progress import Terminal
from faithmeter.runs.results import find
from faithmeter.statistics import mean_interval

RATIOS = (0.0, 0.5, 1.0)
GAIN_DRAWS = 10
COLOURS = {"plain": "#D55E00", "masked": "#0072B2"}  # told apart by the colour-blind too
FIGURE = Path(__file__).parents[1] / "docs" / "masked-performance.svg"


def study(data_dir: str) -> dict[str, tuple[DataSpec, dict[str, TrainingOptions], int]]:
    """Return for each dataset its rows, the options of each strategy, and the number of seeds."""
    common = {"learning_rate": 1e-4, "batch_size": 32}
    return {
        "sst2": (
            DataSpec(task="sst2", data_dir=data_dir, train_rows=8000, validation_rows=2000),
            {
                "plain": TrainingOptions(strategy="plain", validation="unmasked", epochs=2, **common),
                "masked": TrainingOptions(strategy="masked", epochs=4, **common),
            },
            3,
        ),
        "davidson-hate": (
            DataSpec(task="davidson-hate", data_dir=data_dir, train_rows=6000, validation_rows=500),
            {name: TrainingOptions(strategy=name, epochs=1, **common) for name in ("plain", "masked")},
            1,
        ),
    }


def trained(path: Path, data: DataSpec, options: TrainingOptions, seed: int) -> Run:
    """Return the run, training it first if it is not there."""
    if path.exists():
        return Run(path)
    given = {name: value for name, value in vars(options).items() if name != "seed"}
    return train(path, data, "minilm", TrainingOptions(seed=seed, **given), reporter=Terminal(console))


def main() -> None:
    """Train, print the table, draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs/study"))
    arguments = parser.parse_args()
    print(
        "| data | strategy | seeds | unmasked | 50 % masked | 100 % masked | majority |\n|---|---|---|---|---|---|---|"
    )
    curves: dict[tuple[str, str], np.ndarray] = {}
    majorities: dict[str, float] = {}
    gains: list[str] = []
    for name, (data, strategies, seeds) in study(arguments.data_dir).items():
        by_strategy: dict[str, list[Run]] = {}
        for strategy, options in strategies.items():
            runs = [trained(arguments.runs / f"{name}-{strategy}-{s}", data, options, s) for s in range(seeds)]
            by_strategy[strategy] = runs
            values = np.array(
                [[find(run.results, "performance", ratio=ratio)["value"] for ratio in RATIOS] for run in runs]
            )
            majorities[name] = find(runs[0].results, "majority")["value"]
            curves[name, strategy] = values.mean(axis=0)
            each = [" / ".join(f"{value:.3f}" for value in column) for column in values.T]
            cells = [
                f"**{m:.3f}** ({e})" if seeds > 1 else f"**{m:.3f}**"
                for m, e in zip(curves[name, strategy], each, strict=True)
            ]
            print(f"| {name} | {strategy} | {seeds} | {' | '.join(cells)} | {majorities[name]:.3f} |")
        gains.append(f"{name}: {gain(by_strategy['plain'], by_strategy['masked'])}")
    print("\nGain of masked over plain, half of the tokens masked, 95 % intervals over texts:")
    print("\n".join(gains))
    draw(curves, majorities)


def gain(plain: list[Run], masked: list[Run]) -> str:
    """Return by how many points masked models are better with half of the tokens masked, the same ones for both."""
    test = plain[0].data().test
    right: dict[str, np.ndarray] = {}
    for strategy, runs in (("plain", plain), ("masked", masked)):
        found = []
        for seed, run in enumerate(runs):
            classifier = run.classifier()
            encoded = classifier.encode(test["text"], labels=test["label"])
            for number in range(GAIN_DRAWS):
                half = masked_at_random(encoded, STEPS // 2, (seed, Purpose.EVALUATION_MASKS, number))
                found.append(classifier.predict(half).argmax(dim=-1).numpy() == encoded.labels)
        right[strategy] = np.mean(found, axis=0)
    points = 100 * (right["masked"] - right["plain"])  # of each text, over seeds and draws
    low, high = mean_interval(points) or (np.nan, np.nan)
    return f"{points.mean():.1f} points ({low:.1f} to {high:.1f}), {len(plain)} seeds, {GAIN_DRAWS} draws each"


def draw(curves: dict[tuple[str, str], np.ndarray], majorities: dict[str, float]) -> None:
    """Draw accuracy against masking ratio, a panel a dataset."""
    mpl.rcParams["svg.hashsalt"] = "faithmeter"  # the same figure gives the same file
    figure, panels = plt.subplots(1, len(majorities), figsize=(8, 3), sharey=True, layout="constrained")
    for panel, (name, majority) in zip(panels, majorities.items(), strict=True):
        panel.axhline(majority, color="grey", linestyle="--", linewidth=1, label="class majority")
        for strategy, colour in COLOURS.items():
            panel.plot(
                np.array(RATIOS) * 100, curves[name, strategy], "o-", color=colour, label=f"{strategy} fine-tuning"
            )
        panel.set(title=f"MiniLM on {name}", xlabel="tokens masked at random [%]", ylim=(0, 1))
    panels[0].set_ylabel("test accuracy")
    panels[0].legend(frameon=False, loc="lower left")
    figure.savefig(FIGURE, metadata={"Date": None})


if __name__ == "__main__":
    main()
