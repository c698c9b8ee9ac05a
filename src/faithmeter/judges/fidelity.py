"""Fidelity by iterative masking: how much must be masked, the most important first, until the prediction changes?

The explanation is that of the whole text. The number is often compared from one model to the next, which it does not
bear: a model that was never shown masks may change its answer because of the masks themselves. Where an in-distribution
test is given, whether the text at the flip is strange to the model stands beside the number.
"""

from dataclasses import replace

import torch
from torch import Tensor

from faithmeter.data.batch import Batch
from faithmeter.importance.measure import ImportanceMeasure
from faithmeter.in_distribution.masf import MaSF
from faithmeter.judges.judge import Bench, By, Judge, Need, Remark, SectionData, ShownColumn
from faithmeter.judges.maskings import answers
from faithmeter.judges.ranking import Columns, ranks
from faithmeter.models.classifier import Classifier

AT_ONCE = 8  # tokens masked further per round: most texts flip early, and later maskings are not needed


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


def _judge(bench: Bench, batch: Batch, measure: ImportanceMeasure) -> Columns:
    return fidelity(bench.classifier, batch, bench.explained(batch, measure), masf=bench.masf)


_MASKED = ShownColumn("masked_until_flip", "masked until the change (low is good)", more_is_better=False)
_NEVER = ShownColumn("never_flips", "texts that never change", more_is_better=False)
_OUTSIDE = ShownColumn("flip_outside", "out-of-distribution at the change", more_is_better=False, optional=True)
_CAUTION = (
    "flip_outside",
    "Up to {share} % of the texts are out-of-distribution where their answer changes ({measure}; chance gives "
    "{chance} %): there the mask itself may have changed it.",
)
FIDELITY = Judge(
    "fidelity",
    200,
    _judge,
    {"masked_until_flip": False},
    SectionData(
        "Tokens to flip",
        By.MASKED_TEXTS,
        (
            "Tokens are masked in the order of importance until the prediction changes. The fewer tokens it takes, the "
            "better the measure has found those that decide. A text whose prediction never changes counts as fully "
            "masked.",
            "It compares measures on one model. It cannot compare models: the prediction of a model that does not "
            "understand masks changes sooner, whatever is masked.",
        ),
        (_MASKED, _NEVER, ShownColumn("tokens_to_flip", "masked, where it changes", more_is_better=False), _OUTSIDE),
        table="Masking until the prediction changes",
        caption="Share of tokens masked when the prediction changes, and of texts where it never does; dashed: random.",
        outside=(_CAUTION,),
    ),
    tests_masked=True,
    needs_classes=True,
    shares_explanations=True,
)


def _beside_clean(column: ShownColumn) -> tuple[ShownColumn, ShownColumn]:
    """Return a column of the attacked texts, and that of the clean texts, if those were judged."""
    return (
        replace(column, title=f"{column.title}, attacked"),
        replace(column, title=f"{column.title}, clean", judge=FIDELITY.name, optional=True),
    )


# what is explained and masked is the attacked text
FIDELITY_ATTACKED = Judge(
    "fidelity-attacked",
    200,
    _judge,
    {"masked_until_flip": False},
    SectionData(
        "Tokens to flip, on attacked texts",
        By.MASKED_TEXTS,
        (
            "The same on attacked texts: words are changed until the prediction changes, then the attacked text is "
            "explained and masked, for its new prediction.{beaten}",
            "It shows whether the measures rank the same on such texts. It cannot show that explanations of attacked "
            "texts are better or worse: an attack ends as soon as the prediction changes, so the new prediction is "
            "close to the decision boundary and changes back after few masks, whatever explains it.",
        ),
        (*_beside_clean(_MASKED), *_beside_clean(_NEVER), *_beside_clean(_OUTSIDE)),
        table="Masking attacked texts until the prediction changes",
        caption="Share of tokens masked when the prediction changes; dashed: random.",
        outside=(_CAUTION,),
        remarks=(Remark("beaten", " The attack changed the prediction of {value:.0f} % of the texts."),),
    ),
    needs=Need.ATTACKED_TEXTS,
    settings=("attacks", "budget"),
    tests_masked=True,
    needs_classes=True,
    on_request=True,  # everything is explained once more
)
