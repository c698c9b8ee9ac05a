"""Rankings of tokens by importance: of one explanation, compared with another, and compared with a known truth.

The truth L of a text is a set of its tokens: the telling word of a known-token problem (Oxford thesis, 2022, Sec.
2.2.3.1), or what a human marked as the reason (plausibility). A text whose L is empty cannot be judged: nan.
"""

from math import comb
from typing import Any

import numpy as np
import scipy
import torch
from torch import Tensor

Array = np.ndarray[Any, np.dtype[np.float64]]
Columns = dict[str, Array]
TOP = 4  # one token of so many is among the most important


def ranks(importance: Tensor, maskable: Tensor) -> Tensor:
    """Return each token's rank among its row's maskable ones, the most important 0; ties go to the lowest position.

    It is the order in which a masking curve masks. Tokens that are not maskable come after all that are.
    """
    # two stable sorts: by importance, then the maskable tokens before the others
    by_importance = importance.argsort(dim=1, descending=True, stable=True)
    may = maskable.gather(1, by_importance)
    order = by_importance.gather(1, may.int().argsort(dim=1, descending=True, stable=True))
    places = torch.arange(order.shape[1], device=order.device).expand_as(order).contiguous()
    return torch.empty_like(order).scatter_(1, order, places)


def rank_correlation(before: Tensor, after: Tensor, maskable: Tensor) -> Array:
    """Return each row's Spearman correlation of two explanations over its maskable tokens; nan where it has none.

    Equal importances share their mean rank. A row of fewer than two tokens, or all of one importance, has no ranking.
    """
    found = np.full(len(maskable), np.nan)
    for row, tokens in enumerate(maskable):
        ranks = [scipy.stats.rankdata(one[row][tokens].double().numpy()) for one in (before, after)]
        if all(np.ptp(one) > 0 for one in ranks if len(one)) and len(ranks[0]) > 1:
            found[row] = np.corrcoef(*ranks)[0, 1]
    return found


def likeness(before: Tensor, after: Tensor, maskable: Tensor) -> Columns:
    """Return how alike two explanations of each row are: `rank_correlation`, `top_overlap` and `chance_overlap`.

    The overlap is that of the most important quarter of the tokens (at least one), those in both of those in either
    (Jaccard), and what it would be of two quarters drawn at random. All are nan where there is no ranking to compare.
    """
    correlation = rank_correlation(before, after, maskable)
    size = maskable.sum(dim=1)
    many = (size // TOP).clamp_min(1)
    first, second = (maskable & (ranks(one, maskable) < many[:, None]) for one in (before, after))
    overlap = (first & second).sum(dim=1) / (first | second).sum(dim=1).clamp_min(1)
    columns = {"rank_correlation": correlation, "top_overlap": overlap.double().numpy()}
    columns["chance_overlap"] = np.array([_chance(n, k) for n, k in zip(size.tolist(), many.tolist(), strict=True)])
    return {name: np.where(np.isnan(correlation), np.nan, column) for name, column in columns.items()}


def _chance(tokens: int, many: int) -> float:
    """Return the mean overlap of two sets of so `many` of the tokens, drawn at random."""
    both = np.arange(many + 1)
    return (
        float(np.sum(scipy.stats.hypergeom.pmf(both, tokens, many, many) * both / (2 * many - both)))
        if tokens
        else np.nan
    )


def ground_truth(importance: Tensor, maskable: Tensor, truth: Tensor) -> Columns:
    """Return how well the ranking of every row finds its truth L, of |L| tokens among n maskable ones.

    - `overlap`: 1 where the top |L| tokens are exactly L, else 0 (the thesis' GTOverlap). High is good.
    - `mean_rank`: the smallest r/n such that the top r tokens hold all of L (MeanRankPercentage). Low is good.
    - `precision_at_truth`: the share of the top |L| tokens that are in L, which tells more than `overlap` where L is a
      long human rationale. High is good.
    - `average_precision`: the mean over L of the precision at each of its ranks, which is the area under the steps of
      the precision-recall curve. ERASER (DeYoung et al., 2020) also joins the steps by straight lines, which flatters.

    Ties in importance go to the lowest position. Tokens of L that are not maskable are not ranked and do not count.
    """
    truth = truth & maskable
    size, tokens = truth.sum(dim=1), maskable.sum(dim=1)
    rank = ranks(importance, maskable)
    found = (truth & (rank < size[:, None])).sum(dim=1)
    last = rank.masked_fill(~truth, -1).amax(dim=1) + 1
    # truth in the order of the ranking: its running sum is how many of the top r are true
    ordered = torch.zeros_like(truth).scatter_(1, rank, truth)
    precision = ordered.cumsum(dim=1).double() / torch.arange(1, truth.shape[1] + 1, device=truth.device)
    return _columns(
        size,
        overlap=(found == size).double(),
        mean_rank=last.double() / tokens,
        precision_at_truth=found.double() / size,
        average_precision=(precision * ordered).sum(dim=1) / size,
    )


def chance_of(maskable: Tensor, truth: Tensor) -> Columns:
    """Return what a random ranking is expected to reach in each column of `ground_truth`, for each row's n and |L|.

    With m = |L|: 1 / C(n, m); the expected largest of m ranks, m(n + 1)/(m + 1), over n; m/n; and for the average
    precision (H_n + (m − 1)/(n − 1) · (n − H_n)) / n with H_n = 1 + 1/2 + … + 1/n, as the token at rank k is true with
    chance m/n, and then each of the k − 1 before it with chance (m − 1)/(n − 1).
    """
    truth = truth & maskable
    size, tokens = truth.sum(dim=1), maskable.sum(dim=1)
    m, n = size.double(), tokens.double()
    harmonic = torch.tensor([sum(1 / k for k in range(1, count + 1)) for count in tokens.tolist()], dtype=torch.float64)
    harmonic = harmonic.to(n.device)
    sets = [1 / comb(count, wanted) for count, wanted in zip(tokens.tolist(), size.tolist(), strict=True)]
    return _columns(
        size,
        overlap=torch.tensor(sets, dtype=torch.float64),
        mean_rank=m * (n + 1) / (m + 1) / n,
        precision_at_truth=m / n,
        average_precision=(harmonic + (m - 1) / (n - 1).clamp_min(1) * (n - harmonic)) / n,
    )


def _columns(size: Tensor, **columns: Tensor) -> Columns:
    """Return the columns with nan where there is no truth."""
    none = size.cpu() == 0
    return {name: column.cpu().masked_fill(none, torch.nan).numpy() for name, column in columns.items()}
