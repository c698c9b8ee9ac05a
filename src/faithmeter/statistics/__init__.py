"""Intervals: BCa bootstrap (Efron, 1987), as the papers report them."""

import functools
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import scipy

LEVEL = 0.05  # of every test
RESAMPLES = 9999
BLOCK = 500
WEIGHTS_AT_ONCE = 250_000  # numbers of resamples × observations: of many observations fewer resamples at a time
KEPT = 20_000_000  # numbers of resamples × observations, a byte each, up to which the draws are kept for the next call
Array = np.ndarray[Any, np.dtype[np.float64]]
Counts = np.ndarray[Any, np.dtype[np.integer[Any]]]


class EachLeftOut:
    """The weights that leave out observations `start` to `end`, each in turn: ones, and a zero in each row.

    They are never written down, which would be observations × observations numbers: what is left is the whole less
    what was left out.
    """

    def __init__(self, observations: int, start: int, end: int) -> None:
        self.observations, self.start, self.end = observations, start, end

    def __len__(self) -> int:
        return self.end - self.start

    def __matmul__(self, columns: Any) -> Array:  # noqa: ANN401 (an array, or a sparse one)
        """Return the product with (observations,) or (observations, columns) numbers."""
        out = columns[self.start : self.end]
        left: Array = columns.sum(axis=0, dtype=np.float64) - (out.toarray() if scipy.sparse.issparse(out) else out)
        return left

    def sum(self, axis: int, keepdims: bool = False) -> Array:
        """Return the sum of each row, of `axis` 1, as numpy does."""
        assert axis == 1
        return np.full((len(self), 1) if keepdims else len(self), self.observations - 1.0)


class OfGroups:
    """The weights of texts that follow from those of their groups: all texts of a group have its weight.

    They are not written down either: sums over texts are sums over groups of what their texts add up to.
    """

    def __init__(self, weights: "Array | EachLeftOut", members: "scipy.sparse.csr_array") -> None:
        self.weights, self.members = weights, members

    def __len__(self) -> int:
        return len(self.weights)

    def __matmul__(self, columns: Any) -> Array:  # noqa: ANN401 (an array, or a sparse one)
        """Return the product with (texts,) or (texts, columns) numbers."""
        product: Array = self.weights @ (self.members @ columns)
        return product

    def sum(self, axis: int, keepdims: bool = False) -> Array:
        """Return the sum of each row, of `axis` 1, as numpy does."""
        assert axis == 1
        sums = self @ np.ones(self.members.shape[1])
        return sums[:, None] if keepdims else sums


Weights = Array | EachLeftOut | OfGroups
Statistic = Callable[[Weights], Array]
Groups = np.ndarray[Any, np.dtype[np.int64]]


def group_numbers(groups: Groups | None) -> Groups | None:
    """Return for each text the number of its group, from 0 on in the order in which groups first appear.

    None where every text is a group of its own: then groups change nothing.
    """
    if groups is None or len(groups) == 0:
        return None
    _, first, numbers = np.unique(groups, return_index=True, return_inverse=True)
    if len(first) == len(groups):
        return None
    found: Groups = np.argsort(np.argsort(first))[numbers]
    return found


def over_groups(statistic: Statistic, texts: int, groups: Groups | None) -> tuple[Statistic, int]:
    """Return a statistic of weighted texts as one of weighted groups, and how many groups there are.

    Texts of one story or author are not independent, so that whole groups are drawn and left out. Where every text is
    its own group it is the statistic itself.
    """
    numbers = group_numbers(groups)
    if numbers is None:
        return statistic, texts
    count = int(numbers.max()) + 1
    members = scipy.sparse.csr_array((np.ones(texts), (numbers, np.arange(texts))), shape=(count, texts))
    return lambda weights: statistic(OfGroups(cast("Array | EachLeftOut", weights), members)), count


def bca_interval(
    statistic: Statistic,
    observations: int,
    *,
    confidence: float = 0.95,
    seed: int = 0,
    groups: Groups | None = None,
) -> tuple[float, float] | None:
    """Return the BCa interval of a statistic of weighted observations (Efron, 1987, Eq. 2.3 and 6.6).

    `statistic` maps (resamples, observations) weights, how often each observation was drawn, to one value a row; a
    weight vector of ones is the sample itself. Weights instead of copies make 9,999 resamples one matrix product. Of
    weights a statistic may ask for products with a column or columns, and for the sum of each row.
    None where there is no interval: fewer than two observations, or a statistic that is not a number. With `groups`,
    one number per observation, whole groups are drawn.
    """
    statistic, observations = over_groups(statistic, observations, groups)
    if observations < 2:
        return None
    value = float(statistic(np.ones((1, observations)))[0])
    replicates = np.concatenate([statistic(weights) for weights in weights_drawn(observations, RESAMPLES, seed)])
    if not np.isfinite(value) or not np.isfinite(replicates).all():
        return None
    if np.ptp(replicates) == 0:
        return (value, value)
    # bias: how far the sample's value lies from the middle of the replicates; ties count half
    below = (np.sum(replicates < value) + np.sum(replicates <= value)) / (2 * RESAMPLES)
    bias = scipy.stats.norm.ppf(np.clip(below, 1 / (2 * RESAMPLES), 1 - 1 / (2 * RESAMPLES)))
    left_out = np.concatenate([statistic(weights) for weights in each_left_out(observations)])
    deviations = left_out.mean() - left_out
    spread = np.sum(deviations**2)
    acceleration = 0.0 if spread == 0 else np.sum(deviations**3) / (6 * spread**1.5)
    tails = scipy.stats.norm.ppf([(1 - confidence) / 2, (1 + confidence) / 2])
    shares = scipy.stats.norm.cdf(bias + (bias + tails) / (1 - acceleration * (bias + tails)))
    low, high = np.quantile(replicates, shares)
    return float(low), float(high)


def percentile_band(
    statistic: Statistic, observations: int, *, resamples: int = 1999, seed: int = 0, groups: Groups | None = None
) -> tuple[Array, Array]:
    """Return the 2.5 % and 97.5 % quantiles of every column of a statistic of weighted observations: a ribbon to draw.

    `statistic` maps (resamples, observations) weights to (resamples, columns). With `groups`, whole groups are drawn;
    nan where all observations are of one.
    """
    statistic, drawn = over_groups(statistic, observations, groups)
    if drawn == 1 < observations:
        return (unknown := np.full(statistic(np.ones((1, 1))).shape[1], np.nan)), unknown
    observations = drawn
    replicates = np.concatenate([statistic(weights) for weights in weights_drawn(observations, resamples, seed)])
    low, high = np.quantile(replicates, (0.025, 0.975), axis=0)
    return low, high


def weights_drawn(observations: int, resamples: int, seed: int) -> Iterator[Array]:
    """Yield how often each observation is drawn, so many resamples at a time that memory is flat."""
    drawn = _kept if observations * resamples <= KEPT else _drawn
    for counts in drawn(observations, resamples, seed):
        yield counts.astype(np.float64)


def _drawn(observations: int, resamples: int, seed: int) -> Iterator[Counts]:
    random, shares = np.random.default_rng(seed), np.full(observations, 1 / observations)
    block = min(BLOCK, max(1, WEIGHTS_AT_ONCE // observations))
    for start in range(0, resamples, block):
        yield random.multinomial(observations, shares, min(block, resamples - start))


@functools.lru_cache(maxsize=2)  # the same draws serve every statistic of the same texts, and drawing takes longest
def _kept(observations: int, resamples: int, seed: int) -> list[Counts]:
    return [counts.astype(np.min_scalar_type(counts.max())) for counts in _drawn(observations, resamples, seed)]


def each_left_out(observations: int) -> Iterator[EachLeftOut]:
    """Yield the weights that leave one observation out, each in turn, a few hundred at a time."""
    for start in range(0, observations, BLOCK):
        yield EachLeftOut(observations, start, min(start + BLOCK, observations))


def mean_interval(
    values: Array, *, confidence: float = 0.95, seed: int = 0, groups: Groups | None = None
) -> tuple[float, float] | None:
    """Return the BCa interval of the mean of values, such as one number per seed; whole `groups` of them are drawn."""
    values = np.asarray(values, dtype=np.float64)
    return bca_interval(
        lambda weights: weights @ values / weights.sum(axis=1),
        len(values),
        confidence=confidence,
        seed=seed,
        groups=groups,
    )


def student_interval(values: Array, *, confidence: float = 0.95) -> tuple[float, float] | None:
    """Return Student's interval of a mean, which holds for a few values too, where the bootstrap is far too narrow."""
    if len(values) < 2:
        return None
    half = scipy.stats.t.ppf((1 + confidence) / 2, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return float(np.mean(values) - half), float(np.mean(values) + half)
