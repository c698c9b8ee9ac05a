import numpy as np
import pytest
import torch
from conftest import random_classifier

from faithmeter.explanation import explain_texts
from faithmeter.importance import ImportanceMeasure, as_measure

TEXT, CONTEXT = "The film was great, not awful", "Was the story bad?"


def fixed(values):
    """A measure that gives each maskable token the next of these numbers."""

    def explain(classifier, batch, targets, seed):
        importance = torch.zeros(batch.maskable.shape)
        count = int(batch.maskable.sum())
        importance[batch.maskable] = torch.tensor([float(values[i % len(values)]) for i in range(count)])
        return importance

    return ImportanceMeasure("fixed", "test", True, False, False, explain)


@pytest.mark.parametrize("architecture", ["bert", "roberta", "deberta"])
def test_tokens_and_words_are_pieces_of_the_text_and_never_of_its_context(architecture):
    classifier = random_classifier(architecture)
    (found,) = explain_texts(classifier, [TEXT], [CONTEXT], measure=fixed([1]))
    for piece in (*found.tokens, *found.words):
        assert TEXT[piece.start : piece.end] == piece.text
    assert "".join(piece.text for piece in found.words).replace(" ", "") == TEXT.replace(" ", "")
    assert len(found.words) <= len(found.tokens)


def test_the_loudest_token_speaks_for_its_word():
    classifier = random_classifier("bert")
    (found,) = explain_texts(classifier, ["great"], measure=fixed([1, -3, 2]))
    assert len(found.words) == 1
    assert len(found.tokens) > 1
    assert found.words[0].importance == -3


def test_probability_prediction_and_curve_are_the_models():
    classifier = random_classifier("bert")
    (found,) = explain_texts(classifier, [TEXT], measure=as_measure("loo-signed"))
    encoded = classifier.encode([TEXT])
    probabilities = classifier.predict(encoded).softmax(dim=-1)[0]
    everything = classifier.predict(encoded.masked_by(lambda row, maskable: maskable)).softmax(dim=-1)[0]
    target = int(probabilities.argmax())
    assert found.predicted == found.target == classifier.labels[target]
    assert found.probability == pytest.approx(float(probabilities[target]), abs=1e-5)
    assert found.curve[-1] == pytest.approx(float(everything[target]), abs=1e-5)
    assert found.random_curve[-1] == pytest.approx(found.curve[-1], abs=1e-6)
    area = np.trapezoid(np.array(found.random_curve) - np.array(found.curve), dx=0.1)
    assert found.acu == pytest.approx(area)


def test_a_class_can_be_named_as_the_target():
    classifier = random_classifier("bert")
    (found,) = explain_texts(classifier, [TEXT], measure=fixed([1]), target=classifier.labels[2])
    probabilities = classifier.predict(classifier.encode([TEXT])).softmax(dim=-1)[0]
    assert found.probability == pytest.approx(float(probabilities[2]), abs=1e-5)


def test_an_empty_text_is_explained_by_nothing():
    (found,) = explain_texts(random_classifier("bert"), [""], measure=as_measure("loo-signed"))
    assert found.tokens == found.words == ()
    assert found.acu == 0
    assert found.racu is None
