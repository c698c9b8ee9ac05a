"""Models with weights set by hand answer their rules, and the truth about them is what the rules say."""

from functools import cache
from itertools import permutations, product

import numpy as np
import pytest
import torch

from faithmeter.errors import InputError
from faithmeter.measuring.known_answers import RULES, deciding, exact_shapley, known_classifier, known_texts

NAMES = list(RULES)


@pytest.fixture(scope="module")
def classifiers():
    return {name: known_classifier(rule) for name, rule in RULES.items()}


def worth(classifier, words, target, kept):
    """The logit of a text with all words but those kept written as masks."""
    text = " ".join(word if k in kept else "[MASK]" for k, word in enumerate(words))
    return float(classifier.predict(classifier.encode([text]))[0, target])


@pytest.mark.parametrize("name", NAMES)
def test_the_model_answers_its_rule_on_every_text_of_up_to_six_words(name, classifiers):
    rule, classifier = RULES[name], classifiers[name]
    texts = [words for size in range(1, 7) for words in product((*rule.words, "the"), repeat=size)]
    logits = classifier.predict(classifier.encode([" ".join(words) for words in texts]))
    assert logits.argmax(dim=-1).tolist() == [int(rule.answer(words)) for words in texts]
    assert (logits[:, 1] - logits[:, 0]).abs().min() > 1  # and is sure of it


@pytest.mark.parametrize("name", NAMES)
def test_the_model_answers_its_rule_on_texts_as_long_as_it_reads(name, classifiers):
    rule, classifier, random = RULES[name], classifiers[name], np.random.default_rng(0)
    words = (*rule.words, "the", "the", "the", "film", "film", "film", "it", "was")
    texts = [[str(word) for word in random.choice(words, 16)] for _ in range(200)]
    answers = classifier.predict(classifier.encode([" ".join(one) for one in texts])).argmax(dim=-1)
    assert answers.tolist() == [int(rule.answer(one)) for one in texts]
    assert 0 < answers.double().mean() < 1


@pytest.mark.parametrize("name", NAMES)
def test_masking_a_word_that_the_rule_does_not_read_changes_nothing_and_masking_others_removes_them(name, classifiers):
    rule, classifier = RULES[name], classifiers[name]
    words = ["the", rule.words[0], "film", rule.words[-1], "was"]
    batch = classifier.encode([" ".join(words)]).batch([0])
    everything = torch.tensor(list(product((False, True), repeat=5)))
    masked = torch.zeros(len(everything), 7, dtype=torch.bool)
    masked[:, 1:6] = everything
    logits = classifier.logits_of_masks(batch, torch.zeros(len(masked), dtype=torch.long), masked)
    for here, row in zip(everything.tolist(), logits, strict=True):
        left = ["[MASK]" if gone else word for gone, word in zip(here, words, strict=True)]
        assert int(row.argmax()) == int(rule.answer(left))
        # a filler in place of the mask gives the same logits
        filled = " ".join("it" if word in ("[MASK]", "the", "film", "was") else word for word in left)
        torch.testing.assert_close(row, classifier.predict(classifier.encode([filled]))[0], atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("name", "text", "decide"),
    [
        ("keyword", "the good good film", "0110"),
        ("keyword", "the film", "00"),
        ("and", "good the fresh good", "1011"),
        ("and", "good the film", "000"),
        ("or", "good the fresh", "101"),
        ("majority", "good the good bad", "1010"),
        ("majority", "good bad the", "010"),
        ("majority", "bad bad the", "000"),  # nothing masked makes it 1
        ("negation", "not good film", "100"),
        ("negation", "good not good", "100"),
        ("negation", "not the good", "001"),
    ],
)
def test_the_words_that_decide_are_these(name, text, decide):
    assert deciding(RULES[name], text.split()).tolist() == [one == "1" for one in decide]


@pytest.mark.parametrize(("name", "text"), [("and", "good the fresh fresh"), ("negation", "the not good good")])
def test_exact_shapley_values_are_the_mean_gain_over_all_orders(name, text, classifiers):
    classifier, words = classifiers[name], text.split()
    for target in (0, 1):
        expected = np.zeros(len(words))
        orders = list(permutations(range(len(words))))
        logit = cache(lambda kept, target=target: worth(classifier, words, target, kept))
        for order in orders:
            for place, word in enumerate(order):
                gain = logit(frozenset(order[: place + 1])) - logit(frozenset(order[:place]))
                expected[word] += gain / len(orders)
        batch = classifier.encode([text]).batch([0])
        found = exact_shapley(classifier, batch, torch.tensor([target]), 0)[0]
        np.testing.assert_allclose(found[1:-1], expected, atol=1e-4)
        assert found[0] == found[-1] == 0


def test_masked_words_are_no_players(classifiers):
    classifier = classifiers["or"]
    batch = classifier.encode(["good the fresh"]).batch([0])
    batch = batch.with_masked(torch.tensor([[False, True, False, False, False]]))
    found = exact_shapley(classifier, batch, torch.tensor([1]), 0)[0].tolist()
    assert found[1] == 0
    assert found[3] > 3  # all that is left decides alone
    assert found[2] == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_words_that_decide_have_the_largest_exact_shapley_values(name, classifiers):
    """The truth from the rule alone, and the truth from the model's logits, agree on drawn texts."""
    rule, classifier = RULES[name], classifiers[name]
    texts, decide = known_texts(rule, 6, seed=1)
    test = classifier.encode([" ".join(words) for words in texts])
    targets = torch.tensor([int(rule.answer(words)) for words in texts])
    batch = test.batch(range(len(test)))
    for row, values in enumerate(exact_shapley(classifier, batch, targets, 0)):
        values = values[batch.maskable[row]].numpy()
        assert values[decide[row]].min() > max(values[~decide[row]].max(), 0) + 0.01


def test_drawn_texts_have_words_that_decide_and_others_and_depend_on_seed_and_row_alone():
    rule = RULES["majority"]
    texts, decide = known_texts(rule, 8)
    assert all(one.any() and not one.all() for one in decide)
    assert [rule.answer(words) for words in texts] == [True, False] * 4
    assert known_texts(rule, 3)[0] == texts[:3]
    assert known_texts(rule, 8, seed=1)[0] != texts


def test_a_text_with_too_many_words_for_all_sets_is_an_error(classifiers):
    classifier = classifiers["keyword"]
    batch = classifier.encode(["the " * 13]).batch([0])
    with pytest.raises(InputError, match="13 units"):
        exact_shapley(classifier, batch, torch.tensor([1]), 0)
