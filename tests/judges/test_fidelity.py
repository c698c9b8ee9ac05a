"""Tokens to flip: masked one by one in the order of importance, until the answer changes."""

import numpy as np
import pytest
import torch
from conftest import random_classifier

from faithmeter.in_distribution.masf import fit_calibrated, step_features
from faithmeter.judges import fidelity as room
from faithmeter.judges.fidelity import fidelity
from faithmeter.masking import STEPS
from faithmeter.statistics import LEVEL

TEXTS = ["the film was great", "was the story bad? the plot was very good!", "good", "", "it was not awful at all"] * 2


@pytest.fixture(scope="module")
def classifier():
    found = random_classifier("bert")
    with torch.no_grad():  # random weights say nearly the same of every text, and a bias decides
        found.model.classifier.weight *= 200
        batch = found.encode(TEXTS).batch(range(len(TEXTS)))
        some = batch.maskable & (torch.arange(batch.maskable.shape[1]) % 2 == 0)
        found.model.classifier.bias -= found.predict_with_features(batch.with_masked(some))[0].mean(dim=0)
    return found


def importance_of(batch):
    return torch.rand(batch.maskable.shape, generator=torch.Generator().manual_seed(1))


def naive(classifier, batch, importance, row):
    """Mask one token more each time and ask again; return how many, or None."""
    alone = batch.take(torch.tensor([row]))
    places = torch.nonzero(alone.maskable[0])[:, 0].tolist()
    order = sorted(places, key=lambda place: (-float(importance[row, place]), place))
    masked = torch.zeros_like(alone.masked)
    first = int(classifier.predict_with_features(alone)[0].argmax())
    for count, place in enumerate(order, start=1):
        masked[0, place] = True
        if int(classifier.predict_with_features(alone.with_masked(masked))[0].argmax()) != first:
            return count / len(order)
    return None


@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_it_is_the_first_change_however_many_are_looked_at_together(classifier, monkeypatch, at_once):
    monkeypatch.setattr(room, "AT_ONCE", at_once)
    batch = classifier.encode(TEXTS).batch(range(len(TEXTS)))
    importance = importance_of(batch)
    found = fidelity(classifier, batch, importance)
    expected = [naive(classifier, batch, importance, row) for row in range(len(TEXTS))]
    assert {None} < set(expected)  # some flip and some never do
    for row, text in enumerate(TEXTS):
        if not text:
            assert all(np.isnan(column[row]) for column in found.values())
        elif expected[row] is None:
            assert np.isnan(found["tokens_to_flip"][row])
            assert (found["never_flips"][row], found["masked_until_flip"][row]) == (1.0, 1.0)
        else:
            assert found["tokens_to_flip"][row] == found["masked_until_flip"][row] == pytest.approx(expected[row])
            assert found["never_flips"][row] == 0.0


def test_a_row_does_not_depend_on_its_neighbours(classifier):
    encoded = classifier.encode(TEXTS)
    batch = encoded.batch(range(len(TEXTS)))
    importance = importance_of(batch)
    together = fidelity(classifier, batch, importance)
    for row in range(5):
        alone = encoded.batch([row])
        found = fidelity(classifier, alone, importance[row : row + 1, : alone.input_ids.shape[1]])
        for name, column in found.items():
            np.testing.assert_equal(column[0], together[name][row])


def test_the_test_is_asked_about_the_text_at_the_flip(classifier):
    encoded = classifier.encode(TEXTS)
    batch = encoded.batch(range(len(TEXTS)))
    lengths = torch.from_numpy(encoded.lengths)
    features = step_features(classifier, encoded, seed=0, steps=range(STEPS + 1))
    masf = fit_calibrated(features, lengths, steps=STEPS + 1)
    importance = importance_of(batch)
    found = fidelity(classifier, batch, importance, masf=masf)
    for row in range(len(TEXTS)):
        share = found["tokens_to_flip"][row]
        if np.isnan(share):
            assert np.isnan(found["flip_outside"][row])
            continue
        alone = batch.take(torch.tensor([row]))
        places = torch.nonzero(alone.maskable[0])[:, 0]
        order = places[importance[row, places].argsort(descending=True, stable=True)]
        masked = torch.zeros_like(alone.masked)
        masked[0, order[: round(share * len(places))]] = True
        of = classifier.predict_with_features(alone.with_masked(masked))[1]
        step = int(STEPS * share + 0.5)
        outside = masf.p_values(of, alone.attention_mask.sum(dim=1), alone.rows, step)[1]
        assert found["flip_outside"][row] == float(outside[0] <= LEVEL)
