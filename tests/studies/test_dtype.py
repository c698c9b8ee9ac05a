"""Measuring in 16 bits, where asked: the ranks of the measures are those of float32, and the two are not mixed."""

import json

import numpy as np
import pytest
import scipy.stats
import torch
from conftest import WORDS, random_classifier

from faithmeter import DataSpec, InputError, MeasureOptions, Run, adopt, measure
from faithmeter.files import write_json
from faithmeter.runs.results import find
from faithmeter.studies.report import commands_of

pytestmark = pytest.mark.usefixtures("without_figures")
MEASURES = ("grad-l2", "x-grad-signed", "ig-signed", "loo-signed", "loo-abs", "attention")


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    """A model with random weights that looks around, and texts with its own answers as their labels."""
    folder = tmp_path_factory.mktemp("subject")
    classifier = random_classifier("bert", classes=2, spread=0.2)
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(WORDS, 6)) for _ in range(300)]
    logits = classifier.predict(classifier.encode(texts))
    with torch.no_grad():  # as many texts of one class as of the other
        classifier.model.classifier.bias[0] -= (logits[:, 0] - logits[:, 1]).median()
    answers = classifier.predict(classifier.encode(texts)).argmax(dim=-1).tolist()
    rows = [json.dumps({"text": text, "label": answer}) for text, answer in zip(texts, answers, strict=True)]
    (folder / "rows.jsonl").write_text("\n".join(rows) + "\n")
    classifier.save(folder / "model")
    return folder


def measured(subject, path, dtype, rows=None):
    run = adopt(path, str(subject / "model"), DataSpec(data=str(subject / "rows.jsonl")))
    options = MeasureOptions(measures=MEASURES, rows=rows, random_runs=1, without_check=True, dtype=dtype)
    return measure(run, options)


def areas(run):
    return np.array([find(run.results, "acu", name)["value"] for name in MEASURES])


def test_ranks_of_measures_in_sixteen_bits_are_those_of_thirty_two(subject, tmp_path):
    exact = areas(measured(subject, tmp_path / "float32", "float32"))
    assert exact.std() > 0.03  # the measures differ
    for dtype, largest in (("bfloat16", 0.06), ("float16", 0.03)):
        rounded = areas(measured(subject, tmp_path / dtype, dtype))
        assert (rounded != exact).any()  # it did compute otherwise
        assert scipy.stats.spearmanr(exact, rounded).statistic > 0.85
        assert np.abs(exact - rounded).max() < largest


def test_measurements_of_another_precision_are_not_mixed_and_old_ones_are_in_float32(subject, tmp_path):
    run = measured(subject, tmp_path / "run", "float32", 4)
    with pytest.raises(InputError, match="holds results with another dtype"):
        measured(subject, tmp_path / "run", "bfloat16", 4)
    file = run.measurements / "settings.json"
    settings = json.loads(file.read_text())
    assert settings.pop("dtype") == "float32"
    write_json(file, settings)
    assert Run(run.path).measurement_settings["dtype"] == "float32"
    measured(subject, tmp_path / "run", "float32", 4)


def test_the_precision_is_asked_for_by_name_and_the_model_of_the_run_stays(subject, tmp_path, faithmeter):
    with pytest.raises(InputError, match="no precision 'int8' to measure in: choose float32 or bfloat16 or float16"):
        MeasureOptions(dtype="int8")
    run = adopt(tmp_path / "run", str(subject / "model"), DataSpec(data=str(subject / "rows.jsonl")))
    before = run.weights
    asked = ("--measures", "grad-l2", "--rows", "4", "--random-runs", "1", "--without-check", "--dtype", "bfloat16")
    code, printed = faithmeter("measure", run.path, *asked)
    assert code == 0, printed
    assert any("--dtype bfloat16" in line for line in commands_of(run))
    assert run.weights == before
    assert run.classifier().model.dtype == torch.float32
