"""T5's encoder with mean pooling: the formula, and checkpoints of every kind of T5."""

import copy
import json

import pytest
import torch
import transformers
from conftest import sentiment_rows, text_to_text_pieces

from faithmeter import DataSpec, InputError, TrainingOptions, adopt, check, load_classifier, train
from faithmeter.models.classifier import outputs_of
from faithmeter.models.t5 import T5MeanForSequenceClassification

LABELS, TEXTS = ("a", "b", "c"), ["The film was great", "It was not bad at all, the story was very good!"]
SHAPE = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "vocab_size": 80}
EVERY_KIND = pytest.mark.parametrize(
    "whole",
    [
        transformers.T5ForConditionalGeneration,
        transformers.MT5ForConditionalGeneration,
        transformers.UMT5ForConditionalGeneration,
        transformers.T5ForSequenceClassification,
    ],
)


def published(folder, whole, **settings):
    tokenizer = copy.deepcopy(text_to_text_pieces())
    torch.manual_seed(0)
    model = whole(whole.config_class(**SHAPE, **settings))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model.eval(), tokenizer


@EVERY_KIND
def test_logits_are_the_head_on_the_mean_state_of_the_text(whole, tmp_path):
    model, tokenizer = published(tmp_path, whole)
    classifier = load_classifier(str(tmp_path), LABELS, new_head=True)
    assert isinstance(classifier.model, T5MeanForSequenceClassification)
    found = classifier.predict(classifier.encode(TEXTS))
    encoder = model.get_encoder() if hasattr(model, "get_encoder") else model.transformer.get_encoder()
    for row, text in enumerate(TEXTS):
        with torch.no_grad():
            states = encoder(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
            expected = classifier.model.classifier(states.mean(dim=0))
        torch.testing.assert_close(found[row], expected, atol=1e-5, rtol=1e-5)


@EVERY_KIND
def test_the_head_is_drawn_from_the_seed_and_saved_with_the_mask_token(whole, tmp_path):
    published(tmp_path / "base", whole)
    assert outputs_of(str(tmp_path / "base"), "classes") is None
    heads = [
        load_classifier(str(tmp_path / "base"), LABELS, new_head=True, seed=s).model.classifier.weight
        for s in (0, 0, 1)
    ]
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
    classifier = load_classifier(str(tmp_path / "base"), LABELS, new_head=True, seed=1)
    assert "<extra_id_0> of its tokenizer stands for masked tokens" in classifier.notes[0]
    classifier.save(tmp_path / "saved")
    assert outputs_of(str(tmp_path / "saved"), "classes") == LABELS
    loaded = load_classifier(str(tmp_path / "saved"), LABELS)
    assert loaded.tokenizer.mask_token == "<extra_id_0>"
    assert not loaded.notes
    masked = [c.predict(c.encode(TEXTS).masked_by(lambda _, maskable: maskable)) for c in (classifier, loaded)]
    torch.testing.assert_close(*masked, atol=1e-6, rtol=0)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved", use_safetensors=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    torch.testing.assert_close(
        model.eval()(**batch).logits, classifier.predict(classifier.encode(TEXTS)), atol=1e-5, rtol=0
    )


def test_without_a_sentinel_it_is_given_a_mask_token_that_is_embedded(tmp_path):
    tokenizer = copy.deepcopy(text_to_text_pieces())
    model, _ = published(tmp_path, transformers.T5ForConditionalGeneration)
    stored = (tmp_path / "tokenizer.json").read_text().replace("extra_id", "other_id")
    (tmp_path / "tokenizer.json").write_text(stored)
    settings = (tmp_path / "tokenizer_config.json").read_text().replace("extra_id", "other_id")
    (tmp_path / "tokenizer_config.json").write_text(settings)
    classifier = load_classifier(str(tmp_path), LABELS, new_head=True)
    assert (classifier.tokenizer.mask_token, classifier.mask_token_id) == ("<mask>", len(tokenizer))
    known = model.get_input_embeddings().weight.detach()[: len(tokenizer)]
    torch.testing.assert_close(classifier.vocabulary()[classifier.mask_token_id], known.mean(dim=0))
    assert classifier.model.transformer.shared.weight is classifier.model.get_input_embeddings().weight


def test_the_head_of_a_whole_t5_is_not_taken_for_ours(tmp_path):
    published(tmp_path / "model", transformers.T5ForSequenceClassification)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sentiment_rows(40)))
    with pytest.raises(InputError, match=r"whole T5 reads its decoder"):
        adopt(tmp_path / "run", str(tmp_path / "model"), DataSpec(data=str(tmp_path / "rows.jsonl")))


def test_it_learns_and_is_checked_like_any_other(tmp_path):
    published(tmp_path / "model", transformers.T5ForConditionalGeneration, initializer_factor=0.5)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sentiment_rows(400)))
    options = TrainingOptions(epochs=4, learning_rate=3e-3, batch_size=16)
    run = train(tmp_path / "run", DataSpec(data=str(tmp_path / "rows.jsonl")), str(tmp_path / "model"), options)
    unmasked = next(row["value"] for row in run.results if row["kind"] == "performance" and row["masking_ratio"] == 0)
    assert unmasked > 0.9
    assert len(check(run.path)) == 11
