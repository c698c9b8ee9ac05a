"""Importance from a search for the same order of masking as beam search, with a fraction of its evaluations.

A Gaussian process predicts the drop of the logit for sets of masked tokens that were not evaluated, from those that
were. Libraries for Bayesian optimisation search for one point in a box; here an order is wanted, a path through sets on
which every set counts.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy
import torch
from torch import Tensor

from faithmeter.importance.measure import along, drops_at, open_units

if TYPE_CHECKING:
    from faithmeter.data.batch import Batch
    from faithmeter.masking import Mask
    from faithmeter.models.classifier import Classifier

EXACT = 6  # of so few tokens every set is evaluated: they are hardly more than those that a beam meets
WINDOW = 3  # neighbours in the order that are put in their best order; swaps of two gain nothing after a greedy choice
ROUNDS = 20  # of guessing, at most: bounds the cost by so many evaluations a token
GUESSED_WIDTH = 10  # of the beam on predictions, which needs no forward pass
LENGTHS = (5.0, 20.0, 80.0)  # over how many exchanged tokens a guess reaches
PATIENCE = 5  # rounds in a row that bring up nothing better; each length has had its turn by then
FLOOR, CEILING = 0.5, 20.0  # of a token's weight: no token is like its mask, and none is alone in the text

Floats = np.ndarray[Any, np.dtype[np.float64]]
Asking = Generator[list[int], Floats, list[int]]  # yields sets, is sent the drop at each, returns an order


def search(
    classifier: Classifier,
    batch: Batch,
    targets: Tensor,
    _seed: int,
    *,
    find: Callable[[int], Asking] | None = None,
) -> Tensor:
    """Return n … 1 along the best order of masking found; 0 if masked already. `find` is the search of one text.

    Where units are masked as a whole, they are what is said of tokens here.

    The value of an order is beam search's: the sum of logit(x) − logit(masked) over the sets on its way. The search of
    a text asks for the sets that it wants to know and goes on when it is told; what all texts of the batch ask for
    shares packed passes. None sees another's answers, and none asks for a set twice.
    """
    home, batch, targets = batch.input_ids.device, batch.to(classifier.device), targets.to(classifier.device)
    units = open_units(batch)
    start = classifier.logits_of_masks(batch, torch.arange(len(batch), device=targets.device), batch.masked)
    original = start.gather(1, targets[:, None]).squeeze(1)
    importance = np.zeros(batch.maskable.shape, dtype=np.float32)
    searches = [(find or guided_order)(one.count) for one in units]
    drops: dict[int, Floats | None] = dict.fromkeys(range(len(batch)))  # the drops that each open search receives next
    while drops:
        asked: dict[int, Mask] = {}
        for row, told in drops.items():
            try:
                asked[row] = _as_masks(searches[row].send(told), units[row].count)  # type: ignore[arg-type]
            except StopIteration as end:
                importance[row] = along(units[row], end.value)
        found = drops_at(classifier, batch, targets, original, units, asked) if asked else {}
        drops = {row: one.astype(np.float64) for row, one in found.items()}
    return torch.from_numpy(importance).to(home)


def evaluations(count: int) -> float:
    """Return about how many sets are evaluated in a text of so many tokens."""
    return min(2.0**count, 14.0 * count)


# ------------------------------------------------------------------------- the search of one text
# A set of the n tokens is a whole number: bit t says whether token t is masked.


def guided_order(n: int) -> Asking:
    """Search for the best order of n tokens: guess, then put windows of neighbours right until nothing changes."""
    known = Known(n)
    if n <= EXACT:
        yield from known.ask(range(1, 2**n - 1))
        return known.best_way()[1]
    singles = [1 << t for t in range(n)]
    yield from known.ask([*singles, *(known.full ^ one for one in singles), known.full])
    yield from _guided(known)
    order = known.best_way()[1]
    while new := known.unknown(window_sets(order)):
        yield from known.ask(new)
        order = known.best_way()[1]
    return order


def _guided(known: Known) -> Generator[list[int], Floats, None]:
    """Evaluate the sets on the best order by the guess, which then knows better, until it brings up nothing better."""
    n = known.n
    # a token matters as much as masking it does in the whole text and in the masked one
    weights = np.zeros(n)
    for t in range(n):
        weights[t] = abs(known.drops[1 << t]) + abs(known.drops[known.full] - known.drops[known.full ^ (1 << t)])
    weights = FLOOR + weights / max(float(weights.mean()), 1e-12)
    weights = np.minimum(weights, CEILING)
    best, since = -np.inf, 0
    for turn in range(ROUNDS):
        yield from known.ask(_guessed_path(known, weights / LENGTHS[turn % len(LENGTHS)]))
        value, since = known.best_way()[0], since + 1
        if value > best:
            best, since = value, 0
        if since == PATIENCE:
            return


class Known:
    """The sets of one text that are evaluated, and the drop of the logit at each."""

    def __init__(self, n: int) -> None:
        self.n, self.full = n, (1 << n) - 1
        self.drops: dict[int, float] = {0: 0.0}

    def unknown(self, sets: Iterable[int]) -> list[int]:
        """Return those of the sets that are not evaluated, each once."""
        return [one for one in dict.fromkeys(sets) if one not in self.drops]

    def ask(self, sets: Iterable[int]) -> Generator[list[int], Floats, None]:
        """Have the sets evaluated."""
        new = self.unknown(sets)
        if new:
            found = yield new
            self.drops.update(zip(new, found.tolist(), strict=True))

    def best_way(self) -> tuple[float, list[int]]:
        """Return the best order all of whose sets are evaluated, after its value.

        Of the ways to a set the best is kept, from small sets to large ones. In ties the lower position is masked
        first. All masked adds the same to every way, and is left out.
        """
        values, last = {0: 0.0}, {}
        for one in sorted({*self.drops, self.full} - {0}, key=int.bit_count):
            ways = [(values[b], t) for t in range(self.n) if one >> t & 1 and (b := one ^ (1 << t)) in values]
            if ways:
                value, last[one] = max(ways)
                values[one] = value if one == self.full else value + self.drops[one]
        order, at = [], self.full
        while at:
            order.append(last[at])
            at ^= 1 << last[at]
        return values[self.full], order[::-1]


def window_sets(order: list[int]) -> list[int]:
    """Return every set that the order has when a window of neighbours in it is put into any other order."""
    sets = []
    for start in range(len(order) - WINDOW + 1):
        before = sum(1 << t for t in order[:start])
        window = order[start : start + WINDOW]
        for chosen in range(1, 2**WINDOW - 1):
            sets.append(before | sum(1 << t for place, t in enumerate(window) if chosen >> place & 1))
    return sets


def _guessed_path(known: Known, weights: Floats) -> list[int]:
    """Return the sets on the best order by the mean of a Gaussian process, found by a beam on it.

    The kernel is exp(−distance), the distance of two sets the sum of the weights of the tokens that only one of them
    has. So masking one token more multiplies the kernel by one number for each known set, and the guesses at all
    sets that are one token larger than a state are one matrix product. The trend is linear in the masked tokens.
    """
    n = known.n
    sets = _as_masks(list(known.drops), n).astype(np.float64)
    drops = np.array(list(known.drops.values()))
    base, slopes = _trend(sets, drops)
    only_one = (sets * weights) @ (1 - sets).T
    kernel = np.exp(-(only_one + only_one.T)) + 1e-6 * np.eye(len(sets))
    held = scipy.linalg.cho_solve(scipy.linalg.cho_factor(kernel), drops - base - sets @ slopes)
    farther = weights * (1 - 2 * sets)  # (known sets, tokens): what masking the token adds to the distance
    grown = np.exp(-farther)
    states, values, trends = [0], np.zeros(1), np.full(1, base)
    distances, masked, ways = (sets @ weights)[None], np.zeros((1, n), dtype=np.bool_), [[0]]
    for _ in range(n - 1):
        totals = (held * np.exp(-distances)) @ grown + (values + trends)[:, None] + slopes
        totals[masked] = -np.inf
        kept = _best_distinct(states, totals)
        parents, added = [p for p, _ in kept.values()], [t for _, t in kept.values()]
        states, ways = list(kept), [[*ways[p], one] for one, (p, _) in kept.items()]
        values, trends = totals[parents, added], trends[parents] + slopes[added]
        distances, masked = distances[parents] + farther[:, added].T, masked[parents]
        masked[np.arange(len(added)), added] = True
    return ways[0][1:]


def _trend(sets: Floats, drops: Floats) -> tuple[float, Floats]:
    """Return the constant and the slopes of a ridge regression of the drops on what is masked."""
    design = np.concatenate((np.ones((len(sets), 1)), sets), axis=1)
    ridge = 0.1 * len(sets) / sets.shape[1] * np.eye(design.shape[1])
    found = scipy.linalg.solve(design.T @ design + ridge, design.T @ drops, assume_a="pos")
    return float(found[0]), found[1:]


def _best_distinct(states: list[int], totals: Floats) -> dict[int, tuple[int, int]]:
    """Return the best sets that are one token larger than a state, with their parent and the token; best first."""
    kept: dict[int, tuple[int, int]] = {}
    for at in np.argsort(-totals, axis=None, kind="stable").tolist():
        parent, t = divmod(at, totals.shape[1])
        if len(kept) == GUESSED_WIDTH or totals[parent, t] == -np.inf:
            break
        kept.setdefault(states[parent] | 1 << t, (parent, t))
    return kept


def _as_masks(sets: list[int], n: int) -> Mask:
    """Return sets as rows of booleans."""
    size = (n + 7) // 8
    packed = np.frombuffer(b"".join(one.to_bytes(size, "little") for one in sets), dtype=np.uint8)
    bits = np.unpackbits(packed.reshape(len(sets), size), axis=1, bitorder="little", count=n)
    return bits.astype(np.bool_)
