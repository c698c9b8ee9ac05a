"""A run directory: what it says of its model's files, and how often it reads them."""

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from faithmeter import DataSpec, Run
from faithmeter.runs.run import RunConfig


@pytest.fixture
def run(tmp_path):
    config = RunConfig(
        data=DataSpec(task="babi-1"), model="tiny", training=None, labels=("a", "b"), metric="accuracy",
        fingerprint="", max_length=16,
    )  # fmt: skip
    made = Run.create(tmp_path / "run", config)
    made.model_folder.mkdir()
    for name, content in (("a.safetensors", b"first"), ("b.safetensors", b"second"), ("config.json", b"{}")):
        (made.model_folder / name).write_bytes(content)
    return made


def test_the_sums_are_those_of_the_files_contents_and_of_the_names_beside_the_weights(run):
    assert run.weights == hashlib.sha256(b"firstsecond").hexdigest()[:16]
    assert run.tokenizer_and_config == hashlib.sha256(b"config.json\0{}").hexdigest()[:16]


def test_weights_are_read_once_until_they_change(run, monkeypatch):
    reads, read_bytes = [], Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: reads.append(path.name) or read_bytes(path))
    before = [run.weights, Run(run.path).weights, run.weights]
    assert reads.count("a.safetensors") == 1
    file = run.model_folder / "a.safetensors"
    file.write_bytes(b"FIRST")  # as long as before
    os.utime(file, ns=(0, 1))
    assert len({*before, run.weights}) == 2


def test_the_config_of_an_open_run_is_read_once(run, monkeypatch):
    opened = Run(run.path)
    assert opened.config.labels == ("a", "b")
    (run.path / "config.json").unlink()
    assert opened.config.labels == ("a", "b")


def test_a_training_is_evidence_only_where_its_record_is_complete(checked_toy, tmp_path):
    run = Run(shutil.copytree(checked_toy, tmp_path / "run"))
    assert run.masks == "masked"
    (run.path / "history.jsonl").unlink()
    assert Run(run.path).masks == "unknown"
