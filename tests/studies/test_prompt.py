"""A run of a prompted language model, from the command line to a measurement."""

import json

import numpy as np
import pytest
import torch
from conftest import random_classifier, random_language_model, sentiment_rows

from faithmeter import InputError, Run, TrainingOptions, check, train
from faithmeter.data.splits import DataSpec, load_splits
from faithmeter.studies import train as training
from faithmeter.studies.prompt import PromptOptions, _centred_offsets, prompt
from faithmeter.studies.report import commands_of

TEMPLATE = "Text: {text}\nIt was "


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("prompted")
    (made / "reviews.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sentiment_rows(200)))
    model, tokenizer = random_language_model()
    model.save_pretrained(made / "lm")
    tokenizer.save_pretrained(made / "lm")
    random_classifier("bert").save(made / "bert")
    return made


def data(folder) -> DataSpec:
    return DataSpec(data=str(folder / "reviews.jsonl"))


@pytest.mark.usefixtures("without_figures")
def test_a_prompted_model_is_checked_measured_judged_and_reported_by_the_commands(folder, tmp_path, faithmeter):
    run = tmp_path / "run"
    for command in (
        ("prompt", run, "--data", folder / "reviews.jsonl", "--model", folder / "lm", "--template",
         "Text: {text}\\nIt was ", "--words", "negative=bad,positive=very good", "--shots", 2,
         "--calibration", "median"),
        ("check", run),
        ("measure", run, "--measures", "loo-signed,grad-l2", "--rows", 10),
        ("explain", run, "good film plot"),
        ("audit", run, "--judges", "erasure,randomisation", "--measures", "loo-signed", "--rows", 4),
        ("report", run),
    ):  # fmt: skip
        code, printed = faithmeter(*command)
        assert code == 0, printed
    code, printed = faithmeter("audit", run, "--judges", "known-token", "--measures", "loo-signed", "--rows", 4)
    assert code == 2
    assert "a prompted model is not trained" in printed
    rows = Run(run).results
    assert {row["measure"] for row in rows if row["kind"] == "acu"} == {"loo-signed", "grad-l2"}
    card = (run / "model" / "README.md").read_text()
    assert "A prompted language model" in card
    assert Run(run).config.how == "prompted"
    (made, *_) = commands_of(Run(run))
    assert made.startswith("faithmeter prompt")
    assert "--words 'negative=bad,positive=very good' --shots 2 --calibration median" in made


def test_examples_are_training_texts_with_the_classes_in_turn(folder, tmp_path):
    run = prompt(tmp_path / "run", data(folder), str(folder / "lm"), PromptOptions(TEMPLATE, shots=4))
    classifier = run.classifier()
    (row,) = classifier.encode(["film"]).batch([0]).input_ids
    tokens = classifier.tokenizer.convert_ids_to_tokens(row.tolist())
    shown = "".join(tokens).replace("Ġ", " ").replace("Ċ", "\n").split("\n\n")
    assert len(shown) == 5
    answers = [example.split("It was ")[1] for example in shown[:4]]
    assert sorted(answers[:2]) == sorted(answers[2:]) == ["negative", "positive"]
    train = load_splits(data(folder)).train
    gold = {row["text"]: ("negative", "positive")[row["label"]] for row in train}
    for example, answer in zip(shown, answers, strict=False):
        assert gold[example.split("Text: ")[1].split("\n")[0]] == answer


def test_calibration_by_the_median_answers_each_of_two_classes_half_of_the_time(folder, tmp_path):
    run = prompt(tmp_path / "run", data(folder), str(folder / "lm"), PromptOptions(TEMPLATE, calibration="median"))
    classifier = run.classifier()
    answers = classifier.predict(classifier.encode(run.data().validation["text"])).argmax(dim=1)
    assert abs(float(answers.float().mean()) - 0.5) <= 1 / len(answers)


def test_calibration_by_the_empty_slot_makes_the_classes_equal_there(folder, tmp_path):
    run = prompt(tmp_path / "run", data(folder), str(folder / "lm"), PromptOptions(TEMPLATE, calibration="empty"))
    classifier = run.classifier()
    empty = classifier.predict(classifier.encode([""]))[0]
    assert float(empty[0]) == pytest.approx(float(empty[1]), abs=1e-4)
    text = classifier.predict(classifier.encode(["good film"]))[0]
    assert abs(float(text[0] - text[1])) > 1e-3


def test_offsets_worked_by_hand():
    # differences of class 1 and class 0: 1, 3 and 8, with median 3; halves of it relative to the mean of the classes
    scores = torch.tensor([[-5.0, -4.0], [-9.0, -6.0], [-10.0, -2.0]])
    assert _centred_offsets(scores) == [1.5, -1.5]
    assert np.median((scores + torch.tensor([1.5, -1.5])).diff(dim=1).numpy()) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"template": "no slot"}, r"one slot \{text\}"),
        ({"template": TEMPLATE, "words": {"good": "x"}}, "no class 'good' in the data"),
        ({"template": TEMPLATE, "words": {"negative": "good", "positive": "good"}}, "are the same to the model"),
        ({"template": "{text} {context} "}, "leave it out"),
        ({"template": TEMPLATE, "shots": 100}, r"The prompt alone has \d+ tokens, and the limit is 130"),
        ({"template": TEMPLATE, "shots": 10**6}, "examples were asked for"),
    ],
)
def test_a_prompt_that_cannot_be_is_refused_and_leaves_nothing(folder, tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        prompt(tmp_path / "run", data(folder), str(folder / "lm"), PromptOptions(**options))
    assert not (tmp_path / "run").exists()


def test_an_encoder_and_an_unknown_calibration_are_refused(folder, tmp_path):
    with pytest.raises(InputError, match="only a causal language model can be prompted"):
        prompt(tmp_path / "run", data(folder), str(folder / "bert"), PromptOptions(TEMPLATE))
    with pytest.raises(InputError, match="Did you mean 'median'"):
        PromptOptions(TEMPLATE, calibration="medain")


def test_a_mask_is_learnt_as_an_adapter_from_the_models_own_answers_without_labels(folder, tmp_path, monkeypatch):
    pytest.importorskip("peft")
    made = prompt(
        tmp_path / "prompted", data(folder), str(folder / "lm"), PromptOptions(TEMPLATE, calibration="median")
    )
    before = made.classifier()
    shown = []
    loop = training.fine_tune

    def noted(classifier, train_split, validation, *rest, **more):
        shown.extend([train_split, validation])
        return loop(classifier, train_split, validation, *rest, **more)

    monkeypatch.setattr(training, "fine_tune", noted)
    options = TrainingOptions(lora=True, own_answers=True, epochs=2)
    run = train(tmp_path / "learnt", data(folder), str(made.model_folder), options)
    for split in shown:
        gold = made.data().train["label"] if len(split) > 64 else made.data().validation["label"]
        assert split.labels.tolist() == before.predict(split).argmax(dim=1).tolist()
        assert split.labels.tolist() != gold
    after = run.classifier()
    assert type(after.model) is type(before.model)
    # the prompt and the words are the same, and so are all embeddings but the mask's
    changed = (after.vocabulary() != before.vocabulary()).any(dim=1).nonzero().flatten().tolist()
    assert changed == [before.mask_token_id]
    assert after.model.config.offsets == before.model.config.offsets
    check(run.path)
    assert run.masks == "masked"


def test_own_answers_need_a_model_that_has_some(folder, tmp_path):
    for model in ("small", str(folder / "bert")):
        with pytest.raises(InputError, match=r"--own-answers needs a model that already classifies into \(negative"):
            train(tmp_path / "run", data(folder), model, TrainingOptions(own_answers=True))
