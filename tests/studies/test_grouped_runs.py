"""Groups and the order of lines, from a file to the report; and what results do not depend on."""

import json
import random
import shutil

import numpy as np
import pyarrow.parquet
import pytest
import torch
from conftest import sentiment_rows

from faithmeter import DataSpec, InputError, Run, TrainingOptions, check, measure, train
from faithmeter.files import write_json
from faithmeter.runs.directory import read_config
from faithmeter.runs.measurements import read_measurement
from faithmeter.runs.results import find, over_what, rows_of
from faithmeter.studies.measure import MeasureOptions
from faithmeter.studies.report import commands_of
from faithmeter.studies.train import train_or_go_on

pytestmark = pytest.mark.usefixtures("without_figures")
TRAINING = TrainingOptions(epochs=6, curriculum=False, learning_rate=2e-3, batch_size=16)
MEASURED = MeasureOptions(measures=("grad-l2", "loo-signed"), rows=20, random_runs=2)
TIMED = ("seconds_per_text",)


def made(folder, rows, **spec):
    """A checked and measured run of a small model on these rows."""
    folder.mkdir()
    file = folder / "reviews.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = train(folder / "run", DataSpec(data=str(file), **spec), "small", TRAINING)
    check(run.path)
    return measure(run.path, MEASURED)


def authored():
    return [{**row, "author": f"a{number // 4}"} for number, row in enumerate(sentiment_rows(120))]


@pytest.fixture(scope="module")
def grouped(tmp_path_factory):
    return made(tmp_path_factory.mktemp("grouped") / "first", authored(), group="author")


def results_of(run):
    return [row for row in run.results if row["kind"] not in TIMED]


def test_a_shuffled_copy_of_the_file_gives_the_same_weights_check_and_measurement(grouped, tmp_path):
    rows = authored()
    random.Random(7).shuffle(rows)
    other = made(tmp_path / "shuffled", rows, group="author")
    assert other.weights == grouped.weights
    assert results_of(other) == results_of(grouped)


def test_results_say_how_many_groups_their_intervals_are_over(grouped):
    test = grouped.data().test
    measured = read_measurement(grouped, "loo-signed", ["row"])["row"][:, 0]
    authors = len(set(np.array(test["group"])[measured]))
    acu = find(grouped.results, "acu", "loo-signed")
    assert authors < 20
    assert (acu["n"], acu["groups"], over_what(acu)) == (20, authors, f"{authors} groups of texts")
    for kind in ("racu", "masked_performance", "acu_difference", "best_set", "acu_cross_fitted", "acu_behind_best"):
        assert {(row["n"], row["groups"]) for row in rows_of(grouped.results, kind)} == {(20, authors)}, kind
    assert not any("groups" in row for row in rows_of(grouped.results, "check_p_value"))


def test_the_table_the_report_and_the_command_name_the_groups(grouped, faithmeter, tmp_path):
    grouped = Run(shutil.copytree(grouped.path, tmp_path / "run"))
    many = "groups of texts, which are those of one story or author"
    code, printed = faithmeter("measure", grouped.path, "--measures", "loo-signed", "--rows", 20)
    assert code == 0
    assert f"Intervals over {many}." in " ".join(printed.split())
    code, _ = faithmeter("report", grouped.path)
    page = (grouped.path / "report" / "report.html").read_text()
    assert f"Intervals are 95 %, over {many}." in page
    assert "--group author" in page
    assert "--group author" in commands_of(grouped)[0]
    assert "--row-order" not in commands_of(grouped)[0]


def test_the_in_distribution_test_counts_groups(grouped, monkeypatch, tmp_path):
    seen = []
    from faithmeter.studies import check as checking

    fit = checking.fit_calibrated
    monkeypatch.setattr(
        checking, "fit_calibrated", lambda *a, groups, **k: seen.append(groups) or fit(*a, groups=groups, **k)
    )
    run = Run(shutil.copytree(grouped.path, tmp_path / "run"))
    shutil.rmtree(run.measurements)
    check(run.path)
    names = run.data().validation["group"]
    assert [[a == b for b in seen[0].tolist()] for a in seen[0].tolist()] == [[a == b for b in names] for a in names]


def test_a_run_from_before_keeps_the_order_of_its_file(tmp_path):
    file = tmp_path / "reviews.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in sentiment_rows(60)))
    spec = DataSpec(data=str(file), row_order="file")
    run = train(tmp_path / "run", spec, "small", TRAINING)
    config = read_config(run.path)
    for name in ("row_order", "group"):
        del config["data"][name]
    write_json(run.path / "config.json", config)
    old = Run(run.path)
    assert old.config.data == spec
    assert old.data().test.to_list() == run.data().test.to_list()
    assert "--row-order file" in commands_of(old)[0]
    # the same call as ever finds it
    assert train_or_go_on(run.path, DataSpec(data=str(file)), "small", TRAINING).path == run.path
    with pytest.raises(InputError, match="another model, data or training"):
        train_or_go_on(run.path, DataSpec(data=str(file), seed=1), "small", TRAINING)


def test_a_trained_model_and_another_domain_take_groups_too(grouped, tmp_path, faithmeter):
    data = ("--data", grouped.config.data.data, "--group", "author")
    code, printed = faithmeter("check", grouped.model_folder, *data, "--run", tmp_path / "adopted")
    assert code == 0, printed
    assert "--group author" in commands_of(Run(tmp_path / "adopted"))[0]
    code, printed = faithmeter("transfer", grouped.path, tmp_path / "elsewhere", *data)
    assert code == 0, printed
    elsewhere = Run(tmp_path / "elsewhere")
    assert "--group author" in commands_of(elsewhere)[0]
    assert len(set(elsewhere.data().test["group"])) == 30


def test_until_certain_and_a_plan_count_groups(grouped, tmp_path, faithmeter):
    run = Run(shutil.copytree(grouped.path, tmp_path / "run"))
    shutil.rmtree(run.measurements)
    options = MeasureOptions(measures=("grad-l2", "loo-signed"), random_runs=1, until_certain=True)
    measure(run.path, options)
    assert find(run.results, "acu", "loo-signed")["groups"] < 24
    code, _ = faithmeter("plan", run.path, "--measures", "grad-l2,loo-signed")
    assert code == 0


def test_texts_of_one_group_alone_have_no_interval(tmp_path):
    rows = [{**row, "author": "the only one"} for row in sentiment_rows(40)]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    train_rows = authored()
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in train_rows))
    run = train(tmp_path / "run", DataSpec(data=str(tmp_path), group="author"), "small", TRAINING)
    measure(run.path, MeasureOptions(measures=("grad-l2", "loo-signed"), rows=12, random_runs=1, without_check=True))
    for kind in ("acu", "masked_performance"):
        assert {(row["low"], row["high"]) for row in rows_of(run.results, kind)} == {(None, None)}, kind
    assert not rows_of(run.results, "acu_difference") + rows_of(run.results, "acu_cross_fitted")


@pytest.mark.parametrize("what", ["batches", "threads"])
def test_batches_and_threads_change_no_result_beyond_rounding(grouped, tmp_path, monkeypatch, what):
    run = Run(shutil.copytree(grouped.path, tmp_path / "run"))
    shutil.rmtree(run.measurements)
    threads = torch.get_num_threads()
    try:
        if what == "batches":
            monkeypatch.setattr("faithmeter.studies.measure.TOKENS_AT_ONCE", 25)
        else:
            torch.set_num_threads(2)
        measure(run.path, MEASURED)
    finally:
        torch.set_num_threads(threads)
    for before, now in zip(results_of(grouped), results_of(run), strict=True):
        assert {**before, "value": 0, "low": 0, "high": 0} == {**now, "value": 0, "low": 0, "high": 0}
        for name in ("value", "low", "high"):
            assert now[name] == pytest.approx(before[name], abs=1e-5), (before, now)
    first, second = (read_measurement(one, "loo-signed", ("row", "probability")) for one in (grouped, run))
    assert np.abs(first["probability"] - second["probability"]).max() < 1e-5
    assert pyarrow.parquet.read_table(run.observations).num_rows == 40
