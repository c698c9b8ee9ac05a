"""Mosaic: two texts of different classes are joined; does the explanation of one class lie on its half?

The Focus of Arias-Duart et al. (2022), with two texts in place of four images.
"""

import numpy as np
import torch
from torch import Tensor

from faithmeter.data.batch import CONTEXT, Batch, Encoded, Ints
from faithmeter.errors import InputError
from faithmeter.importance.measure import ImportanceMeasure
from faithmeter.judges.changed_texts import ChangedBatch, ChangedText, changed_batch, ids_of, inserted, text_places
from faithmeter.judges.judge import Bench, By, Judge, SectionData, ShownColumn, answers_of
from faithmeter.judges.ranking import Array, Columns
from faithmeter.masking import Mask, Purpose, random_stream

POOL = 200  # texts that partners are drawn from


def focus(importance: Tensor, maskable: Tensor, own: Tensor) -> Array:
    """Return the share of each row's positive importance that lies on its `own` tokens; nan where none is positive.

    Arias-Duart et al. (2022), the Focus. A measure without a sign is positive everywhere.
    """
    positive = importance.double().clamp_min(0) * maskable
    total = positive.sum(dim=1)
    return torch.where(total > 0, (positive * own).sum(dim=1) / total, torch.nan).numpy()


def _pool(bench: Bench) -> tuple[Ints, Ints]:
    """Return the rows that partners are drawn from, and the class predicted for each."""

    def predicted() -> tuple[Ints, Ints]:
        rows = random_stream(bench.seed, Purpose.MOSAIC, 0).permutation(len(bench.test))[:POOL]
        rows = np.sort(rows[bench.test.maskable_counts[rows] > 0])
        classes = np.zeros(len(rows), dtype=np.int64)
        for batch in bench.test.batches(bench.classifier.tokens_per_pass, rows):
            classes[np.searchsorted(rows, batch.rows.numpy())] = answers_of(bench.classifier, batch).numpy()
        return rows, classes

    return bench.once("mosaic pool", bench.test.batch([0]), predicted)


def joined(encoded: Encoded, row: int, partner: int, *, before: bool, longest: int) -> ChangedText:
    """Return a row with the partner's text before or after its own; texts too long for the model are cut at their end.

    Each keeps what it has up to half of the room, and what the other leaves of it.
    """
    ids, places = ids_of(encoded, row), text_places(encoded, row)
    other = ids_of(encoded, partner)[text_places(encoded, partner)]
    room = longest - (len(ids) - len(places))
    mine = min(len(places), max(room // 2, room - len(other)))
    other = other[: room - mine]
    at = places[0] if before else places[mine - 1] + 1
    made = inserted(encoded, row, np.full(len(other), at), other)
    kept = ~np.isin(made.origin, places[mine:])
    return ChangedText(made.ids[kept], made.origin[kept])


def _mosaics(bench: Bench, batch: Batch) -> tuple[ChangedBatch, Mask]:
    """Return each row joined with a text of another predicted class, and which rows have such a partner."""
    rows, classes = _pool(bench)
    texts, found = [], []
    for row, own in zip(batch.rows.tolist(), bench.predicted(batch).tolist(), strict=True):
        partners = rows[classes != own]
        random = random_stream(bench.seed, Purpose.MOSAIC, 1, row)
        found.append(len(partners) > 0 and len(text_places(bench.test, row)) > 0)
        if found[-1]:
            partner, before = int(random.choice(partners)), bool(random.integers(2))
            texts.append(joined(bench.test, row, partner, before=before, longest=bench.classifier.limit))
        else:
            texts.append(inserted(bench.test, row, [], np.zeros(0, dtype=np.int64)))
    return changed_batch(bench.test, batch, texts), np.array(found)


def _judge(bench: Bench, batch: Batch, measure: ImportanceMeasure) -> Columns:
    """Return the `focus` of the class that is predicted for the row, and the share of the tokens that are its own."""
    if (bench.test.sequence == CONTEXT).any():
        raise InputError("The judge mosaic joins two texts, which cannot be done with pairs of texts: ask others.")
    changed, found = bench.once("mosaic", batch, lambda: _mosaics(bench, batch))
    importance = measure.explain(bench.classifier, changed.batch, bench.predicted(batch), bench.seed)
    maskable, own = changed.batch.maskable, changed.origin >= 0
    columns = {
        "focus": focus(importance, maskable, own),
        "chance_focus": focus(torch.ones(maskable.shape), maskable, own),
    }
    return {name: np.where(found, column, np.nan) for name, column in columns.items()}


MOSAIC = Judge(
    "mosaic",
    50,
    _judge,
    {"focus": True},
    SectionData(
        "Two texts joined",
        By.KNOWN_TRUTH,
        (
            "Each text is joined, before or after, with one for which another class is predicted, and its own class is "
            "explained. Focus is the share of the positive importance that lies on the text's own tokens.",
            "It shows whether an explanation depends on the class that is explained. It cannot show which tokens of a "
            "text decide, and tokens of the other text may support the class, too. A measure that gives every token "
            "the same has the share of the text's own tokens, which is the last column.",
        ),
        (
            ShownColumn("focus", "focus on the text of the class"),
            ShownColumn("chance_focus", "its share of the tokens"),
        ),
        table="Share of the positive importance on the text whose class is explained",
        caption="Share of the positive importance on the text whose class is explained; dashed: random.",
    ),
    passes=lambda _, explaining: 2 * explaining + 4,  # a joined text is twice as long
    needs_classes=True,
    on_request=True,  # everything is explained once more
)
