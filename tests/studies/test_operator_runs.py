"""Removal operators end to end: learnt in training, checked, measured beside each other, reported."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet
import pytest
import scipy
import torch
from conftest import sentiment_rows

from faithmeter import DataSpec, MeasureOptions, Run, TrainingOptions, check, explain, measure, report, train
from faithmeter.errors import InputError
from faithmeter.files import write_bytes
from faithmeter.in_distribution.masf import masked_at_random
from faithmeter.masking import Purpose
from faithmeter.reports.evidence import evidence
from faithmeter.runs.results import Result, find, rows_of
from faithmeter.runs.shards import as_parquet
from faithmeter.studies.check import in_words
from faithmeter.studies.operator_rows import correlation_of_ranks, rank_correlations
from faithmeter.training.config import TrainingConfig

FEW = {"measures": ("grad-l2", "attention", "loo-signed"), "rows": 8, "random_runs": 2}
QUICK = {"epochs": 2, "curriculum": False, "learning_rate": 2e-3, "batch_size": 16}


@pytest.fixture(scope="module")
def measured(checked_toy, tmp_path_factory):
    path = shutil.copytree(checked_toy, tmp_path_factory.mktemp("operators") / "run")
    before = (path / "results.jsonl").read_text()
    run = measure(path, MeasureOptions(**FEW, operators=("mask", "delete", "pad", "unigram")))
    assert (path / "results.jsonl").read_text().startswith(before)
    return run


def test_every_operator_has_curves_areas_and_p_values_of_its_own(measured):
    assert measured.measured_operators == ["mask", "delete", "pad", "unigram"]
    curves = {}
    for name in measured.measured_operators:
        rows = measured.by(name).results
        assert {row.get("operator", "mask") for row in rows} <= {name, "mask"}
        for one in FEW["measures"]:
            assert find(rows, "acu", one)["value"] is not None
            assert find(rows, "walk_p_value", one)["value"] is not None
        curves[name] = tuple(row["value"] for row in rows_of(rows, "masked_performance", "random"))
        assert len(rows_of(rows, "win_rate")) == 3
    assert len(curves) == 4
    assert len({find(measured.by(n).results, "acu", "grad-l2")["value"] for n in curves}) > 1
    assert len(rows_of(measured.results, "operator_rank_correlation")) == 6


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


def test_the_rank_correlation_is_spearmans_of_the_areas_on_the_texts_of_both(trained_toy, tmp_path):
    """Answers written by hand: a measure's curve falls at a step of its own, which differs between operators."""
    home, names, texts = Run(shutil.copytree(trained_toy, tmp_path / "run")), ("a", "b", "c", "d"), 30
    random = np.random.default_rng(0)
    labels, falls = random.integers(0, 2, texts), {}
    for operator in ("mask", "delete", "pad"):
        run = home.by(operator)
        for name in (*names, "random.0"):
            falls[operator, name] = random.integers(1, 11, texts) if operator != "pad" else falls["delete", name]
            right = np.arange(11) < falls[operator, name][:, None]
            columns = {
                "row": np.repeat(np.arange(texts), 11),
                "step": np.tile(np.arange(11), texts),
                "predicted": np.where(right, labels[:, None], 1 - labels[:, None]).ravel(),
                "probability": right.astype(float).ravel(),
            }
            folder = run.measurements / name
            folder.mkdir(parents=True)
            write_bytes(folder / "00000.parquet", as_parquet(pyarrow.table(columns)))
        run.store_measurement_settings({"asked": {"random_runs": 1}})
        run.store_results(
            ("acu",), [Result(kind="acu", value=0, metric="accuracy", n=1, measure=name) for name in names]
        )
    test = SimpleNamespace(labels=labels, sources=lambda: np.arange(texts))
    found = rank_correlations([home.by(name) for name in ("mask", "delete", "pad")], test)
    assert [one.detail for one in found] == ["mask, delete", "mask, pad", "delete, pad"]
    # the area under a curve that falls at step k is (k − 1/2)/10; ACU is how much smaller than random's it is
    areas = [[-falls[operator, name].mean() for name in names] for operator in ("mask", "delete")]
    assert found[0].value == pytest.approx(scipy.stats.spearmanr(*areas).statistic)
    assert abs(found[0].value) < 0.99
    assert found[0].low < found[0].value <= found[0].high
    # both operators are ranked on the same resample: two that agree on every text always agree
    assert (found[2].low, found[2].value, found[2].high) == pytest.approx((1, 1, 1))


def test_ranks_correlate_as_spearmans_do_with_ties():
    random = np.random.default_rng(0)
    first, second = (scipy.stats.rankdata(random.integers(0, 9, (50, 6)), axis=1) for _ in range(2))
    expected = [scipy.stats.spearmanr(a, b).statistic for a, b in zip(first, second, strict=True)]
    np.testing.assert_allclose(correlation_of_ranks(first, second), expected)
    assert correlation_of_ranks(np.ones((1, 6)), second[:1]) == 0


def test_a_win_rate_is_the_share_of_texts_above_random(measured):
    view = measured.by("delete")
    table = pyarrow.parquet.read_table(view.observations).to_pylist()
    own = [one["acu"] > 1e-12 for one in table if one["measure"] == "loo-signed"]
    assert find(view.results, "win_rate", "loo-signed")["value"] == pytest.approx(sum(own) / 8)


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
        "measure", path, "--operators", "mask,delete", "--measures", "grad-l2", "--rows", "3", "--random-runs", "1",
        "--workers", "1",
    )  # fmt: skip
    assert code == 0
    assert "Tokens removed by delete" in said
    code, said = faithmeter("explain", path, "a good film", "--operator", "delete", "--orders", "0")
    assert code == 0
    with pytest.raises(InputError, match="pad"):
        explain(path, "a good film", operator="paid")


def test_a_check_by_another_operator_says_which(measured):
    check(measured.path, operator="pad")
    assert in_words(measured.path, "pad").startswith("Here a token is masked by pad.")
    assert "Here a token" not in in_words(measured.path)
