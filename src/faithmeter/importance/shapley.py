"""Importance as the worth of a player in a game: Shapley values, Banzhaf values, and Owen values over a tree.

The players are the units of a text that are not masked yet; what a set of them is worth is the logit with all others
masked.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from faithmeter.importance.measure import drops_at, open_units
from faithmeter.importance.surrogate import explain_by_maskings, samples_for
from faithmeter.masking import Purpose

if TYPE_CHECKING:
    from faithmeter.data.batch import Batch
    from faithmeter.importance.surrogate import Array, Kept
    from faithmeter.masking import Mask
    from faithmeter.models.classifier import Classifier

PAIRS = 5  # of permutations: one and its reverse
EVALUATIONS = 500  # up to which Owen values are beside every context; the default of shap's Partition explainer


def shapley_sampled(classifier: Classifier, batch: Batch, targets: Tensor, seed: int, *, pairs: int = PAIRS) -> Tensor:
    """Return Shapley values from `pairs` random permutations of a text's units, each with its reverse.

    Castro et al. (2009), with the antithetic permutations of Mitchell et al. (2022). The importance of a unit is the
    mean change of the logit when it is added to those before it in a permutation. Whatever the number of pairs, the
    importances add up to the logit less that with everything masked.
    """

    def draw(units: int, random: np.random.Generator) -> tuple[Kept, Array]:
        orders = [random.permutation(units) for _ in range(pairs if units > 1 else 0)]
        ranks = [order.argsort() for one in orders for order in (one, one[::-1])]
        kept = [rank < size for rank in ranks for size in range(1, units)]
        return np.array(kept, dtype=np.bool_).reshape(-1, units), np.ones(len(kept))

    return explain_by_maskings(classifier, batch, targets, seed, Purpose.COALITIONS, draw, _mean_gains)


def banzhaf(classifier: Classifier, batch: Batch, targets: Tensor, seed: int, *, samples: int | None = None) -> Tensor:
    """Return Banzhaf values: the mean logit of random sets with a unit, less that of those without it.

    The maximum-sample-reuse estimator of Wang and Jia (2023): every unit is in each set with chance 1/2, and every set
    counts for every unit. By default the samples grow with the units, see `samples_for`.
    """

    def draw(units: int, random: np.random.Generator) -> tuple[Kept, Array]:
        count = samples_for(units) if samples is None else samples
        return random.random((count, units)) < 0.5, np.ones(count)

    return explain_by_maskings(classifier, batch, targets, seed, Purpose.COALITIONS, draw, _with_less_without)


def _mean_gains(kept: Kept, _weights: Array, values: Array, full: float, empty: float) -> Array:
    """Return the mean gain of each unit along permutations, whose sets of 1 … n − 1 units follow each other."""
    units = kept.shape[1]
    if units == 1:
        return np.array([full - empty])
    chains = kept.reshape(-1, units - 1, units)
    ends = np.ones((len(chains), 1, units), dtype=np.bool_)
    sets = np.concatenate((~ends, chains, ends), axis=1)
    worth = values.reshape(-1, units - 1)
    worth = np.pad(worth, ((0, 0), (1, 1)))
    worth[:, 0], worth[:, -1] = empty, full
    added = sets[:, 1:] & ~sets[:, :-1]  # (permutations, places, units)
    gains: Array = np.einsum("pku,pk->u", added, np.diff(worth, axis=1))
    return gains / len(chains)


def _with_less_without(kept: Kept, _weights: Array, values: Array, _full: float, _empty: float) -> Array:
    """Return the mean of the values with a unit less that without it; 0 where all sets have it, or none."""
    inside = kept.sum(axis=0)
    outside = len(kept) - inside
    both = (inside > 0) & (outside > 0)
    total = values @ kept
    difference: Array = total / np.maximum(inside, 1) - (values.sum() - total) / np.maximum(outside, 1)
    return np.where(both, difference, 0.0)


# ------------------------------------------------------------------------------------------------- Owen values


def partition_shap(
    classifier: Classifier, batch: Batch, targets: Tensor, _seed: int, *, evaluations: int = EVALUATIONS
) -> Tensor:
    """Return Owen values over a binary tree of neighbouring units, as shap's Partition explainer computes them.

    Lundberg and Lee (2017). The tree halves a text again and again; its leaves are words where importance is by word.
    What a node is worth is the change of the logit when it is added, once with its sibling masked and once with it
    kept, half each; then the same of its own halves, beside each. The sets to evaluate grow with the square of the
    units; where they are more than `evaluations`, siblings are always kept (shap's `fixed_context=1`), which takes two
    sets per node, and what two halves do together only is divided evenly among their units.
    """
    home, batch, targets = batch.input_ids.device, batch.to(classifier.device), targets.to(classifier.device)
    units = open_units(batch)
    trees = [_Owen(one.count, every_context=owen_evaluations(one.count) <= evaluations) for one in units]
    nothing = torch.zeros(len(batch), device=targets.device)
    while asked := {row: ~sets for row, tree in enumerate(trees) if len(sets := tree.ask())}:
        for row, drops in drops_at(classifier, batch, targets, nothing, units, asked).items():
            trees[row].tell(-drops.astype(np.float64))  # the drop from 0 to the logit
    importance = np.stack([one.spread(tree.values) for one, tree in zip(units, trees, strict=True)])
    return torch.from_numpy(importance.astype(np.float32)).to(home)


def owen_evaluations(units: int) -> int:
    """Return how many sets the Owen values of so many units take with every context, both ends among them."""
    return 2 + _below(units)


def owen_passes(units: int, evaluations: int = EVALUATIONS) -> int:
    """Return how many sets `partition_shap` evaluates."""
    every_context = owen_evaluations(units)
    return every_context if every_context <= evaluations else 2 * units


@cache
def _below(units: int) -> int:
    return 0 if units < 2 else 2 + 2 * _below(units // 2) + 2 * _below(units - units // 2)


class _Node(NamedTuple):
    """The units from `first` to before `last`, worth `within` − `without` beside those that are `kept`."""

    kept: Mask
    without: float
    within: float
    first: int
    last: int
    weight: float


class _Owen:
    """The Owen values of one text, from the root of its tree to the leaves, a level at a time."""

    def __init__(self, units: int, *, every_context: bool) -> None:
        self.values, self.every_context = np.zeros(units), every_context
        self.nodes: list[_Node] | None = None if units else []  # of this level; none are known before the ends are

    def ask(self) -> Mask:
        """Return the sets of units to evaluate next: the ends, then both halves of each node; none at the end."""
        if self.nodes is None:
            return np.arange(2)[:, None].repeat(len(self.values), axis=1).astype(np.bool_)
        for node in self.nodes:
            if node.last - node.first == 1:
                self.values[node.first] += node.weight * (node.within - node.without)
        self.nodes = [node for node in self.nodes if node.last - node.first > 1]
        return np.array([half for node in self.nodes for half in _halves(node)], dtype=np.bool_)

    def tell(self, worth: Array) -> None:
        """Go down a level, given what the sets that were asked for are worth."""
        if self.nodes is None:
            nothing = np.zeros(len(self.values), dtype=np.bool_)
            self.nodes = [_Node(nothing, float(worth[0]), float(worth[1]), 0, len(self.values), 1.0)]
            return
        children: list[_Node] = []
        for node, (one, other) in zip(self.nodes, worth.reshape(-1, 2).tolist(), strict=True):
            first, middle, last = node.first, (node.first + node.last) // 2, node.last
            left, right = _halves(node)
            weight = node.weight / 2 if self.every_context else node.weight
            if self.every_context:
                children.append(_Node(node.kept, node.without, one, first, middle, weight))
                children.append(_Node(node.kept, node.without, other, middle, last, weight))
            else:
                together = node.within - one - other + node.without
                self.values[first:last] -= weight * together / (last - first)
            children.append(_Node(right, other, node.within, first, middle, weight))
            children.append(_Node(left, one, node.within, middle, last, weight))
        self.nodes = children


def _halves(node: _Node) -> tuple[Mask, Mask]:
    """Return what is kept with the left half of a node, and with its right half."""
    left, right = node.kept.copy(), node.kept.copy()
    middle = (node.first + node.last) // 2
    left[node.first : middle], right[middle : node.last] = True, True
    return left, right
