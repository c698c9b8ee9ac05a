"""Both texts of a pair can be masked and explained: in training, check, measure, audit, scores and explain."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import made_once, random_classifier, sentiment_rows

from faithmeter import (
    AuditOptions,
    DataSpec,
    ExplainOptions,
    InputError,
    MeasureOptions,
    Run,
    TrainingOptions,
    adopt,
    audit,
    check,
    explain,
    explain_texts,
    measure,
    train,
    transfer,
)
from faithmeter.data.tables import read_rows
from faithmeter.data.units import with_units
from faithmeter.importance.elsewhere import read_scores
from faithmeter.judges.rationales import eraser_rows, marks_of, rationale_tokens, rationales_of
from faithmeter.runs.measurements import read_measurement
from faithmeter.runs.results import find
from faithmeter.studies.report import commands_of
from faithmeter.studies.scores import ScoresOptions, scores
from faithmeter.training.strategy import mask_for_training, masked_copy
from faithmeter.web.app import shown

pytestmark = pytest.mark.usefixtures("without_figures")
PAIR = {"context": "context", "both_texts": True}


def _train(folder):
    """Pairs whose second text tells the label, so that masking the first alone changes nothing."""

    def neutral(row):
        return " ".join(word for word in row["text"].split() if word not in ("good", "bad"))

    pairs = zip(sentiment_rows(240, seed=1), sentiment_rows(240), strict=True)
    rows = [{"text": neutral(first), "context": row["text"], "label": row["label"]} for first, row in pairs]
    for row in rows:
        row["why"] = [0] * 3
        row["why_context"] = [int(word in ("good", "bad")) for word in row["context"].split()]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = TrainingOptions(epochs=6, curriculum=False, learning_rate=2e-3, batch_size=16)
    run = train(folder / "run", DataSpec(data=str(folder / "pairs.jsonl"), **PAIR), "small", options)
    check(run)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return made_once(tmp_path_factory, "both-texts", _train) / "run"


@pytest.fixture
def run(trained, tmp_path):
    return Run(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def pair_classifier():
    classifier = random_classifier("bert")
    classifier.both_texts = True
    return classifier


# ------------------------------------------------------------------------------------------------------- masking


@pytest.mark.parametrize("architecture", ["bert", "roberta", "deberta"])
def test_the_maskable_tokens_are_those_of_both_texts_and_none_that_is_special(architecture):
    classifier = random_classifier(architecture)
    one = classifier.encode(["The film was great"], ["Was it bad?"])
    classifier.both_texts = True
    both, single = classifier.encode(["The film was great"], ["Was it bad?"]), classifier.encode(["The film was great"])
    special = np.isin(both.ids, classifier.tokenizer.all_special_ids)
    assert (both.maskable == ~special).all()
    assert (both.batch([0]).maskable.numpy()[0] == both.maskable).all()
    assert both.maskable.sum() > one.maskable.sum() == single.maskable.sum()
    assert (one.ids == both.ids).all()
    assert not single.both_texts


def test_training_and_validation_mask_both_texts(pair_classifier):
    encoded = pair_classifier.encode(["The film was great"] * 40, ["Was it bad?"] * 40)
    batch = encoded.batch(range(40))
    masked = mask_for_training(
        encoded, batch, np.arange(40), strategy="only-masking", mask_context=False, seed=0, epoch=0
    ).masked
    of_context = torch.from_numpy(encoded.sequence.reshape(40, -1) == 1)
    assert masked[of_context].float().mean().item() == pytest.approx(0.5, abs=0.2)
    assert not masked[~batch.maskable].any()
    copy = masked_copy(encoded, mask_context=False, seed=0)
    assert 0.2 < copy.masked[encoded.sequence == 1].mean() < 0.8


@pytest.mark.parametrize("by", ["word", "sentence", "chunk"])
def test_no_unit_extends_over_both_texts(pair_classifier, by):
    texts, contexts = ["bad"], ["bad film. It was awful."]
    encoded = with_units(pair_classifier.encode(texts, contexts), pair_classifier, texts, contexts, by=by, chunk=50)
    first, second = (set(encoded.units[encoded.sequence == part].tolist()) for part in (0, 1))
    assert first == {0}
    assert 0 not in second
    assert len(second) == {"word": 7, "sentence": 2, "chunk": 1}[by]  # full stops are words
    assert (encoded.units[encoded.sequence == -1] == -1).all()


# ------------------------------------------------------------------------------------------------------------ runs


def test_measures_find_the_word_of_the_second_text_that_decides(run):
    assert run.config.data.both_texts
    assert run.classifier().both_texts
    measured = measure(run, MeasureOptions(measures=("loo-signed",), rows=20, random_runs=2))
    assert find(measured.results, "acu", "loo-signed")["low"] > 0.1
    (explanation,) = explain(
        run, "film story actor plot film", "film good plot", ExplainOptions(orders=0), measure="loo-signed"
    )
    best = max((*explanation.words, *explanation.context_words), key=lambda word: word.importance)
    assert best.text == "good"
    assert [piece.text for piece in explanation.context_words] == ["film", "good", "plot"]
    assert explanation.context[best.start : best.end] == "good"
    first = explanation.steps[1].masked  # a tenth of eight tokens is none, a fifth is one
    assert first == ()
    assert explanation.steps[2].masked == (len(explanation.tokens) + 1,)
    assert "good" in explanation.coloured()
    assert explanation.coloured().count("fm-text") == 2
    assert "good" in str(explanation).split(":")[1]


def test_a_model_that_came_trained_is_tested_with_both_texts_masked(run, tmp_path):
    adopted = adopt(tmp_path / "adopted", str(run.model_folder), run.config.data)
    kept = ("performance", "majority")
    ours, theirs = ([row for row in one.results if row["kind"] in kept] for one in (run, adopted))
    assert ours == theirs
    only_text = replace(run.config.data, both_texts=False)
    other = adopt(tmp_path / "other", str(run.model_folder), only_text)
    assert find(other.results, "performance", ratio=1.0)["value"] > find(ours, "performance", ratio=1.0)["value"]


def test_a_run_of_before_masks_the_first_text_only(run):
    file = run.path / "config.json"
    config = json.loads(file.read_text())
    del config["data"]["both_texts"]
    file.write_text(json.dumps(config))
    old = Run(run.path)
    assert not old.config.data.both_texts
    (explanation,) = explain(old, "the film", "a good plot", ExplainOptions(orders=0), measure="loo-signed")
    assert explanation.context_words == ()
    assert [word.text for word in explanation.words] == ["the", "film"]


def test_the_command_line_trains_and_explains_both_texts(trained, run, faithmeter, tmp_path, write):
    assert "--both-texts" in commands_of(run)[0]
    code, printed = faithmeter("explain", run.path, "the film", "--context", "a good plot", "--measure", "loo-signed")
    assert code == 0, printed
    assert "a good plot" in printed
    code, printed = faithmeter(
        "train", tmp_path / "none", "--data", write("a.jsonl", sentiment_rows(20)), "--both-texts"
    )
    assert code == 2
    assert "no pairs whose two texts could be masked: name the second one with --context" in printed


def test_a_model_is_judged_elsewhere_as_it_was_trained(run, tmp_path):
    other = DataSpec(data=str(run.path.parent / "pairs.jsonl"), context="context")
    shutil.copy(run.config.data.data, run.path.parent / "pairs.jsonl")
    with pytest.raises(InputError, match="trained to have both texts of a pair masked: pass --both-texts"):
        transfer(run.path, tmp_path / "elsewhere", other)


def test_scores_of_both_texts_are_read_again_as_they_were_written(run, tmp_path):
    file = scores(run.path, tmp_path / "again.jsonl", ScoresOptions("loo-signed", rows=6))
    line = read_rows(file)[0]
    assert line["of"] == ["text"] * line["of"].count("text") + ["context"] * line["of"].count("context")
    for of, token, (start, end) in zip(line["of"], line["tokens"], line["spans"], strict=True):
        assert line[of][start:end] == token
    measure(run, MeasureOptions(measures=("loo-signed-once",), rows=6, random_runs=1, scores=(file,)))
    once, again = (read_measurement(run, name) for name in ("loo-signed-once", "again"))
    assert (once["probability"] == again["probability"]).all()


def test_spans_say_of_which_text_they_are(pair_classifier, write):
    texts, contexts = ["The film was great"], ["The film was bad"]
    test = pair_classifier.encode(texts, contexts)
    base = {"row": 0, "start": 4, "end": 8}
    file = write("p.jsonl", [{**base, "score": 1}, {**base, "score": 2, "of": "context"}])
    given = read_scores(file, pair_classifier, texts, contexts, test)
    (encoding,) = pair_classifier.encodings(texts, contexts)
    for value, part, (start, end) in zip(given.values, encoding.sequence_ids, encoding.offsets, strict=True):
        inside = part is not None and start >= 4 and end <= 8
        assert value == (part + 1 if inside else 0)
    with pytest.raises(InputError, match="characters are of the text or of the context, not of 'title'"):
        read_scores(write("p.jsonl", [{**base, "score": 1, "of": "title"}]), pair_classifier, texts, contexts, test)
    far = write("p.jsonl", [{**base, "end": 90, "score": 1, "of": "context"}])
    with pytest.raises(InputError, match="no characters 4 to 90 in its context, which has 16"):
        read_scores(far, pair_classifier, texts, contexts, test)
    pair_classifier.both_texts = False
    one = pair_classifier.encode(texts, contexts)
    with pytest.raises(InputError, match="a score of the context, which is not masked here"):
        read_scores(write("p.jsonl", [{**base, "score": 1, "of": "context"}]), pair_classifier, texts, contexts, one)


def test_the_page_masks_words_of_both_texts_as_its_slider_moves(pair_classifier):
    options = ExplainOptions(orders=0, random_runs=1)
    (explanation,) = explain_texts(pair_classifier, "The film", "Was bad", options, measure="loo-signed")
    page = shown(explanation)
    assert page["steps"][0]["words"] == []
    assert page["steps"][-1]["words"] == [0, 1, 2, 3]
    assert [f'data-n="{number}"' in page["words"] for number in range(5)] == [True] * 4 + [False]


# ------------------------------------------------------------------------------------------------------ rationales


def test_rationales_in_the_second_text_count_where_it_is_masked(run):
    audit(run, AuditOptions(("plausibility",), ("loo-signed",), rows=10, rationales="why,why_context"))
    assert find(run.results, "audit_plausibility_average_precision", "loo-signed")["value"] > 0.9
    assert find(run.results, "audit_plausibility_average_precision", "random")["value"] < 0.6


def test_tokens_of_rationales_in_both_texts_are_those_that_overlap(pair_classifier):
    texts, contexts = ["The film was great"], ["The film was bad"]
    found = rationale_tokens(pair_classifier, texts, contexts, [[(0, 3)]], [[(13, 16)]])
    (encoding,) = pair_classifier.encodings(texts, contexts)
    for marked, part, (start, end) in zip(found, encoding.sequence_ids, encoding.offsets, strict=True):
        assert marked == ((part == 0 and end <= 3) or (part == 1 and start >= 13))


def eraser_files(folder, *rows):
    (folder / "docs").mkdir()
    (folder / "docs" / "p1_premise").write_text("a man sits outside\n")
    (folder / "docs" / "p1_hypothesis").write_text("he runs\n")
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "test.jsonl"


def evidence(part, start, end):
    return [{"docid": f"p1_{part}", "start_token": start, "end_token": end}]


def test_e_snli_of_eraser_is_read_whole_wherever_its_evidence_is(tmp_path):
    def row(*evidences, docids=None):
        return {"annotation_id": "p1", "classification": "contradiction", "evidences": [*evidences],
                "docids": docids, "query": None}  # fmt: skip

    in_both = row(evidence("premise", 2, 3), evidence("hypothesis", 1, 2))
    in_one, in_other, in_none = row(evidence("premise", 2, 3)), row(evidence("hypothesis", 1, 2)), row()
    named = row(evidence("hypothesis", 1, 2), docids=["p1_hypothesis", "p1_premise"])
    found = eraser_rows(eraser_files(tmp_path, in_both, in_one, in_other, in_none, named))
    assert {(one["text"], one["context"], one["label"]) for one in found} == {
        ("a man sits outside", "he runs", "contradiction")
    }
    assert [(one["rationales"], one["context_rationales"]) for one in found] == [
        ([[2, 3]], [[1, 2]]), ([[2, 3]], []), ([], [[1, 2]]), ([], []), ([], [[1, 2]]),
    ]  # fmt: skip


def test_evidence_in_three_documents_is_refused(tmp_path):
    row = {"annotation_id": "p1", "classification": "x", "evidences": [], "docids": ["a", "b", "c"]}
    with pytest.raises(InputError, match="its evidence is in 3 documents; a text must be one, or a pair of two"):
        eraser_rows(eraser_files(tmp_path, row))


def test_the_published_columns_of_e_snli_mark_words_of_both_sentences():
    from datasets import Dataset

    from faithmeter.data.tasks import TASKS

    marks = marks_of(TASKS["esnli"])
    columns = {column: ["0", "{}"] for column in marks.columns} | {
        column: ["1", "0"] for column in marks.context_columns
    }
    split = Dataset.from_dict({"text": ["Dogs run.", "A man"], "context": ["They race.", "He sits"], **columns})
    assert rationales_of(split, marks) == [[(0, 4)], []]
    assert rationales_of(split, marks, "context") == [[(5, 10)], [(0, 2)]]
