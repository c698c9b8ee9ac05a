"""Shapley, Banzhaf and Owen values: by enumeration, as shap computes them, and exact where effects add up."""

from functools import partial
from itertools import permutations, product

import numpy as np
import pytest
import torch
from importance.reference import ONE, TARGETS, Additive, alone, example_batch, planted, strong_classifier
from importance.test_surrogate import logit_with, open_places, shapley_values

from faithmeter.importance.shapley import _with_less_without, banzhaf, partition_shap, shapley_sampled
from faithmeter.importance.table import IMPORTANCE_MEASURES
from faithmeter.masking import Purpose, random_stream


@pytest.fixture(scope="module")
def classifier():
    return strong_classifier("bert")


class Game:
    """A classifier that is any function of the masked tokens: here a random number for every set of them."""

    device = torch.device("cpu")

    def __init__(self, tokens, seed=0):
        self.tokens, self.table = tokens, np.random.default_rng(seed).standard_normal(2**tokens)
        self.asked = 0

    def worth(self, kept):
        return float(self.table[int(np.packbits(np.asarray(kept, dtype=bool), bitorder="little")[0])])

    def logits_of_masks(self, _batch, rows, masked):
        self.asked += len(rows)
        values = torch.tensor([self.worth(~one) for one in masked.numpy()])
        return torch.stack((values * 0, values), dim=1)


def banzhaf_values(worth, players):
    """The mean gain of a player over all sets of the others."""
    sets = [np.array(one) for one in product((False, True), repeat=players)]
    gains = [[worth(one) - worth(one & (np.arange(players) != p)) for one in sets if one[p]] for p in range(players)]
    return np.mean(gains, axis=1)


@pytest.mark.parametrize("tokens", [1, 2, 6])
def test_sampled_shapley_values_come_to_those_by_enumeration(tokens):
    game = Game(tokens)
    expected = shapley_values(game.worth, tokens)
    errors = [
        np.abs(shapley_sampled(game, planted(tokens), ONE, 0, pairs=pairs)[0].numpy() - expected).max()
        for pairs in (5, 4000)
    ]
    assert errors[1] < 0.06  # of values of size 1
    assert tokens < 3 or errors[1] < errors[0] / 5


def test_sampled_shapley_values_are_the_mean_gains_along_orders_and_their_reverses(classifier):
    batch = example_batch(classifier, masked=True)
    found = shapley_sampled(classifier, batch, TARGETS, 7, pairs=2)
    for row in range(len(batch)):
        one, target = alone(batch, row), int(TARGETS[row])
        places = open_places(one)
        worth = partial(logit_with, classifier, one, places, target=target)
        random = random_stream(7, Purpose.COALITIONS, int(one.rows[0]))
        expected = np.zeros(len(places))
        for order in (random.permutation(len(places)) for _ in range(2 if len(places) > 1 else 1)):
            for way in (order, order[::-1]):
                kept = np.zeros(len(places), dtype=bool)
                for player in way:
                    before, kept[player] = worth(kept), True
                    expected[player] += (worth(kept) - before) / (4 if len(places) > 1 else 2)
        np.testing.assert_allclose(found[row, places], expected, atol=1e-5)
        # efficiency: they add up to the logit less that with everything masked
        ends = [worth(np.full(len(places), kept)) for kept in (True, False)]
        assert float(found[row].sum()) == pytest.approx(ends[0] - ends[1], abs=1e-4)


@pytest.mark.parametrize("tokens", [1, 2, 6])
def test_banzhaf_values_come_to_those_by_enumeration(tokens):
    game = Game(tokens)
    expected = banzhaf_values(game.worth, tokens)
    errors = [
        np.abs(banzhaf(game, planted(tokens), ONE, 0, samples=samples)[0].numpy() - expected).max()
        for samples in (200, 40_000)
    ]
    assert errors[1] < 0.04
    assert tokens < 3 or errors[1] < errors[0] / 3


def test_banzhaf_values_reuse_every_sample_for_every_token_worked_by_hand():
    kept = np.array([[1, 0, 1], [1, 1, 1], [0, 0, 1]], dtype=bool)
    # with the first: (2 + 6) / 2, without: 1; with the second: 6, without: (2 + 1) / 2; the third is in all
    found = _with_less_without(kept, np.ones(3), np.array([2.0, 6.0, 1.0]), 0.0, 0.0)
    assert found.tolist() == [3.0, 4.5, 0.0]


def tree(first, last, rows, leaves):
    """The clustering of halves, in scipy's form: the children, a distance, and the size of every node."""
    if last - first == 1:
        return first
    middle = (first + last) // 2
    children = [tree(first, middle, rows, leaves), tree(middle, last, rows, leaves)]
    rows.append([*children, 1.0, last - first])
    return leaves + len(rows) - 1


def shaps_partition(worth, tokens, fixed_context):
    shap = pytest.importorskip("shap")

    class Tokens(shap.maskers.Masker):
        shape, rows = (1, tokens), []

        def __init__(self):
            tree(0, tokens, self.rows, tokens)
            self.clustering = np.array(self.rows, dtype=float)

        def __call__(self, mask, text):
            return ((mask * text).reshape(1, -1),)

    explainer = shap.explainers.Partition(lambda sets: np.array([worth(one > 0) for one in sets]), Tokens())
    found = explainer(np.ones((1, tokens)), max_evals=10_000, fixed_context=fixed_context, batch_size=10, silent=True)
    return found.values[0]


@pytest.mark.slow  # shap compiles itself for a minute
@pytest.mark.parametrize("evaluations", [500, 5])
def test_owen_values_are_those_of_shap_on_the_same_tree(classifier, evaluations):
    batch = example_batch(classifier, masked=True)
    found = partition_shap(classifier, batch, TARGETS, 0, evaluations=evaluations)
    for row in range(len(batch)):
        one, target = alone(batch, row), int(TARGETS[row])
        places = open_places(one)
        worth = partial(logit_with, classifier, one, places, target=target)
        if len(places) > 2:
            expected = shaps_partition(worth, len(places), None if evaluations == 500 else 1)
            assert np.abs(expected).max() > 1e-3
            np.testing.assert_allclose(found[row, places], expected, atol=1e-5)
        else:
            np.testing.assert_allclose(found[row, places], shapley_values(worth, len(places)), atol=1e-5)


def test_owen_values_are_the_mean_gains_over_the_orders_that_keep_halves_together():
    """Four tokens: the first two come before the last two, or after, and each pair in either order."""
    game = Game(4, seed=1)
    expected, orders = np.zeros(4), [one for one in permutations(range(4)) if {*one[:2]} in ({0, 1}, {2, 3})]
    assert len(orders) == 8
    for order in orders:
        kept = np.zeros(4, dtype=bool)
        for player in order:
            before, kept[player] = game.worth(kept), True
            expected[player] += (game.worth(kept) - before) / len(orders)
    np.testing.assert_allclose(partition_shap(game, planted(4), ONE, 0)[0], expected, atol=1e-5)


def beside_what_is_kept(worth, kept, first, last):
    """Owen values in a fixed context: a half beside its sibling, and what both do only together in even parts."""
    values, whole = np.zeros(len(kept)), kept.copy()
    whole[first:last] = True
    if last - first == 1:
        values[first] = worth(whole) - worth(kept)
        return values
    middle = (first + last) // 2
    left, right = kept.copy(), kept.copy()
    left[first:middle], right[middle:last] = True, True
    values[first:last] -= (worth(whole) - worth(left) - worth(right) + worth(kept)) / (last - first)
    return values + beside_what_is_kept(worth, right, first, middle) + beside_what_is_kept(worth, left, middle, last)


def test_with_few_evaluations_owen_values_are_those_beside_kept_siblings():
    game = Game(7, seed=2)
    expected = beside_what_is_kept(game.worth, np.zeros(7, dtype=bool), 0, 7)
    np.testing.assert_allclose(partition_shap(game, planted(7), ONE, 0, evaluations=20)[0], expected, atol=1e-5)
    assert game.asked == 2 * 7
    assert float(expected.sum()) == pytest.approx(game.worth([True] * 7) - game.worth([False] * 7))


@pytest.mark.parametrize("length", [1, 2, 7, 26, 27, 200])
def test_owen_values_are_exact_where_effects_add_up_and_take_the_passes_that_are_said(length):
    effects = np.random.default_rng(length).standard_normal((1, length))
    model = Additive(effects)
    found = partition_shap(model, planted(length), ONE, 0)
    np.testing.assert_allclose(found, effects, atol=1e-4)
    assert model.asked[0] == IMPORTANCE_MEASURES["partition-shap"].passes(length)


@pytest.mark.parametrize(("name", "least"), [("shapley-sampled", 1.0), ("banzhaf", 0.6)])
def test_of_long_additive_texts_the_most_important_are_found(name, least):
    effects = np.random.default_rng(200).standard_normal((1, 200))
    model = Additive(effects)
    found = IMPORTANCE_MEASURES[name].explain(model, planted(200), ONE, 0)[0].numpy()
    assert len({*np.argsort(-found)[:20]} & {*np.argsort(-effects[0])[:20]}) / 20 >= least
    assert 0.9 < model.asked[0] / IMPORTANCE_MEASURES[name].passes(200) <= 1
