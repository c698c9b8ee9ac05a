"""Greedy answers of a prompted language model: the likeliest token each time, whoever else is in the batch."""

import copy

import pytest
import torch
from conftest import random_classifier
from conftest import random_language_model as language_model

from faithmeter.errors import InputError
from faithmeter.models import completion
from faithmeter.models.classifier import Classifier, load_classifier
from faithmeter.models.completion import complete
from faithmeter.models.prompt import Prompt, prompted, without_template

WORDS = {"no": "bad", "yes": "good"}
PROMPTS = ["the film was great", "it was not a very good story at all , was it?", "bad", "The plot", "was the film bad"]
NEW = 12


def classifier_of(template="Text: {text}\nIt was ", architecture="llama") -> Classifier:
    model, tokenizer = language_model(architecture)
    return Classifier(*prompted(copy.deepcopy(model), tokenizer, Prompt(template, WORDS)))


def naive(prompt: str, architecture="llama") -> str:
    """Look at the whole text anew for every token: no cache, no padding, no mask token."""
    model, tokenizer = language_model(architecture)
    ids, said = tokenizer(prompt)["input_ids"], []
    for _ in range(NEW):
        with torch.no_grad():
            said.append(int(model(torch.tensor([ids + said])).logits[0, -1].argmax()))
        if said[-1] == model.config.eos_token_id or "\n" in tokenizer.decode(said).lstrip():
            break
    return tokenizer.decode(said, skip_special_tokens=True).lstrip().partition("\n")[0].rstrip()


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_an_answer_is_the_likeliest_token_each_time(architecture):
    expected = [naive(prompt, architecture) for prompt in PROMPTS]
    assert len(set(expected)) > 1
    assert complete(classifier_of(architecture=architecture), PROMPTS, NEW) == expected


def test_an_answer_does_not_depend_on_the_batch():
    classifier = classifier_of()
    alone = [complete(classifier, [prompt], NEW)[0] for prompt in PROMPTS]
    assert complete(classifier, PROMPTS, NEW) == alone
    assert complete(classifier, PROMPTS[::-1], NEW) == alone[::-1]


def test_what_rounding_could_decide_is_computed_alone(monkeypatch):
    classifier = classifier_of()
    asked, continued = [], completion._continued

    def listening(classifier, prompts, most):
        asked.append(len(prompts))
        return continued(classifier, prompts, most)

    monkeypatch.setattr(completion, "_continued", listening)
    complete(classifier, PROMPTS, NEW)
    assert asked == [len(PROMPTS)]
    with torch.no_grad():  # every token is as likely as any other
        classifier.model.language_model.get_output_embeddings().weight.zero_()
    asked.clear()
    complete(classifier, PROMPTS, NEW)
    assert asked == [len(PROMPTS), *[1] * len(PROMPTS)]


def test_an_answer_ends_with_its_line_with_the_end_token_or_with_its_length(monkeypatch):
    model, tokenizer = language_model()
    classifier = classifier_of()
    wanted = tokenizer("\n was\nthe film")["input_ids"]
    head = classifier.model.language_model.get_output_embeddings()

    def told(ids):
        """Let the model write these tokens, whatever it is asked."""
        given = iter(ids)

        def write(_, __, logits):
            chosen = torch.zeros_like(logits)
            chosen[..., next(given)] = 1
            return chosen

        return head.register_forward_hook(write)

    for ids, most, expected in (
        (wanted, 20, "was"),
        (tokenizer(" film bad")["input_ids"] + [model.config.eos_token_id], 20, "film bad"),
        (tokenizer(" film bad")["input_ids"], len(tokenizer(" film")["input_ids"]), "film"),
    ):
        hook = told(ids)
        assert complete(classifier, ["the"], most) == [expected]
        hook.remove()


@pytest.mark.parametrize("template", ["Text: {text}\nIt was ", "{text}\nIt was", "Text:\n{text}\n"])
def test_the_tokenizer_without_its_template_is_the_language_models(template, tmp_path):
    _, tokenizer = language_model()
    classifier = classifier_of(template)
    classifier.save(tmp_path)
    for one in (classifier, load_classifier(str(tmp_path), ("no", "yes"))):
        plain = without_template(one.tokenizer, one.model.config.template)
        for text in (*PROMPTS, " the film\n\nwas  bad "):
            assert plain(text, add_special_tokens=False)["input_ids"] == tokenizer(text)["input_ids"]


def test_what_cannot_be_asked_is_refused():
    with pytest.raises(InputError, match=r"A question has \d+ tokens, and with 12 of the answer"):
        complete(classifier_of(), ["the film was great " * 30], NEW)
    with pytest.raises(InputError, match="A bert classifier writes no text"):
        complete(random_classifier("bert"), PROMPTS, NEW)


def test_a_space_at_the_end_belongs_to_the_answer_and_added_tokens_are_never_written():
    classifier = classifier_of()
    expected = complete(classifier, PROMPTS, NEW)
    assert complete(classifier, [f"{prompt} " for prompt in PROMPTS], NEW) == expected
    known = classifier.model.config.known_tokens
    assert classifier.mask_token_id >= known

    def liking_masks(_, __, logits):
        return torch.cat([logits[..., :known], torch.full_like(logits[..., known:], 1e3)], dim=-1)

    classifier.model.language_model.get_output_embeddings().register_forward_hook(liking_masks)
    assert complete(classifier, PROMPTS, NEW) == expected
