"""Soft erasure: parts of each token's embedding are removed at random, in proportion to its importance.

Zhao and Aletras (2023), soft normalised sufficiency and comprehensiveness. Where every token is either kept or removed,
all of the top tokens count the same; here the amounts count.
"""

import torch
from torch import Tensor

from faithmeter.data.batch import Batch
from faithmeter.importance.measure import ImportanceMeasure
from faithmeter.judges.judge import Bench, By, Judge, SectionData, ShownColumn
from faithmeter.judges.maskings import NO_SCALE
from faithmeter.judges.ranking import Columns
from faithmeter.masking import Purpose, random_stream
from faithmeter.models.classifier import Classifier
from faithmeter.models.temporary import evaluating

DRAWS = 10  # the paper's single draw is noisy


def scaled(importance: Tensor, maskable: Tensor) -> Tensor:
    """Return importance from 0, a text's least important token, to 1, its most important; nan where all are equal.

    The paper needs probabilities. That they are made by the smallest and the largest is ours; by size, a signed measure
    would lose its sign.
    """
    low = importance.masked_fill(~maskable, torch.inf).amin(dim=1, keepdim=True)
    high = importance.masked_fill(~maskable, -torch.inf).amax(dim=1, keepdim=True)
    return (importance - low) / torch.where(high > low, high - low, torch.nan)


def soft_erasure(classifier: Classifier, batch: Batch, importance: Tensor, seed: int, *, draws: int = DRAWS) -> Columns:
    """Return soft normalised sufficiency and comprehensiveness of every row, means over random draws.

    With a the scaled importance of a token, e an independent draw of 0 or 1 for each number x of its embedding, and m
    the probability of the class that is predicted for the whole text:

    - suff = 1 − max(0, m(x) − m(x·e)), P(e = 1) = a; comp = max(0, m(x) − m(x·e)), P(e = 1) = 1 − a
    - `soft_norm_sufficiency` = (suff − suff0) / (1 − suff0), `soft_norm_comprehensiveness` = comp / (1 − suff0), with
      suff0 that of all embeddings of the text 0. Both are clipped to [0, 1]; high is good.

    nan where the zero text costs no probability, or all importances are equal. The draws are the same for all measures.
    """
    here = batch.to(classifier.device)
    share = scaled(importance.cpu().double(), batch.maskable.cpu())
    embeddings = classifier.embed(here)
    nothing = _asked(classifier, here, embeddings * ~here.maskable[..., None])
    whole = _asked(classifier, here, embeddings)
    predicted = whole.argmax(dim=-1, keepdim=True)
    none = (whole - nothing).gather(1, predicted)[:, 0].clamp_min(0)
    scale = none.masked_fill(none < NO_SCALE, torch.nan)
    sums = {"soft_norm_sufficiency": torch.zeros(len(batch)), "soft_norm_comprehensiveness": torch.zeros(len(batch))}
    streams = [random_stream(seed, Purpose.SOFT_ERASURE, row) for row in batch.rows.tolist()]
    for _ in range(draws):
        uniform = torch.zeros(embeddings.shape, dtype=torch.float64)
        for row, (stream, maskable) in enumerate(zip(streams, batch.maskable.cpu(), strict=True)):
            uniform[row, maskable] = torch.from_numpy(stream.random((int(maskable.sum()), embeddings.shape[2])))
        for name, kept in zip(sums, (share, 1 - share), strict=True):
            stays = (uniform < kept.nan_to_num()[..., None]) | ~batch.maskable.cpu()[..., None]
            erased = _asked(classifier, here, embeddings * stays.to(embeddings.device))
            drop = (whole - erased).gather(1, predicted)[:, 0].clamp_min(0) / scale
            sums[name] += (drop if name.endswith("comprehensiveness") else 1 - drop).clamp(0, 1)
    flat = share.masked_fill(~batch.maskable.cpu(), 0.0).isnan().any(dim=1) | ~batch.maskable.any(dim=1).cpu()
    return {name: (total / draws).masked_fill(flat, torch.nan).double().numpy() for name, total in sums.items()}


def _asked(classifier: Classifier, batch: Batch, embeddings: Tensor) -> Tensor:
    """Return the (rows, classes) probabilities at these embeddings, on the CPU."""
    with evaluating(classifier.model), torch.no_grad():
        (logits,) = classifier.memory.through(
            batch, lambda few, points: (classifier.logits_from(few, points),), embeddings
        )
    return logits.softmax(dim=-1).cpu()


def _judge(bench: Bench, batch: Batch, measure: ImportanceMeasure) -> Columns:
    return soft_erasure(bench.classifier, batch, bench.explained(batch, measure), bench.seed)


SOFT = Judge(
    "soft",
    200,
    _judge,
    {"soft_norm_comprehensiveness": True, "soft_norm_sufficiency": True},
    SectionData(
        "Soft erasure",
        By.MASKED_TEXTS,
        (
            "Random parts of each token's embedding are set to 0, of unimportant tokens the most (sufficiency), or of "
            "important tokens the most (comprehensiveness). Both are relative to the text with all embeddings 0, from "
            "0 to 1; higher is better.",
            "It shows whether the amounts of an explanation, not only its order, fit the model. It cannot show "
            "whether the probability falls because half-erased embeddings are like nothing the model was trained on, "
            "which the in-distribution test does not cover, and it depends on how importance is scaled.",
        ),
        (
            ShownColumn("soft_norm_comprehensiveness", "soft normalised comprehensiveness"),
            ShownColumn("soft_norm_sufficiency", "soft normalised sufficiency"),
        ),
        table="Sufficiency and comprehensiveness with embeddings erased in proportion to importance",
        caption="Soft normalised comprehensiveness and sufficiency; dashed: random.",
    ),
    # ranks have no amounts
    fits=lambda measure: not measure.order_only,
    passes=lambda _, explaining: explaining + 2 * DRAWS + 2,
    needs_classes=True,
    on_request=True,  # on texts that no training has shown
    shares_explanations=True,
)
