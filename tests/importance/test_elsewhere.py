"""Explanations from elsewhere: a file's scores become numbers of the right tokens, and bad files are refused."""

import json
import re

import numpy as np
import pytest
import torch
from conftest import byte_level_bpe, random_classifier

from faithmeter.data.units import with_units
from faithmeter.errors import InputError
from faithmeter.importance.elsewhere import read_scores
from faithmeter.importance.table import IMPORTANCE_MEASURES, as_measure, measures_of
from faithmeter.models.classifier import Classifier

TEXTS = ["The film was great", "Was it bad?"]


@pytest.fixture(scope="module")
def classifier():
    return random_classifier("bert")


def scores_of(classifier, file, texts=TEXTS, contexts=None, by="token"):
    """What a file gives: for each text its tokens' characters and scores, of maskable tokens."""
    test = with_units(classifier.encode(texts, contexts), classifier, texts, contexts, by=by)
    given = read_scores(file, classifier, texts, contexts, test)
    batch = test.batch(range(len(texts)))
    values = given.as_measure().explain(classifier, batch, batch.labels, 0)
    assert (values[~batch.maskable] == 0).all()
    found = []
    for row, encoding in enumerate(classifier.encodings(texts, contexts)):
        places = batch.maskable[row].nonzero()[:, 0].tolist()
        found.append([(encoding.offsets[place], round(values[row, place].item(), 4)) for place in places])
    return found


def spans(write, *lines, name="shap.csv"):
    return write(name, [dict(zip(("row", "start", "end", "score"), line, strict=True)) for line in lines])


EMPTY = (1, "", "", "")


def test_every_token_of_a_span_has_its_score_and_no_other_token_has_any(classifier, write):
    first, second = scores_of(classifier, spans(write, (0, 4, 8, 0.5), (0, 13, 18, -2), EMPTY))
    assert len(first) > 4  # the words are several tokens each
    for (start, end), score in first:
        assert score == (0.5 if start >= 4 and end <= 8 else -2 if start >= 13 else 0)
    assert {score for _, score in second} == {0}


def test_a_token_that_several_spans_overlap_has_their_sum(classifier, write):
    first, _ = scores_of(classifier, spans(write, (0, 0, 8, 1), (0, 4, 18, 0.25), EMPTY))
    assert {score for (_, end), score in first if end <= 3} == {1}
    assert {score for (start, end), score in first if start >= 4 and end <= 8} == {1.25}
    assert {score for (start, _), score in first if start >= 9} == {0.25}


def test_a_word_as_a_unit_has_the_span_once_and_not_once_per_token(classifier, write):
    file = spans(write, (0, 0, 8, 1), (0, 4, 8, 0.5), EMPTY)
    first, _ = scores_of(classifier, file, by="word")
    assert {score for (_, end), score in first if end <= 3} == {1}
    assert {score for (start, end), score in first if start >= 4 and end <= 8} == {1.5}


def test_a_list_has_one_score_per_maskable_token_or_per_token_of_the_input(classifier, tmp_path):
    test = classifier.encode(TEXTS)
    counts, lengths = test.maskable_counts.tolist(), test.lengths.tolist()
    short = [list(range(1, count + 1)) for count in counts]
    long = [[99, *scores, 99] for scores in short]
    assert [len(scores) for scores in long] == lengths
    for number, lists in enumerate((short, long)):
        file = tmp_path / f"llm{number}.jsonl"
        file.write_text("".join(json.dumps({"row": row, "scores": lists[row]}) + "\n" for row in (1, 0)))
        found = scores_of(classifier, file)
        assert [[score for _, score in text] for text in found] == short
    words = scores_of(classifier, file, by="word")[0]
    assert words[0][1] == sum(score for (_, end), score in scores_of(classifier, file)[0] if end <= 3)


def test_an_empty_list_marks_nothing(classifier, tmp_path):
    file = tmp_path / "llm.jsonl"
    file.write_text('{"row": 0, "scores": []}\n{"row": 1, "scores": []}\n')
    assert {score for text in scores_of(classifier, file) for _, score in text} == {0}


def test_a_span_means_characters_of_the_text_and_not_of_its_context(classifier, write):
    (found,) = scores_of(classifier, spans(write, (0, 0, 3, 1)), ["Was it bad?"], ["Was the film great?"])
    assert {score for (_, end), score in found if end <= 3} == {1}
    assert sum(score != 0 for _, score in found) == sum(end <= 3 for (_, end), _ in found)


def test_characters_are_counted_as_python_does_and_all_bytes_of_one_are_its_tokens(write):
    model = random_classifier("roberta").model
    classifier = Classifier(model, byte_level_bpe())
    text = "a 🙂 film"
    (found,) = scores_of(classifier, spans(write, (0, 2, 3, 1), (0, 4, 8, 3)), [text])
    assert len(found) > len(text.split()) + 1  # the face is several tokens
    smile = [score for (start, end), score in found if text[start:end].strip() == "🙂"]
    assert len(smile) > 1
    assert set(smile) == {1}
    assert {score for (start, _), score in found if start >= 4} == {3}


def test_what_was_cut_off_a_text_is_ignored_and_counted(write):
    full = random_classifier("bert")
    classifier = Classifier(full.model, full.tokenizer, max_length=6)
    text = "The film was great and the story was not bad"
    test = classifier.encode([text])
    assert test.truncated == 1
    file = spans(write, (0, 0, 3, 1), (0, 40, 44, 5), (0, 3, 4, 1))
    given = read_scores(file, classifier, [text], None, test)
    assert given.unplaced == 2  # the last word, which is not read, and a space
    assert given.values.max() == 1


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([(0, 4, 99, 1)], "there are no characters 4 to 99 in its text, which has 18"),
        ([(0, 4, 4, 1)], "there are no characters 4 to 4"),
        ([(0, -1, 4, 1)], "there are no characters -1 to 4"),
        ([(2, 0, 3, 1)], "there is no row 2. The test split has 2 texts, counted from 0"),
        ([("x", 0, 3, 1)], "the row must be a whole number, not 'x'"),
        ([(0, 0.5, 3, 1)], "start must be a whole number, not '0.5'"),
        ([(0, 0, 3, "nan")], "'nan' is no score"),
        ([(0, 0, 3, "high")], "'high' is no score"),
        ([(0, 0, 3, 1), (0, 0, 3, 2)], "the characters 0 to 3 have a score already"),
    ],
)
def test_a_file_with_wrong_spans_is_refused_in_a_sentence(classifier, write, lines, said):
    file = spans(write, *lines)
    with pytest.raises(InputError, match=re.escape(said)):
        scores_of(classifier, file)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"row": 0, "scores": [1, 2]}], "2 scores, where the text has"),
        ([{"row": 0, "scores": "much"}], "must be a list of numbers"),
        ([{"row": 0, "scores": [float("nan")]}], "nan is no score"),
        ([{"row": 0, "scores": []}, {"row": 0, "scores": []}], "this text has scores already"),
        ([{"row": 0, "score": 1}], "has no column 'start'; it has 'row', 'score'"),
        ([{"text": 0, "scores": []}], "has no column 'row'"),
    ],
)
def test_a_file_with_wrong_lists_is_refused_in_a_sentence(classifier, write, rows, said):
    with pytest.raises(InputError, match=re.escape(said)):
        scores_of(classifier, write("llm.jsonl", rows))


def test_texts_without_scores_are_refused_and_named(classifier, write):
    test = classifier.encode(TEXTS)
    given = read_scores(spans(write, (0, 0, 3, 1)), classifier, TEXTS, None, test)
    given.require(np.array([0]))
    with pytest.raises(InputError, match=r"no scores for 1 of the 2 texts that are judged \(rows 1\)"):
        given.require(np.array([0, 1]))


def test_other_texts_than_those_of_the_file_are_not_explained(classifier, write):
    test = classifier.encode(TEXTS)
    measure = read_scores(spans(write, (0, 0, 3, 1), EMPTY), classifier, TEXTS, None, test).as_measure()
    batch = classifier.encode([TEXTS[1], TEXTS[0]]).batch([0, 1])
    with pytest.raises(InputError, match="other texts cannot be explained"):
        measure.explain(classifier, batch, batch.labels, 0)


def test_a_file_whose_name_is_no_name_of_a_measure_is_refused(classifier, write):
    with pytest.raises(InputError, match="Rename the file"):
        scores_of(classifier, spans(write, (0, 0, 3, 1), name="my scores.csv"))


def test_every_recursive_measure_has_a_form_that_is_explained_once():
    for name, measure in IMPORTANCE_MEASURES.items():
        if measure.recursive:
            once = as_measure(f"{name}-once")
            assert (once.name, once.recursive, once.signed) == (f"{name}-once", False, measure.signed)
            assert once is IMPORTANCE_MEASURES[f"{name}-once"]
        else:
            assert f"{name}-once" not in IMPORTANCE_MEASURES
    assert not [name for name in measures_of("bert") if name.endswith("-once")]
    assert IMPORTANCE_MEASURES["ig-signed-once"].stepped(3).name == "ig-signed-once"
    assert IMPORTANCE_MEASURES["loo-abs-once"].absolute_of == "loo-signed-once"
    with pytest.raises(InputError, match="no importance measure"):
        as_measure("beam-once")


def test_the_form_that_is_explained_once_explains_the_unmasked_text_as_the_measure_does(classifier):
    batch = classifier.encode(TEXTS).batch([0, 1])
    for name in ("loo-signed", "grad-l2"):
        once, often = (as_measure(one).explain(classifier, batch, batch.labels, 0) for one in (f"{name}-once", name))
        assert torch.equal(once, often)
