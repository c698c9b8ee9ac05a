"""The pieces of ROAR: the graph of trainings, what is masked, sparsity, rising curves, the synthetic problem."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from faithmeter.data.batch import Encoded
from faithmeter.importance.table import IMPORTANCE_MEASURES
from faithmeter.measuring.curves import mask_most_important
from faithmeter.measuring.retraining import (
    Node,
    explain_split,
    graph,
    held_by_top_tokens,
    last_step,
    mask_everything,
    mask_split,
    masked_count,
    rises,
    sparsity,
)
from faithmeter.measuring.synthetic import synthetic_curves


def split_of(*sequences):
    """A split with these rows; 0 is a token of the text, 1 of the context, -1 a special one."""
    flat = np.concatenate([np.array(row, dtype=np.int8) for row in sequences])
    return Encoded(
        ids=np.arange(len(flat)),
        type_ids=None,
        sequence=flat,
        masked=np.zeros(len(flat), dtype=bool),
        offsets=np.cumsum([0, *map(len, sequences)]),
        labels=np.zeros(len(sequences), dtype=np.int64),
        pad_token_id=0,
    )


def test_the_graph_has_every_training_once_after_what_it_needs():
    nodes = graph((0, 1), ("attention", "grad-l2"), ("recursive", "roar"), "relative")
    assert len(nodes) == len(set(nodes)) == len({node.folder for node in nodes})
    for number, node in enumerate(nodes):
        assert node.needs is None or node.needs in nodes[:number]
    # a seed: unmasked, all masked, 9 random; a measure: its importance, 9 recursive, 8 more of plain ROAR
    assert len(nodes) == 2 * (2 + 9 + 2 * (1 + 9 + 8))


def test_only_recursive_roar_needs_the_step_before():
    assert Node(0, "recursive", "attention", 3).needs == Node(0, "recursive", "attention", 2)
    assert Node(0, "recursive", "attention", 1).needs == Node(0, "importance", "attention")
    assert Node(0, "roar", "attention", 3).needs == Node(0, "importance", "attention")
    assert Node(0, "importance", "attention").needs == Node(0, "unmasked")
    assert Node(0, "random", None, 3).needs is None


def test_steps_are_tenths_of_the_tokens_or_single_tokens():
    assert [masked_count(90, step, "relative") for step in (0, 7, 10)] == [0, 63, 90]
    assert [masked_count(3, step, "absolute") for step in (0, 1, 3, 7)] == [0, 1, 3, 3]
    assert (last_step("relative"), last_step("absolute")) == (9, 10)


def test_the_most_important_tokens_of_the_text_are_masked_and_masked_ones_stay():
    encoded = split_of([-1, 0, 0, 0, 0, -1, 1, 1, -1], [-1, 0, 0, -1])
    importance = np.array([9, 1, 3, 3, 2, 9, 9, 9, 9, 9, 1, 2, 9], dtype=np.float32)
    first = mask_split(encoded, importance, 1, "absolute")
    assert np.flatnonzero(first.masked).tolist() == [2, 11]  # of two alike the first; specials and context never
    # the next importance calls others important: what is masked stays and counts
    second = mask_split(first, -importance, 2, "absolute")
    assert np.flatnonzero(second.masked).tolist() == [1, 2, 10, 11]
    assert mask_everything(encoded).masked.tolist() == (encoded.sequence == 0).tolist()


@given(st.lists(st.integers(0, 30), min_size=1, max_size=5), st.integers(1, 9), st.integers(0, 10**6))
@settings(max_examples=50, deadline=None)
def test_a_split_is_masked_as_the_masking_walk_masks_a_batch(lengths, step, seed):
    encoded = split_of(*[[-1, *[0] * length, -1] for length in lengths])
    random = np.random.default_rng(seed)
    importance = random.integers(0, 4, len(encoded.ids)).astype(np.float32)  # many ties
    before = mask_split(encoded, importance, step - 1, "relative")
    after = mask_split(before, importance[::-1].copy(), step, "relative")
    batch = before.batch(range(len(before)))
    padded = torch.zeros(batch.maskable.shape)
    for row in range(len(before)):
        start, end = before.offsets[row], before.offsets[row + 1]
        padded[row, : end - start] = torch.from_numpy(importance[::-1][start:end].copy())
    expected = mask_most_important(batch, padded, step)
    assert torch.equal(after.batch(range(len(after))).masked, expected)


def test_the_importance_of_a_split_is_that_of_its_texts(toy_classifier):
    encoded = toy_classifier.encode(["good film", "a very bad story was it", "plot"], labels=[1, 0, 1])
    measure = IMPORTANCE_MEASURES["loo-signed"]
    flat = explain_split(toy_classifier, encoded, measure, target="gold", seed=0)
    for row in range(3):
        batch = encoded.batch([row])
        alone = measure.explain(toy_classifier, batch, batch.labels, 0)[0]
        np.testing.assert_allclose(flat[encoded.offsets[row] : encoded.offsets[row + 1]], alone, atol=1e-5)
    predicted = explain_split(toy_classifier, encoded, measure, target="predicted", seed=0)
    answers = toy_classifier.predict(encoded).argmax(dim=-1).numpy()
    relabelled = dataclasses.replace(encoded, labels=answers)
    assert np.array_equal(predicted, explain_split(toy_classifier, relabelled, measure, target="gold", seed=0))


def test_sparsity_is_the_share_of_importance_in_the_top_tokens():
    importance = np.array([[3.0, -1.0, 0.0, 9.0]], dtype=np.float32)
    maskable = np.array([[True, True, True, False]])
    assert held_by_top_tokens(importance, maskable, 4).tolist() == [[0, 0.75, 1, 1, 1]]
    assert np.isnan(held_by_top_tokens(np.zeros((1, 2), dtype=np.float32), np.ones((1, 2), dtype=bool))).all()
    encoded = split_of([-1, *[0] * 10, -1], [-1, *[0] * 20, -1])
    by_ratio, by_count = sparsity(encoded, np.ones(len(encoded.ids), dtype=np.float32))
    np.testing.assert_allclose(by_ratio, np.arange(11) / 10)
    np.testing.assert_allclose(by_count, [(k / 10 + k / 20) / 2 for k in range(11)])


def test_a_curve_that_rises_by_more_than_chance_in_every_seed_and_than_the_random_one_is_flagged():
    # three standard errors of a difference between two performances of 1,000 texts: 3 * sqrt(0.5 / 1000) = 0.067
    falling = np.array([[0.9, 0.6, 0.4, 0.2, 0.1]])
    assert rises(np.array([[0.9, 0.5, 0.56, 0.2, 0.1]]), falling, 1000) is None
    assert rises(np.array([[0.9, 0.5, 0.57, 0.2, 0.25]]), falling, 1000) == pytest.approx(0.07)
    rising = np.array([[0.9, 0.3, 0.4, 0.5, 0.1]])
    assert rises(rising, falling, 1000) == pytest.approx(0.2)
    assert rises(rising, falling, 50) is None
    assert rises(rising, np.array([[0.9, 0.3, 0.6, 0.2, 0.1]]), 1000) is None  # random masking rises as much
    assert rises(np.concatenate((rising, [[0.9, 0.6, 0.6, 0.55, 0.1]])), falling, 1000) is None  # only one seed does


# ------------------------------------------------------------------------- the synthetic problem


def assert_recursive_roar_finds_the_truth(seed, within, **rows):
    curves = synthetic_curves(seed, **rows)
    np.testing.assert_allclose(curves.recursive, curves.truth, atol=within)
    assert min(curves.truth[:4]) > 0.98
    assert max(abs(value - 0.5) for value in curves.truth[4:]) < 0.02 + within
    assert sum(curves.roar) > sum(curves.recursive) + 0.4  # plain ROAR stays high for at least one feature more


@pytest.mark.parametrize("seed", range(5))
def test_recursive_roar_finds_the_true_curve_and_plain_roar_does_not(seed):
    assert_recursive_roar_finds_the_truth(seed, 0.02, train_rows=10_000, test_rows=5_000)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_recursive_roar_finds_the_true_curve_within_a_hundredth_on_the_papers_size(seed):
    assert_recursive_roar_finds_the_truth(seed, 0.01)
