"""Explanations against a known truth: do the most important tokens lie where they should?

The truth L of a text is a set of its tokens: the telling word of a known-token problem (Oxford thesis, 2022, Sec.
2.2.3.1), or what a human marked as the reason (plausibility). A text whose L is empty cannot be judged: nan.
"""

from math import comb

import torch
from torch import Tensor

from faithmeter.data.batch import Batch
from faithmeter.importance import ImportanceMeasure
from faithmeter.judges import Columns
from faithmeter.judges.bench import Bench
from faithmeter.judges.ranking import ranks


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


def against_truth(bench: Bench, batch: Batch, measure: ImportanceMeasure) -> Columns:
    """Judge a measure by the tokens of its bench that are known to matter."""
    return ground_truth(bench.explained(batch, measure), batch.maskable, bench.true_tokens(batch))
