"""Token change: is the explanation of the other tokens the same when random words are put in or taken out?

After Li et al. (2023), who insert and remove random tokens; the shares and the draws are ours.
"""

import numpy as np

from faithmeter.data.batch import Batch, Encoded, Ints
from faithmeter.importance.measure import ImportanceMeasure
from faithmeter.judges.changed_texts import (
    ChangedBatch,
    ChangedText,
    changed_batch,
    ids_of,
    inserted,
    text_places,
)
from faithmeter.judges.judge import Bench, By, Judge, SectionData, ShownColumn, answers_of
from faithmeter.judges.maskings import tokens_of
from faithmeter.judges.ranking import Array, Columns, rank_correlation
from faithmeter.masking import Purpose, random_stream

SHARE = 0.1  # of the text's tokens, one at least
INSERTED, REMOVED = "inserted", "removed"


def with_tokens(encoded: Encoded, row: int, seed: int, longest: int) -> ChangedText:
    """Return a row with random tokens of the split's texts before random tokens of its own; none where it is full."""
    places, random = text_places(encoded, row), random_stream(seed, Purpose.CHANGED_TOKENS, 0, row)
    words = np.flatnonzero(encoded.maskable)
    count = max(0, min(tokens_of(SHARE, len(places)), longest - len(ids_of(encoded, row)))) if len(places) else 0
    new = encoded.ids[random.choice(words, count)] if count else np.zeros(0, dtype=np.int64)
    return inserted(encoded, row, random.choice(places, count) if count else [], new)


def without_tokens(encoded: Encoded, row: int, seed: int) -> ChangedText:
    """Return a row without random tokens of its text; a text of one token keeps it."""
    ids, places = ids_of(encoded, row), text_places(encoded, row)
    gone: Ints = np.zeros(0, dtype=np.int64)
    if len(places) > 1:
        random = random_stream(seed, Purpose.CHANGED_TOKENS, 1, row)
        gone = random.choice(places, tokens_of(SHARE, len(places)), replace=False)
    kept = np.setdiff1d(np.arange(len(ids)), gone)
    return ChangedText(ids[kept], kept)


def _changed(bench: Bench, batch: Batch) -> dict[str, tuple[ChangedBatch, Array]]:
    """Return the changed texts of a batch, and which were changed and are answered as before."""
    test, seed, longest = bench.test, bench.seed, bench.classifier.limit
    rows = batch.rows.tolist()
    found = {}
    for name, texts in {
        INSERTED: [with_tokens(test, row, seed, longest) for row in rows],
        REMOVED: [without_tokens(test, row, seed) for row in rows],
    }.items():
        changed = changed_batch(test, batch, texts)
        moved = np.array([len(text.ids) != test.lengths[row] for row, text in zip(rows, texts, strict=True)])
        same = (answers_of(bench.classifier, changed.batch) == bench.predicted(batch)).double().numpy()
        found[name] = changed, np.where(moved, same, np.nan)
    return found


def _judge(bench: Bench, batch: Batch, measure: ImportanceMeasure) -> Columns:
    """Return the rank correlation of the shared tokens' importance, on texts that are answered as before.

    Explained is the class of the unchanged text. What a measure draws at random is drawn anew for the changed text, as
    it is when somebody explains another text.
    """
    columns: Columns = {}
    before, targets = bench.explained(batch, measure), bench.predicted(batch)
    for name, (changed, same) in bench.once("token-change", batch, lambda: _changed(bench, batch)).items():
        after = measure.explain(bench.classifier, changed.batch, targets, bench.seed + 1)
        correlation = rank_correlation(*changed.of_shared(before, after))
        columns[name] = np.where(same == 1, correlation, np.nan)
        columns[f"same_answer@{name}"] = same
    return columns


TOKEN_CHANGE = Judge(
    "token-change",
    50,
    _judge,
    {INSERTED: True, REMOVED: True},
    SectionData(
        "A few tokens changed",
        By.CHANGES,
        (
            "A tenth of the tokens (at least one) is inserted at random places, or removed, and the text is explained "
            "again. The rank correlation is that of the tokens that both texts have, on texts whose prediction stays.",
            "It shows whether a measure depends on chance details of a text. It cannot show that a measure that "
            "changes is wrong, because the model may weigh the other tokens differently, and one that depends only on "
            "a token or its position hardly changes.",
        ),
        (
            ShownColumn(INSERTED, "rank correlation, tokens inserted"),
            ShownColumn(REMOVED, "rank correlation, tokens removed"),
            ShownColumn("same_answer", "same prediction, inserted", INSERTED),
            ShownColumn("same_answer", "same prediction, removed", REMOVED),
        ),
        table="Rank correlation with the explanation of a text with a few tokens changed",
        caption="Rank correlation with the explanation of a text with tokens inserted or removed; dashed: random.",
    ),
    passes=lambda _, explaining: 3 * explaining + 2,
    on_request=True,  # everything is explained twice more
)
