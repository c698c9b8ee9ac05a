import numpy as np
import pytest
import torch
from conftest import ARCHITECTURES, MORE_ARCHITECTURES, PADDING_SENSITIVE, random_classifier
from importance.reference import TARGETS, TEXTS, alone, example_batch, strong_classifier
from tokenizers import processors

from faithmeter.errors import InputError
from faithmeter.importance.table import IMPORTANCE_MEASURES
from faithmeter.masking import Purpose, random_stream
from faithmeter.models.fast import first_layer
from faithmeter.models.from_scratch import bilstm_classifier
from faithmeter.models.operators import OPERATORS, Unigrams

SHAPES = ("bert", "roberta", "distilbert", "electra", "deberta", "modernbert", "xlm-roberta", "albert", "t5", "mpnet")
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def removing(shape, operator, classes=3):
    classifier = strong_classifier(shape, classes)
    classifier.remove_by(operator, Unigrams.of(classifier.encode(TEXTS), seed=3))
    return classifier


def naive_logits(classifier, batch, row):
    """Logits of one row by transformers alone, its ids written out token by token as the operator's words say."""
    length, operator = int(batch.attention_mask[row].sum()), classifier.operator.name
    ids, types, attended, zeroed = [], [], [], []
    for position in range(length):
        removed, token = bool(batch.masked[row, position]), int(batch.input_ids[row, position])
        if removed and operator == "delete":
            continue
        if removed and operator == "mask":
            token = classifier.tokenizer.mask_token_id
        if removed and operator == "unk":
            token = classifier.tokenizer.unk_token_id
        if removed and operator == "unigram":
            unigrams = classifier.unigrams
            number = random_stream(3, Purpose.UNIGRAMS, int(batch.rows[row])).random(length)[position]
            ends = np.cumsum(unigrams.counts) / unigrams.counts.sum()
            token = int(unigrams.ids[next(place for place, end in enumerate(ends) if number < end)])
        ids.append(token)
        types.append(0 if batch.token_type_ids is None else int(batch.token_type_ids[row, position]))
        attended.append(int(not (removed and operator == "pad")))
        zeroed.append(removed and operator == "zero")
    inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.tensor([attended])}
    if batch.token_type_ids is not None:
        inputs["token_type_ids"] = torch.tensor([types])
    zeros, hooks = torch.tensor([zeroed])[..., None], []
    if operator == "zero":
        lookup = classifier.model.get_input_embeddings()
        hooks.append(lookup.register_forward_hook(lambda *given: given[2] * ~zeros))
    with torch.no_grad():
        found = classifier.model.eval()(**inputs, output_hidden_states=True)
    for hook in hooks:
        hook.remove()
    return found, torch.tensor(attended).bool()


def cases():
    for shape in SHAPES:
        for operator in OPERATORS:
            yield shape, operator


@pytest.mark.parametrize(("shape", "operator"), cases())
def test_an_operator_shows_what_its_words_say_alone_and_in_a_batch(shape, operator):
    classifier = removing(shape, operator)
    classifier.model.eval()
    batch = example_batch(classifier, pairs=shape != "t5", masked=True)
    with torch.no_grad():
        logits, features = classifier.logits_and_features(batch)
        for row in range(len(batch)):
            found, attended = naive_logits(classifier, batch, row)
            torch.testing.assert_close(logits[[row]], found.logits, **CLOSE)
            torch.testing.assert_close(classifier.logits(alone(batch, row)), found.logits, **CLOSE)
            states = torch.stack([state[0, : len(attended)][attended] for state in found.hidden_states])
            torch.testing.assert_close(features[row, :, 0], states.amax(dim=1), **CLOSE)
            torch.testing.assert_close(features[row, :, 1], states.mean(dim=1), **CLOSE)
        assert not torch.allclose(logits, classifier.logits(batch.with_masked(batch.masked & False)), atol=1e-3)
        # in another order and at the embeddings that the lookup gives: the same answers
        back = torch.tensor([3, 0, 2, 1])
        torch.testing.assert_close(classifier.logits(batch.take(back)), logits[back], **CLOSE)
        torch.testing.assert_close(classifier.logits_from(batch, classifier.embed(batch)), logits, **CLOSE)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("shape", ["bert", "roberta", "electra"])
def test_many_maskings_at_once_are_those_one_by_one_also_with_a_shared_first_layer(shape, operator, monkeypatch):
    classifier = removing(shape, operator)
    batch = example_batch(classifier, pairs=True)
    generator = torch.manual_seed(0)
    rows = torch.randint(len(batch), (40,), generator=generator)
    masked = (torch.rand(40, batch.maskable.shape[1], generator=generator) < 0.4) & batch.maskable[rows]
    made, original = [], first_layer.FirstLayer
    monkeypatch.setattr(first_layer, "FirstLayer", lambda *given: made.append(1) or original(*given))
    found = []
    for often in (10**6, 0):
        monkeypatch.setattr(first_layer, "OFTEN", often)
        found.append(classifier.logits_of_masks(batch, rows, masked))
    assert bool(made) == (shape != "electra" and operator != "delete")
    for each in found:
        for number in range(0, 40, 5):
            one = batch.take(rows[[number]])
            one = one.with_masked(masked[[number], : one.input_ids.shape[1]])
            torch.testing.assert_close(each[[number]], naive_logits(classifier, one, 0)[0].logits, **CLOSE)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("shape", ["bert", "roberta"])
@pytest.mark.parametrize("measure", ["grad-l2", "x-grad-signed", "ig-signed", "loo-signed", "attention",
                                     "attention-rollout", "scaled-attention", "deep-lift", "lime", "beam"])  # fmt: skip
def test_importance_of_what_is_left_does_not_depend_on_neighbours_or_on_what_was_removed(operator, shape, measure):
    classifier = removing(shape, operator)
    batch = example_batch(classifier, masked=True)
    explain = IMPORTANCE_MEASURES[measure].explain
    importance = explain(classifier, batch, TARGETS, 0)
    assert importance.shape == batch.maskable.shape
    left = batch.maskable & ~batch.masked
    # other tokens removed from the same places leave no trace
    others = batch.input_ids.where(~batch.masked, batch.input_ids[0, 1])
    again = explain(classifier, type(batch)(**{**vars(batch), "input_ids": others}), TARGETS, 0)
    torch.testing.assert_close(again[left], importance[left], atol=2e-4, rtol=2e-4)
    for row in range(len(batch)):
        one = alone(batch, row)
        by_itself = explain(classifier, one, TARGETS[[row]], 0)[0]
        mine = left[row, : len(by_itself)]
        torch.testing.assert_close(by_itself[mine], importance[row, : len(by_itself)][mine], atol=2e-4, rtol=2e-4)
    if operator in ("delete", "pad") and measure not in ("loo-signed", "lime", "beam"):
        assert importance[batch.masked].abs().max() < 1e-6


@pytest.mark.parametrize("measure", ["x-grad-signed", "attention", "attention-average", "loo-signed"])
def test_importance_after_deletion_is_that_of_the_shorter_text_at_the_places_of_the_longer(measure):
    classifier = removing("bert", "delete")
    batch = example_batch(classifier, masked=True)
    importance = IMPORTANCE_MEASURES[measure].explain(classifier, batch, TARGETS, 0)
    for row in range(len(batch)):
        kept = batch.attention_mask[row].bool() & ~batch.masked[row]
        values = {name: value[[row]][:, kept] for name, value in vars(batch).items()
                  if isinstance(value, torch.Tensor) and value.ndim == 2}  # fmt: skip
        shorter = type(batch)(**{**vars(batch), **values, "rows": batch.rows[[row]], "labels": batch.labels[[row]]})
        expected = IMPORTANCE_MEASURES[measure].explain(classifier, shorter, TARGETS[[row]], 0)[0]
        torch.testing.assert_close(importance[row][kept], expected, atol=1e-5, rtol=1e-4)


def test_the_same_token_is_always_replaced_by_the_same_draw_and_by_the_frequencies_of_training():
    encoded = strong_classifier("bert").encode(["the film was the plot"] * 3)
    unigrams = Unigrams.of(encoded, seed=5)
    assert unigrams.counts.sum() == encoded.maskable.sum()
    wide = unigrams.drawn(torch.arange(400), 60)
    assert torch.equal(unigrams.drawn(torch.tensor([7, 3]), 20), wide[[7, 3], :20])
    assert not torch.equal(Unigrams(unigrams.ids, unigrams.counts, 6).drawn(torch.arange(400), 60), wide)
    for token, count in zip(unigrams.ids, unigrams.counts, strict=True):
        expected = count / unigrams.counts.sum()
        assert abs(float((wide == token).double().mean()) - expected) < 4 * (expected * (1 - expected) / 24000) ** 0.5


@pytest.mark.parametrize("shape", [*ARCHITECTURES, *MORE_ARCHITECTURES, *PADDING_SENSITIVE])
def test_an_operator_fits_or_says_why_not_and_then_nothing_is_changed(shape):
    refused = set()
    classifier = random_classifier(shape, spread=0.1)
    for operator in OPERATORS:
        try:
            classifier.remove_by(operator, Unigrams.of(classifier.encode(TEXTS)))
        except InputError:
            refused.add(operator)
            assert classifier.operator.name not in refused
    decoder = ({**ARCHITECTURES, **MORE_ARCHITECTURES, **PADDING_SENSITIVE})[shape][2] == "decoder-bpe"
    assert refused == ({"pad"} if decoder or shape in PADDING_SENSITIVE else set())


def test_a_text_of_which_nothing_would_be_left_cannot_be_deleted():
    classifier = random_classifier("bert")
    classifier.tokenizer._tokenizer.post_processor = processors.Sequence([])
    for operator in ("delete", "pad"):
        with pytest.raises(InputError, match="not even a special token"):
            classifier.remove_by(operator)


def test_models_that_read_what_they_do_not_attend_to_refuse_padding():
    classifier = bilstm_classifier(TEXTS, ("a", "b"), pairs=False, seed=0)
    with pytest.raises(InputError, match="still reads tokens that are removed so"):
        classifier.remove_by("pad")
    for operator in ("delete", "unk", "zero"):
        classifier.remove_by(operator)


@pytest.mark.parametrize("shape", PADDING_SENSITIVE)
def test_texts_become_shorter_also_in_models_that_must_not_pad(shape):
    classifier = random_classifier(shape, spread=0.1)
    classifier.remove_by("delete")
    classifier.model.eval()
    batch = example_batch(classifier, masked=True)
    with torch.no_grad():
        logits = classifier.logits(batch)
        for row in range(len(batch)):
            torch.testing.assert_close(logits[[row]], naive_logits(classifier, batch, row)[0].logits, **CLOSE)


def test_an_operator_that_is_not_known_or_lacks_its_counts_is_refused():
    classifier = random_classifier("bert")
    with pytest.raises(InputError, match="delete"):
        classifier.remove_by("deleet")
    with pytest.raises(InputError, match="how often each token"):
        classifier.remove_by("unigram")
    assert classifier.operator.name == "mask"


def test_counts_of_tokens_are_stored_and_read_again(tmp_path):
    unigrams = Unigrams.of(random_classifier("bert").encode(TEXTS), seed=2)
    unigrams.save(tmp_path / "unigrams.safetensors")
    again = Unigrams.load(tmp_path / "unigrams.safetensors", seed=2)
    assert torch.equal(again.drawn(torch.arange(9), 30), unigrams.drawn(torch.arange(9), 30))
