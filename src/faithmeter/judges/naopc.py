"""Normalised AOPC: comprehensiveness and sufficiency between the worst and the best order of each text.

Edin et al. (2025). The area over the perturbation curve of one model or text has other limits than that of another;
between 0, the smallest area of any order of its tokens, and 1, the largest, it can be compared. The limits are exact up
to ten tokens. Longer texts have those of the best orders that a search finds, in both directions.
"""

from collections.abc import Generator
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from faithmeter.data.batch import Batch
from faithmeter.importance.measure import ImportanceMeasure
from faithmeter.importance.search import Asking, Floats, Known, guided_order
from faithmeter.judges.judge import Bench, By, Judge, SectionData, ShownColumn
from faithmeter.judges.maskings import answers, probabilities
from faithmeter.judges.ranking import Array, Columns, ranks
from faithmeter.models.classifier import Classifier

EXACT = 10  # tokens: their 1,023 sets are all evaluated, so that the limits are exact
NO_SCALE = 1e-4  # the limits must be this far apart, or there is no scale to normalise by
Limits = tuple[float, float]
Search = Generator[list[int], Floats, Limits]  # yields sets, is sent the drop at each, returns the limits


def areas(classifier: Classifier, batch: Batch, importance: Tensor) -> tuple[Array, Array]:
    """Return each row's AOPC when the most important tokens are masked first, and when the least important are.

    AOPC = 1/n Σ m(x) − m(the first k masked), k from 1 to n; nan for a row without maskable tokens.
    """
    rank = ranks(importance.to(batch.maskable.device), batch.maskable)
    size = batch.maskable.sum(dim=1)
    counts = range(1, int(size.amax()) + 1)
    most = [batch.masked | (batch.maskable & (rank < k)) for k in counts]
    least = [batch.masked | (batch.maskable & (rank >= (size - k)[:, None])) for k in counts]
    probability, _ = probabilities(classifier, batch, torch.stack((batch.masked, *most, *least)))
    drops = (probability[0] - probability[1:]).double()
    within = torch.tensor(list(counts))[:, None] <= size.cpu()  # a shorter row is masked whole before
    divisor = torch.where(size > 0, size, torch.nan).double().cpu()
    found = [(half * within).sum(dim=0) / divisor for half in drops.split(len(counts))]
    return found[0].numpy(), found[1].numpy()


def limits_of(n: int) -> Search:
    """Find the smallest and the largest AOPC of any order of n tokens.

    It yields the sets that it wants to know and is sent the drop m(x) − m(set masked) of each. A set is a whole number:
    bit t says whether token t is masked.
    """
    drops: dict[int, float] = {}
    found = []
    for sign in (-1.0, 1.0):
        search = _all_orders(n) if n <= EXACT else guided_order(n)
        asked = next(search, [])
        while asked:
            new = [one for one in asked if one not in drops]
            if new:
                drops.update(zip(new, (yield new).tolist(), strict=True))
            try:
                asked = search.send(np.array([sign * drops[one] for one in asked]))
            except StopIteration as end:
                order, asked = end.value, []
        found.append(sum(drops[one] for one in accumulate(1 << t for t in order)) / n)
    return found[0], found[1]


def _all_orders(n: int) -> Asking:
    """Return the best of all orders of n tokens, by the drops of all their sets."""
    known = Known(n)
    yield from known.ask(range(1, 2**n))
    return known.best_way()[1]


def limits(classifier: Classifier, batch: Batch, predicted: Tensor) -> tuple[Array, Array]:
    """Return the smallest and the largest AOPC of every row; nan for a row without maskable tokens.

    What the searches of all rows ask for shares packed passes. None sees another's answers.
    """
    tokens = [torch.nonzero(row)[:, 0].cpu() for row in batch.maskable]
    searches = {row: limits_of(len(places)) for row, places in enumerate(tokens) if len(places)}
    whole = answers(classifier, batch, torch.arange(len(batch)), batch.masked, None)[0].softmax(dim=-1)
    found = np.full((2, len(batch)), np.nan)
    asked = {row: next(search) for row, search in searches.items()}
    while asked:
        which = torch.tensor([row for row, sets in asked.items() for _ in sets])
        masked = batch.masked[which].clone()
        for line, (row, one) in enumerate((row, one) for row, sets in asked.items() for one in sets):
            masked[line, tokens[row][[t for t in range(len(tokens[row])) if one >> t & 1]]] = True
        told = answers(classifier, batch, which, masked, None)[0].softmax(dim=-1)
        of_class = predicted[which, None]
        drops = (whole[which].gather(1, of_class) - told.gather(1, of_class))[:, 0].double().numpy()
        next_asked = {}
        for row, part in zip(
            asked, np.split(drops, np.cumsum([len(sets) for sets in asked.values()])[:-1]), strict=True
        ):
            try:
                next_asked[row] = searches[row].send(part)
            except StopIteration as end:
                found[:, row] = end.value
        asked = next_asked
    return found[0], found[1]


def _judge(bench: Bench, batch: Batch, measure: ImportanceMeasure) -> Columns:
    """Return AOPC and normalised AOPC of every row: (AOPC − smallest) / (largest − smallest).

    Not clipped: where the limits are searched, an order that the search missed may lie beyond them.
    """
    low, high = bench.once("naopc", batch, lambda: limits(bench.classifier, batch, bench.predicted(batch)))
    most, least = areas(bench.classifier, batch, bench.explained(batch, measure))
    scale = np.where(high - low < NO_SCALE, np.nan, high - low)
    size = batch.maskable.sum(dim=1).cpu().numpy()
    return {
        "norm_comprehensiveness": (most - low) / scale,
        "norm_sufficiency": (least - low) / scale,
        "comprehensiveness": most,
        "sufficiency": least,
        "exact_limits": np.where(size > 0, (size <= EXACT).astype(np.float64), np.nan),
    }


def _passes(bench: Bench, explaining: float) -> float:
    """Two curves of n passes; the limits are searched once for all measures, and count as much again."""
    return explaining + 4 * float(bench.test.maskable_counts.mean())


NAOPC = Judge(
    "naopc",
    50,
    _judge,
    {"norm_comprehensiveness": True, "norm_sufficiency": False},
    SectionData(
        "Normalised AOPC",
        By.MASKED_TEXTS,
        (
            "Tokens are masked one by one, the most important first (comprehensiveness) or the least important first "
            "(sufficiency; lower is better), and the decrease of the predicted class's probability is averaged over "
            "the whole curve. 0 is the worst and 1 the best order of each text's own tokens, found among all orders "
            f"of texts of up to {EXACT} tokens and by search for longer ones.",
            "It shows how close a measure comes to the best order there is for this model. It cannot show that "
            "masked texts are in-distribution, and limits that were searched may be narrower than the true ones.",
        ),
        (
            ShownColumn("norm_comprehensiveness", "normalised comprehensiveness"),
            ShownColumn("norm_sufficiency", "normalised sufficiency (lower is better)", more_is_better=False),
            ShownColumn("comprehensiveness", "AOPC, most important first"),
            ShownColumn("sufficiency", "AOPC, least important first", more_is_better=False),
            ShownColumn("exact_limits", "texts with exact limits"),
        ),
        table="Area over the perturbation curve, between the worst and the best order of each text",
        caption="Normalised AOPC, the most and the least important tokens masked first; dashed: random.",
    ),
    passes=_passes,
    needs_classes=True,
    on_request=True,  # the search for the limits
    shares_explanations=True,
)
