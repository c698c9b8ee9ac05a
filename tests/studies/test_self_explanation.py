"""A language model's own explanation: asked, matched, written, and judged like any other."""

import json

import pytest
from conftest import random_language_model, sentiment_rows

from faithmeter import InputError, Run
from faithmeter.data.splits import DataSpec
from faithmeter.data.tables import read_rows
from faithmeter.studies import self_explanation as study
from faithmeter.studies.prompt import PromptOptions, prompt
from faithmeter.studies.scores import ScoresOptions, scores
from faithmeter.studies.self_explanation import SelfExplanationOptions, self_explanation

TEMPLATE = "Text: {text}\nIt was "


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("asked")
    (folder / "reviews.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sentiment_rows(100)))
    for part in random_language_model():
        part.save_pretrained(folder / "lm")
    data = DataSpec(data=str(folder / "reviews.jsonl"))
    return prompt(folder / "run", data, str(folder / "lm"), PromptOptions(TEMPLATE, {"positive": "very good"}))


@pytest.fixture
def asked(monkeypatch):
    """What the model was asked; it answers with the second and the first word of the text, or with nothing."""
    questions = []

    def answering(_, prompts, most, *, progress=None):
        questions.extend(prompts)
        words = [prompt.split("Text: ")[1].split("\n")[0].split() for prompt in prompts]
        return [f"{one[1].upper()}, then {one[0]}" if "good" in one else "" for one in words]

    monkeypatch.setattr(study, "complete", answering)
    return questions


class Notes:
    def __init__(self):
        self.told = []

    def note(self, text):
        self.told.append(text)

    def __getattr__(self, name):
        return getattr(study.Silent(), name)


def test_the_words_that_it_names_are_the_scores_and_silence_is_told(made, asked, tmp_path):
    notes = Notes()
    file = self_explanation(made.path, tmp_path / "own.jsonl", SelfExplanationOptions(rows=8), reporter=notes)
    same = read_rows(scores(made.path, tmp_path / "theirs.jsonl", ScoresOptions("grad-l2", "predicted", rows=8)))
    lines = read_rows(file)
    assert list(dict.fromkeys(line["row"] for line in lines)) == [line["row"] for line in same]
    silent = 0
    for text in same:
        own = [line for line in lines if line["row"] == text["row"]]
        assert {line["target"] for line in own} == {text["target"]}
        words = text["text"].split()
        if "good" not in words:
            silent += 1
            assert [(line["start"], line["end"], line["score"]) for line in own] == [(None, None, None)]
            continue
        first, second = (0.5, 1.0) if words[0] != words[1] else (1.0, 1.0)
        expected = [(word, first if word == words[0] else second) for word in words if word in words[:2]]
        found = [
            (text["text"][line["start"] : line["end"]], line["score"]) for line in sorted(own, key=lambda x: x["start"])
        ]
        assert found == expected
    assert 0 < silent < 8
    assert f"{silent} of 8 answers ({silent / 8:.0%}) name no word of their text." in notes.told


def test_it_is_asked_about_the_answer_that_it_gave_or_about_the_true_one(made, asked, tmp_path):
    labels, words = made.config.labels, {"negative": "negative", "positive": "very good"}
    for target in ("predicted", "gold"):
        asked.clear()
        file = self_explanation(made.path, tmp_path / f"{target}.csv", SelfExplanationOptions(target=target, rows=6))
        targets = {int(line["row"]): line["target"] for line in read_rows(file)}
        for question, (row, label) in zip(asked, targets.items(), strict=True):
            text = made.data().test[row]
            assert question == f"Text: {text['text']}\nIt was {words[label]}\nKey words: "
            if target == "gold":
                assert label == labels[text["label"]]
    asked.clear()
    own = SelfExplanationOptions("Text: {text}\nWhy {answer}?", rows=1)
    self_explanation(made.path, tmp_path / "other.parquet", own)
    assert asked[0].split("\n")[1] in ("Why negative?", "Why very good?")


def test_what_fills_a_slot_is_not_searched_for_slots():
    slots = {"{text}": "an {answer} to {context}", "{answer}": "good", "{context}": "{text}"}
    assert study._filled("{text} | {context} | {answer}", slots) == "an {answer} to {context} | {text} | good"


def test_a_long_text_is_shown_as_far_as_the_classifier_reads_it(made, asked, tmp_path):
    long = "film " * 200
    (tmp_path / "long.jsonl").write_text(
        "".join(json.dumps({**row, "text": f"{row['text']} {long}"}) + "\n" for row in sentiment_rows(60))
    )
    folder = made.path.parent / "lm"
    data = DataSpec(data=str(tmp_path / "long.jsonl"))
    run = prompt(tmp_path / "run", data, str(folder), PromptOptions(TEMPLATE), max_length=40)
    self_explanation(run.path, tmp_path / "own.jsonl", SelfExplanationOptions(rows=2))
    classifier = run.classifier()
    for question in asked:
        shown = question.split("Text: ")[1].split("\n")[0]
        assert shown.endswith("film")
        assert classifier.unread(shown) == 0
        assert classifier.unread(f"{shown} film") > 0


@pytest.mark.usefixtures("without_figures")
def test_the_commands_ask_measure_and_audit_it(made, tmp_path, faithmeter):
    own = tmp_path / "own.jsonl"
    for command in (
        ("scores", made.path, "--self-explanation", "--new-tokens", 4, "--out", own),
        ("measure", made.path, "--measures", "grad-l2", "--target", "predicted", "--rows", 5, "--scores", own,
         "--without-check"),
        ("audit", made.path, "--judges", "sparsity", "--measures", "grad-l2", "--rows", 3, "--scores", own),
    ):  # fmt: skip
        code, printed = faithmeter(*command)
        assert code == 0, printed
    assert {row["measure"] for row in Run(made.path).results if row["kind"] == "acu"} >= {"own", "grad-l2-once"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--self-explanation", "--measure", "grad-l2"), "give --measure or --self-explanation, not both"),
        (("--question", "{text} {answer}"), "add --self-explanation"),
        (("--new-tokens", 4), "add --self-explanation"),
        (("--self-explanation", "--question", "{text}"), "this one has no {answer}"),
        (("--self-explanation", "--target", "true"), "There is no target 'true'"),
        (("--self-explanation", "--new-tokens", 500), "more than the"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(made, tmp_path, faithmeter, options, said):
    code, printed = faithmeter("scores", made.path, "--out", tmp_path / "x.jsonl", *options)
    assert code == 2
    assert said in " ".join(printed.split())
    assert not (tmp_path / "x.jsonl").exists()


def test_a_model_that_is_not_prompted_is_not_asked(checked_toy, tmp_path):
    with pytest.raises(InputError, match="is no run of `faithmeter prompt`"):
        self_explanation(checked_toy, tmp_path / "x.jsonl")
