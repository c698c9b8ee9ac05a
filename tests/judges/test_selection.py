"""Rationales: which tokens are chosen, and texts of which nothing else is left."""

import numpy as np
import pytest
import torch
from conftest import random_classifier, sentiment_rows
from hypothesis import given
from hypothesis import strategies as st

from faithmeter import InputError
from faithmeter.data.batch import CONTEXT, SPECIAL, TEXT, Encoded
from faithmeter.judges.selection import RATIONALES, contiguous, only, rationale, top

importances = st.lists(st.integers(-3, 3), min_size=1, max_size=12)


def split(*rows: str, pairs: bool = False) -> Encoded:
    """Rows of letters: s special, t text, c context. Token ids count from 100 on."""
    flat = "".join(rows)
    kinds = {"s": SPECIAL, "t": TEXT, "c": CONTEXT}
    sequence = np.array([kinds[letter] for letter in flat], dtype=np.int8)
    return Encoded(
        ids=100 + np.arange(len(flat)),
        type_ids=(sequence == CONTEXT).astype(np.int64) if pairs else None,
        sequence=sequence,
        masked=np.zeros(len(flat), dtype=np.bool_),
        offsets=np.cumsum([0, *map(len, rows)]),
        labels=np.arange(len(rows)),
        pad_token_id=0,
        truncated=1,
    )


def array(*values: float):
    return np.array(values, dtype=np.float32)


def test_the_top_tokens_are_the_most_important_in_text_order():
    assert top(array(0.1, 0.5, -0.9, 0.4), 2).tolist() == [1, 3]
    assert top(array(0.1, 0.1, 0.1), 2).tolist() == [0, 1]  # ties to the lowest place
    assert top(array(-3, -1, -2), 1).tolist() == [1]  # a sign is a sign: against the class is not important


def test_contiguous_tokens_have_the_largest_sum_together():
    # windows of two: 0.6, −0.1, 0.3, 1.0
    assert contiguous(array(0.1, 0.5, -0.6, 0.9, 0.1), 2).tolist() == [3, 4]
    # of three: 1, 1, 1
    assert contiguous(array(1, 0, 0, 1, 0), 3).tolist() == [0, 1, 2]
    assert contiguous(array(2, 1), 2).tolist() == [0, 1]


@given(importances, st.data())
def test_rationales_are_as_the_formula_says(values, data):
    count = data.draw(st.integers(1, len(values)))
    importance = array(*values)
    best = sorted(range(len(values)), key=lambda place: (-values[place], place))[:count]
    assert top(importance, count).tolist() == sorted(best)
    sums = [sum(values[start : start + count]) for start in range(len(values) - count + 1)]
    start = sums.index(max(sums))
    assert contiguous(importance, count).tolist() == list(range(start, start + count))


def test_a_share_of_the_maskable_tokens_is_kept_rounded_up():
    encoded = split("sttttts", "sts", "ss")  # 5, 1 and 0 maskable tokens
    importance = array(9, 0, 1, 0, 3, 2, 9, 9, -1, 9, 9, 9)  # what is said of special tokens counts for nothing
    chosen = rationale(encoded, importance, "top", 0.21)  # ⌈1.05⌉ = 2
    assert np.flatnonzero(chosen).tolist() == [4, 5, 8]
    assert np.flatnonzero(rationale(encoded, importance, "top", 0.2)).tolist() == [4, 8]
    assert rationale(encoded, importance, "contiguous", 1).tolist() == encoded.maskable.tolist()


def test_a_special_token_in_a_text_does_not_part_neighbours():
    chosen = rationale(split("sttsts"), array(0, 0, 2, 0, 2, 0), "contiguous", 0.5)
    assert np.flatnonzero(chosen).tolist() == [2, 4]


def test_what_is_not_chosen_is_taken_out_and_the_context_stays():
    encoded = split("sttsccs", "sttscs", pairs=True)
    chosen = np.zeros(13, dtype=np.bool_)
    chosen[[2, 8, 9]] = True
    cut = only(encoded, chosen)
    assert cut.ids.tolist() == [100, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111, 112]
    assert cut.offsets.tolist() == [0, 6, 12]
    assert cut.type_ids.tolist() == [0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 1, 0]
    assert cut.sequence.tolist() == [-1, 0, -1, 1, 1, -1, -1, 0, 0, -1, 1, -1]
    assert cut.labels.tolist() == [0, 1]
    assert (cut.pad_token_id, cut.truncated) == (0, 1)
    assert not cut.masked.any()
    assert len(encoded.ids) == 13  # the split itself is as it was


@given(st.lists(st.text("stc", max_size=8), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_every_row_keeps_its_own_tokens_in_order(rows, random):
    encoded = split(*rows)
    chosen = encoded.maskable & np.array([random.random() < 0.5 for _ in encoded.ids], dtype=np.bool_)
    cut = only(encoded, chosen)
    for row in range(len(rows)):
        before = range(encoded.offsets[row], encoded.offsets[row + 1])
        kept = [encoded.ids[place] for place in before if chosen[place] or not encoded.maskable[place]]
        assert cut.ids[cut.offsets[row] : cut.offsets[row + 1]].tolist() == kept


@pytest.mark.parametrize("kind", RATIONALES)
def test_a_model_reads_a_rationale_as_if_it_were_the_whole_text(kind):
    classifier = random_classifier("bert")
    classifier.model.eval()
    texts = [row["text"] for row in sentiment_rows(6)]
    encoded = classifier.encode(texts, ["it was a film"] * 6)
    importance = np.random.default_rng(0).normal(size=len(encoded.ids)).astype(np.float32)
    cut = only(encoded, rationale(encoded, importance, kind, 0.5))
    logits = classifier.predict(cut)
    for row in range(6):  # alone, without padding, from ids that are put together by hand
        span = slice(encoded.offsets[row], encoded.offsets[row + 1])
        chosen = rationale(encoded, importance, kind, 0.5)[span]
        ids = encoded.ids[span][chosen | (encoded.sequence[span] != TEXT)]
        types = encoded.type_ids[span][chosen | (encoded.sequence[span] != TEXT)]
        alone = classifier.model(torch.from_numpy(ids)[None], token_type_ids=torch.from_numpy(types)[None])
        torch.testing.assert_close(alone.logits[0], logits[row], atol=1e-5, rtol=0)


def test_bad_lengths_and_kinds_are_refused():
    encoded = split("sts")
    for length in (0, -0.1, 1.1):
        with pytest.raises(InputError, match="above 0 and at most 1"):
            rationale(encoded, array(0, 0, 0), "top", length)
    with pytest.raises(InputError, match=r"'best'.*top, contiguous"):
        rationale(encoded, array(0, 0, 0), "best", 0.5)


def test_an_empty_split_stays_empty():
    nothing = split()
    assert len(only(nothing, rationale(nothing, array(), "top", 0.2))) == 0
