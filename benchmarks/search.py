"""How near cheaper searches come to beam search of width 10: objective and evaluations relative to it, and ACU.

    faithmeter train runs/babi-0 --task babi-1 && python benchmarks/search.py runs/babi-0 --rows 30
    python benchmarks/search.py runs/study/sst2-masked-0 --rows 40    # after masked_performance.py

The objective is beam search's own: the sum of logit(x) − logit(masked) over the sets on the way of an order. Sums over
texts are compared, with BCa intervals over texts. Beam search is expensive, so what it found is kept in --cache and
looked up there the next time. Printed as Markdown.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from faithmeter import Run
from faithmeter.data.batch import Batch, Encoded
from faithmeter.files import write_bytes
from faithmeter.importance.beam import beam
from faithmeter.importance.search import Asking, Known, search, window_sets
from faithmeter.masking import STEPS, Purpose, random_stream
from faithmeter.measuring.curves import Curve, area_between_curves, mask_most_important
from faithmeter.models.classifier import Classifier
from faithmeter.performance import weighted_performance
from faithmeter.progress import Silent
from faithmeter.runs.texts import encode
from faithmeter.statistics import bca_interval

TOKENS = 1024  # of the texts that are searched side by side
Explain = Callable[[Classifier, Batch, Tensor, int], Tensor]


def lead(metric: str, gold: np.ndarray, best: Curve, other: Curve, confidence: float) -> tuple:
    """Return by how much one measure's ACU exceeds another's on the same observations, with its BCa interval.

    Paired, so much sharper than a look at whether two intervals overlap; the random curve cancels.
    """
    reached, behind = (weighted_performance(metric, gold, curve.predicted) for curve in (best, other))

    def difference(weights: np.ndarray) -> np.ndarray:
        return area_between_curves(reached(weights), behind(weights))[0]

    return float(difference(np.ones((1, len(gold))))[0]), bca_interval(difference, len(gold), confidence=confidence)


def greedy_then_windows(n: int) -> Asking:
    """Search one text: always mask what lowers the logit most, then put windows of three right."""
    known, at = Known(n), 0
    for _ in range(n - 1):
        larger = [at | 1 << t for t in range(n) if not at >> t & 1]
        yield from known.ask(larger)
        at = max(larger, key=lambda one: known.drops[one])
    order = known.best_way()[1]
    while new := known.unknown(window_sets(order)):
        yield from known.ask(new)
        order = known.best_way()[1]
    return order


BEAM = "beam of 10"
SEARCHES: dict[str, Explain] = {
    BEAM: beam,
    "greedy (beam of 1)": partial(beam, width=1),
    "greedy, then windows of 3": partial(search, find=greedy_then_windows),
    "`search`": search,
}


class Counting:
    """A classifier that counts the maskings of each dataset row that it is asked for."""

    def __init__(self, classifier: Classifier) -> None:
        self.classifier, self.device = classifier, classifier.device
        self.asked: dict[int, int] = {}

    def logits_of_masks(self, batch: Batch, rows: Tensor, masked: Tensor) -> Tensor:
        """Return the logits, and count."""
        for row in batch.rows[rows].tolist():
            self.asked[row] = self.asked.get(row, 0) + 1
        return self.classifier.logits_of_masks(batch, rows, masked)


@dataclass
class Found:
    """What a search found: of each dataset row its order as ranks and its evaluations; the processor time of all."""

    ranks: dict[int, list[float]] = field(default_factory=dict)
    asked: dict[int, int] = field(default_factory=dict)
    seconds: float = 0.0


def searched(explain: Explain, classifier: Classifier, test: Encoded, rows: np.ndarray, kept: Path | None) -> Found:
    """Return what a search finds in the rows, adding to what is kept."""
    found = Found(**json.loads(kept.read_text())) if kept and kept.exists() else Found()
    found.ranks, found.asked = ({int(k): v for k, v in part.items()} for part in (found.ranks, found.asked))
    left = np.array([row for row in rows if int(row) not in found.ranks], dtype=np.int64)
    for batch in test.batches(TOKENS, left) if len(left) else ():
        counting, started = Counting(classifier), time.process_time()
        ranks = explain(counting, batch, batch.labels, 0)  # type: ignore[arg-type]
        found.seconds += time.process_time() - started
        found.asked |= counting.asked
        found.ranks |= dict(zip(batch.rows.tolist(), ranks.tolist(), strict=True))
        if kept:
            write_bytes(kept, json.dumps(vars(found)).encode())
    return found


def objectives(classifier: Classifier, test: Encoded, rows: np.ndarray, found: Found) -> np.ndarray:
    """Return each row's sum of logit(x) − logit(masked) over the sets on the way of its order, all masked left out."""
    values = []
    for row in rows.tolist():
        batch = test.batch([row])
        n, ranks = int(batch.maskable.sum()), torch.tensor(found.ranks[row])[: batch.maskable.shape[1]]
        masked = torch.stack([batch.maskable[0] & (ranks > n - count) for count in range(max(1, n))])
        logits = classifier.logits_of_masks(batch, torch.zeros(len(masked), dtype=torch.long), masked)
        logit = logits[:, int(batch.labels)].double().cpu()
        values.append(float((logit[0] - logit).sum()))
    return np.array(values)


def curve(classifier: Classifier, test: Encoded, rows: np.ndarray, found: Found) -> Curve:
    """Return what the model says as ever more of an order is masked, in tenths, as `measure` does it."""
    predicted, probability = [], []
    for row in rows.tolist():
        batch = test.batch([row])
        ranks = torch.tensor(found.ranks[row])[None, : batch.maskable.shape[1]]
        masked = torch.cat([mask_most_important(batch, ranks, step) for step in range(STEPS + 1)])
        logits = classifier.logits_of_masks(batch, torch.zeros(len(masked), dtype=torch.long), masked).cpu()
        predicted.append(logits.argmax(dim=-1).numpy())
        probability.append(logits.double().softmax(dim=-1)[:, int(batch.labels)].numpy())
    return Curve(np.stack(predicted), np.stack(probability))


def ratio(part: np.ndarray, whole: np.ndarray) -> str:
    """Return a ratio of sums over texts in per cent, with its interval."""
    value = 100 * part.sum() / whole.sum()
    interval = bca_interval(lambda weights: 100 * (weights @ part) / (weights @ whole), len(part))
    return f"{value:.2f}" + ("" if interval is None else f" ({interval[0]:.2f}–{interval[1]:.2f})")


def main() -> None:
    """Search the texts of a run and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a trained run")
    parser.add_argument("--rows", type=int, default=30, help="test texts, drawn as `measure` draws them")
    parser.add_argument("--skip", type=int, default=0, help="so many of them before, such as those that tuned a search")
    parser.add_argument("--cache", type=Path, help="folder for what beam search finds")
    options = parser.parse_args()
    torch.set_num_threads(1)
    run = Run(options.run)
    classifier, splits = run.classifier(), run.data()
    test = encode(classifier, splits.test, "test", Silent())
    rows = np.sort(random_stream(0, Purpose.MEASURED_ROWS).permutation(len(test))[options.skip :][: options.rows])
    kept = None
    if options.cache:
        options.cache.mkdir(parents=True, exist_ok=True)
        kept = options.cache / f"{run.weights}.json"
    found = {
        name: searched(explain, classifier, test, rows, kept if name == BEAM else None)
        for name, explain in SEARCHES.items()
    }
    values = {name: objectives(classifier, test, rows, one) for name, one in found.items()}
    curves = {name: curve(classifier, test, rows, one) for name, one in found.items()}
    asked = {name: np.array([one.asked[int(row)] for row in rows], dtype=np.float64) for name, one in found.items()}
    maskable = [int(test.batch([row]).maskable.sum()) for row in rows]
    print(f"{len(rows)} texts of {np.mean(maskable):.1f} maskable tokens (at most {max(maskable)}).\n")
    print("| search | objective [%] | evaluations [%] | evaluations a text | ACU behind beam | CPU s a text |")
    print("|---|---|---|---|---|---|")
    for name, one in found.items():
        behind, interval = lead(run.config.metric, test.labels[rows], curves[BEAM], curves[name], 0.95)
        said = f"{behind:.3f}" + ("" if interval is None else f" ({interval[0]:.3f}–{interval[1]:.3f})")
        print(
            f"| {name} | {ratio(values[name], values[BEAM])} | {ratio(asked[name], asked[BEAM])} | "
            f"{asked[name].mean():.0f} | {said} | {one.seconds / len(rows):.2f} |"
        )


if __name__ == "__main__":
    main()
