from dataclasses import replace

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from faithmeter.data.batch import Encoded


def encoded(lengths: list[int]) -> Encoded:
    """Rows of the given lengths whose ids count up from 10, first and last token special."""
    total = sum(lengths)
    sequence = np.zeros(total, dtype=np.int8)
    offsets = np.cumsum([0, *lengths])
    sequence[offsets[:-1]] = sequence[offsets[1:] - 1] = -1
    return Encoded(
        ids=np.arange(10, 10 + total),
        type_ids=None,
        sequence=sequence,
        masked=np.zeros(total, dtype=np.bool_),
        offsets=offsets,
        labels=np.arange(len(lengths)),
        pad_token_id=0,
    )


def test_maskable_tokens_are_counted_row_by_row_where_a_row_has_none_at_all():
    assert encoded([4, 2, 3]).maskable_counts.tolist() == [2, 0, 1]
    rows = replace(encoded([4, 3]), offsets=np.array([0, 0, 4, 4, 7, 7]), labels=np.zeros(5, dtype=np.int64))
    assert rows.maskable_counts.tolist() == [0, 2, 0, 1, 0]
    assert rows.lengths.tolist() == [0, 4, 0, 3, 0]


def test_a_batch_does_not_look_at_rows_that_are_not_in_it():
    class Watched(np.ndarray):
        def __eq__(self, other):
            looked.append(self.size)
            return super().__eq__(other)

        def __getitem__(self, index):
            return np.asarray(self)[index]

    looked = []
    rows = encoded([6] * 50)
    rows = replace(rows, sequence=rows.sequence.view(Watched))
    assert sum(len(batch) for batch in rows.batches(12)) == 50
    assert rows.lengths is rows.lengths  # nor are all the lengths found anew
    assert not looked
    assert int(rows.maskable.sum()) == 200
    assert looked == [300]


def test_a_batch_is_padded_to_its_longest_row_and_keeps_the_order_given():
    batch = encoded([4, 2, 3]).batch([2, 1])
    assert batch.input_ids.tolist() == [[16, 17, 18], [14, 15, 0]]
    assert batch.attention_mask.tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch.maskable.tolist() == [[False, True, False], [False, False, False]]
    assert batch.labels.tolist() == batch.rows.tolist() == [2, 1]


def test_masking_replaces_ids_on_the_way_out_and_never_in_the_batch():
    batch = encoded([4]).batch([0])
    masked = batch.with_masked(batch.maskable)
    assert masked.masked_ids(99).tolist() == [[10, 99, 99, 13]]
    assert masked.input_ids.tolist() == batch.input_ids.tolist() == [[10, 11, 12, 13]]
    assert not batch.masked.any()


def test_masked_by_asks_every_row_for_its_own_mask():
    masked = encoded([4, 5]).masked_by(lambda row, maskable: maskable & (row == 1))
    assert masked.masked.tolist() == [False] * 4 + [False, True, True, True, False]


@settings(max_examples=50)
@given(st.lists(st.integers(2, 60), min_size=1, max_size=80), st.integers(1, 300))
def test_batches_hold_every_row_once_and_keep_to_the_token_budget(lengths, tokens):
    split = encoded(lengths)
    batches = list(split.batches(tokens))
    assert sorted(torch.cat([batch.rows for batch in batches]).tolist()) == list(range(len(lengths)))
    for batch in batches:
        assert batch.input_ids.numel() <= tokens or len(batch) == 1
        for index, row in enumerate(batch.rows.tolist()):
            ids = batch.input_ids[index][batch.attention_mask[index].bool()]
            assert ids.tolist() == split.ids[split.offsets[row] : split.offsets[row + 1]].tolist()


def test_a_budget_that_fits_equal_rows_wastes_no_padding():
    batches = list(encoded([5] * 7 + [3] * 4).batches(15))
    assert [tuple(batch.input_ids.shape) for batch in batches][:2] == [(3, 5), (3, 5)]
    assert batches[-1].attention_mask.all()


def test_taking_rows_repeats_them_as_asked_and_cuts_the_padding_that_none_needs(toy_classifier):
    batch = toy_classifier.encode(["good film", "the plot was very very bad", "awful"]).batch([0, 1, 2])
    taken = batch.take(torch.tensor([2, 0, 2]))
    assert taken.rows.tolist() == [2, 0, 2]
    assert taken.input_ids.shape == taken.maskable.shape == (3, 4)  # [CLS] good film [SEP]
    assert torch.equal(taken.input_ids, batch.input_ids[[2, 0, 2], :4])
    assert taken.attention_mask.sum(dim=1).tolist() == [3, 4, 3]


def test_rows_about_one_growing_story_are_of_one_source(toy_classifier):
    texts = ["a film", "a film was bad", "good", "the plot", "the plot", "the actor was it"]
    assert toy_classifier.encode(texts).sources().tolist() == [0, 0, 1, 2, 2, 3]
    assert toy_classifier.encode(["", "", "a"]).sources().tolist() == [0, 1, 2]
    assert toy_classifier.encode(["a"], ["b"]).sources().tolist() == [0]
