"""The answer to a text is the same beside any other texts, in every architecture that README names and some more."""

import pytest
import torch
import transformers
from conftest import (
    ARCHITECTURES,
    MORE_ARCHITECTURES,
    PADDING_SENSITIVE,
    random_classifier,
    sentiment_rows,
    word_pieces,
)

from faithmeter import DataSpec, TrainingOptions, train
from faithmeter.errors import InputError
from faithmeter.importance.table import IMPORTANCE_MEASURES
from faithmeter.models.classifier import Classifier
from faithmeter.models.heads import END, where_read
from faithmeter.progress import Silent

# by length the order is 1, 3, 0, 2, which is not its own inverse: a wrong way back would show
TEXTS = [
    "The film was great",
    "The plot was very good, it was great, and the film was not awful at all, the story was very, very good!",
    "good",
    "It was not bad at all, the story was very good!",
]
EVERY = [*ARCHITECTURES, *MORE_ARCHITECTURES, *PADDING_SENSITIVE]
SPREAD = 0.1


def plain_logits(classifier, text):
    """The logits of one text by transformers alone."""
    inputs = classifier.tokenizer(text, return_tensors="pt")
    if not classifier.takes_type_ids:
        inputs.pop("token_type_ids", None)
    with torch.no_grad():
        return classifier.model.eval()(**inputs).logits[0]


def close(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("architecture", EVERY)
def test_a_text_is_answered_beside_longer_ones_as_transformers_answers_it_alone(architecture):
    classifier = random_classifier(architecture, spread=SPREAD)
    expected = torch.stack([plain_logits(classifier, text) for text in TEXTS])
    encoded = classifier.encode(TEXTS)
    close(classifier.predict(encoded), expected)
    batch = encoded.batch(range(len(TEXTS)))
    assert len(set(encoded.lengths)) == len(TEXTS)
    close(classifier.logits_of_masks(batch, torch.arange(len(TEXTS)), batch.masked), expected)
    close(classifier.predict_with_features(batch)[0], expected)
    with torch.no_grad():  # as training asks
        close(classifier.logits(batch), expected)


@pytest.mark.parametrize("architecture", EVERY)
def test_a_text_is_explained_beside_longer_ones_as_it_is_alone(architecture):
    classifier = random_classifier(architecture, spread=SPREAD)
    encoded = classifier.encode(TEXTS)
    together, targets = encoded.batch(range(len(TEXTS))), torch.tensor([0, 1, 2, 0])
    for measure in ("loo-signed", "x-grad-signed"):
        explain = IMPORTANCE_MEASURES[measure].explain
        found = explain(classifier, together, targets, 0)
        for row, length in enumerate(encoded.lengths):
            alone = explain(classifier, encoded.batch([row]), targets[row : row + 1], 0)
            close(found[row : row + 1, :length], alone)
    heard, features = classifier.representations(together, features=True)
    for row in range(len(TEXTS)):
        alone, alone_features = classifier.representations(encoded.batch([row]), features=True)
        close(heard[row : row + 1], alone)
        close(features[row : row + 1], alone_features)


@pytest.mark.parametrize("architecture", EVERY)
def test_only_models_that_padding_changes_go_without_it_and_say_so(architecture):
    classifier = random_classifier(architecture, spread=SPREAD)
    assert classifier.pads == (architecture not in PADDING_SENSITIVE)
    assert classifier.pads == (not any("Padding changes" in note for note in classifier.notes))


@pytest.mark.parametrize("architecture", PADDING_SENSITIVE)
def test_the_gradient_of_training_is_that_of_the_texts_one_by_one(architecture):
    classifier = random_classifier(architecture, spread=SPREAD)
    classifier.model.eval()
    encoded = classifier.encode(TEXTS)
    weight = classifier.model.get_input_embeddings().weight

    def gradient(batches):
        classifier.model.zero_grad()
        for batch in batches:
            classifier.logits(batch)[:, 0].sum().backward()
        return weight.grad.clone()

    whole = gradient([encoded.batch(range(4))])
    torch.testing.assert_close(whole, gradient(encoded.batch([row]) for row in range(4)), atol=1e-4, rtol=1e-4)


def test_xlnet_reads_the_last_token_of_a_text_and_not_the_padding_after_it():
    classifier = random_classifier("xlnet", spread=SPREAD)
    encoded = classifier.encode(TEXTS)
    assert where_read(classifier.model) == END
    read = classifier.read_weights(encoded.batch(range(4)))
    assert read.argmax(dim=1).tolist() == (encoded.lengths - 1).tolist()
    assert read.sum(dim=1).tolist() == [1.0] * 4


def test_attention_of_padded_texts_is_refused_where_padding_changes_it():
    classifier = random_classifier("convbert", spread=SPREAD)
    with pytest.raises(InputError, match=r"Padding changes.*one length"):
        classifier.logits_and_attentions(classifier.encode(TEXTS).batch([0, 1]))


class Gossip(transformers.BertForSequenceClassification):
    """A model whose answers are relative to those of the whole batch."""

    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        output.logits = output.logits - output.logits.mean(dim=0) * (len(output.logits) > 1)
        return output


def test_a_model_that_looks_at_other_texts_of_the_same_length_is_refused_by_name():
    model = random_classifier("bert").model
    model.__class__ = Gossip
    with pytest.raises(InputError, match=r"The prediction of Gossip for a text changes with another"):
        Classifier(model, word_pieces())


class Heard(Silent):
    def __init__(self):
        self.said = []

    def note(self, text):
        self.said.append(text)


def test_a_training_says_that_padding_would_change_the_answers(tmp_path, write):
    random_classifier("fnet", classes=2, spread=SPREAD).save(tmp_path / "fnet")
    data, heard = DataSpec(data=str(write("rows.jsonl", sentiment_rows(40)))), Heard()
    run = train(tmp_path / "run", data, str(tmp_path / "fnet"), TrainingOptions(epochs=1), reporter=heard)
    assert any("Padding changes" in line for line in heard.said)
    assert not run.classifier().pads
