import json

import datasets
import numpy as np
import pytest
from conftest import TOKENIZERS, random_classifier

from faithmeter import InputError
from faithmeter.data.splits import DataSpec, as_text, load_splits
from faithmeter.data.tables import read_rows
from faithmeter.data.tasks import TASKS
from faithmeter.judges.ranking import ground_truth
from faithmeter.judges.rationales import (
    TASK_MARKS,
    Marks,
    eraser_rows,
    marks_of,
    rationale_tokens,
    rationales_of,
)
from faithmeter.models.classifier import Classifier

TEXT = "the film was  great, not awful"  # six words


def marked(cells: list, form: str | None = None, text: str = TEXT) -> list[list[str]]:
    """The words that a column marks, one text again and again."""
    split = datasets.Dataset.from_dict({"text": [text] * len(cells), "why": cells})
    return [[text[start:end] for start, end in spans] for spans in rationales_of(split, Marks(("why",), form))]


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ([0, 0, 0, 1, 0, 1], ["great,", "awful"]),
        ("0 0 0 1 0 1", ["great,", "awful"]),
        ([3, 5], ["great,", "awful"]),
        ("5,3", ["great,", "awful"]),
        ("[3, 5]", ["great,", "awful"]),
        ("5", ["awful"]),
        ("3;5", ["great,", "awful"]),
        ([[3, 4], [1, 3]], ["film", "was", "great,"]),
        ("[[3, 6]]", ["great,", "not", "awful"]),
        ([[0, 0, 0, 1, 0, 1], [0, 1, 0, 1, 0, 0], [0, 1, 0, 0, 1, 0]], ["film", "great,"]),
        (" The film was *great,* not *awful*", ["great,", "awful"]),
    ],
)
def test_a_cell_of_each_form_marks_its_words(cell, words):
    assert marked([cell]) == [words]


def test_two_annotators_must_agree_and_a_tie_is_no_majority():
    assert marked([[[0, 0, 1, 1, 0, 0], [0, 0, 0, 1, 1, 0]]]) == [["great,"]]


def test_an_empty_rationale_marks_nothing_whatever_the_form():
    assert marked(["{}", "3", "", None]) == [[], ["great,"], [], []]
    assert marked([[], [3, 5]]) == [[], ["great,", "awful"]]
    assert marked([[], [[0, 0, 0, 0, 0, 1]]]) == [[], ["awful"]]
    assert marked([[[2, 2]], [[3, 4]]], "spans") == [[], ["great,"]]  # as some rows of ERASER have it


def test_the_form_is_that_of_the_whole_column():
    # [0, 1] alone could be flags of a text of two words; beside [1, 5] it is the numbers of the first two
    assert marked([[0, 1], [1, 5]]) == [["the", "film"], ["film", "awful"]]


def test_columns_of_annotators_vote_and_a_missing_one_does_not():
    split = datasets.Dataset.from_dict(
        {"text": [TEXT] * 2, "one": ["1,3", "2"], "two": ["3", None], "three": ["3,5", None]}
    )
    found = rationales_of(split, Marks(("one", "two", "three"), "words"))
    assert [[TEXT[start:end] for start, end in spans] for spans in found] == [["great,"], ["was"]]


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        ([0, 1, 0], "has 6 words"),
        ([3, 6], "has 6 words"),
        ([-1, 3], "has 6 words"),
        ([[3, 7]], "has 6 words"),
        ([["a", "b"]], "not a rationale"),
        ([[3, 4, 5]], "not a rationale"),
        ("some words", "has 6 words"),
        (TEXT, "is that the column"),
    ],
)
def test_a_rationale_that_does_not_fit_its_text_is_refused(cell, why):
    with pytest.raises(InputError, match=why):
        marked([cell])


def test_a_column_that_is_not_there_is_refused(write):
    path = write("own.jsonl", [{"text": "a b", "label": number % 2, "why": [1]} for number in range(10)])
    with pytest.raises(InputError, match="has no column 'reason'"):
        load_splits(DataSpec(data=str(path)), keep=("reason",))
    with pytest.raises(InputError, match="no column 'reason' with rationales"):
        rationales_of(load_splits(DataSpec(data=str(path))).test, Marks(("reason",)))


def test_a_task_without_rationales_asks_for_a_column():
    assert marks_of(TASKS["sst2"], "why") == Marks(("why",))
    assert marks_of(TASKS["hatexplain"]) == TASK_MARKS["hatexplain"]
    with pytest.raises(InputError, match="--rationales COLUMN"):
        marks_of(TASKS["sst2"])


@pytest.mark.parametrize("name", ["own.jsonl", "own.csv"])
def test_rationales_stay_beside_their_texts_through_splitting_and_choosing_rows(write, name):
    rows = [{"text": f"a{n} b{n} c{n} d{n}", "label": n % 2, "why": f"{n % 3 + 1},0"} for n in range(60)]
    spec = DataSpec(data=str(write(name, rows)), train_rows=20)
    splits = load_splits(spec, keep=("why",))
    for part in (splits.train, splits.validation, splits.test):
        found = rationales_of(part, marks_of(spec.resolved(), "why"))
        for text, spans in zip(part["text"], found, strict=True):
            n = int(text.split()[0][1:])
            assert [text[start:end] for start, end in spans] == [f"a{n}", f"{'bcd'[n % 3]}{n}"]
    assert splits.fingerprint == load_splits(spec).fingerprint


def test_the_published_csv_of_e_snli_is_read(tmp_path):
    header = ["pairID", "gold_label", "Sentence1", "Sentence2"]
    header += [f"Sentence{s}_Highlighted_{a}" for a in (1, 2, 3) for s in (1, 2)]
    rows = [
        ["a", "neutral", "Two dogs run.", "They race.", "{}", "1", "{}", "0", "{}", "0,1"],
        ["b", "entailment", "A man sells donuts.", "He sells.", "2,1", "1", "2,3", "1", "1,2", "1"],
        ["c", "contradiction", "A man sits.", "He runs.", "2", "1", "2", "1", "{}", "1"],
    ]
    (tmp_path / "esnli").mkdir()
    for part, columns in (("train", 6), ("validation", 10), ("test", 10)):  # train has one annotator
        lines = [",".join(f'"{cell}"' for cell in row[:columns]) for row in (header, *rows)]
        (tmp_path / "esnli" / f"{part}.csv").write_text("\n".join(lines) + "\n")
    marks = marks_of(TASKS["esnli"])
    splits = load_splits(DataSpec(task="esnli", data_dir=str(tmp_path)), keep=marks.columns)

    def words(part: datasets.Dataset) -> list[list[str]]:
        found = zip(part["text"], rationales_of(part, marks), strict=True)
        return [[text[start:end] for start, end in spans] for text, spans in found]

    assert words(splits.test) == [[], ["man", "sells"], ["sits."]]
    assert words(splits.train) == [[], ["man", "sells"], ["sits."]]


def test_eraser_as_it_is_published_is_read(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "d1.txt").write_text("it was  dull .\nso very dull .\n")
    evidence = {"docid": "d1.txt", "start_token": 4, "end_token": 7, "text": "so very dull"}
    first = {"docid": "d1.txt", "start_token": 2, "end_token": 3, "text": "dull"}
    row = {"annotation_id": "d1.txt", "classification": "NEG", "evidences": [[evidence], [first]], "query": None}
    none = {"annotation_id": "d1.txt", "classification": "NEG", "evidences": [], "docids": None}
    path = tmp_path / "val.jsonl"
    path.write_text(json.dumps(row) + "\n" + json.dumps(none) + "\n")
    found = eraser_rows(path)
    assert found[0] == {
        "id": "d1.txt", "text": "it was dull . so very dull .", "query": "", "label": "NEG",
        "rationales": [[2, 3], [4, 7]],
    }  # fmt: skip
    assert found[1]["rationales"] == []
    split = datasets.Dataset.from_list(found)
    spans = rationales_of(split, TASK_MARKS["eraser-movies"])[0]
    assert [split["text"][0][start:end] for start, end in spans] == ["dull", "so", "very", "dull"]


def test_evidence_without_its_document_is_told(tmp_path):
    path = tmp_path / "val.jsonl"
    path.write_text(json.dumps({"annotation_id": "x", "classification": "NEG", "evidences": []}) + "\n")
    with pytest.raises(InputError, match="there is no document"):
        eraser_rows(path)


# -------------------------------------------------------------------------------------------------- tokens


@pytest.mark.parametrize("family", TOKENIZERS)
@pytest.mark.parametrize("contexts", [None, ["was it great?", "why"]])
def test_tokens_of_a_rationale_are_those_that_overlap_it(family, contexts):
    classifier = random_classifier({"word-piece": "bert", "byte-bpe": "roberta", "sentence-piece": "deberta"}[family])
    texts = ["the film was great, not awful", "bad"]
    spans = [[(13, 19), (24, 29)], []]
    tokens = rationale_tokens(classifier, texts, contexts, spans)
    encoded = classifier.encode(texts, contexts)
    assert len(tokens) == len(encoded.ids)
    assert not (tokens & ~encoded.maskable).any()
    batch = encoded.batch([1, 0])  # another order, padded
    table = encoded.in_batch(tokens, batch)
    assert not table[0].any()
    offsets = np.array(classifier.encodings(texts, contexts)[0].offsets)
    own = table[1, : len(offsets)].numpy()
    under = [texts[0][start:end].strip() for start, end in offsets[own]]
    assert "".join(under).replace("▁", "") == "great,awful"


def test_a_perfect_explanation_is_perfectly_plausible():
    classifier = random_classifier("bert")
    texts = ["the film was great, not awful", "it was very bad"]
    encoded = classifier.encode(texts)
    tokens = rationale_tokens(classifier, texts, None, [[(13, 19)], [(7, 15)]])
    batch = encoded.batch([0, 1])
    truth = encoded.in_batch(tokens, batch)
    found = ground_truth(truth.float(), batch.maskable, truth)
    assert found["overlap"].tolist() == [1.0, 1.0]
    assert (ground_truth(-truth.float(), batch.maskable, truth)["mean_rank"] == 1.0).all()


def test_what_was_cut_off_is_in_no_rationale():
    whole = random_classifier("bert")
    classifier = Classifier(whole.model, whole.tokenizer, max_length=8)
    text = "the film was great and very very long"
    assert not rationale_tokens(classifier, [text], None, [[(len(text) - 4, len(text))]]).any()


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "part"), [("eraser-movies", "test"), ("hatexplain", "validation"), ("hatexplain", "test")]
)
def test_real_rationales_become_tokens_whose_text_is_theirs(shared, name, part):
    task = TASKS[name]
    rows = read_rows(shared / task.folder / f"{part}.jsonl.gz")
    texts = [as_text(row["sentences" if name == "eraser-movies" else "tokens"]) for row in rows]
    split = datasets.Dataset.from_dict({"text": texts, "rationales": [row["rationales"] for row in rows]})
    rationales = rationales_of(split, marks_of(task))
    whole = random_classifier("bert")
    classifier = Classifier(whole.model, whole.tokenizer, max_length=512)
    tokens = rationale_tokens(classifier, texts, None, rationales)
    encoded = classifier.encode(texts)
    checked = 0
    for row, (text, spans, encoding) in enumerate(zip(texts, rationales, classifier.encodings(texts), strict=True)):
        own = tokens[encoded.offsets[row] : encoded.offsets[row + 1]]
        last = max((end for _, end in encoding.offsets), default=0)
        theirs = "".join(text[start : min(end, last)] for start, end in spans)
        # pieces of a character that one word-piece stands for alone share its offsets
        offsets = sorted({offset for offset, true in zip(encoding.offsets, own, strict=True) if true})
        assert "".join(text[start:end] for start, end in offsets) == theirs
        checked += bool(theirs)
    assert checked >= {"eraser-movies": 150, "hatexplain": 1000}[name]
    if name == "eraser-movies":
        marked_words = sum(len(spans) for spans in rationales)
        assert marked_words == sum(len({i for a, b in row["rationales"] for i in range(a, b)}) for row in rows)
