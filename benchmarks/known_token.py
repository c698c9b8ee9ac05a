"""The known-token problem on SST2 (the Thesis' Sec. 3.1): which importance measures find the one word that tells?

Trains MiniLM on SST2 sentences with random labels and a telling word, at the end or anywhere, and prints the overlap
and the mean rank of every measure as Markdown. Needs the data of SST2 in DIR/sst2.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch

from faithmeter import DataSpec, load_classifier
from faithmeter.data.batch import Encoded
from faithmeter.data.splits import Splits, load_splits
from faithmeter.importance.table import IMPORTANCE_MEASURES
from faithmeter.judges.known_token import PLACES, known_token_splits, truth_of
from faithmeter.judges.ranking import Columns, chance_of, ground_truth
from faithmeter.models.classifier import Classifier
from faithmeter.statistics import mean_interval
from faithmeter.training.config import TrainingConfig
from faithmeter.training.loop import fine_tune

# searches pass a sentence through the model hundreds of times and more, and an ensemble repeats what its members do
LEFT_OUT = ("beam", "search")
MEASURES = tuple(name for name in IMPORTANCE_MEASURES if name not in LEFT_OUT and not name.startswith("ensemble"))


def trained(splits: Splits, options: argparse.Namespace) -> Classifier:
    """Return MiniLM trained on the splits."""
    classifier = load_classifier("minilm", splits.labels, new_head=True, seed=options.seed, max_length=128)
    train, validation = (
        classifier.encode(part["text"], labels=part["label"]) for part in (splits.train, splits.validation)
    )
    config = TrainingConfig(
        strategy=options.strategy,
        validation="unmasked",
        epochs=options.epochs,
        learning_rate=options.learning_rate,
        seed=options.seed,
    )
    with tempfile.TemporaryDirectory() as folder:
        fine_tune(classifier, train, validation, config, metric="accuracy", checkpoints=Path(folder) / "checkpoints")
    return classifier


def judged(classifier: Classifier, encoded: Encoded, truth: np.ndarray, measure: str, seed: int) -> Columns:
    """Return how well one measure finds the telling word in each sentence, the predicted class explained."""
    explain = IMPORTANCE_MEASURES[measure].explain
    parts = []
    for batch in encoded.batches(classifier.tokens_per_batch):
        targets = classifier.predict_with_features(batch)[0].argmax(dim=-1)
        importance = explain(classifier, batch, targets, seed)
        parts.append(ground_truth(importance, batch.maskable, encoded.in_batch(truth, batch)))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def cell(values: np.ndarray) -> str:
    """Return a mean and its 95 % interval."""
    interval = mean_interval(values)
    return f"{values.mean():.3f}" + ("" if interval is None else f" [{interval[0]:.3f}, {interval[1]:.3f}]")


def main() -> None:
    """Train, explain, and print a table for each place of the word."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_dir", help="folder that holds sst2/")
    parser.add_argument("--places", nargs="+", default=PLACES, choices=PLACES)
    parser.add_argument("--strategy", default="plain", help="plain (the Thesis') or masked")
    parser.add_argument("--train-rows", type=int, default=4000)
    parser.add_argument("--test-rows", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--measures", nargs="+", default=MEASURES)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = {"train_rows": options.train_rows, "validation_rows": 500, "test_rows": options.test_rows}
    sst2 = load_splits(DataSpec(task="sst2", data_dir=options.data_dir, seed=options.seed, **rows))
    for place in options.places:
        splits = known_token_splits(sst2, place=place, seed=options.seed)
        classifier = trained(splits, options)
        test = classifier.encode(splits.test["text"], labels=splits.test["label"])
        truth = truth_of(classifier, splits.test)
        solved = (classifier.predict(test).argmax(dim=-1).cpu().numpy() == test.labels).mean()
        print(f"\nPlace: {place}; strategy: {options.strategy}; accuracy on {len(test)} test sentences: {solved:.3f}\n")
        print("| measure | overlap | mean rank |\n|---|---|---|")
        whole = test.batch(range(len(test)))
        chance = chance_of(whole.maskable, test.in_batch(truth, whole))
        print(f"| (chance) | {chance['overlap'].mean():.3f} | {chance['mean_rank'].mean():.3f} |", flush=True)
        for measure in options.measures:
            found = judged(classifier, test, truth, measure, options.seed)
            print(f"| {measure} | {cell(found['overlap'])} | {cell(found['mean_rank'])} |", flush=True)


if __name__ == "__main__":
    main()
