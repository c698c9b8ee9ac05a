"""The nearest words in a model's embedding matrix, for every family of tokenizers."""

import pytest
import torch
from conftest import WORDS, random_classifier

from faithmeter.attacks.neighbours import Neighbours, pieces_of
from faithmeter.models.from_scratch import small_classifier


def by_hand(classifier, word, candidates, count):
    """The formula, one word at a time: cosine of the mean embedding of its pieces with each candidate's."""
    table = classifier.vocabulary()
    point = table[pieces_of(classifier, [word])[word]].mean(dim=0)
    others = [other for other in candidates if other.casefold() != word.casefold()]
    cosine = {o: float(torch.cosine_similarity(point, table[pieces_of(classifier, [o])[o][0]], dim=0)) for o in others}
    return tuple(sorted(others, key=lambda other: -cosine[other])[:count])


def test_neighbours_are_the_words_with_the_largest_cosine():
    classifier = small_classifier([" ".join(WORDS)], ("negative", "positive"), seed=0)
    neighbours, known = Neighbours(classifier, 3), [word for word in WORDS if len(word) > 1]
    assert sorted(neighbours.candidates[0]) == sorted(known)
    for word in ("good", "film", "was"):
        assert neighbours.of(word) == by_hand(classifier, word, known, 3)


@pytest.mark.parametrize("architecture", ["bert", "roberta", "deberta", "t5", "gpt2"])
def test_candidates_are_whole_words_of_letters_in_every_family_of_tokenizers(architecture):
    classifier = random_classifier(architecture)
    words = Neighbours(classifier, 4).candidates[0]
    for word in words:
        assert word.isalpha()
        assert len(word) > 1
        (number,) = pieces_of(classifier, [word])[word]
        assert number not in classifier.tokenizer.all_special_ids
        # it is one token where it stands in a text, too
        (encoding,) = classifier.encodings([f"it {word} ?"])
        assert number in encoding.ids
    assert len({word.casefold() for word in words}) == len(words)
    if architecture in ("bert", "roberta", "gpt2"):  # the pieces of the others are smaller than words here
        assert {"was", "the"} <= set(words)


def test_a_word_of_several_pieces_has_the_mean_of_their_embeddings():
    classifier = random_classifier("roberta")
    assert len(pieces_of(classifier, ["filmwas"])["filmwas"]) > 1
    neighbours = Neighbours(classifier, 5)
    assert neighbours.of("filmwas") == by_hand(classifier, "filmwas", neighbours.candidates[0], 5)


def test_a_word_is_never_its_own_neighbour_in_any_case():
    classifier = random_classifier("roberta")
    for word in ("was", "Was", "WAS"):
        found = Neighbours(classifier, 5).of(word)
        assert found
        assert "was" not in {other.casefold() for other in found}


def test_an_unknown_word_and_a_number_have_no_neighbours():
    classifier = small_classifier(["good bad film 7"], ("negative", "positive"), seed=0)
    neighbours = Neighbours(classifier, 3)
    assert neighbours.of("zebra") == ()
    assert neighbours.of("7") == ()
    assert neighbours.of("Good")


def test_words_looked_up_together_have_the_neighbours_that_they_have_alone():
    classifier = random_classifier("roberta")
    together = Neighbours(classifier, 3)
    together.prepare(["film", "great", "plot", "filmwas"])
    for word in ("film", "great", "plot", "filmwas"):
        assert together.of(word) == Neighbours(classifier, 3).of(word)
