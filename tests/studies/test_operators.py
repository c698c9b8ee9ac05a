"""Removal operators end to end: learnt in training, checked, measured beside each other, reported."""

import itertools
import json
import shutil

import numpy as np
import pytest
import scipy
import torch
from conftest import sentiment_rows

from faithmeter import DataSpec, MeasureOptions, Run, TrainingOptions, check, explain, measure, report, train
from faithmeter.errors import InputError
from faithmeter.in_distribution.masf import masked_at_random
from faithmeter.masking import Purpose
from faithmeter.reports.evidence import evidence
from faithmeter.runs.results import find, rows_of
from faithmeter.studies.operator_rows import correlation_of_ranks, rank_correlations
from faithmeter.training.config import TrainingConfig

FEW = {"measures": ("grad-l2", "attention", "loo-signed"), "rows": 12, "random_runs": 2}
QUICK = {"epochs": 2, "curriculum": False, "learning_rate": 2e-3, "batch_size": 16}


@pytest.fixture(scope="module")
def measured(checked_toy, tmp_path_factory):
    path = shutil.copytree(checked_toy, tmp_path_factory.mktemp("operators") / "run")
    before = (path / "results.jsonl").read_text()
    run = measure(path, MeasureOptions(**FEW, operators=("mask", "delete", "pad", "unk", "zero", "unigram")))
    assert (path / "results.jsonl").read_text().startswith(before)
    return run


def test_every_operator_has_curves_areas_and_p_values_of_its_own(measured):
    assert measured.measured_operators == ["mask", "delete", "pad", "unk", "zero", "unigram"]
    curves = {}
    for name in measured.measured_operators:
        rows = measured.by(name).results
        assert {row.get("operator", "mask") for row in rows} <= {name, "mask"}
        for one in FEW["measures"]:
            assert find(rows, "acu", one)["value"] is not None
            assert find(rows, "walk_p_value", one)["value"] is not None
        curves[name] = tuple(row["value"] for row in rows_of(rows, "masked_performance", "random"))
        assert len(rows_of(rows, "win_rate")) == 3
    assert len(curves) == 6
    assert len({find(measured.by(n).results, "acu", "grad-l2")["value"] for n in curves}) > 1
    assert len(rows_of(measured.results, "operator_rank_correlation")) == 15


def test_rows_by_the_mask_are_those_of_a_run_that_knows_no_other_operator(measured, checked_toy, tmp_path):
    alone = measure(shutil.copytree(checked_toy, tmp_path / "run"), MeasureOptions(**FEW))
    text = (alone.path / "results.jsonl").read_text()
    assert "operator" not in text
    timed = ("seconds_per_text", "win_rate", "operator_rank_correlation")
    rows = [[row for row in run.results if row["kind"] not in timed] for run in (measured, alone)]
    assert rows[0] == rows[1]


def test_an_operator_that_was_not_learnt_is_judged_against_untouched_texts(measured):
    masks = measured.in_distribution_test()
    others = measured.by("delete").in_distribution_test()
    assert len(masks.references) == 11
    assert len(others.references) == 1
    said = dict(evidence(measured.by("delete").results))
    assert "in another way" in said["Known by construction"]
    found = check(measured.path, operator="delete")
    rows = Run(measured.path, "delete").results
    assert [row["value"] for row in rows_of(rows, "check_p_value")] == [v.anywhere.dataset_p_value for v in found]
    said = dict(evidence(rows))
    assert said["Tested, random masking"].startswith("Compared with unmasked texts")
    assert len(rows_of(measured.results, "check_p_value")) == 11


def test_the_rank_correlation_is_spearmans_of_the_areas(measured):
    runs = [measured.by(name) for name in ("delete", "pad", "unk")]
    test = measured.data().test
    encoded = measured.classifier().encode(test["text"], labels=test["label"])
    found = rank_correlations(runs, encoded)
    assert [one.detail for one in found] == ["delete, pad", "delete, unk", "pad, unk"]
    areas = [np.round([find(run.results, "acu", one)["value"] for one in FEW["measures"]], 9) for run in runs]
    for one, (first, second) in zip(found, itertools.combinations(areas, 2), strict=True):
        assert len(set(first)) > 1 < len(set(second))
        assert one.value == pytest.approx(scipy.stats.spearmanr(first, second).statistic)
        assert one.low <= one.high


def test_the_interval_of_a_rank_correlation_is_over_texts_that_both_operators_share():
    random = np.random.default_rng(0)
    # four measures whose areas are 0.1 apart, as each of 50 texts sees them with noise of 0.5, alike by both operators
    each = np.arange(4) / 10 + random.normal(0, 0.5, (50, 4))
    weights = random.multinomial(50, np.full(50, 0.02), 300).astype(float)
    ranks = [scipy.stats.rankdata(weights @ table / 50, axis=1) for table in (each, each, -each)]
    np.testing.assert_allclose(correlation_of_ranks(ranks[0], ranks[1]), 1)
    np.testing.assert_allclose(correlation_of_ranks(ranks[0], ranks[2]), -1)
    others = scipy.stats.rankdata(weights @ random.normal(0, 1, (50, 4)).round(1), axis=1)
    expected = [scipy.stats.spearmanr(a, b).statistic for a, b in zip(ranks[0], others, strict=True)]
    np.testing.assert_allclose(correlation_of_ranks(ranks[0], others), expected)
    assert correlation_of_ranks(np.ones((1, 4)), others[:1]) == 0


def test_a_win_rate_is_the_share_of_texts_above_random(measured):
    import pyarrow.parquet

    view = measured.by("delete")
    table = pyarrow.parquet.read_table(view.observations).to_pylist()
    own = [one["acu"] > 1e-12 for one in table if one["measure"] == "loo-signed"]
    assert find(view.results, "win_rate", "loo-signed")["value"] == pytest.approx(sum(own) / 12)


def test_a_report_shows_all_operators_and_the_commands_that_measured_them(measured, tmp_path, without_figures):
    report(measured.path, tmp_path, formats=("html", "markdown"), examples=False)
    said = next(tmp_path.glob("*.md")).read_text()
    assert "Does it matter how tokens are removed" in said
    assert "The largest swing of a win rate" in said
    assert "measures worse than random" in said
    for name in ("delete", "pad", "unigram"):
        assert f"--operators {name}" in said


def test_a_measurement_by_several_operators_resumes_and_refuses_other_settings(measured, monkeypatch):
    monkeypatch.setattr("faithmeter.studies.measure._walk_table", lambda *_: pytest.fail("measured again"))
    results = measured.results
    assert measure(measured.path, MeasureOptions(**FEW, operators=("mask", "pad"))).results == results
    with pytest.raises(InputError, match="another rows"):
        measure(measured.path, MeasureOptions(**{**FEW, "rows": 5}, operators=("pad",)))
    with pytest.raises(InputError, match="delete"):
        MeasureOptions(operators=("deleet",))


def test_a_report_of_a_run_with_one_operator_says_nothing_of_operators(checked_toy, tmp_path, without_figures):
    run = measure(shutil.copytree(checked_toy, tmp_path / "run"), MeasureOptions(**FEW))
    report(run.path, tmp_path / "out", formats=("markdown",), examples=False)
    assert "operator" not in next((tmp_path / "out").glob("*.md")).read_text()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    file = tmp_path_factory.mktemp("data") / "reviews.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in sentiment_rows(400)))
    return DataSpec(data=str(file))


@pytest.fixture(scope="module")
def deleting(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("deleting") / "run"
    return train(path, data, "small", TrainingOptions(**QUICK, operator="delete"))


def test_a_model_that_learnt_an_operator_answers_such_texts_better(deleting, data, tmp_path):
    plain = train(tmp_path / "plain", data, "small", TrainingOptions(**QUICK, strategy="plain"))
    learnt, not_learnt = ({step: excess(run, "delete", step) for step in (5, 10)} for run in (deleting, plain))
    assert learnt[10] < not_learnt[10] - 0.1
    assert deleting.operator == "delete"
    assert plain.operator == "mask"


def excess(run, operator, step):
    """Cross-entropy of texts with so many tenths of their tokens removed."""
    classifier, test = run.by(operator).classifier(), run.data().test
    encoded = classifier.encode(test["text"], labels=test["label"])
    logits = classifier.predict(masked_at_random(encoded, step, (0, Purpose.EVALUATION_MASKS)))
    return float(torch.nn.functional.cross_entropy(logits, torch.from_numpy(encoded.labels)))


def test_a_learnt_operator_is_that_of_the_run_its_check_its_measurement_and_its_card(deleting, tmp_path):
    path = shutil.copytree(deleting.path, tmp_path / "run")
    check(path)
    run = measure(path, MeasureOptions(**FEW))
    assert run.classifier().operator.name == "delete"
    assert len(run.in_distribution_test().references) == 11
    assert len(run.by("mask").in_distribution_test().references) == 1
    stored = [json.loads(line) for line in (run.path / "results.jsonl").read_text().splitlines()]
    assert {row.get("operator") for row in stored} == {"delete"}
    assert dict(evidence(run.results))["Known by construction"].startswith("The model was fine-tuned on randomly")
    assert "removed by delete: the text is read without the token" in (run.model_folder / "README.md").read_text()
    assert run.config.how == "masked by delete"
    (explanation,) = explain(run, "it was a good film", measure="loo-signed")
    (masked,) = explain(run, "it was a good film", measure="loo-signed", operator="mask")
    assert explanation.acu != masked.acu


@pytest.mark.parametrize("operator", ["unigram", "zero"])
def test_operators_with_counts_or_embeddings_are_learnt_and_loaded_again(operator, data, tmp_path):
    run = train(tmp_path / "run", data, "small", TrainingOptions(**{**QUICK, "epochs": 1}, operator=operator))
    assert (run.path / "unigrams.safetensors").exists() == (operator == "unigram")
    assert run.classifier().operator.name == operator
    counts = run.classifier().unigrams
    if operator == "unigram":
        encoded = run.classifier().encode(run.data().train["text"])
        assert counts.counts.sum() == encoded.maskable.sum()


def test_a_training_without_masks_learns_no_operator():
    with pytest.raises(InputError, match="plain removes none"):
        TrainingConfig(strategy="plain", validation="unmasked", operator="delete")


def test_a_training_stored_before_operators_masked():
    assert TrainingConfig.read({"strategy": "masked"}).operator == "mask"


def test_the_command_line_measures_and_checks_by_operator(faithmeter, checked_toy, tmp_path):
    path = shutil.copytree(checked_toy, tmp_path / "run")
    said = faithmeter("measure", path, "--operators", "mask,deleet")[1]
    assert "deleet" in said
    assert "delete" in said
    code, said = faithmeter(
        "measure", path, "--operators", "mask,delete", "--measures", "grad-l2", "--rows", "5", "--workers", "1"
    )
    assert code == 0
    assert "Tokens removed by delete" in said
    code, said = faithmeter("check", path, "--operator", "pad")
    assert code == 0
    assert "Here a token is masked by pad." in said
    code, said = faithmeter("explain", path, "a good film", "--operator", "delete", "--orders", "0")
    assert code == 0
