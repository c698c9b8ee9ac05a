"""Fidelity by iterative masking: how much must be masked, the most important first, until the answer changes?

The explanation is that of the whole text. The number is often compared from one model to the next, which it does not
bear: a model that was never shown masks may change its answer because of the masks themselves. Where an in-distribution
test is given, whether the text at the flip is strange to the model stands beside the number.
"""

import torch
from torch import Tensor

from faithmeter.data.batch import Batch
from faithmeter.in_distribution.masf import MaSF
from faithmeter.judges import Columns
from faithmeter.judges.maskings import answers
from faithmeter.judges.ranking import ranks
from faithmeter.models.classifier import Classifier

AT_ONCE = 8  # tokens further that every text is looked at together: most flip early, and what lies behind is not needed


def fidelity(classifier: Classifier, batch: Batch, importance: Tensor, *, masf: MaSF | None = None) -> Columns:
    """Return of every row how much is masked when the predicted class changes for the first time.

    - `tokens_to_flip`: the share of the maskable tokens; nan where the answer never changes.
    - `never_flips`: 1 where it does not, even with everything masked.
    - `masked_until_flip`: as the first, and 1 where it never does: one number to rank by. Low is good.
    - with `masf`, `flip_outside`: 1 where the text at the flip is out-of-distribution; nan where there is no flip.

    Ties go to the lowest position. A row without maskable tokens is nan.
    """
    size = batch.maskable.sum(dim=1)
    rank = ranks(importance.to(batch.maskable.device), batch.maskable)
    flips = _first_flips(classifier, batch, rank, size)
    flipped = flips > 0
    share = (flips.double() / size.clamp_min(1)).cpu()
    never = (~flipped).double().cpu()
    columns = {
        "tokens_to_flip": share.masked_fill(never.bool(), torch.nan),
        "never_flips": never,
        "masked_until_flip": share.masked_fill(never.bool(), 1.0),
    }
    if masf is not None:
        which = torch.nonzero(flipped)[:, 0]
        columns["flip_outside"] = torch.full((len(batch),), torch.nan, dtype=torch.float64)
        if len(which):
            _, strange = answers(classifier, batch, which, _masked(batch, rank, which, flips[which]), masf)
            assert strange is not None
            columns["flip_outside"][which.cpu()] = strange.double()
    empty = (size == 0).cpu()
    return {name: column.masked_fill(empty, torch.nan).numpy() for name, column in columns.items()}


def _first_flips(classifier: Classifier, batch: Batch, rank: Tensor, size: Tensor) -> Tensor:
    """Return how many tokens are masked when the answer first changes; 0 where it never does."""
    everything = torch.arange(len(batch), device=rank.device)
    first = answers(classifier, batch, everything, batch.masked, None)[0].argmax(dim=-1).to(rank.device)
    flips = torch.zeros_like(size)
    for start in range(1, int(size.amax()) + 1, AT_ONCE):
        counts = torch.arange(start, start + AT_ONCE, device=rank.device)
        open_ = torch.nonzero((flips == 0) & (size >= start))[:, 0]
        which, count = open_.repeat_interleave(AT_ONCE), counts.repeat(len(open_))
        which, count = which[count <= size[which]], count[count <= size[which]]
        if not len(which):
            break
        said = answers(classifier, batch, which, _masked(batch, rank, which, count), None)[0].argmax(dim=-1)
        changed = said.to(rank.device) != first[which]
        # from the most masked down, so that the fewest is what is left standing
        for row, tokens in zip(which[changed].flip(0).tolist(), count[changed].flip(0).tolist(), strict=True):
            flips[row] = tokens
    return flips


def _masked(batch: Batch, rank: Tensor, which: Tensor, count: Tensor) -> Tensor:
    """Return the maskings of rows in which so many of the most important tokens are masked."""
    return batch.masked[which] | (batch.maskable[which] & (rank[which] < count[:, None]))
