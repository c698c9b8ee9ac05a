"""What the in-distribution test can find, and how a model behaves when everything is masked."""

import json

import numpy as np
import pytest
import torch
from conftest import random_classifier, sentiment_rows
from scipy import stats

from faithmeter import DataSpec, TrainingOptions, check, train
from faithmeter.in_distribution.behaviour import AllMasked, all_masked
from faithmeter.in_distribution.masf import fit_calibrated, masked_at_random, step_features
from faithmeter.in_distribution.power import power, random_words, shuffled
from faithmeter.in_distribution.verdict import dataset_verdict
from faithmeter.masking import Purpose
from faithmeter.models.classifier import Classifier
from faithmeter.performance import performance
from faithmeter.progress import Silent
from faithmeter.runs.results import find
from faithmeter.runs.texts import encode

TEXTS = ["The film was great.", "Was the story bad? The plot was very good, it was not awful at all!", "bad"]


@pytest.fixture(scope="module")
def toys(tmp_path_factory):
    """The same small encoder trained without masks and with them, on texts whose label one word tells."""
    folder = tmp_path_factory.mktemp("toys")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sentiment_rows(1200)))
    given = {"epochs": 4, "curriculum": False, "learning_rate": 2e-3, "batch_size": 16}
    data = DataSpec(data=str(folder / "rows.jsonl"))
    return {
        strategy: train(folder / strategy, data, "small", TrainingOptions(strategy=strategy, **given))
        for strategy in ("plain", "masked")
    }


def split(run, part):
    return encode(run.classifier(), getattr(run.data(), part), part, Silent())


def fitted(run):
    validation = split(run, "validation")
    return fit_calibrated(step_features(run.classifier(), validation, seed=0), torch.from_numpy(validation.lengths))


# -------------------------------------------------------------------------------------------------------- power


def test_random_words_stand_where_masks_were_and_nowhere_else():
    classifier = random_classifier("bert")
    masked = masked_at_random(classifier.encode(TEXTS, TEXTS[::-1]), 5, (0, 1))
    spoilt = random_words(classifier, masked, seed=3)
    assert not spoilt.masked.any()
    assert np.array_equal(spoilt.ids[~masked.masked], masked.ids[~masked.masked])
    assert (spoilt.ids[masked.masked] != masked.ids[masked.masked]).mean() > 0.5
    assert not np.isin(spoilt.ids[masked.masked], classifier.tokenizer.all_special_ids).any()
    assert np.array_equal(spoilt.ids, random_words(classifier, masked, seed=3).ids)
    assert not np.array_equal(spoilt.ids, random_words(classifier, masked, seed=4).ids)


def test_shuffled_texts_have_the_same_tokens_in_another_order_and_contexts_stay():
    encoded = random_classifier("bert").encode(TEXTS, TEXTS[::-1])
    spoilt = shuffled(encoded, seed=1)
    for start, end in zip(encoded.offsets, encoded.offsets[1:], strict=False):
        text = encoded.maskable[start:end]
        assert sorted(spoilt.ids[start:end][text]) == sorted(encoded.ids[start:end][text])
        assert np.array_equal(spoilt.ids[start:end][~text], encoded.ids[start:end][~text])
    assert not np.array_equal(spoilt.ids, encoded.ids)


def test_power_is_the_share_of_spoilt_texts_that_the_test_calls_out_of_distribution(toys):
    run, classifier, test = toys["masked"], toys["masked"].classifier(), split(toys["masked"], "test")
    masf, done = fitted(run), []
    strange = classifier.encode(["good bad " * 20, "awful good plot " * 9] * 15)
    words, order, other = power(classifier, masf, test, seed=7, other=strange, progress=done.append)
    assert [one.spoilt for one in (words, order, other)] == ["words", "shuffled", "other"]
    assert sum(done) == 2 * len(test) + 30
    spoilt = random_words(classifier, masked_at_random(test, 5, (7, 6)), seed=7)  # 6: masks of the check
    found = masf.p_values(classifier.features(spoilt), torch.from_numpy(test.lengths), torch.arange(len(test)), 5)[1]
    assert words.share == pytest.approx(float((found <= 0.05).double().mean()), abs=1e-5)
    count = int((found <= 0.05).sum())
    # Clopper and Pearson: quantiles of beta distributions
    assert words.interval[0] == pytest.approx(stats.beta.ppf(0.025, count, len(test) - count + 1), abs=1e-5)
    assert words.interval[1] == pytest.approx(stats.beta.ppf(0.975, count + 1, len(test) - count), abs=1e-5)
    assert words.share > 0.3
    assert words.p_value < 1e-6
    assert order.share < 0.1  # the label is told by a word wherever it stands: order is nothing to this model
    assert order.p_value > 0.05
    assert other.share == 1
    assert other.texts == 30


def test_check_stores_what_it_could_find_for_a_fifth_more_passes_at_most(toys, monkeypatch):
    run, passed = toys["masked"], []
    once = Classifier.predict_with_features

    def counted(self, batch):
        passed.append(len(batch))
        return once(self, batch)

    monkeypatch.setattr(Classifier, "predict_with_features", counted)
    check(run.path, other=["good bad " * 20] * 20)
    test, validation = (len(split(run, part)) for part in ("test", "validation"))
    spoilt = sum(passed) - 11 * (test + validation)
    assert spoilt == 2 * test + 20
    assert 2 * test <= 0.2 * 11 * (test + validation)
    words = find(run.results, "check_power_words")
    assert words["n"] == test
    assert words["low"] < words["value"] < words["high"]
    assert words["value"] > 0.3 > 0.1 > find(run.results, "check_power_shuffled")["value"]
    assert find(run.results, "check_power_other")["value"] == 1
    check(run.path, form="paper")  # which allows no verdict
    assert not any(row["kind"].startswith("check_power") for row in run.results)


# ---------------------------------------------------------------------------------------------------- behaviour


def test_plain_weights_declared_as_masked_are_found_out_by_what_they_do_with_nothing_to_read(toys):
    found = {}
    for strategy, run in toys.items():
        labels = run.data().train["label"]
        found[strategy] = all_masked(run.classifier(), split(run, "test"), labels, "accuracy")
    assert found["masked"].knows_nothing_is_there
    assert not found["plain"].knows_nothing_is_there
    assert abs(found["masked"].excess_loss) < 0.05
    assert found["plain"].interval[0] > 1
    # what an even task cannot show: always the wrong class is as good as always the other
    assert found["plain"].p_value > 0.05


def beside_unmasked(classifier, masf, encoded, steps):
    """The verdicts on randomly masked texts against the model's own unmasked ones."""
    unmasked, lengths = masf.against_unmasked(), torch.from_numpy(encoded.lengths)
    for step in steps:
        features = classifier.features(masked_at_random(encoded, step, (0, Purpose.CHECK_MASKS)))
        p_values = unmasked.p_values(features, lengths, torch.arange(len(encoded)), step)
        yield dataset_verdict(unmasked, *p_values, lengths, step, torch.from_numpy(encoded.sources()))


def test_masked_texts_beside_unmasked_ones_are_atypical_to_both_models_so_that_decides_nothing(toys):
    for run in toys.values():
        test, masf = split(run, "test"), fitted(run)
        none, half, every = beside_unmasked(run.classifier(), masf, test, (0, 5, 10))
        assert not none.anywhere.rejected
        assert min(half.anywhere.share_below, every.anywhere.share_below) > 0.9


def test_the_excess_loss_is_cross_entropy_above_that_of_the_classes_shares(toy_classifier):
    encoded = toy_classifier.encode(["good film", "bad film", "the plot was bad"], labels=[1, 0, 0])
    found = all_masked(toy_classifier, encoded, [0, 0, 0, 1], "accuracy")
    logits = toy_classifier.predict(encoded.masked_by(lambda row, maskable: maskable)).double()
    losses = [float(-row.log_softmax(dim=0)[label]) for row, label in zip(logits, (1, 0, 0), strict=True)]
    of_shares = [-np.log(2 / 6), -np.log(4 / 6), -np.log(4 / 6)]  # 3 and 1, each and one more, of 6
    assert found.excess_loss == pytest.approx(np.mean(losses) - np.mean(of_shares), abs=1e-5)
    assert found.majority == pytest.approx(2 / 3)
    assert (found.texts, found.performance) == (3, performance("accuracy", [1, 0, 0], logits.argmax(dim=-1)))


@pytest.mark.parametrize(
    ("p_value", "interval", "known"),
    [(0.5, (0.04, 0.4), True), (0.04, (-0.1, 0.1), False), (0.5, (0.06, 0.4), False), (0.5, None, False)],
)
def test_either_too_bad_or_too_sure_contradicts_a_claim(p_value, interval, known):
    assert AllMasked(100, 0.5, 0.5, p_value, 0.35, interval).knows_nothing_is_there is known
