"""Robust training through the job: what is asked, what is stored, and attacked texts in their place."""

import json
from dataclasses import replace

import numpy as np
import pytest
from conftest import sentiment_rows

from faithmeter import DataSpec, InputError, Run, TrainingOptions, train
from faithmeter.studies import train as training

OPTIONS = TrainingOptions(
    robust=("vat", "adversarial"),
    adversarial_share=0.25,
    adversarial_budget=0.5,
    epochs=3,
    curriculum=False,
    learning_rate=2e-3,
    batch_size=16,
)


@pytest.fixture
def data(write):
    return DataSpec(data=str(write("reviews.jsonl", sentiment_rows(120))))


def test_attacked_texts_of_the_model_as_it_is_are_shown_with_their_true_labels(data, tmp_path, monkeypatch):
    asked, real = [], training.attack_texts

    def spied(classifier, texts, contexts, labels, **settings):
        found = real(classifier, texts, contexts, labels, **settings)
        asked.append((list(texts), list(labels), found, settings))
        return found

    monkeypatch.setattr(training, "attack_texts", spied)
    run = train(tmp_path / "run", data, "tiny", OPTIONS)
    kept = run.data().train
    assert len(asked) == 2  # three epochs, and in the first there is nothing to attack
    for texts, labels, found, settings in asked:
        rows = settings["rows"]
        assert len(rows) == round(0.25 * len(kept))
        assert texts == [kept[int(row)]["text"] for row in rows]
        assert labels == [kept[int(row)]["label"] for row in rows]
        assert settings["budget"] == 0.5
        assert (found.changed <= np.ceil(0.5 * found.words)).all()
    assert not np.array_equal(asked[0][3]["rows"], asked[1][3]["rows"])
    steps = [row["step"] for row in run.history]
    group = -(-len(kept) // 16), -(-(len(kept) + round(0.25 * len(kept))) // 16)
    assert np.diff([0, *steps]).tolist() == [group[0], group[1], group[1]]


def test_the_kind_of_attack_is_an_option(data, tmp_path, monkeypatch):
    asked, real = [], training.attack_texts
    monkeypatch.setattr(
        training, "attack_texts", lambda *given, **settings: asked.append(settings["kinds"]) or real(*given, **settings)
    )
    options = replace(OPTIONS, robust=("adversarial",), epochs=2, adversarial_attack="delete")
    run = train(tmp_path / "run", data, "tiny", options)
    assert asked == [("delete",)]
    assert Run(run.path).config.training.adversarial_attack == "delete"
    with pytest.raises(InputError, match="no attack 'deleted'"):
        train(tmp_path / "other", data, "tiny", replace(options, adversarial_attack="deleted"))
    assert not (tmp_path / "other").exists()


def test_what_was_added_is_in_the_run_and_read_back(data, tmp_path):
    run = train(tmp_path / "run", data, "tiny", OPTIONS)
    stored = json.loads((run.path / "config.json").read_text(encoding="utf-8"))
    assert stored["training"]["robust"] == ["vat", "adversarial"]
    assert Run(run.path).config.training.robust == ("vat", "adversarial")
    assert run.config.how == "masked + vat + adversarial"
    assert all(row["train_vat"] > 0 for row in run.history)
    assert "with vat and adversarial training" in (run.model_folder / "README.md").read_text(encoding="utf-8")


def test_the_command_takes_losses_and_strengths(data, tmp_path, faithmeter):
    options = ("--robust", "igr, explanation-guided", "--igr-weight", "0.01", "--guided-share", "0.3", "--epochs", "2")
    options += ("--guided-attribution", "ig", "--guided-consistency", "0.2")
    named = ("--data", data.data, "--model", "tiny", "--no-curriculum")
    code, said = faithmeter("train", tmp_path / "run", *named, *options)
    assert code == 0, said
    assert "igr" in said
    training = Run(tmp_path / "run").config.training
    assert (training.robust, training.igr_weight, training.guided_share) == (("igr", "explanation-guided"), 0.01, 0.3)
    assert (training.guided_attribution, training.guided_consistency, training.guided_after) == ("ig", 0.2, 1)
    code, said = faithmeter("train", tmp_path / "other", *named, "--robust", "vatt")
    assert (code, "There is no robust training 'vatt'" in said) == (2, True)
    assert not (tmp_path / "other").exists()
