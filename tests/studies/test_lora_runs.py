"""A run that is trained as an adapter: from the command line to a measurement, and after a kill."""

import json
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from conftest import sentiment_rows
from safetensors.torch import load_file

from faithmeter import DataSpec, InputError, Run, TrainingOptions, check, explain, measure, train
from faithmeter.progress import Silent
from faithmeter.studies.measure import MeasureOptions
from faithmeter.studies.report import commands_of
from faithmeter.studies.train import resume

pytest.importorskip("peft")
EPOCHS = 2


@pytest.fixture(scope="module")
def base(trained_toy) -> str:
    """A small classifier that already knows the words."""
    return str(trained_toy / "model")


@pytest.fixture(scope="module")
def folder(base, tmp_path_factory) -> Path:
    """A run that was trained as an adapter, to be copied and not changed."""
    made = tmp_path_factory.mktemp("lora")
    (made / "reviews.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sentiment_rows(400)))
    train(made / "run", data(made), base, TrainingOptions(lora=True, epochs=EPOCHS, batch_size=32))
    return made


def data(folder: Path) -> DataSpec:
    return DataSpec(data=str(folder / "reviews.jsonl"))


class KilledAfter(Silent):
    """Ends the process, as far as it can tell, in the first step after so many epochs."""

    def __init__(self, epochs: int) -> None:
        self.left = epochs

    @contextmanager
    def bar(self, title, total):
        def advance(done):
            if title.startswith("Epoch") and self.left == 0:
                raise KeyboardInterrupt

        yield advance
        self.left -= title.startswith("Epoch")


def test_a_run_of_an_adapter_is_checked_measured_and_explained_like_any_other(folder, tmp_path):
    run = Run(shutil.copytree(folder / "run", tmp_path / "run"))
    assert not (run.model_folder / "model.safetensors").exists()
    check(run.path)
    measure(run.path, MeasureOptions(measures=("grad-l2", "loo-signed"), rows=20))
    assert {row["measure"] for row in run.results if row["kind"] == "acu"} == {"grad-l2", "loo-signed"}
    (found,) = explain(run.path, ["good film plot actor"], measure="loo-signed")
    assert max(found.words, key=lambda word: abs(word.importance)).text == "good"
    unmasked = next(row["value"] for row in run.results if row["kind"] == "performance" and row["masking_ratio"] == 0)
    assert unmasked > 0.9


def test_the_card_says_what_is_stored_and_how_large_it_is(folder):
    run = Run(folder / "run")
    card = (run.model_folder / "README.md").read_text()
    size = (run.model_folder / "adapter_model.safetensors").stat().st_size / 1e6
    assert "library_name: peft" in card
    assert f"LoRA adapter of {size:.1f} MB (rank 8, alpha 16)" in card
    assert run.config.how == "masked + lora"


def test_the_command_of_a_run_trains_the_same_adapter_again(folder, tmp_path, faithmeter, base):
    (command, *_) = commands_of(Run(folder / "run"))
    assert "--lora --lora-rank 8 --lora-alpha 16.0 --dtype float32" in command
    words = command.replace(str(folder / "run"), str(tmp_path / "again")).split()
    code, printed = faithmeter(*words[1:])
    assert code == 0, printed
    same(folder / "run", tmp_path / "again")


def same(one: Path, other: Path) -> None:
    tensors = [load_file(run / "model" / "adapter_model.safetensors") for run in (one, other)]
    assert tensors[0].keys() == tensors[1].keys()
    assert all(torch.equal(tensor, tensors[1][name]) for name, tensor in tensors[0].items())


@pytest.mark.parametrize("epochs", [0, 1])
def test_a_killed_training_of_an_adapter_ends_with_the_same_weights(folder, base, tmp_path, epochs):
    options = TrainingOptions(lora=True, epochs=EPOCHS, batch_size=32)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", data(folder), base, options, reporter=KilledAfter(epochs))
    kept = sorted((tmp_path / "run" / "checkpoints").glob("epoch-*/model.safetensors"))
    assert len(kept) == epochs
    for file in kept:  # what is frozen is not written again after every epoch
        assert file.stat().st_size < 0.5 * (Path(base) / "model.safetensors").stat().st_size
        assert all("base_layer" not in name for name in load_file(file))
    resume(tmp_path / "run")
    same(folder / "run", tmp_path / "run")


def test_the_frozen_base_is_read_and_never_written(folder, base):
    before = load_file(Path(base) / "model.safetensors")
    classifier = Run(folder / "run").classifier()
    untouched = [name for name in before if "LayerNorm" in name or "position" in name]
    assert untouched
    now = classifier.model.state_dict()
    assert all(torch.equal(now[name].cpu(), before[name]) for name in untouched)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lora_rank": 4}, "--lora-rank is a setting of --lora"),
        ({"dtype": "bfloat16"}, "--dtype is a setting of --lora"),
        ({"lora": True, "dtype": "int8"}, "no dtype 'int8': choose from float32, bfloat16"),
        ({"lora": True, "lora_rank": 0}, "rank of LoRA must be 1 or more"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_any_work(folder, base, tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        train(tmp_path / "run", data(folder), base, TrainingOptions(**options))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("model", ["small", "bilstm"])
def test_a_model_from_scratch_has_nothing_to_freeze(folder, tmp_path, model):
    with pytest.raises(InputError, match="--lora adapts a pretrained model"):
        train(tmp_path / "run", data(folder), model, TrainingOptions(lora=True))
    assert not (tmp_path / "run").exists()


def test_an_adapter_folder_is_judged_like_any_trained_model(folder, tmp_path, faithmeter):
    adapter = folder / "run" / "model"
    code, printed = faithmeter("check", adapter, "--data", folder / "reviews.jsonl", "--run", tmp_path / "adopted")
    assert code == 0, printed
    assert (tmp_path / "adopted" / "model" / "model.safetensors").is_file()  # whole: it must outlive its base
    found, expected = (Run(path).classifier() for path in (tmp_path / "adopted", folder / "run"))
    encoded = expected.encode(["good film", "bad plot actor"])
    torch.testing.assert_close(found.predict(encoded), expected.predict(encoded), rtol=0, atol=1e-6)
