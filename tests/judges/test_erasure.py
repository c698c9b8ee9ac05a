import math

import numpy as np
import pytest
import torch
from conftest import random_classifier

from faithmeter import InputError
from faithmeter.in_distribution.masf import fit_calibrated, step_features
from faithmeter.judges.erasure import RATIOS, erasure
from faithmeter.judges.maskings import tokens_of
from faithmeter.masking import STEPS, random_count_mask, random_stream
from faithmeter.models.classifier import Classifier
from faithmeter.statistics import LEVEL

TEXTS = ["the film was great", "was the story bad? the plot was very good!", "good", "", "it was not awful at all"] * 2


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    found = random_classifier("bert")
    with torch.no_grad():  # random weights say nearly the same of every text
        found.model.classifier.weight *= 200
    return found


def importance_of(batch) -> torch.Tensor:
    drawn = torch.rand(batch.maskable.shape, generator=torch.Generator().manual_seed(1))
    return drawn.masked_fill(~batch.maskable, 0.0)


def probability(classifier: Classifier, batch, row: int, masked: list[int], of: int) -> float:
    alone = batch.take(torch.tensor([row]))
    table = torch.zeros_like(alone.masked)
    table[0, masked] = True
    logits = classifier.predict_with_features(alone.with_masked(table))[0]
    return float(logits.softmax(dim=-1)[0, of])


def naive(classifier: Classifier, batch, importance, row: int, ratios=RATIOS) -> dict[str, float]:
    """Definitions 2.1 and 2.2 of the Thesis and SPEC's normalised forms, one masking at a time."""
    logits = classifier.predict_with_features(batch.take(torch.tensor([row])))[0]
    of = int(logits.argmax())
    places = torch.nonzero(batch.maskable[row])[:, 0].tolist()
    order = sorted(places, key=lambda place: (-float(importance[row, place]), place))
    whole = probability(classifier, batch, row, [], of)
    suff0 = 1 - max(0.0, whole - probability(classifier, batch, row, places, of))
    sums = dict.fromkeys(("sufficiency", "comprehensiveness", "norm_sufficiency", "norm_comprehensiveness"), 0.0)
    for ratio in ratios:
        k = math.ceil(ratio * len(places) - 1e-9)
        keep = whole - probability(classifier, batch, row, order[k:], of)
        remove = whole - probability(classifier, batch, row, order[:k], of)
        sums["sufficiency"] += keep / len(ratios)
        sums["comprehensiveness"] += remove / len(ratios)
        if suff0 == 1:
            sums["norm_sufficiency"] = sums["norm_comprehensiveness"] = math.nan
            continue
        suff, comp = 1 - max(0.0, keep), max(0.0, remove)
        sums["norm_sufficiency"] += min(1, max(0, (suff - suff0) / (1 - suff0))) / len(ratios)
        sums["norm_comprehensiveness"] += min(1, max(0, comp / (1 - suff0))) / len(ratios)
    return sums


@pytest.mark.parametrize(
    ("ratio", "maskable", "tokens"),
    [(0.05, 1, 1), (0.05, 20, 1), (0.05, 21, 2), (0.1, 30, 3), (0.07, 100, 7), (0.5, 7, 4), (1.0, 9, 9), (0.2, 0, 1)],
)
def test_a_ratio_of_tokens_is_rounded_up_in_whole_numbers(ratio, maskable, tokens):
    assert tokens_of(ratio, maskable) == tokens


def test_the_columns_are_those_of_the_definitions(classifier):
    batch = classifier.encode(TEXTS).batch(range(len(TEXTS)))
    importance = importance_of(batch)
    found = erasure(classifier, batch, importance)
    scales = 0
    for row in range(len(TEXTS)):
        if batch.maskable[row].any():
            expected = naive(classifier, batch, importance, row)
            scales += not math.isnan(expected["norm_sufficiency"])
            places = torch.nonzero(batch.maskable[row])[:, 0].tolist()
            of = int(classifier.predict_with_features(batch.take(torch.tensor([row])))[0].argmax())
            drop = probability(classifier, batch, row, [], of) - probability(classifier, batch, row, places, of)
            for name, value in expected.items():
                # what is divided by a small drop has its noise enlarged by it
                close = 1e-5 + (1e-6 / abs(drop) if "norm" in name and drop else 0.0)
                assert found[name][row] == pytest.approx(value, abs=close, nan_ok=True), (row, name)
    assert scales >= 2  # or the normalised forms were not tested


def test_the_numbers_of_a_model_that_reads_one_token(classifier, monkeypatch):
    # logits (2, 0) with the first maskable token, (0, 0) without: m(x) = σ(2) = .880797, and ½ without it
    def logits_of_masks(batch, rows, masked):
        first = batch.maskable.int().argmax(dim=1)[rows]
        there = ~masked.gather(1, first[:, None])[:, 0]
        return torch.stack((2.0 * there, 0.0 * there), dim=1)

    monkeypatch.setattr(classifier, "logits_of_masks", logits_of_masks)
    batch = classifier.encode(["the film was great"]).batch([0])
    first = batch.maskable.int().argmax()
    sees = torch.zeros(batch.maskable.shape)
    sees[0, first] = 1.0
    found = erasure(classifier, batch, sees, ratios=(0.1, 0.5))
    assert found["sufficiency"][0] == 0
    assert found["comprehensiveness"][0] == pytest.approx(0.380797, abs=1e-6)
    assert found["norm_sufficiency"][0] == 1
    assert found["norm_comprehensiveness"][0] == 1
    blind = erasure(classifier, batch, -sees, ratios=(0.1, 0.5))
    assert blind["sufficiency"][0] == pytest.approx(0.380797, abs=1e-6)
    assert blind["comprehensiveness"][0] == 0
    assert blind["norm_sufficiency"][0] == 0
    assert blind["norm_comprehensiveness"][0] == 0


def test_a_text_whose_masking_costs_nothing_has_no_normalised_form(classifier, monkeypatch):
    monkeypatch.setattr(classifier, "logits_of_masks", lambda batch, rows, masked: torch.ones(len(rows), 3))
    batch = classifier.encode(["the film was great"]).batch([0])
    found = erasure(classifier, batch, importance_of(batch))
    assert found["sufficiency"][0] == 0
    assert np.isnan(found["norm_sufficiency"][0])
    assert np.isnan(found["norm_comprehensiveness"][0])


def test_a_row_without_maskable_tokens_is_not_judged(classifier):
    encoded = classifier.encode(TEXTS)
    masf = fit_calibrated(step_features(classifier, encoded, seed=0), torch.from_numpy(encoded.lengths))
    batch = encoded.batch([3, 0])
    for test in (None, masf):
        found = erasure(classifier, batch, importance_of(batch), masf=test)
        assert all(np.isnan(column[0]) for column in found.values())
        assert np.isfinite(found["sufficiency"][1])


def test_a_row_is_judged_the_same_alone_as_in_a_batch_with_or_without_a_test(classifier):
    encoded = classifier.encode(TEXTS)
    masf = fit_calibrated(step_features(classifier, encoded, seed=0), torch.from_numpy(encoded.lengths))
    batch = encoded.batch(range(5))
    importance = importance_of(batch)
    plain, tested = erasure(classifier, batch, importance), erasure(classifier, batch, importance, masf=masf)
    for row in range(5):
        alone_batch = batch.take(torch.tensor([row]))
        alone = erasure(classifier, alone_batch, importance[[row], : alone_batch.input_ids.shape[1]], masf=masf)
        for name, column in alone.items():
            close = 1e-3 if "norm" in name else 1e-5
            assert tested[name][row] == pytest.approx(column[0], abs=close, nan_ok=True), (row, name)
            if name in plain:
                assert tested[name][row] == pytest.approx(plain[name][row], abs=close, nan_ok=True), (row, name)


def test_outside_is_the_share_of_ratios_whose_masked_text_is_strange(classifier):
    encoded = classifier.encode(TEXTS)
    # a reference that has a token or two masked: texts with more masked are strange to it, and others are not
    reference = classifier.encode(TEXTS * 20).masked_by(
        lambda row, maskable: random_count_mask(maskable, row % 3, STEPS, random_stream(row))
    )
    masf = fit_calibrated([classifier.features(reference)], torch.from_numpy(reference.lengths), steps=1)
    batch = encoded.batch(range(len(TEXTS)))
    importance = importance_of(batch)
    found = erasure(classifier, batch, importance, masf=masf)
    for row in range(len(TEXTS)):
        places = torch.nonzero(batch.maskable[row])[:, 0].tolist()
        order = sorted(places, key=lambda place: (-float(importance[row, place]), place))
        counts = {"sufficiency_outside": 0, "comprehensiveness_outside": 0}
        for ratio in RATIOS if places else ():
            k = math.ceil(ratio * len(places) - 1e-9)
            for name, gone in (("sufficiency_outside", order[k:]), ("comprehensiveness_outside", order[:k])):
                table = torch.zeros_like(batch.masked[:1])
                table[0, gone] = True
                alone = batch.take(torch.tensor([row])).with_masked(table[:, : batch.attention_mask[row].sum()])
                features = classifier.predict_with_features(alone)[1]
                p = masf.p_values(features, alone.attention_mask.sum(dim=1), alone.rows, 0)[1]
                counts[name] += bool(p[0] <= LEVEL)
        for name, count in counts.items():
            assert found[name][row] == pytest.approx(count / len(RATIOS) if places else math.nan, nan_ok=True)
    assert 0 < np.nanmean(found["sufficiency_outside"]) + np.nanmean(found["comprehensiveness_outside"]) < 2


def test_the_masking_step_is_the_nearest_tenth_of_the_maskable_tokens(classifier, monkeypatch):
    encoded = classifier.encode(["the film was great"])  # n maskable tokens
    n = int(encoded.maskable.sum())
    masf = fit_calibrated(
        step_features(classifier, classifier.encode(TEXTS), seed=0),
        torch.from_numpy(classifier.encode(TEXTS).lengths),
    )
    asked: list[tuple[int, int]] = []
    original = type(masf).p_values

    def listening(self, features, lengths, rows, steps):
        asked.extend(zip(lengths.tolist(), steps.tolist(), strict=True))
        return original(self, features, lengths, rows, steps)

    monkeypatch.setattr(type(masf), "p_values", listening)
    batch = encoded.batch([0])
    erasure(classifier, batch, importance_of(batch), ratios=(0.5,), masf=masf)
    k = math.ceil(n / 2)
    expected = sorted({0, 10, math.floor(10 * k / n + 0.5), math.floor(10 * (n - k) / n + 0.5)})
    assert sorted({step for _, step in asked}) == expected


def test_the_model_is_left_as_it_was(classifier):
    classifier.model.train()
    batch = classifier.encode(TEXTS).batch(range(4))
    erasure(classifier, batch, importance_of(batch))
    assert classifier.model.training
    assert all(parameter.requires_grad for parameter in classifier.model.parameters())
    classifier.model.eval()


@pytest.mark.parametrize("ratios", [(), (0.0,), (0.5, 1.5)])
def test_ratios_outside_0_to_1_are_refused(classifier, ratios):
    batch = classifier.encode(TEXTS[:1]).batch([0])
    with pytest.raises(InputError, match="ratio"):
        erasure(classifier, batch, importance_of(batch), ratios=ratios)
