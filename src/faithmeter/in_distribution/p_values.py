"""P-values from sorted columns, and how many become one: empirical CDFs, Simes, Fisher, inverse roots."""

from collections.abc import Sequence

import numpy as np
import scipy
import torch
from torch import Tensor


def simes(p_values: Tensor, dim: int = -1) -> Tensor:
    """Return Simes' p-value, min_i q_(i)·n/i over the n sorted p-values (Algorithm 2); at most the largest of them."""
    ordered = p_values.movedim(dim, -1).sort(dim=-1).values
    count = ordered.shape[-1]
    factors = count / torch.arange(1, count + 1, dtype=ordered.dtype, device=ordered.device)
    return (ordered * factors).amin(dim=-1)


def fisher(p_values: Tensor) -> Tensor:
    """Return Fisher's statistic −2 Σ log(p + 1e-8) over the last dimension (Algorithm 2); large is atypical."""
    return _sum_in_order(-2 * torch.log(p_values.double() + 1e-8))


def inverse_roots(p_values: Tensor) -> Tensor:
    """Return Σ p^(−½) over the last dimension: between Fisher's sum and the harmonic mean p-value (Wilson, 2019)."""
    return _sum_in_order(p_values.double().rsqrt())


def fisher_p_value(statistic: Tensor, count: int) -> Tensor:
    """Return the chance of so large a Fisher statistic, or larger, from `count` independent p-values."""
    # chi-squared's upper tail; scipy.stats takes half a second to import, and `explain` needs nothing else of it
    above = statistic.double().clamp_min(0)  # p-values of 1 bring it below by rounding, where the tail is all
    return torch.from_numpy(np.asarray(scipy.special.chdtrc(2 * count, above.numpy())))


def _sum_in_order(terms: Tensor) -> Tensor:
    # one by one: torch's own order of adding depends on the shape, and equal rows must stay equal in any batch
    total = torch.zeros_like(terms[..., 0])
    for term in terms.unbind(dim=-1):
        total = total + term
    return total


def sorted_columns(values: Tensor) -> Tensor:
    """Return (rows, ...) values as (..., rows), each column sorted, for binary search."""
    return values.movedim(0, -1).contiguous().sort(dim=-1).values


def counts(columns: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return for (..., m) values how many of each (..., n) sorted column are smaller, and how many at most as large."""
    values = values.contiguous()
    smaller = torch.searchsorted(columns, values, out_int32=True)
    return smaller, torch.searchsorted(columns, values, right=True, out_int32=True)


def two_sided(columns: Tensor, values: Tensor) -> Tensor:
    """Return min(F, 1 − F), F the share strictly smaller (Madsen et al., 2024, Eq. 2). Can be 0; null mean ¼."""
    below = torch.searchsorted(columns, values.contiguous(), out_int32=True).float() / columns.shape[-1]
    return torch.minimum(below, 1 - below)


def two_sided_add_one(columns: Tensor, values: Tensor) -> Tensor:
    """Return min(1, 2·min((#≤ + 1)/(n + 1), (#≥ + 1)/(n + 1))): a p-value that is never 0 and allows for ties."""
    size = columns.shape[-1]
    smaller, at_most = counts(columns, values)
    rank = torch.minimum(at_most, size - smaller) + 1
    return (rank * (2 / (size + 1))).clamp(max=1)


def lower_add_one(columns: Tensor, values: Tensor) -> Tensor:
    """Return (#≤ + 1)/(n + 1): small values are atypical."""
    at_most = torch.searchsorted(columns, values.contiguous(), right=True, out_int32=True)
    return (at_most + 1) / (columns.shape[-1] + 1)


def design_effect(values: Tensor, groups: Tensor) -> float:
    """Return by how much the variance of a mean grows as values of one group are alike (Kish, 1965, Sec. 5.4).

    That is 1 + ρ·(Σ m²/Σ m − 1) of groups of m values, with the intraclass correlation ρ of a one-way analysis of
    variance (Donner, 1986, Sec. 3), at least 0. It is 1 where every value is a group of its own, and all that can be
    said of a single group is the worst: it counts as one value.
    """
    numbers = groups.unique(return_inverse=True)[1]
    sizes = numbers.bincount().double()
    total, count = float(sizes.sum()), len(sizes)
    if count == total:
        return 1.0
    size = float(sizes.square().sum()) / total
    values = values.double()
    means = torch.zeros(count, dtype=torch.float64).index_add_(0, numbers, values) / sizes
    within = float((values - means[numbers]).square().sum()) / (total - count)
    if count == 1:
        return size
    between = float((sizes * (means - values.mean()).square()).sum()) / (count - 1)
    spread = between + ((total - size) / (count - 1) - 1) * within
    return 1 + (size - 1) * max(0.0, (between - within) / spread if spread > 0 else 0.0)


def smallest_of(p_values: Sequence[float]) -> float:
    """Return the smallest p-value times their number (Bonferroni)."""
    return min(1.0, len(p_values) * min(p_values))
