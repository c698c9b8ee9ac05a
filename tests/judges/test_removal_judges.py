"""Insertion, normalised AOPC, soft erasure and F-Fidelity, each against its definition, one masking at a time."""

import itertools

import numpy as np
import pytest
import torch
from conftest import random_classifier

from faithmeter.importance.search import guided_order
from faithmeter.importance.table import IMPORTANCE_MEASURES
from faithmeter.judges import f_fidelity as partial
from faithmeter.judges import naopc, soft
from faithmeter.judges.f_fidelity import f_fidelity, removal_chance
from faithmeter.judges.insertion import insertion
from faithmeter.judges.judge import Bench
from faithmeter.judges.naopc import areas, limits, limits_of
from faithmeter.judges.soft import scaled, soft_erasure
from faithmeter.masking import Purpose, random_stream

TEXTS = ["the film was great", "the plot", "", "was the story bad? the plot was very good!"]


@pytest.fixture(scope="module")
def classifier():
    found = random_classifier("bert")
    with torch.no_grad():  # random weights say nearly the same of every text
        found.model.classifier.weight *= 200
    found.model.eval()
    return found


@pytest.fixture(scope="module")
def batch(classifier):
    found = classifier.encode(TEXTS).batch(range(len(TEXTS)))
    sizes = found.maskable.sum(dim=1).tolist()
    assert 1 < sizes[1] < sizes[0] <= naopc.EXACT < sizes[3]
    return found


def importance_of(batch):
    return torch.rand(batch.maskable.shape, generator=torch.Generator().manual_seed(1)) - 0.5


def in_order(batch, importance, row):
    """The maskable places of a row, the most important first."""
    places = torch.nonzero(batch.maskable[row])[:, 0].tolist()
    return sorted(places, key=lambda place: (-float(importance[row, place]), place))


def asked(classifier, batch, row):
    """A function from masked places to the probability of the row's class, one pass each."""
    alone = batch.take(torch.tensor([row]))
    known = {}

    def probability(masked):
        key = tuple(sorted(masked))
        if key not in known:
            table = torch.zeros_like(alone.masked)
            table[0, list(key)] = True
            known[key] = classifier.predict_with_features(alone.with_masked(table))[0].softmax(dim=-1)[0]
        return known[key]

    of = int(probability(()).argmax())
    return lambda masked: float(probability(masked)[of])


def test_insertion_is_the_area_under_the_probability_while_the_top_tokens_come_back(classifier, batch):
    importance = importance_of(batch)
    found = insertion(classifier, batch, importance)["insertion"]
    for row, text in enumerate(TEXTS):
        order, m = in_order(batch, importance, row), asked(classifier, batch, row)
        if not text:
            assert np.isnan(found[row])
            continue
        n = len(order)
        curve = [m(order[n - n * step // 10 :]) for step in range(10, -1, -1)]  # from all masked to none
        area = sum((a + b) / 2 for a, b in itertools.pairwise(curve)) / 10
        assert found[row] == pytest.approx(area, abs=1e-5)


def naive_aopc(m, order):
    return sum(m(()) - m(order[:k]) for k in range(1, len(order) + 1)) / len(order)


def test_aopc_is_the_mean_drop_over_the_whole_curve_in_both_directions(classifier, batch):
    importance = importance_of(batch)
    most, least = areas(classifier, batch, importance)
    for row, text in enumerate(TEXTS):
        order, m = in_order(batch, importance, row), asked(classifier, batch, row)
        if not text:
            assert np.isnan(most[row])
            assert np.isnan(least[row])
            continue
        assert most[row] == pytest.approx(naive_aopc(m, order), abs=1e-5)
        assert least[row] == pytest.approx(naive_aopc(m, order[::-1]), abs=1e-5)


def test_the_limits_of_a_short_text_are_those_of_all_its_orders():
    random = np.random.default_rng(0)
    for n in (1, 2, 5):
        drops = {one: float(random.normal()) for one in range(1, 2**n)}
        orders = [
            sum(drops[sum(1 << t for t in order[:k])] for k in range(1, n + 1)) / n
            for order in itertools.permutations(range(n))
        ]
        assert answered(limits_of(n), drops) == pytest.approx((min(orders), max(orders)))


def answered(search, drops):
    """Answer what a search asks for and return what it finds; nothing is asked twice."""
    seen, sets = set(), next(search)
    while True:
        assert not seen & set(sets)
        seen |= set(sets)
        try:
            sets = search.send(np.array([drops[one] for one in sets]))
        except StopIteration as end:
            return end.value


def test_longer_texts_have_limits_of_the_search_in_both_directions(monkeypatch):
    random = np.random.default_rng(1)
    worth = random.normal(size=8)
    drops = {one: float(sum(worth[t] for t in range(8) if one >> t & 1)) for one in range(1, 2**8)}
    exact = answered(limits_of(8), drops)
    monkeypatch.setattr(naopc, "EXACT", 7)
    asked_for = []
    monkeypatch.setattr(naopc, "guided_order", lambda n: asked_for.append(n) or guided_order(n))
    # on a sum of single worths the search finds both ends
    assert answered(limits_of(8), drops) == pytest.approx(exact)
    assert asked_for == [8, 8]


def test_the_best_order_of_a_text_has_1_and_the_worst_0(classifier, batch):
    bench = Bench(classifier, classifier.encode(TEXTS), None, seed=0)
    low, high = limits(classifier, batch, bench.predicted(batch))
    for row in (0, 1):
        m, places = asked(classifier, batch, row), torch.nonzero(batch.maskable[row])[:, 0].tolist()
        if len(places) <= 6:
            values = [naive_aopc(m, order) for order in itertools.permutations(places)]
            assert (low[row], high[row]) == pytest.approx((min(values), max(values)), abs=1e-5)
    measure = IMPORTANCE_MEASURES["x-grad-signed"]
    found = naopc.NAOPC.judge(bench, batch, measure)
    most, least = areas(classifier, batch, bench.explained(batch, measure))
    np.testing.assert_allclose(found["norm_comprehensiveness"], (most - low) / (high - low))
    np.testing.assert_allclose(found["norm_sufficiency"], (least - low) / (high - low))
    assert found["exact_limits"][[0, 1, 3]].tolist() == [1, 1, 0]
    assert np.isnan(found["exact_limits"][2])
    assert ((found["norm_comprehensiveness"][:2] >= 0) & (found["norm_comprehensiveness"][:2] <= 1)).all()


def test_the_limits_are_searched_once_for_all_measures(classifier, batch, monkeypatch):
    bench, times = Bench(classifier, classifier.encode(TEXTS), None, seed=0), []
    monkeypatch.setattr(naopc, "limits", lambda *given: times.append(1) or limits(*given))
    few = bench.test.batch([0, 1])
    for name in ("grad-l2", "x-grad-signed"):
        naopc.NAOPC.judge(bench, few, IMPORTANCE_MEASURES[name])
    assert times == [1]


def test_importance_is_scaled_within_a_text_and_equal_importances_have_no_scale():
    maskable = torch.tensor([[False, True, True, True], [False, True, True, False]])
    found = scaled(torch.tensor([[9.0, -1.0, 0.0, 3.0], [0.0, 2.0, 2.0, 7.0]]), maskable)
    assert found[0, 1:].tolist() == [0.0, 0.25, 1.0]
    assert found[1, 1:3].isnan().all()


def test_soft_erasure_is_that_of_its_definition_with_the_rows_own_draws(classifier, batch, monkeypatch):
    importance, head, scales = importance_of(batch), classifier.model.classifier, 0
    with torch.no_grad():  # all classes alike for a first text of zeros, and not for the text, so that there is a scale
        embedded = classifier.embed(batch)
        zeros = classifier.logits_from(batch, embedded * ~batch.maskable[..., None])[0]
        apart = classifier.logits_from(batch, embedded)[0] - zeros
    larger = 2 / (apart.max() - apart.min())
    monkeypatch.setattr(head.bias, "data", larger * (head.bias.data - zeros))
    monkeypatch.setattr(head.weight, "data", larger * head.weight.data)
    found = soft_erasure(classifier, batch, importance, 3, draws=2)
    for row in (0, 1, 3):
        alone = batch.take(torch.tensor([row]))
        places = torch.nonzero(alone.maskable[0])[:, 0]
        values = importance[row, places].double()
        share = (values - values.min()) / (values.max() - values.min())
        embedded, stream = classifier.embed(alone), random_stream(3, Purpose.SOFT_ERASURE, row)

        def m(embeddings, of=None, alone=alone):
            with torch.no_grad():
                probability = classifier.logits_from(alone, embeddings).softmax(dim=-1)[0]
            return probability if of is None else float(probability[of])

        of = int(m(embedded).argmax())
        whole, zero = m(embedded, of), embedded.clone()
        zero[0, places] = 0
        suff0 = 1 - max(0.0, whole - m(zero, of))
        if 1 - suff0 < 0.01:  # what is divided by a small drop has its noise enlarged
            continue
        sums, scales = np.zeros(2), scales + 1
        for _ in range(2):
            uniform = torch.from_numpy(stream.random((len(places), embedded.shape[2])))
            kept, removed = embedded.clone(), embedded.clone()
            kept[0, places] *= (uniform < share[:, None]).float()
            removed[0, places] *= (uniform < 1 - share[:, None]).float()
            suff = 1 - max(0.0, whole - m(kept, of))
            comp = max(0.0, whole - m(removed, of))
            sums += np.clip([(suff - suff0) / (1 - suff0), comp / (1 - suff0)], 0, 1)
        assert found["soft_norm_sufficiency"][row] == pytest.approx(sums[0] / 2, abs=1e-3)
        assert found["soft_norm_comprehensiveness"][row] == pytest.approx(sums[1] / 2, abs=1e-3)
    assert scales
    assert np.isnan(found["soft_norm_sufficiency"][2])
    assert 0 < np.nanmean(found["soft_norm_comprehensiveness"]) < 1


def test_no_more_than_a_tenth_of_the_tokens_is_removed_on_average():
    assert removal_chance(2, 100) == 0.5
    assert removal_chance(20, 100) == 0.5  # 10 of 100
    assert removal_chance(40, 100) == 0.25
    assert removal_chance(1, 5) == 0.5
    assert removal_chance(4, 5) == 0.125


def test_f_fidelity_is_that_of_its_definition_with_the_rows_own_draws(classifier, batch):
    importance = importance_of(batch)
    found = f_fidelity(classifier, batch, importance, 5, draws=20)
    for row in (0, 1, 3):
        order, m = in_order(batch, importance, row), asked(classifier, batch, row)
        n = len(order)
        uniform = random_stream(5, Purpose.PARTIAL_REMOVAL, row).random((20, n))
        for name, ranking in (("plus", order), ("minus", order[::-1])):
            drops = []
            for share in (0.2, 0.4, 0.6, 0.8):
                size = int(np.ceil(share * n - 1e-9))
                chance = min(0.5, 0.1 * n / size)
                drops += [
                    m(()) - m([ranking[place] for place in range(size) if draw[place] < chance]) for draw in uniform
                ]
            assert found[name][row] == pytest.approx(np.mean(drops), abs=1e-5)
    assert np.isnan(found["plus"][2])
    assert abs(found["plus"][0]) > 1e-4  # or nothing was removed


def test_more_draws_than_few_come_near_the_expected_drop(classifier, batch, monkeypatch):
    # of one size, every set of the top tokens has its known chance
    monkeypatch.setattr(partial, "SIZES", (0.4,))
    importance = importance_of(batch)
    found = f_fidelity(classifier, batch, importance, 0, draws=4000)["plus"][0]
    order, m = in_order(batch, importance, 0), asked(classifier, batch, 0)
    size = int(np.ceil(0.4 * len(order)))
    chance, expected = removal_chance(size, len(order)), 0.0
    for masked in itertools.product((0, 1), repeat=size):
        weight = np.prod([chance if one else 1 - chance for one in masked])
        expected += weight * (m(()) - m([order[place] for place, one in enumerate(masked) if one]))
    assert found == pytest.approx(expected, abs=0.01)


def test_a_row_is_judged_the_same_alone_as_in_a_batch(classifier, batch):
    importance = importance_of(batch)
    for judge in (insertion, lambda *given: soft_erasure(*given, 1), lambda *given: f_fidelity(*given, 1, draws=5)):
        together = judge(classifier, batch, importance)
        for row in (0, 3):
            few = batch.take(torch.tensor([row]))
            alone = judge(classifier, few, importance[[row], : few.input_ids.shape[1]])
            for name, column in alone.items():
                assert together[name][row] == pytest.approx(column[0], abs=1e-4, nan_ok=True), name


def test_measures_that_only_rank_are_not_judged_by_amounts():
    assert not soft.SOFT.fits(IMPORTANCE_MEASURES["beam"])
    assert soft.SOFT.fits(IMPORTANCE_MEASURES["loo-signed"])
