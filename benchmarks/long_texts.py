"""What explaining long texts costs by token, word, chunk and sentence, and with a sampled leave-one-out; what it loses.

    python benchmarks/long_texts.py DIR

trains MiniLM on 600 IMDB reviews (masked fine-tuning, the first 128 tokens of each) into --runs, or takes the model of
--run, and explains test reviews that fill all 512 tokens by leave-one-out in every unit and by `loo-sampled`. Token by
token and word by word is dear, so only --exact-rows of the reviews are explained so; the others' ACU is told of these
too, to compare. A review is explained once and masked in that order; --recursive explains anew before each step, as
`faithmeter measure` does, at several times the cost.

ACU and RACU are of the true class's probability, with BCa intervals over reviews. The rank correlation with the exact
leave-one-out (by token) is over tokens, where a unit's tokens share its importance evenly, and over units, against the
sum of their tokens'. CPU seconds are those of the explanations alone. --estimators compares other ways to sample, on
the exact rows alone. Printed as Markdown. About 17 minutes of one core, 6 of them training.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor

from faithmeter import DataSpec, Run, TrainingOptions, load_classifier
from faithmeter.data.batch import Batch, Encoded
from faithmeter.data.splits import load_splits
from faithmeter.data.units import CHUNK, CHUNKED, SENTENCE, TOKEN, WORD, with_units
from faithmeter.importance.measure import Explain, ImportanceMeasure, even_shares
from faithmeter.importance.occlusion import leave_one_out, leave_one_out_sampled
from faithmeter.importance.table import IMPORTANCE_MEASURES
from faithmeter.masking import Mask
from faithmeter.measuring.curves import Floats, area_between_curves, masking_walk
from faithmeter.models.classifier import Classifier
from faithmeter.progress import Silent
from faithmeter.statistics import bca_interval
from faithmeter.studies.train import train_or_go_on

LENGTH = 512
TEST_ROWS = 200  # of which those are explained that fill the length
RANDOM_RUNS = 2
MASKED_TIMES = 4  # how often a unit is masked where random groups are asked more than once


def random_groups(units: int, groups: int, random: np.random.Generator, times: int = 1) -> Mask:
    """Return groups of random units, as rows, that hold each of the units so many times."""
    parts = [np.array_split(random.permutation(units), groups // times) for _ in range(times)]
    return np.stack([np.isin(np.arange(units), own) for one in parts for own in one])


def ridge(groups: Mask, drops: Floats) -> Floats:
    """Return the effects that explain the drops best, drawn towards their mean."""
    sets, sizes = groups.astype(np.float64), groups.sum(axis=1)
    mean = (sizes @ drops) / (sizes @ sizes)
    gram = sets @ sets.T
    return mean + sets.T @ np.linalg.solve(gram + 0.1 * sizes.mean() * np.eye(len(gram)), drops - mean * sizes)


EXPLAINED: dict[str, Explain] = {
    "`loo-signed`": leave_one_out,
    "`loo-sampled`": leave_one_out_sampled,
    "random groups": partial(leave_one_out_sampled, draw=random_groups),
    f"random groups, {MASKED_TIMES} times, ridge": partial(
        leave_one_out_sampled, draw=partial(random_groups, times=MASKED_TIMES), estimate=ridge
    ),
}
EXACT, SAMPLED, *OTHERS = EXPLAINED
# measure, by, and whether it is too dear for all of the reviews
WAYS = (
    (EXACT, TOKEN, True),
    (SAMPLED, TOKEN, False),
    (EXACT, WORD, True),
    (EXACT, CHUNKED, False),
    (EXACT, SENTENCE, False),
)
ESTIMATORS = ((EXACT, TOKEN, True), *((name, TOKEN, True) for name in (SAMPLED, *OTHERS)))


class Counting:
    """A classifier that counts the maskings that it is asked for."""

    def __init__(self, classifier: Classifier) -> None:
        self.classifier, self.device = classifier, classifier.device
        self.passes = 0

    def logits_of_masks(self, batch: Batch, rows: Tensor, masked: Tensor) -> Tensor:
        """Return the logits, and count."""
        self.passes += len(rows)
        return self.classifier.logits_of_masks(batch, rows, masked)


@dataclass
class Found:
    """What was found by one way: of each review its first importance and its curve; passes and CPU seconds of all."""

    importance: dict[int, Tensor] = field(default_factory=dict)
    curve: dict[int, Floats] = field(default_factory=dict)
    random: dict[int, Floats] = field(default_factory=dict)
    passes: int = 0
    seconds: float = 0.0


def explain_all(classifier: Classifier, encoded: Encoded, rows: Sequence[int], name: str, recursive: bool) -> Found:
    """Explain the reviews one by one and follow the masking, beside random masking of the same units."""
    found = Found()
    for row in rows:
        batch = encoded.batch([row])
        measure = ImportanceMeasure(name, "occlusion", EXPLAINED[name], signed=True, recursive=recursive)
        counting, started = Counting(classifier), time.process_time()
        found.importance[row] = measure.explain(counting, batch, batch.labels, 0)  # type: ignore[arg-type]
        walk = list(_walk(counting, batch, measure, found.importance[row]))
        found.seconds += time.process_time() - started
        found.passes += counting.passes
        found.curve[row] = _curve(classifier, batch, walk)
        random = [masking_walk(classifier, batch, IMPORTANCE_MEASURES["random"], batch.labels, seed=seed)
                  for seed in range(RANDOM_RUNS)]  # fmt: skip
        found.random[row] = np.mean([_curve(classifier, batch, list(one)) for one in random], axis=0)
    return found


def _walk(counting: Counting, batch: Batch, measure: ImportanceMeasure, importance: Tensor) -> list[Batch]:
    return list(masking_walk(counting, batch, measure, batch.labels, seed=0, importance=importance))  # type: ignore[arg-type]


def _curve(classifier: Classifier, batch: Batch, walk: list[Batch]) -> Floats:
    """Return the true class's probability at every step."""
    masked = torch.cat([step.masked for step in walk])
    logits = classifier.logits_of_masks(batch, torch.zeros(len(walk), dtype=torch.long), masked)
    return logits.double().softmax(dim=-1)[:, int(batch.labels)].numpy()


def areas(found: Found, rows: Sequence[int]) -> list[str]:
    """Return ACU and RACU of the mean curve of the reviews, with intervals over them.

    None where there is no interval: random masking costs next to nothing, so that RACU has no scale.
    """
    curve, random = (np.stack([table[row] for row in rows]) for table in (found.curve, found.random))

    def both(weights: Floats) -> tuple[Floats, Floats]:
        shares = weights / weights.sum(axis=1, keepdims=True)
        return area_between_curves(shares @ curve, shares @ random)

    said = []
    for which in (0, 1):
        value = float(both(np.ones((1, len(rows))))[which][0])
        interval = bca_interval(lambda weights, which=which: both(weights)[which], len(rows))  # type: ignore[misc]
        said.append(f"{value:.2f} ({interval[0]:.2f}–{interval[1]:.2f})" if interval else "none")
    return said


def rank_correlations(found: Found, exact: Found, encoded: Encoded, rows: Sequence[int]) -> list[str]:
    """Return the mean rank correlation with the exact leave-one-out, over tokens and over units."""
    tokens, units = [], []
    for row in rows:
        batch = encoded.batch([row])
        open_ = batch.maskable[0]
        mine, theirs = even_shares(batch, found.importance[row])[0, open_], exact.importance[row][0, open_]
        tokens.append(spearmanr(mine, theirs).statistic)
        if batch.units is not None:
            ids = batch.units[0, open_]
            sums = [torch.zeros(int(ids.max()) + 1).index_add_(0, ids, one) for one in (mine, theirs)]
            units.append(spearmanr(*sums).statistic)
    return [f"{np.mean(tokens):.2f}", f"{np.mean(units):.2f}" if units else "the same"]


def main() -> None:
    """Train or load, explain in every way, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_dir", help="the folder with imdb/")
    parser.add_argument("--runs", type=Path, default=Path("runs/long-texts"), help="where the model is trained")
    parser.add_argument("--run", type=Path, help="a trained run whose model is taken instead")
    parser.add_argument("--rows", type=int, default=8, help="reviews to explain")
    parser.add_argument("--exact-rows", type=int, default=3, help="reviews to explain token by token and word by word")
    parser.add_argument("--estimators", action="store_true", help="other ways to sample, on the exact rows alone")
    parser.add_argument("--recursive", action="store_true", help="explain anew before each step of masking")
    given = parser.parse_args()
    torch.set_num_threads(1)
    data = DataSpec(task="imdb", data_dir=given.data_dir, train_rows=600, validation_rows=100, test_rows=100)
    if given.run is None:
        options = TrainingOptions(epochs=4, learning_rate=1e-4, batch_size=16, curriculum=False)
        run = train_or_go_on(given.runs, data, "minilm", options, max_length=128, reporter=Silent())
    else:
        run = Run(given.run)
    classifier = load_classifier(str(run.model_folder), run.config.labels, max_length=LENGTH)
    test = load_splits(replace(data, test_rows=TEST_ROWS)).in_order_of(run.config.labels).test  # type: ignore[union-attr]
    encoded = classifier.encode(test["text"], None, test["label"])
    rows = np.flatnonzero(encoded.lengths == LENGTH)[: given.rows].tolist()
    few = rows[: given.exact_rows]
    answers = classifier.predict(encoded).argmax(dim=-1).numpy()
    right = float(np.mean(answers == encoded.labels))
    print(f"{len(rows)} reviews of {LENGTH} tokens; the model is right on {right:.2f} of {len(encoded)}.\n")
    print(
        "| measure | units a text | passes a text | CPU seconds a text | ACU | RACU "
        f"| ACU on {len(few)} | rank correlation, tokens | units |\n|---|---|---|---|---|---|---|---|---|"
    )
    exact: Found | None = None
    for name, by, dear in ESTIMATORS if given.estimators else WAYS:
        cut = with_units(encoded, classifier, test["text"], by=by)
        mine = few if dear else rows
        found = explain_all(classifier, cut, mine, name, given.recursive)
        exact = exact or found
        cells = [
            f"{name} by {by}" + (f" of {CHUNK}" if by == CHUNKED else ""),
            f"{cut.unit_counts[mine].mean():.0f}",
            f"{found.passes / len(mine):.0f}",
            f"{found.seconds / len(mine):.1f}",
            *(["", ""] if dear else areas(found, mine)),
            areas(found, few)[0],
            *rank_correlations(found, exact, cut, few),
        ]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
