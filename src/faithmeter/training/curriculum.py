"""In which order and how often texts are shown: mini-batches of similar lengths, and short texts before long ones.

A model trained from scratch sits on a long plateau when it meets long or masked stories first. The curriculum gives it
the shortest rows, unmasked, until it has learnt them: first a few hundred that it can almost know by heart, then more
and longer ones, then all. Only then do the ordinary epochs begin, with masking and a falling learning rate.
"""

from dataclasses import dataclass

import numpy as np

from faithmeter.data.batch import Ints

FIRST_ROWS = 400
STAGES = (0.2, 0.4, 0.6, 0.8, 1.0)  # shares of the rows, shortest first
LEARNT = 0.95  # training accuracy at which the next stage begins
ROWS_PER_EPOCH = 1600
MOST_EPOCHS = 40  # a stage that takes longer is given up


@dataclass(frozen=True)
class Position:
    """Where a training stands in its curriculum: stage `len(STAGES)` is the ordinary epochs."""

    stage: int = len(STAGES)
    epochs: int = 0

    @property
    def finished(self) -> bool:
        """Whether only ordinary epochs are left."""
        return self.stage >= len(STAGES)

    def after(self, accuracy: float) -> "Position":
        """Return where it stands after an epoch with this training accuracy."""
        if self.finished:
            return Position(self.stage, self.epochs + 1)
        if accuracy >= LEARNT or self.epochs + 1 >= MOST_EPOCHS:
            return Position(self.stage + 1, 0)
        return Position(self.stage, self.epochs + 1)


def stage_rows(lengths: Ints, stage: int, random: np.random.Generator) -> Ints:
    """Return the rows of one epoch of a stage: the shortest ones, repeated until the epoch is full."""
    shortest = np.argsort(lengths, kind="stable")[: max(1, int(STAGES[stage] * len(lengths)))]
    if stage == 0:
        shortest = np.sort(shortest)[:FIRST_ROWS]
    repeats = -(-ROWS_PER_EPOCH // len(shortest))
    return np.concatenate([random.permutation(shortest) for _ in range(repeats)])[:ROWS_PER_EPOCH]


def mini_batches(rows: Ints, lengths: Ints, size: int, random: np.random.Generator) -> list[Ints]:
    """Cut shuffled rows into mini-batches of like lengths, so that little is spent on padding, in random order."""
    order = random.permutation(rows)
    batches: list[Ints] = []
    for start in range(0, len(order), 32 * size):
        chunk = order[start : start + 32 * size]
        chunk = chunk[np.argsort(lengths[chunk], kind="stable")]
        batches.extend(chunk[i : i + size] for i in range(0, len(chunk), size))
    return [batches[i] for i in random.permutation(len(batches))]
