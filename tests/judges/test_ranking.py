import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from faithmeter.data.batch import Batch
from faithmeter.judges.ranking import chance_of, ground_truth, ranks
from faithmeter.measuring.curves import mask_most_important


def batch_of(maskable: torch.Tensor) -> Batch:
    zeros = torch.zeros(maskable.shape, dtype=torch.long)
    row = torch.arange(len(maskable))
    return Batch(zeros, zeros + 1, None, maskable, torch.zeros_like(maskable), row, row)


def judged(importance: list[float], truth: list[int], maskable: list[int] | None = None) -> dict[str, float]:
    wide = torch.tensor([maskable or [1] * len(truth)]).bool()
    columns = ground_truth(torch.tensor([importance]), wide, torch.tensor([truth]).bool())
    return {name: float(column[0]) for name, column in columns.items()}


def test_the_top_tokens_that_are_exactly_the_truth_overlap():
    found = judged([0.1, 0.9, 0.3, 0.5], [0, 1, 0, 1])
    assert found == {"overlap": 1.0, "mean_rank": 2 / 4, "precision_at_truth": 1.0, "average_precision": 1.0}


def test_a_truth_at_ranks_1_and_4_of_5():
    # top 2 hold one of two; all of L is in the top 4 of 5; precision 1/1 at rank 1 and 2/4 at rank 4
    found = judged([9.0, 1.0, 5.0, 4.0, 3.0], [1, 0, 0, 0, 1])
    assert found == {"overlap": 0.0, "mean_rank": 4 / 5, "precision_at_truth": 0.5, "average_precision": 0.75}


def test_negative_importance_ranks_below_none():
    assert judged([-5.0, 0.0, 0.1], [1, 0, 0])["mean_rank"] == 1.0


def test_ties_go_to_the_lowest_position():
    assert judged([0.0, 0.0, 0.0], [1, 0, 0])["overlap"] == 1.0
    assert judged([0.0, 0.0, 0.0], [0, 1, 0])["mean_rank"] == 2 / 3


def test_tokens_that_are_not_maskable_are_neither_ranked_nor_counted_nor_true():
    found = judged([0.0, 1.0, 2.0, 99.0], [1, 0, 1, 1], [0, 1, 1, 0])
    assert found == {"overlap": 1.0, "mean_rank": 1 / 2, "precision_at_truth": 1.0, "average_precision": 1.0}


def test_a_row_without_truth_or_without_tokens_is_not_judged():
    for maskable in ([1, 1], [0, 0]):
        assert all(np.isnan(value) for value in judged([1.0, 2.0], [0, 0], maskable).values())
        chance = chance_of(torch.tensor([maskable]).bool(), torch.zeros(1, 2, dtype=torch.bool))
        assert all(np.isnan(column[0]) for column in chance.values())


def naive(importance: list[float], truth: list[bool]) -> dict[str, float]:
    """From the formulas, one token at a time."""
    order = sorted(range(len(truth)), key=lambda i: (-importance[i], i))
    true = {i for i, t in enumerate(truth) if t}
    depth = next(r for r in range(1, len(truth) + 1) if true <= set(order[:r]))
    precisions = [len(true & set(order[:r])) / r for r in range(1, len(truth) + 1) if order[r - 1] in true]
    return {
        "overlap": float(set(order[: len(true)]) == true),
        "mean_rank": depth / len(truth),
        "precision_at_truth": len(set(order[: len(true)]) & true) / len(true),
        "average_precision": sum(precisions) / len(true),
    }


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=9))
def test_the_columns_are_those_of_the_formulas(tokens):
    importance, truth = [float(i) for i, _ in tokens], [t for _, t in tokens]
    if any(truth):
        assert judged(importance, [int(t) for t in truth]) == pytest.approx(naive(importance, truth), abs=1e-12)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (4, 1), (5, 2), (5, 4), (5, 5)])
def test_chance_is_the_mean_over_all_rankings(n, m):
    truth = [i < m for i in range(n)]
    rows = [naive(list(map(float, order)), truth) for order in itertools.permutations(range(n))]
    chance = chance_of(torch.ones(1, n, dtype=torch.bool), torch.tensor([truth]))
    for name, column in chance.items():
        assert column[0] == pytest.approx(np.mean([row[name] for row in rows]), abs=1e-12), name


def test_chance_of_a_long_text_is_a_number():
    chance = chance_of(torch.ones(1, 4000, dtype=torch.bool), torch.arange(4000)[None] % 2 == 0)
    assert chance["overlap"][0] == 0.0
    assert chance["precision_at_truth"][0] == 0.5


def test_a_row_is_judged_the_same_alone_as_padded_in_a_batch():
    importance = torch.tensor([[0.2, 0.5, 0.1, 0.0, 0.0], [0.3, 0.1, 0.2, 0.9, 0.4]])
    maskable = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()
    truth = torch.tensor([[0, 0, 1, 0, 0], [0, 1, 0, 1, 0]]).bool()
    both = ground_truth(importance, maskable, truth)
    alone = ground_truth(importance[:1, :3], maskable[:1, :3], truth[:1, :3])
    assert all(both[name][0] == alone[name][0] for name in both)


def test_the_ranking_is_the_order_in_which_a_curve_masks():
    generator = torch.Generator().manual_seed(0)
    importance = torch.randint(-2, 3, (20, 12), generator=generator).float()
    maskable = torch.rand(20, 12, generator=generator) < 0.7
    rank = ranks(importance, maskable)
    for step in range(11):
        counts = maskable.sum(dim=1, keepdim=True) * step // 10
        assert (mask_most_important(batch_of(maskable), importance, step) == (maskable & (rank < counts))).all()
