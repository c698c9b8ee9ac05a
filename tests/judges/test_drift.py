"""Drift: how far what the head reads moves while a text is masked, and where that lies on the map."""

import numpy as np
import pytest
import torch
from conftest import WORDS, random_classifier

from faithmeter.in_distribution.masf import fit_calibrated, step_features
from faithmeter.judges import drift as room
from faithmeter.judges.drift import Space, drift, fit_space, principal_components
from faithmeter.masking import STEPS
from faithmeter.models.from_scratch import bilstm_classifier
from faithmeter.statistics import LEVEL

TEXTS = ["the film was great", "was the story bad? the plot was very good!", "good", "", "it was not awful at all"] * 2


@pytest.fixture(scope="module", params=["bert", "gpt2", "t5", "bilstm"])
def classifier(request):
    if request.param == "bilstm":
        return bilstm_classifier([" ".join(WORDS)] * 2, ("no", "yes"), pairs=False, seed=0)
    return random_classifier(request.param)


def importance_of(batch):
    return torch.rand(batch.maskable.shape, generator=torch.Generator().manual_seed(1))


def masked_alone(batch, importance, row, count):
    """One row with so many of its tokens masked, the most important first."""
    alone = batch.take(torch.tensor([row]))
    places = torch.nonzero(alone.maskable[0])[:, 0].tolist()
    masked = torch.zeros_like(alone.masked)
    masked[0, sorted(places, key=lambda place: (-float(importance[row, place]), place))[:count]] = True
    return alone.with_masked(masked)


def cosine_distance(first, second):
    first, second = first.double(), second.double()
    return 1 - float(first @ second / first.norm() / second.norm())


def test_distances_are_cosines_to_the_whole_text_and_on_average_to_every_original_one(classifier):
    encoded = classifier.encode(TEXTS)
    batch = encoded.batch(range(len(TEXTS)))
    importance, space = importance_of(batch), fit_space(classifier, encoded)
    found = drift(classifier, batch, importance, space)
    originals = [classifier.representations(encoded.batch([row]))[0][0] for row in range(len(TEXTS))]
    originals = [one for one in originals if one.norm() > 0]  # a text without a word is no vector to BiLSTM-attention
    assert set(found) == {
        *(f"drift@{share} %" for share in range(10, 101, 10)),
        *(f"distance_to_data@{share} %" for share in range(0, 101, 10)),
        *(f"map_{axis + 1}@{share} %" for axis in range(room.COMPONENTS) for share in range(0, 101, 10)),
    }
    for row, text in enumerate(TEXTS):
        if not text:
            assert all(np.isnan(column[row]) for column in found.values())
            continue
        size = int(batch.maskable[row].sum())
        whole = classifier.representations(masked_alone(batch, importance, row, 0))[0][0]
        for step in range(STEPS + 1):
            here = classifier.representations(masked_alone(batch, importance, row, size * step // 10))[0][0]
            share = f"{10 * step} %"
            if step:
                np.testing.assert_allclose(found[f"drift@{share}"][row], cosine_distance(here, whole), atol=1e-5)
            mean = np.mean([cosine_distance(here, one) for one in originals])
            np.testing.assert_allclose(found[f"distance_to_data@{share}"][row], mean, atol=1e-5)
            unit = here.double() / here.double().norm()
            place = [found[f"map_{axis + 1}@{share}"][row] for axis in range(2)]
            np.testing.assert_allclose(place, ((unit - space.centre) @ space.axes)[:2], atol=1e-5)


def test_a_row_does_not_depend_on_its_neighbours(classifier):
    encoded = classifier.encode(TEXTS)
    batch = encoded.batch(range(len(TEXTS)))
    importance, space = importance_of(batch), fit_space(classifier, encoded)
    together = drift(classifier, batch, importance, space)
    for row in range(5):
        alone = encoded.batch([row])
        found = drift(classifier, alone, importance[row : row + 1, : alone.input_ids.shape[1]], space)
        for name, column in found.items():
            np.testing.assert_allclose(column[0], together[name][row], atol=1e-5)


def test_the_same_passes_say_what_is_out_of_distribution_and_the_distances_stay():
    classifier = random_classifier("bert")
    encoded = classifier.encode(TEXTS)
    batch = encoded.batch(range(len(TEXTS)))
    features = step_features(classifier, encoded, seed=0, steps=range(STEPS + 1))
    masf = fit_calibrated(features, torch.from_numpy(encoded.lengths), steps=STEPS + 1)
    importance, space = importance_of(batch), fit_space(classifier, encoded)
    plain, tested = (drift(classifier, batch, importance, space, masf=one) for one in (None, masf))
    for name, column in plain.items():
        np.testing.assert_allclose(tested[name], column, atol=1e-5)
    assert set(tested) - set(plain) == {f"outside@{share} %" for share in range(0, 101, 10)}
    for row in (0, 1):
        size = int(batch.maskable[row].sum())
        for step in (0, 5, 10):
            masked = masked_alone(batch, importance, row, size * step // 10)
            of = classifier.predict_with_features(masked)[1]
            nearest = int(10 * (size * step // 10) / size + 0.5)
            p_value = masf.p_values(of, masked.attention_mask.sum(dim=1), masked.rows, nearest)[1]
            assert tested[f"outside@{10 * step} %"][row] == float(p_value[0] <= LEVEL)


def test_a_masking_that_several_steps_share_is_looked_at_once(monkeypatch):
    classifier, asked = random_classifier("bert"), []
    looked = room.representations

    def counting(classifier, batch, which, masked, masf):
        asked.append(len(which))
        return looked(classifier, batch, which, masked, masf)

    monkeypatch.setattr(room, "representations", counting)
    encoded = classifier.encode(["the film was great", "good"])
    batch = encoded.batch([0, 1])
    sizes = batch.maskable.sum(dim=1).tolist()
    drift(classifier, batch, importance_of(batch), fit_space(classifier, encoded))
    assert asked == [sum(len({size * step // 10 for step in range(11)}) for size in sizes)]
    assert asked[0] < 22


def test_principal_components_are_the_widest_directions_with_signs_that_do_not_turn():
    # along (1, 1)/√2 the points lie at ±2√2, along (1, −1)/√2 at ±√2: variances 8 and 2 of two points each
    points = torch.tensor([[2.0, 2.0], [-2.0, -2.0], [1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64) + 5
    centre, axes, shares = principal_components(points)
    half = 2**-0.5
    np.testing.assert_allclose(centre, [5, 5])
    np.testing.assert_allclose(axes[:, 0], [half, half], atol=1e-12)
    np.testing.assert_allclose(axes[:, 1].abs(), [half, half], atol=1e-12)
    np.testing.assert_allclose(shares, [0.8, 0.2], atol=1e-12)
    turned = principal_components(-points)[1]
    many = torch.rand(50, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    np.testing.assert_allclose(turned[:, 0], axes[:, 0], atol=1e-12)
    axes = principal_components(many)[1]
    assert (axes.take_along_dim(axes.abs().argmax(dim=0, keepdim=True), dim=0) > 0).all()
    np.testing.assert_allclose(principal_components(-many)[1], axes, atol=1e-9)


def test_masked_texts_take_part_in_the_map_and_whole_ones_alone_are_the_data():
    classifier = random_classifier("bert")
    encoded = classifier.encode(TEXTS)
    space = fit_space(classifier, encoded)
    units = torch.nn.functional.normalize(classifier.representations(encoded.batch(range(len(TEXTS))))[0].double())
    np.testing.assert_allclose(space.direction, units.mean(dim=0), atol=1e-5)
    assert not torch.allclose(space.centre, units.mean(dim=0), atol=1e-5)


def test_a_map_is_drawn_from_the_seed_and_comes_back_as_it_was_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(room, "DATA_ROWS", 4)
    classifier = random_classifier("bert")
    encoded = classifier.encode(TEXTS)
    first, again, other = (fit_space(classifier, encoded, seed=seed) for seed in (0, 0, 1))
    assert all(torch.equal(value, getattr(again, name)) for name, value in vars(first).items())
    assert not torch.equal(first.direction, other.direction)
    first.save(tmp_path / "space.safetensors")
    stored = Space.load(tmp_path / "space.safetensors")
    assert all(torch.equal(value, getattr(stored, name)) for name, value in vars(first).items())
