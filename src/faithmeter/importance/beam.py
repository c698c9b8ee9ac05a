"""Importance from a beam search for the order of masking that lowers the target's logit soonest."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from faithmeter.data.batch import Batch
from faithmeter.importance.by_units import Floats, TextUnits, open_units
from faithmeter.masking import Mask
from faithmeter.models.classifier import Classifier

WIDTH = 10


def beam(classifier: Classifier, batch: Batch, targets: Tensor, _seed: int, *, width: int = WIDTH) -> Tensor:
    """Return n … 1 along the best order of masking found; 0 if masked already.

    Zhou and Shah (2023), as in Madsen et al. (2024), App. E.2.

    A state is a set of masked units, which are tokens where nothing else is said, and its value the sum of logit(x) −
    logit(masked) over the sets on its way: the area over the masking curve. Every round masks one more unit in each of
    the `width` best states of a row. Of ways that lead to the same set the best is kept, and the set evaluated once.
    The last set, all masked, adds the same to every way, so it is not evaluated. Rows are searched side by side to fill
    passes; none sees another's states.
    """
    home, batch, targets = batch.input_ids.device, batch.to(classifier.device), targets.to(classifier.device)
    units = open_units(batch)
    searches = [_Search(one.count, width) for one in units]
    start = classifier.logits_of_masks(batch, torch.arange(len(batch), device=targets.device), batch.masked)
    original = start.gather(1, targets[:, None]).squeeze(1)
    while active := [row for row, search in enumerate(searches) if search.rounds > 1]:
        asked = {row: searches[row].expand() for row in active}
        for row, drops in drops_at(classifier, batch, targets, original, units, asked).items():
            searches[row].keep(drops)
    importance = np.stack([along(one, search.best_order()) for one, search in zip(units, searches, strict=True)])
    return torch.from_numpy(importance).to(home)


def drops_at(
    classifier: Classifier,
    batch: Batch,
    targets: Tensor,
    original: Tensor,
    units: Sequence[TextUnits],
    asked: Mapping[int, Mask],
) -> dict[int, Floats]:
    """Return the drop of the logit at every set of units that the search of a row requests, in packed passes for all.

    `original` are the logits that nothing more is masked in.
    """
    counts = [len(sets) for sets in asked.values()]
    every = np.concatenate([units[row].tokens_of(sets) for row, sets in asked.items()])
    rows = torch.tensor(list(asked)).repeat_interleave(torch.tensor(counts)).to(targets.device)
    masked = torch.from_numpy(every).to(targets.device) | batch.masked[rows]
    logits = classifier.logits_of_masks(batch, rows, masked)
    found = (original[rows] - logits.gather(1, targets[rows, None]).squeeze(1)).cpu().numpy()
    return dict(zip(asked, np.split(found, np.cumsum(counts)[:-1]), strict=True))


def along(units: TextUnits, order: Sequence[int]) -> Floats:
    """Return n … 1 along an order of units, at their tokens."""
    values = np.zeros(units.count)
    values[list(order)] = np.arange(len(order), 0, -1)
    return units.spread(values).astype(np.float32)


class _Search:
    """The beam of one row: its states, best first, each a set and the order in which the set was masked."""

    def __init__(self, units: int, width: int) -> None:
        self.width = width
        self.units = self.rounds = units  # of the rounds, those that are left to mask
        self.sets = np.zeros((1, units), dtype=np.bool_)
        self.orders: list[tuple[int, ...]] = [()]
        self.values = np.zeros(1, dtype=np.float32)

    def expand(self) -> Mask:
        """Return every set that is one unit larger than a state, once, in the order (parent, position)."""
        # a better parent comes earlier, so the first way to a set is the best
        self.parents, self.added = np.nonzero(~self.sets)
        sets = self.sets[self.parents]
        sets[np.arange(len(sets)), self.added] = True
        packed = np.ascontiguousarray(np.packbits(sets, axis=1))
        _, first = np.unique(packed.view(f"V{packed.shape[1]}").ravel(), return_index=True)
        first.sort()
        self.parents, self.added, self.candidates = self.parents[first], self.added[first], sets[first]
        return self.candidates

    def keep(self, drops: np.ndarray[tuple[int], np.dtype[np.float32]]) -> None:
        """Keep the `width` best of the sets last returned, given the drop of the logit at each."""
        values = self.values[self.parents] + drops
        best = np.argsort(-values, kind="stable")[: self.width]  # ties: earlier parent, then lower position
        self.orders = [(*self.orders[self.parents[i]], int(self.added[i])) for i in best]
        self.sets, self.values = self.candidates[best], values[best]
        self.rounds -= 1

    def best_order(self) -> list[int]:
        """Return the units of the best state in the order of masking, and last the one that is left."""
        order = list(self.orders[0])
        return order + [unit for unit in range(self.units) if unit not in order]
