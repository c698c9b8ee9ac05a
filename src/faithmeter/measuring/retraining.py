"""ROAR and Recursive ROAR: mask the most important tokens, retrain, and measure the loss of performance.

ROAR is from Hooker et al. (2019), Recursive ROAR from Madsen et al. (2022), Secs. 3 and 5.

The work is a graph of trainings. ROAR masks by the importance in the unmasked model; Recursive ROAR explains again,
with the model and the data of the previous step. At the first step they are the same training; random masking needs no
recursion; nothing masked and everything masked are shared by all measures.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from faithmeter.data.batch import Encoded
from faithmeter.importance.measure import ImportanceMeasure
from faithmeter.masking import STEPS, Mask
from faithmeter.measuring.curves import Floats, held_by_the_most_important
from faithmeter.models.classifier import Classifier

RELATIVE, ABSOLUTE = STEP_KINDS = ("relative", "absolute")  # steps of a tenth of the tokens, and of one token
ROAR, RECURSIVE = "roar", "recursive"
PROTOCOLS = (RECURSIVE, ROAR)
RANDOM, UNMASKED, ALL_MASKED, IMPORTANCE = "random", "unmasked", "all-masked", "importance"
TOKENS_AT_ONCE = 8192
Importance = NDArray[np.float32]  # one number per token of a split, flat


@dataclass(frozen=True)
class Node:
    """A piece of work: a training on masked data, or (`kind` importance) an explanation of the unmasked data.

    `kind` is `unmasked`, `all-masked`, `importance`, or what chooses the masked tokens: `random`, `roar`, `recursive`.
    """

    seed: int
    kind: str
    measure: str | None = None
    step: int = 0

    @property
    def folder(self) -> str:
        """Where its outcome is kept, in the folder of the experiment."""
        place = f"seed-{self.seed}/{self.measure}" if self.measure else f"seed-{self.seed}"
        return f"{place}/{self.kind}-{self.step:02d}" if self.step else f"{place}/{self.kind}"

    @property
    def title(self) -> str:
        """What it is, in words."""
        named = f"{self.measure}, {self.kind}" if self.measure else self.kind
        return f"seed {self.seed}, {named}" + (f", step {self.step}" if self.step else "")

    @property
    def needs(self) -> "Node | None":
        """What must be there first."""
        if self.kind == IMPORTANCE:
            return Node(self.seed, UNMASKED)
        if self.kind == RECURSIVE and self.step > 1:
            return replace(self, step=self.step - 1)
        return None if self.measure is None else Node(self.seed, IMPORTANCE, self.measure)


def last_step(steps: str) -> int:
    """Return the last step that is trained for each measure: 90 %, or ten tokens."""
    return STEPS - 1 if steps == RELATIVE else STEPS


def step_node(seed: int, protocol: str, measure: str, step: int) -> Node:
    """Return the training at a step of a measure; the first step of ROAR is Recursive ROAR's."""
    if measure == RANDOM:
        return Node(seed, RANDOM, None, step)
    return Node(seed, RECURSIVE if step == 1 else protocol, measure, step)


def graph(seeds: Sequence[int], measures: Sequence[str], protocols: Sequence[str], steps: str) -> list[Node]:
    """Return all the work in an order in which it can be done; what the longest chains wait for comes first."""
    every = range(1, last_step(steps) + 1)
    found = [Node(seed, UNMASKED) for seed in seeds]
    found += [Node(seed, IMPORTANCE, measure) for measure in measures for seed in seeds]
    for protocol in sorted(protocols):  # the recursive one first
        found += [step_node(seed, protocol, measure, k) for k in every for measure in measures for seed in seeds]
    found += [step_node(seed, RANDOM, RANDOM, step) for step in every for seed in seeds]
    found += [Node(seed, ALL_MASKED) for seed in seeds]
    return list(dict.fromkeys(found))


def masked_count(maskable: int, step: int, steps: str) -> int:
    """Return how many of a text's maskable tokens are masked at a step, in whole numbers."""
    return maskable * step // STEPS if steps == RELATIVE else min(maskable, step)


def mask_split(encoded: Encoded, importance: Importance, step: int, steps: str) -> Encoded:
    """Return the split with its most important tokens masked too, by their flat importance, up to those of the step.

    Tokens that are masked already stay and count; ties go to the lowest position.
    """
    masked, maskable = encoded.masked.copy(), encoded.maskable
    for start, end in zip(encoded.offsets, encoded.offsets[1:], strict=False):
        open_ = start + np.flatnonzero(maskable[start:end] & ~masked[start:end])
        wanted = masked_count(int(maskable[start:end].sum()), step, steps) - int(masked[start:end].sum())
        masked[open_[np.argsort(-importance[open_], kind="stable")[: max(0, wanted)]]] = True
    return replace(encoded, masked=masked)


def mask_everything(encoded: Encoded) -> Encoded:
    """Return the split with every maskable token masked."""
    return replace(encoded, masked=encoded.maskable)


def explain_split(
    classifier: Classifier,
    encoded: Encoded,
    measure: ImportanceMeasure,
    *,
    target: str,
    seed: int,
    progress: Callable[[int], None] = lambda _: None,
) -> Importance:
    """Return the flat importance of every token of a split, as it is masked; `target` is gold or predicted."""
    importance = np.zeros(len(encoded.ids), dtype=np.float32)
    predicted = classifier.predict(encoded).argmax(dim=-1).cpu() if target == "predicted" else None
    for batch in encoded.batches(TOKENS_AT_ONCE):
        targets = batch.labels if predicted is None else predicted[batch.rows]
        found = measure.explain(classifier, batch, targets, seed).numpy()
        for row, values in zip(batch.rows.tolist(), found, strict=True):
            start, end = encoded.offsets[row], encoded.offsets[row + 1]
            importance[start:end] = values[: end - start]
        progress(len(batch))
    return importance


def sparsity(encoded: Encoded, importance: Importance) -> tuple[list[float], list[float]]:
    """Return the mean share of |importance| in the top 0, 10 … 100 % of the tokens, and in the top 0, 1 … 10 tokens.

    Madsen et al. (2022), App. E, Figs. 6 and 5. Texts without importance do not count.
    """
    relative, absolute = [], []
    for batch in encoded.batches(TOKENS_AT_ONCE):
        padded = np.zeros(batch.maskable.shape, dtype=np.float32)
        for place, row in enumerate(batch.rows.tolist()):
            start, end = encoded.offsets[row], encoded.offsets[row + 1]
            padded[place, : end - start] = importance[start:end]
        relative.append(held_by_the_most_important(torch.from_numpy(padded), batch.maskable).numpy())
        absolute.append(held_by_top_tokens(padded, batch.maskable.numpy()))
    shares = (np.concatenate(relative), np.concatenate(absolute))
    by_ratio, by_count = (np.nanmean(part, axis=0).tolist() for part in shares)
    return by_ratio, by_count


def held_by_top_tokens(importance: Importance, maskable: Mask, most: int = STEPS) -> Floats:
    """Return (rows, most + 1): the share of a row's |importance| in its top 0, 1 … `most` tokens; nan without any."""
    ordered = -np.sort(-np.where(maskable, np.abs(importance), 0).astype(np.float64), axis=1)
    ordered = np.pad(ordered, ((0, 0), (0, max(0, most - ordered.shape[1]))))
    sums = np.pad(ordered.cumsum(axis=1), ((0, 0), (1, 0)))
    total = sums[:, -1:]
    return sums[:, : most + 1] / np.where(total == 0, np.nan, total)


def rises(curves: Floats, random: Floats, observations: int) -> float | None:
    """Return by how much the mean of (seeds, steps + 1) curves rises again while more is masked; None where by chance.

    A sign of class leakage: which tokens were masked tells the class (Madsen et al., 2022, App. G). It must rise in
    every seed, by more than three standard errors of a difference between two performances of so many observations, and
    by more than the random curves, which cannot leak.
    """

    def largest(mean: Floats) -> tuple[float, int, int]:
        """Return the largest rise from a step to a later one, and these steps."""
        return max((float(mean[j] - mean[i]), i, j) for j in range(len(mean)) for i in range(j + 1))

    rise, low, high = largest(curves.mean(axis=0))
    chance = max(3 * np.sqrt(0.5 / max(1, observations)), largest(random.mean(axis=0))[0])
    return rise if rise > chance and bool((curves[:, high] > curves[:, low]).all()) else None
