import datasets
import numpy as np
import pytest
from conftest import TOKENIZERS, random_classifier, sentiment_rows

from faithmeter import InputError
from faithmeter.data.splits import DataSpec, Splits, load_splits
from faithmeter.data.tasks import TASKS, append_known_token
from faithmeter.judges.known_token import END, START, _telling_words, known_token_splits, truth_of, with_own_token
from faithmeter.models.classifier import Classifier


def splits_of(texts: list[str], labels: tuple[str, ...] = ("no", "yes"), contexts: list[str] | None = None) -> Splits:
    columns = {"text": texts, "label": [0] * len(texts), **({} if contexts is None else {"context": contexts})}
    part = datasets.Dataset.from_dict(columns)
    return Splits(TASKS["sst2"], labels, part, part, part, ())


TEXTS = [f"film {number} was fine" for number in range(60)]


@pytest.mark.parametrize("place", ["end", "anywhere"])
def test_the_word_in_the_text_tells_the_label_and_the_rest_is_as_it_was(place):
    made = known_token_splits(splits_of(TEXTS), place=place, seed=0)
    assert made.labels == ("negative", "positive")
    for part in (made.train, made.validation, made.test):
        for old, row in zip(TEXTS, part, strict=True):
            word = made.labels[row["label"]]
            assert row["text"][row[START] : row[END]] == word
            words = row["text"].split(" ")
            words.remove(word)
            assert " ".join(words) == old


def test_at_the_end_is_at_the_end():
    made = known_token_splits(splits_of(TEXTS), place="end", seed=0)
    assert made.test["text"][0] == f"film 0 was fine {made.labels[made.test['label'][0]]}"


def test_anywhere_is_each_place_as_likely_the_first_and_the_last_included():
    made = known_token_splits(splits_of(["a b c"] * 4000), place="anywhere", seed=0)
    places = np.bincount([row["text"].split().index(made.labels[row["label"]]) for row in made.test])
    assert len(places) == 4
    assert (abs(places - 1000) < 120).all()  # 4 standard deviations


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_labels_are_balanced_and_do_not_repeat_a_pattern(classes):
    names = tuple(f"class {number}" for number in range(classes))
    made = known_token_splits(splits_of(["a b c"] * 1200, names), place="end", seed=0)
    labels = np.array(made.train["label"])
    assert (np.bincount(labels) == 1200 // classes).all()
    first = np.bincount(labels[::classes], minlength=classes)  # of each group of rows: any class may come first
    assert (first > 0.7 * 1200 / classes**2).all()


def test_every_split_and_seed_has_draws_of_its_own_and_the_same_seed_the_same():
    made = known_token_splits(splits_of(TEXTS), place="anywhere", seed=0)
    again = known_token_splits(splits_of(TEXTS), place="anywhere", seed=0)
    other = known_token_splits(splits_of(TEXTS), place="anywhere", seed=1)
    assert made.fingerprint == again.fingerprint
    drawn = [tuple(split["text"]) for split in (made.train, made.validation, made.test, other.train)]
    assert len(set(drawn)) == 4


def test_a_row_is_drawn_the_same_whatever_rows_there_are():
    few, many = (known_token_splits(splits_of(TEXTS[:n]), place="anywhere", seed=3) for n in (7, 60))
    assert few.test["text"] == many.test["text"][:7]


def test_an_empty_text_becomes_the_word_and_odd_spaces_stay():
    made = known_token_splits(splits_of(["", "  ", "a\n b  "]), place="end", seed=0)
    words = [made.labels[label] for label in made.test["label"]]
    assert made.test["text"][:] == [words[0], words[1], f"a\n b {words[2]}"]


def test_the_classes_of_more_than_two_tell_themselves_as_one_word_each():
    made = known_token_splits(splits_of(TEXTS, ("World", "Sci/Tech", "not_this one")), place="end", seed=0)
    assert made.labels == ("World", "SciTech", "notthisone")


def test_words_can_be_chosen():
    made = known_token_splits(splits_of(TEXTS), place="end", seed=0, words=("left", "right"))
    assert made.labels == ("left", "right")
    assert made.test["text"][0].split()[-1] in made.labels


@pytest.mark.parametrize("labels", [("+", "-", "0"), ("-1", "0", "1")])
def test_names_that_make_no_words_of_their_own_are_numbered(labels):
    assert _telling_words(labels, None) == ("class0", "class1", "class2")


@pytest.mark.parametrize(
    ("labels", "words", "why"),
    [
        (("no", "yes"), ("same", "Same"), "equal"),
        (("no", "yes"), ("left", ""), "empty"),
        (("no", "yes"), ("left", "on the right"), "more than one word"),
        (("no", "yes"), ("left",), "2 classes and 1"),
    ],
)
def test_words_that_tell_nothing_are_refused(labels, words, why):
    with pytest.raises(InputError, match=why):
        known_token_splits(splits_of(TEXTS, labels), place="end", seed=0, words=words)


def test_a_place_that_there_is_not_is_refused():
    with pytest.raises(InputError, match="choose from end, anywhere"):
        known_token_splits(splits_of(TEXTS), place="middle", seed=0)


def test_texts_that_hold_a_telling_word_already_are_told():
    made = known_token_splits(splits_of(["so Positive", "nonpositive", "fine"]), place="end", seed=0)
    assert "1 of 3 test texts already contained one of these words." in made.notes
    assert len(known_token_splits(splits_of(TEXTS), place="end", seed=0).notes) == 1


# -------------------------------------------------------------------------------------------------- its tokens


def tokens_of_truth(classifier: Classifier, split: datasets.Dataset) -> list[str]:
    """The text under each row's true tokens, by the encodings' own offsets."""
    truth = truth_of(classifier, split)
    contexts = split["context"] if "context" in split.column_names else None
    encoded = classifier.encode(split["text"], contexts, split["label"])
    assert len(truth) == len(encoded.ids)
    assert not (truth & ~encoded.maskable).any()
    found = []
    for row, encoding in enumerate(classifier.encodings(split["text"], contexts)):
        own = truth[encoded.offsets[row] : encoded.offsets[row + 1]]
        offsets = [offset for offset, true in zip(encoding.offsets, own, strict=True) if true]
        text = split["text"][row]
        found.append(text[offsets[0][0] : offsets[-1][1]].strip() if offsets else "")
    return found


@pytest.mark.parametrize("family", TOKENIZERS)
@pytest.mark.parametrize("place", ["end", "anywhere"])
@pytest.mark.parametrize("contexts", [None, ["is it positive or negative?"] * 60])
def test_the_true_tokens_are_all_pieces_of_the_word_and_nothing_else(family, place, contexts):
    classifier = random_classifier({"word-piece": "bert", "byte-bpe": "roberta", "sentence-piece": "deberta"}[family])
    made = known_token_splits(splits_of(TEXTS, contexts=contexts), place=place, seed=0)
    assert tokens_of_truth(classifier, made.test) == [made.labels[label] for label in made.test["label"]]


def test_a_word_that_was_cut_off_has_no_tokens():
    whole = random_classifier("bert")
    classifier = Classifier(whole.model, whole.tokenizer, max_length=8)
    made = known_token_splits(splits_of(["the film was great and very very long"] * 4), place="end", seed=0)
    assert not truth_of(classifier, made.test).any()
    assert truth_of(whole, made.test).any()


def test_it_is_made_of_a_file_of_ones_own(write):
    splits = load_splits(DataSpec(data=str(write("own.csv", sentiment_rows(50)))))
    made = known_token_splits(splits, place="anywhere", seed=0)
    assert [len(part) for part in (made.train, made.validation, made.test)] == [
        len(part) for part in (splits.train, splits.validation, splits.test)
    ]
    assert made.in_order_of(("positive", "negative")) is not None


def test_the_word_that_ends_a_text_is_found_where_it_is():
    rows = append_known_token([{"sentence": text, "label": 0} for text in ("a positive film ", "so", "")], seed=0)
    split = datasets.Dataset.from_dict(
        {"text": [row["sentence"] for row in rows], "label": [row["label"] for row in rows]}
    )
    made = with_own_token(split, ("negative", "positive"))
    for row, given in zip(made, ("a positive film ", "so", ""), strict=True):
        assert row["text"][row[START] : row[END]] == ("negative", "positive")[row["label"]]
        assert (row[START], row[END]) == (len(given) + 1, len(row["text"]))
    with pytest.raises(InputError, match="does not end in the word"):
        with_own_token(split, ("bad", "good"))
