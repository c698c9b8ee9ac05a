"""A series of models on one task: trained, checked, measured and compared by one command."""

import json

import pytest
import torch
from conftest import WORDS, sentiment_rows

from faithmeter import DataSpec, InputError, MeasureOptions, Run, TrainingOptions
from faithmeter.data.batch import SPECIAL
from faithmeter.models.from_scratch import SHAPES, SIZES, small_classifier
from faithmeter.models.heads import FIRST, LAST, MEAN, where_read
from faithmeter.studies.scale import scale, series
from faithmeter.training import curriculum


def test_a_family_stands_for_its_sizes_and_no_model_comes_twice():
    assert series(["t5"]) == ["t5-tiny", "t5-mini", "t5-small", "t5-base"]
    assert series(["gpt2-mini", "encoder", "tiny"]) == ["gpt2-mini", "tiny", "mini", "small", "base"]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_drawn_from_its_seed_and_reads_a_place_that_is_not_masked(shape):
    family = SHAPES[shape][0]
    first, again, other = (
        small_classifier([" ".join(WORDS)], ("a", "b"), shape=shape, seed=seed) for seed in (0, 0, 1)
    )
    assert where_read(first.model) == {"encoder": FIRST, "t5": MEAN, "gpt2": LAST}[family]
    encoded = first.encode(["the film was great", "good"], ["bad", "a story was it"])
    assert torch.equal(first.predict(encoded), again.predict(encoded))
    assert not torch.equal(first.predict(encoded), other.predict(encoded))
    read = first.read_weights(encoded.batch([0]))[0] > 0
    places = encoded.sequence[encoded.offsets[0] : encoded.offsets[1]]
    assert (places[read.numpy()] == SPECIAL).all() or family == "t5"


@pytest.mark.parametrize("family", ["encoder", "t5", "gpt2"])
def test_sizes_grow(family):
    names = [name for name, (kind, _) in SHAPES.items() if kind == family]
    sizes = [small_classifier([" ".join(WORDS)], ("a", "b"), shape=name).model.num_parameters() for name in names]
    assert len(sizes) == len(SIZES)
    assert sizes == sorted(set(sizes))


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setattr(curriculum, "ROWS_PER_EPOCH", 64)
    monkeypatch.setattr(curriculum, "MOST_EPOCHS", 1)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sentiment_rows(200)))
    return DataSpec(data=str(tmp_path / "rows.jsonl"))


OPTIONS = TrainingOptions(epochs=1), MeasureOptions(("loo-signed",), rows=10, random_runs=1)


def test_a_series_ends_in_one_report_and_goes_on_where_it_was_stopped(data, tmp_path):
    models, seen = ("gpt2-tiny", "t5-tiny"), []
    runs, page = scale(tmp_path / "series", data, models, *OPTIONS, done=seen.append)
    assert [run.path.name for run in runs] == [run.path.name for run in seen] == list(models)
    assert all(run.checked for run in runs)
    assert all(any(row["kind"] == "racu" or row["kind"] == "acu" for row in run.results) for run in runs)
    assert all(model in page.read_text() for model in models)
    before = {run.path: (run.path / "model" / "model.safetensors").stat().st_mtime_ns for run in runs}
    (tmp_path / "series" / "report" / page.name).unlink()
    again, page = scale(tmp_path / "series", data, models, *OPTIONS)
    assert page.is_file()
    assert {run.path: (run.path / "model" / "model.safetensors").stat().st_mtime_ns for run in again} == before
    with pytest.raises(InputError, match="another model, data or training"):
        scale(tmp_path / "series", data, models, TrainingOptions(epochs=2), OPTIONS[1])


def test_the_command_makes_the_series(data, tmp_path, faithmeter, without_figures):
    code, said = faithmeter(
        "scale", tmp_path / "series", "--data", data.data, "--models", "tiny,mini", "--measures", "grad-l2",
        "--rows", 5, "--epochs", 1,
    )  # fmt: skip
    assert code == 0, said
    assert "Report" in said
    assert Run(tmp_path / "series" / "mini").checked
    code, said = faithmeter("scale", tmp_path / "other")
    assert code == 2
    assert "--task" in said
