"""Leave-one-out against its formula and captum; beam search against brute force."""

import itertools

import numpy as np
import pytest
import torch
from importance.reference import (
    REFERENCES,
    SHAPES,
    TARGETS,
    alone,
    example_batch,
    plain_logit,
    references,
    strong_classifier,
)  # fmt: skip

from faithmeter.importance.beam import beam
from faithmeter.importance.table import IMPORTANCE_MEASURES

EVERY_KIND = pytest.mark.parametrize(("pairs", "masked"), [(False, False), (False, True), (True, False), (True, True)])


@EVERY_KIND
@pytest.mark.parametrize("architecture", SHAPES)
@pytest.mark.parametrize("name", ["loo-signed", "loo-abs"])
def test_leave_one_out_equals_its_formula(name, architecture, pairs, masked):
    classifier = strong_classifier(architecture)
    batch = example_batch(classifier, pairs=pairs, masked=masked)
    expected = references(REFERENCES[name], classifier, batch)
    found = IMPORTANCE_MEASURES[name].explain(classifier, batch, TARGETS, 0)
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert (found[batch.masked] == 0).all()


@pytest.mark.parametrize("architecture", SHAPES)
def test_leave_one_out_equals_captums_feature_ablation(architecture):
    attr = pytest.importorskip("captum.attr")
    classifier = strong_classifier(architecture)
    batch = example_batch(classifier, pairs=True, masked=True)

    @torch.no_grad()
    def with_captum(classifier, one, target):
        def forward(ids):
            types = {} if one.token_type_ids is None else {"token_type_ids": one.token_type_ids}
            return classifier.model(input_ids=ids, attention_mask=one.attention_mask, **types).logits

        ids = one.masked_ids(classifier.mask_token_id)
        return attr.FeatureAblation(forward).attribute(ids, baselines=classifier.mask_token_id, target=target)[0]

    classifier.model.eval()
    expected = references(with_captum, classifier, batch)
    found = IMPORTANCE_MEASURES["loo-signed"].explain(classifier, batch, TARGETS, 0)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


# ------------------------------------------------------------------------- beam search


class Table:
    """A classifier whose logit is looked up: tokens 1 … n of row r masked as the set s give `value(r, s)`."""

    device = torch.device("cpu")

    def __init__(self, value):
        self.value, self.asked = value, []

    def logits_of_masks(self, batch, rows, masked):
        sets = [(int(r), frozenset(m.nonzero().flatten().tolist())) for r, m in zip(rows, masked, strict=True)]
        self.asked += sets
        return torch.tensor([[0.0, self.value(*key)] for key in sets])


def rows_of(*counts):
    """A batch of rows with so many maskable tokens, which stand at positions 1, 2, …"""
    classifier = strong_classifier("bert")
    batch = classifier.encode(["a"] * len(counts)).batch(range(len(counts)))
    width = max(counts) + 2
    maskable = torch.tensor([[1 <= t <= n for t in range(width)] for n in counts])
    return batch.__class__(
        **{**vars(batch), "maskable": maskable, "masked": torch.zeros_like(maskable),
           "input_ids": torch.zeros(len(counts), width, dtype=torch.long)}
    )  # fmt: skip


def random_value(row, masked):
    key = [row, *sorted(masked)] if masked else [row, 99]
    return float(np.random.default_rng(key).random())


def brute_force(value, row, n, width):
    """Beam search as told in words: orders as tuples, every set in a dictionary."""
    beam_of_orders = {(): np.float32(0)}
    whole = np.float32(value(row, frozenset()))
    for _ in range(n):
        found = {}
        for order, total in beam_of_orders.items():
            for t in range(1, n + 1):
                masked = frozenset((*order, t))
                if t in order or (masked in found and found[masked][2] >= total):
                    continue
                new = total + (whole - np.float32(value(row, masked)))
                found[masked] = (new, (*order, t), total)
        best = sorted(found.values(), key=lambda state: -state[0])[:width]
        beam_of_orders = {order: total for total, order, _ in best}
    order = next(iter(beam_of_orders))
    importance = torch.zeros(n)
    for rank, t in enumerate(order):
        importance[t - 1] = n - rank
    return importance


@pytest.mark.parametrize("width", [1, 2, 3, 10])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 7])
def test_beam_equals_a_search_written_in_words(n, width):
    found = beam(Table(random_value), rows_of(n, n, 4, n), torch.ones(4, dtype=torch.long), 0, width=width)
    for row in (0, 1, 3):  # rows of equal length search side by side and must not see each other
        torch.testing.assert_close(found[row, 1 : n + 1], brute_force(random_value, row, n, width))
    assert found[:, 0].eq(0).all()


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_a_beam_wide_enough_for_every_state_finds_the_best_of_all_orders(n):
    for row in range(3):

        def area(order, row=row):
            return sum(random_value(row, frozenset(order[:k])) for k in range(1, n))

        best = min(itertools.permutations(range(1, n + 1)), key=area)
        table = Table(lambda _, masked, row=row: random_value(row, masked))
        found = beam(table, rows_of(n), torch.ones(1, dtype=torch.long), 0, width=2**n)
        assert found[0, 1 : n + 1].argsort(descending=True).add(1).tolist() == list(best)


def test_beam_worked_by_hand():
    # logits: {} 10, {1} 6, {2} 5, {3} 9, {1,2} 4, {1,3} 0, {2,3} 5. Width 1 takes 2 (drop 5), then 1 (drop 6 over 5).
    # Width 2 keeps 2 (5) and 1 (4); {1,2} = 5 + 6 = 11, {1,3} = 4 + 10 = 14, {2,3} = 5 + 5 = 10: the way is 1, 3, 2.
    logits = {(): 10, (1,): 6, (2,): 5, (3,): 9, (1, 2): 4, (1, 3): 0, (2, 3): 5}
    batch, target = rows_of(3), torch.ones(1, dtype=torch.long)

    def value(_, masked):
        return float(logits[tuple(sorted(masked))])

    assert beam(Table(value), batch, target, 0, width=1)[0].tolist() == [0, 2, 3, 1, 0]
    assert beam(Table(value), batch, target, 0, width=2)[0].tolist() == [0, 3, 1, 2, 0]


def test_ties_go_to_the_earlier_parent_and_the_lower_position():
    found = beam(Table(lambda *_: 1.0), rows_of(4, 6), torch.ones(2, dtype=torch.long), 0, width=3)
    assert found.tolist() == [[0, 4, 3, 2, 1, 0, 0, 0], [0, 6, 5, 4, 3, 2, 1, 0]]


def test_no_mask_set_is_evaluated_twice_and_the_last_not_at_all():
    table = Table(random_value)
    beam(table, rows_of(5, 5, 3), torch.ones(3, dtype=torch.long), 0, width=100)
    assert len(table.asked) == len(set(table.asked))
    # a beam that keeps all: every set but the full one, 2⁵ − 1 twice and 2³ − 1
    assert len(table.asked) == 31 + 31 + 7


@torch.no_grad()
def test_beam_starts_from_the_tokens_that_are_masked_already():
    classifier = strong_classifier("bert")
    batch = alone(example_batch(classifier, masked=True), 1)
    target = TARGETS[:1]
    found = beam(classifier, batch, target, 0, width=1)
    free = (batch.maskable & ~batch.masked)[0]
    assert sorted(found[0][free].tolist()) == list(range(1, int(free.sum()) + 1))
    assert (found[0][~free] == 0).all()
    masked = batch.masked.clone()
    for _ in range(int(free.sum())):  # greedy: the token that lowers the logit most, one after another
        left = (batch.maskable & ~masked)[0].nonzero().flatten().tolist()
        logits = []
        for t in left:
            further = masked.clone()
            further[0, t] = True
            logits.append(float(plain_logit(classifier, batch.with_masked(further), int(target))))
        taken = left[int(np.argmin(logits))]
        assert found[0, taken] == len(left)
        masked[0, taken] = True
