"""The search against brute force, greedy search and beam search: what it finds, what it asks for, and of whom."""

import itertools

import numpy as np
import pytest
import torch
from importance.reference import TARGETS, alone, example_batch, plain_logit, strong_classifier
from importance.test_occlusion import Table, random_value, rows_of

from faithmeter.importance.beam import beam
from faithmeter.importance.search import EXACT, evaluations, search


def targets_of(count):
    return torch.ones(count, dtype=torch.long)


def order_of(importance, n):
    """The tokens 1 … n in the order of masking."""
    return (importance[1 : n + 1].argsort(descending=True) + 1).tolist()


def objective(value, row, order):
    """The sum of logit(x) − logit(masked) over the sets on the way, all masked left out."""
    return sum(value(row, frozenset()) - value(row, frozenset(order[:k])) for k in range(1, len(order)))


def best_of_all(value, row, n):
    """The objective of the best of all orders, from every set in turn: the best way to it, and its drop."""
    whole, best = value(row, frozenset()), {frozenset(): 0.0}
    for size in range(1, n):
        for tokens in itertools.combinations(range(1, n + 1), size):
            masked = frozenset(tokens)
            best[masked] = max(best[masked - {t}] for t in masked) + whole - value(row, masked)
    return max(best[frozenset(range(1, n + 1)) - {t}] for t in range(1, n + 1)) if n > 1 else 0.0


def smooth_value(row, masked):
    """A logit like a model's: tokens add up, some pairs only count together, and it saturates."""
    random = np.random.default_rng([row, 7])
    weights, pairs = random.normal(0.3, 0.6, 25), random.integers(1, 25, (8, 2))
    total = sum(weights[t] for t in masked) + sum(0.8 for a, b in pairs.tolist() if a in masked and b in masked)
    return float(-3 * np.tanh(total / 2))


@pytest.mark.parametrize("n", range(EXACT + 1))
def test_of_few_tokens_the_best_of_all_orders_is_found(n):
    rows = 20
    found = search(Table(random_value), rows_of(*[n] * rows, 9), targets_of(rows + 1), 0)
    for row in range(rows):
        best = best_of_all(random_value, row, n)
        assert objective(random_value, row, order_of(found[row], n)) == pytest.approx(best, abs=1e-5)


@torch.no_grad()
def test_it_finds_the_best_order_for_a_model_and_is_never_worse_than_greedy():
    classifier = strong_classifier("bert")
    batch = example_batch(classifier, masked=True)
    found, greedy = search(classifier, batch, TARGETS, 0), beam(classifier, batch, TARGETS, 0, width=1)
    for row, target in enumerate(TARGETS.tolist()):
        one = alone(batch, row)
        free = (one.maskable & ~one.masked)[0].nonzero().flatten().tolist()

        def value(_, tokens, one=one, free=free, target=target):
            masked = one.masked.clone()
            masked[0, [free[t - 1] for t in tokens]] = True
            return float(plain_logit(classifier, one.with_masked(masked), target))

        n = len(free)
        mine, theirs = (
            objective(value, row, (i[row, free].argsort(descending=True) + 1).tolist()) for i in (found, greedy)
        )
        assert mine >= theirs - 1e-5
        assert n > EXACT or mine == pytest.approx(best_of_all(value, row, n), abs=1e-4)
        assert sorted(found[row, free].tolist()) == list(range(1, n + 1))


def test_of_more_tokens_it_is_nearly_always_the_best_order_and_not_worse_than_greedy():
    n, rows = 9, 20
    found = search(Table(smooth_value), rows_of(*[n] * rows), targets_of(rows), 0)
    greedy = beam(Table(smooth_value), rows_of(*[n] * rows), targets_of(rows), 0, width=1)
    mine, theirs = (
        np.array([objective(smooth_value, r, order_of(i[r], n)) for r in range(rows)]) for i in (found, greedy)
    )
    best = np.array([best_of_all(smooth_value, r, n) for r in range(rows)])
    assert (mine >= best - 1e-5).mean() >= 0.9
    assert mine.sum() >= 0.999 * best.sum()
    assert (mine >= theirs - 1e-5).all()


def test_it_asks_for_a_fraction_of_what_beam_search_asks_for_and_finds_as_good_an_order():
    n, rows = 24, 3
    few, many = Table(smooth_value), Table(smooth_value)
    found = search(few, rows_of(*[n] * rows), targets_of(rows), 0)
    beamed = beam(many, rows_of(*[n] * rows), targets_of(rows), 0)
    mine, theirs = (
        sum(objective(smooth_value, row, order_of(i[row], n)) for row in range(rows)) for i in (found, beamed)
    )
    assert mine >= 0.995 * theirs
    assert len(few.asked) <= len(many.asked) / 6
    assert len(few.asked) <= 2 * rows * evaluations(n)


def test_no_set_is_evaluated_twice_and_few_tokens_take_every_set_but_the_full_one():
    table = Table(random_value)
    search(table, rows_of(5, 12, 3, 0, 1, 2), targets_of(6), 0)
    assert len(table.asked) == len(set(table.asked))
    of_row = [sum(row == asked for asked, _ in table.asked) for row in range(6)]
    assert [of_row[row] for row in (0, 2, 3, 4, 5)] == [2**5 - 1, 2**3 - 1, 1, 1, 2**2 - 1]


def test_all_texts_share_their_passes_and_none_sees_another():
    class Calls(Table):
        calls = 0

        def logits_of_masks(self, *given):
            self.calls += 1
            return super().logits_of_masks(*given)

    together = Calls(random_value)
    counts = (10, 4, 12, 10)
    found = search(together, rows_of(*counts), targets_of(4), 0)
    calls = []
    for row, n in enumerate(counts):
        single = Calls(lambda _, masked, row=row: random_value(row, masked))
        lonely = search(single, rows_of(n), targets_of(1), 0)
        assert torch.equal(lonely[0, : n + 2], found[row, : n + 2])
        assert {masked for _, masked in single.asked} == {masked for of, masked in together.asked if of == row}
        calls.append(single.calls)
    assert together.calls == max(calls)


def test_windows_of_three_worked_by_hand():
    # the logit falls when 8, 9 and 10 are masked together, and a little with each of 1 … 7, most with 1: whatever is
    # guessed, the end is an order in which no three neighbours could stand better
    def value(_, masked):
        return -sum(0.1 * (8 - t) for t in masked if t < 8) - 20.0 * ({8, 9, 10} <= masked)

    table = Table(value)
    found = search(table, rows_of(10), targets_of(1), 0)
    order = order_of(found[0], 10)
    own = objective(value, 0, order)
    for start in range(8):
        for other in itertools.permutations(order[start : start + 3]):
            changed = [*order[:start], *other, *order[start + 3 :]]
            assert objective(value, 0, changed) <= own + 1e-5


def test_ties_go_to_the_lower_position():
    found = search(Table(lambda *_: 1.0), rows_of(4, 9), targets_of(2), 0)
    assert found.tolist() == [[0, 4, 3, 2, 1, 0, 0, 0, 0, 0, 0], [0, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]]
