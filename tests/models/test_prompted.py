"""Prompted language models: scores against a naive reference, and only the slot can be masked."""

import copy

import pytest
import torch
from conftest import random_language_model as language_model
from safetensors.torch import load_file, save_file

from faithmeter import explain_texts
from faithmeter.errors import InputError
from faithmeter.models.classifier import Classifier, load_classifier
from faithmeter.models.prompt import Prompt, prompted, read_language_model

TEXTS = ["the film was great", "it was not a very good story at all", "bad"]
# one token and several: the tiny tokenizer knows few words
PROMPT = Prompt("Text: {text}\nWas it good? ", {"no": "not at all", "yes": "good"}, ("Text: great\nWas it good? good",))


def classifier_of(prompt: Prompt = PROMPT, architecture: str = "llama") -> Classifier:
    return Classifier(*prompted(*language_model(architecture), prompt))


def written(tokenizer, ids) -> str:
    """Tokens as text: the tiny tokenizer cannot decode."""
    return "".join(tokenizer.convert_ids_to_tokens([int(one) for one in ids])).replace("Ġ", " ").replace("Ċ", "\n")


def naive(model, tokenizer, prompt: Prompt, text: str, label: str) -> float:
    """The log-likelihood of a word, token by token, after the prompt written as one string."""
    whole = "".join(f"{example}\n\n" for example in prompt.examples) + prompt.filled(text).rstrip(" ")
    before = tokenizer(whole, add_special_tokens=False)["input_ids"]
    word = tokenizer(prompt.spelt(label), add_special_tokens=False)["input_ids"]
    found = 0.0
    for number, token in enumerate(word):
        with torch.no_grad():
            logits = model(torch.tensor([before + word[:number]])).logits[0, -1]
        found += float(logits.log_softmax(dim=-1)[token])
    return found


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
@pytest.mark.parametrize(
    "words", [{"no": "not at all", "yes": "a story"}, {"no": "very", "yes": "was", "so": "it was"}]
)
def test_the_score_of_a_class_is_the_log_likelihood_of_its_whole_word(architecture, words):
    model, tokenizer = language_model(architecture)
    prompt = Prompt(PROMPT.template, words, PROMPT.examples)
    classifier = Classifier(*prompted(copy.deepcopy(model), tokenizer, prompt))
    lengths = [len(ids) for ids in classifier.model.config.word_ids]
    assert max(lengths) > 1
    expected = torch.tensor([[naive(model, tokenizer, prompt, text, label) for label in words] for text in TEXTS])
    encoded = classifier.encode(TEXTS)
    torch.testing.assert_close(classifier.predict(encoded), expected, rtol=0, atol=1e-4)  # padded, the prefix shared
    alone = torch.cat([classifier.predict(classifier.encode([text])) for text in TEXTS])  # neither
    torch.testing.assert_close(alone, expected, rtol=0, atol=1e-4)
    with torch.enable_grad():  # with gradients nothing is shared
        together = classifier.logits(encoded.batch([0, 1, 2]))
    torch.testing.assert_close(together.detach(), expected, rtol=0, atol=1e-4)


def test_only_the_slot_can_be_masked_and_the_tokens_are_those_of_the_whole_prompt():
    classifier = classifier_of()
    _, tokenizer = language_model()
    for text in TEXTS:
        batch = classifier.encode([text]).batch([0])
        whole = f"{PROMPT.examples[0]}\n\n{PROMPT.filled(text).rstrip(' ')}"
        assert batch.input_ids[0].tolist() == tokenizer(whole)["input_ids"]
        slot = batch.input_ids[0][batch.maskable[0]].tolist()
        assert written(tokenizer, slot) == f" {text}"


def test_a_long_text_is_cut_and_the_prompt_never():
    classifier = Classifier(*prompted(*language_model(), PROMPT), max_length=60)
    batch = classifier.encode(["the film was great " * 50]).batch([0])
    assert batch.input_ids.shape[1] == 60
    around = written(classifier.tokenizer, batch.input_ids[0][~batch.maskable[0]])
    assert around == f"{PROMPT.examples[0]}\n\nText:\nWas it good?"


def test_a_masked_prompt_is_the_prompt_with_the_mask_in_place_of_words():
    classifier = classifier_of()
    batch = classifier.encode(TEXTS[:1]).batch([0])
    masked = batch.with_masked(batch.maskable)
    ids = masked.masked_ids(classifier.mask_token_id)[0]
    assert (ids == classifier.mask_token_id).sum() == batch.maskable.sum()
    expected = classifier.model.language_model(ids[None]).logits[0, -1, : classifier.model.config.known_tokens]
    word = classifier.model.config.word_ids[1]
    assert len(word) == 1
    found = classifier.logits(masked)[0, 1]
    torch.testing.assert_close(found, expected.log_softmax(dim=-1)[word[0]], rtol=0, atol=1e-4)


def test_a_prompted_model_is_saved_and_loaded_like_any_other(tmp_path):
    classifier = classifier_of()
    classifier.model.config.offsets = [0.5, -0.5]
    expected = classifier.predict(classifier.encode(TEXTS))
    classifier.save(tmp_path)
    found = load_classifier(str(tmp_path), ("no", "yes"))
    assert torch.equal(found.predict(found.encode(TEXTS)), expected)
    assert found.labels == ("no", "yes")
    assert not found.notes  # its mask token is its own


@pytest.mark.parametrize(
    "measure", ["grad-l2", "x-grad-signed", "ig-signed", "loo-signed", "attention", "lime", "beam"]
)
def test_every_kind_of_measure_explains_a_prompted_model(measure):
    (found,) = explain_texts(classifier_of(), ["the film was great"], measure=measure)
    assert [word.text for word in found.words] == ["the", "film", "was", "great"]
    assert any(word.importance for word in found.words)


def test_gradients_are_those_of_the_scores():
    classifier = classifier_of()
    batch = classifier.encode(TEXTS[:2]).batch([0, 1])
    embeddings, targets = classifier.embed(batch), torch.tensor([0, 1])
    torch.manual_seed(1)
    step = torch.randn_like(embeddings) * batch.maskable[..., None]
    logits, gradients = classifier.logits_and_gradients(batch, embeddings, targets)
    torch.testing.assert_close(logits, classifier.logits(batch).detach(), rtol=0, atol=1e-5)
    ahead, behind = (classifier.logits_from(batch, embeddings + sign * 2e-3 * step) for sign in (1, -1))
    slope = (ahead - behind).gather(1, targets[:, None])[:, 0] / 4e-3
    torch.testing.assert_close((gradients * step).sum(dim=(1, 2)), slope.detach(), rtol=2e-2, atol=2e-3)


def test_features_and_attention_are_of_the_prompt_alone():
    classifier = classifier_of()
    batch = classifier.encode(TEXTS).batch([0, 1, 2])
    logits, features = classifier.predict_with_features(batch)
    torch.testing.assert_close(logits, classifier.predict(classifier.encode(TEXTS)), rtol=0, atol=1e-4)
    assert features.shape[:2] == (3, 3)
    _, layers = classifier.logits_and_attentions(batch)
    assert layers[0].shape[2:] == (batch.input_ids.shape[1],) * 2
    # a prompt does not change with the words that follow it
    one = classifier_of(Prompt(PROMPT.template, {"no": "bad", "yes": "good"}, PROMPT.examples))
    torch.testing.assert_close(one.predict_with_features(batch)[1], features, rtol=0, atol=1e-5)


def test_a_pair_fills_both_slots():
    prompt = Prompt("{text}\nThen: {context}\nSo: ", {"no": "bad", "yes": "good"})
    with pytest.raises(InputError, match="both slots"):
        classifier_of(prompt)
    classifier = classifier_of(Prompt("If: {text}\nThen: {context}\nSo: ", prompt.words))
    batch = classifier.encode(["the film"], ["it was great"]).batch([0])
    assert written(classifier.tokenizer, batch.input_ids[0]) == "If: the film\nThen: it was great\nSo:"
    assert written(classifier.tokenizer, batch.input_ids[0][batch.maskable[0]]) == " the film"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("Text:\nGood? ", r"has one slot \{text\}.* this one has 0 and 0"),
        ("{text} {text} ", "this one has 2 and 0"),
        ("{context} {text} ", "comes after"),
    ],
)
def test_a_template_without_its_slot_is_refused(template, message):
    with pytest.raises(InputError, match=message):
        Prompt(template, PROMPT.words)


def test_words_that_are_the_same_or_empty_are_refused():
    with pytest.raises(InputError, match="words of no and yes are the same to the model"):
        classifier_of(Prompt(PROMPT.template, {"no": "good", "yes": " good"}))
    with pytest.raises(InputError, match="no word may be empty"):
        Prompt(PROMPT.template, {"no": " ", "yes": "good"})


def test_what_fills_a_slot_is_not_filled_again():
    prompt = Prompt("{text} / {context}: ", {"a": "x", "b": "y"})
    assert prompt.filled("see {context}", "see {text}") == "see {context} / see {text}: "


def test_a_language_model_without_some_of_its_weights_is_refused_by_their_names(tmp_path):
    model, tokenizer = language_model()
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    weights = load_file(tmp_path / "model" / "model.safetensors")
    read_language_model(str(tmp_path / "model"))
    name = "model.layers.1.mlp.down_proj.weight"
    save_file(
        {k: v for k, v in weights.items() if k != name}, tmp_path / "model" / "model.safetensors", {"format": "pt"}
    )
    with pytest.raises(InputError, match=rf"do not fit a LlamaForCausalLM: {name} is missing"):
        read_language_model(str(tmp_path / "model"))
