"""Faults, injected: nothing that was finished is lost, and the message says what to do (docs/faults.md)."""

import dataclasses
import errno
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow.parquet
import pytest
import torch
from conftest import sentiment_rows
from safetensors.torch import load_file, save

from faithmeter import (
    AuditOptions,
    DataSpec,
    InputError,
    MeasureOptions,
    RoarOptions,
    Run,
    SelectOptions,
    TrainingOptions,
    attack,
    audit,
    check,
    explain,
    files,
    measure,
    report,
    resume,
    select,
    train,
    transfer,
)
from faithmeter.progress import Silent
from faithmeter.runs.results import key_of
from faithmeter.runs.stages import TRAIN
from faithmeter.studies import audit as auditing
from faithmeter.studies import measure as measuring
from faithmeter.studies import train as training
from faithmeter.studies.attack import attacked_rows
from faithmeter.studies.measure import begin_measuring, measure_part
from faithmeter.studies.roar import roar as roaring
from faithmeter.studies.suite.jobs import Job, Plan, perform
from faithmeter.training import checkpoint

MEASURED = MeasureOptions(measures=("grad-l2", "loo-signed"), rows=30, random_runs=2)
AUDITED = AuditOptions(judges=("erasure", "drift"), measures=("grad-l2",), rows=12)
TRAINING = TrainingOptions(epochs=3, curriculum=False, learning_rate=2e-3, batch_size=16)


class Listener(Silent):
    """Keeps what was said."""

    def __init__(self):
        self.notes, self.warnings = [], []
        self.note, self.warn = self.notes.append, self.warnings.append


@pytest.fixture(scope="module", autouse=True)
def small_parts():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(measuring, "TOKENS_AT_ONCE", 60)
        patched.setattr(auditing, "TOKENS_AT_ONCE", 32)
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "reviews.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in sentiment_rows(300)))
    return DataSpec(data=str(path))


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    return train(tmp_path_factory.mktemp("trained") / "run", data, "small", TRAINING)


@pytest.fixture(scope="module")
def measured(trained, tmp_path_factory):
    path = shutil.copytree(trained.path, tmp_path_factory.mktemp("measured") / "run")
    check(path)
    return measure(path, MEASURED)


@pytest.fixture
def fresh(trained, tmp_path):
    return Run(shutil.copytree(trained.path, tmp_path / "run"))


@pytest.fixture
def run(measured, tmp_path):
    return Run(shutil.copytree(measured.path, tmp_path / "run"))


def untimed(run):
    """The result rows but for times, which no two runs share."""
    return sorted(
        (row for row in run.results if row["metric"] != "seconds"), key=lambda row: json.dumps(row, sort_keys=True)
    )


def same_rows(run, other):
    """Whether two runs have the same numbers, but for rounding."""
    ours, theirs = (sorted(untimed(one), key=lambda row: str(key_of(row))) for one in (run, other))
    assert [{**row, **dict.fromkeys(("value", "low", "high"))} for row in ours] == [
        {**row, **dict.fromkeys(("value", "low", "high"))} for row in theirs
    ]
    # BCa counts the draws below the mean, and of a few texts some lie on it: rounding moves its ends by a draw or two
    for name, digits in (("value", 1e-5), ("low", 1e-3), ("high", 1e-3)):
        assert [row[name] for row in ours] == pytest.approx([row[name] for row in theirs], abs=digits)
    return True


def flip(file):
    """Change one bit in the middle of a file."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def cut(file):
    """Cut a file in half."""
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def times(*files):
    return [file.stat().st_mtime_ns for file in files]


# ---------------------------------------------------------------------------------- corrupted and truncated files


@pytest.mark.parametrize("damage", [flip, cut])
def test_a_damaged_part_of_a_measurement_is_told_set_aside_and_computed_again(run, measured, damage):
    part, *others = sorted((run.measurements / "grad-l2").glob("*.parquet"))
    before, said = times(*others), Listener()
    assert others
    damage(part)
    broken = part.read_bytes()
    measure(run.path, MEASURED, reporter=said)
    assert [warning for warning in said.warnings if "00000.parquet is damaged" in warning and "set aside" in warning]
    assert part.with_name("00000.parquet.damaged-1").read_bytes() == broken
    assert times(*others) == before
    assert untimed(run) == untimed(measured)


@pytest.mark.parametrize("damage", [flip, cut])
def test_a_damaged_judgement_and_what_it_builds_on_are_computed_again(fresh, damage):
    audit(fresh.path, AUDITED)
    whole = untimed(fresh)
    part, *others = sorted((fresh.judgements / "erasure" / "grad-l2").glob("*.parquet"))
    before, said = times(*others), Listener()
    damage(part)
    damage(fresh.judgements / "drift" / "space.safetensors")
    audit(fresh.path, AUDITED, reporter=said)
    assert sum("is damaged" in warning for warning in said.warnings) == 2
    assert (times(*others), untimed(fresh)) == (before, whole)
    damage(part)
    with pytest.raises(InputError, match=r"00000.parquet is damaged.*faithmeter audit"):
        audit(fresh.path, AuditOptions(judges=("erasure",), measures=("loo-abs",), rows=12))


@pytest.mark.slow
def test_a_damaged_retraining_is_done_again_with_the_steps_that_it_needs(data, tmp_path):
    options = roaring.RoarOptions(measures=("x-grad-abs",), seeds=(0,))
    once = roaring.roar(tmp_path / "roar", data, "bilstm", options, TrainingOptions(epochs=1, batch_size=64))
    rows = [row for row in once.results if "seconds" not in row["kind"]]
    steps = tmp_path / "roar/seed-0/x-grad-abs"
    kept = [steps / "importance/outcome.json", steps / "recursive-03/outcome.json", steps / "roar-02/outcome.json"]
    before, said = times(*kept), Listener()
    cut(steps / "recursive-02/outcome.json")
    roaring.go_on(once, reporter=said)
    assert (steps / "recursive-02.damaged-1").is_dir()
    assert any("outcome.json is damaged" in warning for warning in said.warnings)
    assert times(*kept) == before
    assert [row for row in once.results if "seconds" not in row["kind"]] == rows


def test_a_damaged_model_is_refused_and_trained_again_to_the_same_weights(run, measured):
    file = run.model_folder / "model.safetensors"
    weights = file.read_bytes()
    flip(file)
    with pytest.raises(InputError, match=r"model.safetensors is damaged.*from a copy.*faithmeter train .* --resume"):
        measure(run.path, MEASURED)
    shutil.rmtree(run.model_folder)
    resume(run.path)
    assert file.read_bytes() == weights
    measure(run.path, MEASURED)
    assert untimed(run) == untimed(measured)


def test_a_damaged_in_distribution_test_is_fitted_again_and_the_measurements_stay(run, measured):
    parts = sorted(run.measurements.rglob("*.parquet"))
    before, said = times(*parts), Listener()
    cut(run.in_distribution_folder / "step-03.safetensors")
    with pytest.raises(InputError, match=r"step-03.safetensors is damaged.*faithmeter check"):
        measure(run.path, MEASURED)
    check(run.path, reporter=said)
    assert any("step-03.safetensors is damaged" in warning for warning in said.warnings)
    assert (run.path / "in_distribution.damaged-1").is_dir()
    measure(run.path, MEASURED)
    assert (times(*parts), untimed(run)) == (before, untimed(measured))


def test_another_in_distribution_test_does_not_take_the_place_of_a_damaged_one(run):
    flip(run.in_distribution_folder / "masf.json")
    with pytest.raises(InputError, match=r"differs from the one .* was measured with.*same --form and --rows"):
        check(run.path, rows=20)
    check(run.path)  # asked as before
    measure(run.path, MEASURED)
    shutil.rmtree(run.in_distribution_folder)
    with pytest.raises(InputError, match="was measured with"):
        check(run.path, form="paper")


@pytest.mark.parametrize("damage", [flip, cut])
def test_damaged_results_are_refused_and_summed_up_again_from_what_is_kept(run, measured, damage):
    parts = sorted(run.measurements.rglob("*.parquet"))
    before = times(*parts)
    damage(run.path / "results.jsonl")
    for command in (lambda: report([run.path], run.path / "report"), lambda: measure(run.path, MEASURED)):
        with pytest.raises(InputError, match=r"results.jsonl is damaged.*remove it, and repeat"):
            command()
    (run.path / "results.jsonl").unlink()
    resume(run.path)
    check(run.path)
    measure(run.path, MEASURED)
    assert (times(*parts), untimed(run)) == (before, untimed(measured))


def test_damaged_tables_that_only_a_report_reads_are_refused_in_words(run):
    attack(run.path, rows=5)
    flip(run.observations)
    with pytest.raises(InputError, match=r"observations.parquet is damaged.*faithmeter measure"):
        report([run.path], run.path / "report")
    flip(run.attacks)
    with pytest.raises(InputError, match=r"attacks.parquet is damaged.*faithmeter attack"):
        attacked_rows(run)


@pytest.mark.parametrize("file", ["config.json", "measurements/settings.json"])
def test_settings_that_cannot_be_read_are_refused_in_words(run, file):
    (run.measurements / ".settings.json.sum").unlink()  # as earlier versions left it
    cut(run.path / file)
    with pytest.raises(InputError, match=r"is damaged: it cannot be read as JSON. Restore it from a copy"):
        measure(run.path, MEASURED)


def test_settings_that_were_changed_or_lost_are_refused_by_whatever_follows_them(run):
    file = run.measurements / "settings.json"
    whole = file.read_text()
    file.write_text(whole.replace('"token"', '"word"'))  # a text would be explained by other units
    for follow in (lambda: explain(run.path, "good film"), lambda: measure(run.path, MEASURED)):
        with pytest.raises(InputError, match=r"settings.json is damaged: its checksum.*Restore it from a copy"):
            follow()
    file.unlink()
    for follow in (lambda: explain(run.path, "good film"), lambda: measure(run.path, MEASURED)):
        with pytest.raises(InputError, match=r"measurements holds results without their settings.json"):
            follow()
    file.write_text(whole)
    assert explain(run.path, "good film")


@pytest.mark.parametrize("name", ["step-03.safetensors", "anywhere.safetensors", "masf.json"])
@pytest.mark.parametrize("sums", [True, False])
def test_an_in_distribution_test_that_lost_a_file_is_refused_and_fitted_again(run, measured, name, sums):
    (run.in_distribution_folder / name).unlink()
    for file in () if sums else run.in_distribution_folder.glob(".*.sum"):
        file.unlink()  # as earlier versions left it
    for follow in (lambda: explain(run.path, "good film"), lambda: measure(run.path, MEASURED)):
        with pytest.raises(InputError, match=rf"{name}.*faithmeter check"):
            follow()
    if sums:
        check(run.path, reporter=(said := Listener()))
        assert any(f"{name} is gone" in warning for warning in said.warnings)
        measure(run.path, MEASURED)
        assert untimed(run) == untimed(measured)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"])
def test_a_model_that_lost_a_file_is_refused_with_what_to_do(run, name):
    (run.model_folder / name).unlink()
    with pytest.raises(InputError, match=rf"{name} is gone. Restore it from a copy, or remove .*train again"):
        explain(run.path, "good film")


def test_a_part_that_is_gone_is_not_left_out_of_a_summary(run):
    audit(run.path, AuditOptions(("erasure",), ("grad-l2",), rows=8))
    next(run.judgements.rglob("*.parquet")).unlink()
    with pytest.raises(InputError, match=r"parquet is gone"):
        measure(run.path, MEASURED)
    audit(run.path, AuditOptions(("erasure",), ("grad-l2",), rows=8))
    measure(run.path, MEASURED)


@pytest.mark.parametrize("which", ["last", "best", "all"])
def test_a_damaged_checkpoint_is_told_and_passed_over_to_the_same_weights(trained, data, tmp_path, monkeypatch, which):
    real = checkpoint.save

    def stop_after_two(folder, state, *rest):
        state.best_epoch = 1  # so that there are two checkpoints
        real(folder, state, *rest)
        if state.epoch == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save", stop_after_two)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "run", data, "small", TRAINING)
    folder, said = tmp_path / "run/checkpoints", Listener()
    assert sorted(path.name for path in folder.iterdir()) == ["epoch-0001", "epoch-0002"]
    for epoch in {"last": (2,), "best": (1,), "all": (1, 2)}[which]:
        flip(folder / f"epoch-{epoch:04d}/model.safetensors")
    run = resume(tmp_path / "run", reporter=said)
    assert any("model.safetensors is damaged" in warning for warning in said.warnings)
    assert any("Resuming after epoch 1" in note for note in said.notes) == (which == "last")
    assert run.weights == trained.weights


def test_results_without_checksums_are_read_as_those_of_earlier_versions_are(run, measured):
    for file in run.path.rglob(".*.sum"):
        file.unlink()
    settings = run.measurement_settings
    for name in ("max_length", "in_distribution"):
        del settings[name]
    run.store_measurement_settings(settings)
    parts = sorted(run.measurements.rglob("*.parquet"))
    before = times(*parts)
    measure(run.path, MEASURED)
    assert (times(*parts), untimed(run)) == (before, untimed(measured))


def test_who_is_killed_between_a_file_and_its_checksum_leaves_a_file_that_is_read(tmp_path, monkeypatch):
    file, real = tmp_path / "results.jsonl", files.write_bytes
    files.write_jsonl(file, [{"old": 1}])

    def killed(path, content):
        if path.suffix == ".sum":
            raise KeyboardInterrupt
        real(path, content)

    monkeypatch.setattr(files, "write_bytes", killed)
    with pytest.raises(KeyboardInterrupt):
        real(file, b'{"new": 2}\n')
    assert files.read_jsonl(file, "") == [{"new": 2}]


def test_a_file_that_is_written_again_while_it_is_read_is_not_taken_for_damaged(tmp_path):
    file, over, wrong = tmp_path / "results.jsonl", threading.Event(), []
    files.write_jsonl(file, [{"number": 0}])

    def read():
        while not over.is_set():
            wrong.extend(filter(None, [files.damaged(file)]))

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(200):
        files.write_jsonl(file, [{"number": number}])
    over.set()
    reader.join()
    assert not wrong


def test_threads_that_write_the_same_file_leave_one_of_their_contents(tmp_path):
    file, contents = tmp_path / "page.html", [bytes([number]) * 100_000 for number in range(8)]

    def write(content):
        for _ in range(20):
            files.write_bytes(file, content)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert file.read_bytes() in contents
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


# ------------------------------------------------------------------------------- killed while a run is being made


def dies_at(work, folder, number):
    """Whether another process that does some work was killed as it changed or opened a file in a folder so often."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    left = number

    def die(event, arguments):
        nonlocal left
        writes = event in ("os.mkdir", "os.rename", "os.remove") or (event == "open" and "r" not in str(arguments[1]))
        if writes and str(arguments[0]).startswith(str(folder)):
            left -= 1
            if left < 0:
                os._exit(9)

    try:
        sys.addaudithook(die)
        work()
    finally:
        os._exit(0)


@pytest.fixture
def nothing_learnt(monkeypatch):
    """A training and a retraining end before they have begun."""
    monkeypatch.setattr(training, "_train_and_test", lambda run, *_: run)
    monkeypatch.setattr(roaring, "go_on", lambda run, **_: run)


def of_a_suite(path, data):
    """Do the training of a suite's cell."""
    plan = Plan(path.name, "rows", "tiny", "masked", 0, data, "x", "tiny", None, 512, TRAINING)
    perform(str(path.parent), Job("train", TRAIN, plan))


@pytest.mark.parametrize(
    "begun",
    [
        lambda path, data: train(path, data, "tiny", TRAINING),
        lambda path, data: roaring.roar(path, data, "tiny", RoarOptions(measures=("grad-l2",)), TRAINING),
        of_a_suite,
    ],
    ids=["train", "roar", "suite"],
)
def test_who_is_killed_while_a_run_is_made_can_give_the_same_command_again(begun, data, tmp_path, nothing_learnt):
    seen = set()
    for number in itertools.count():
        path = tmp_path / f"run-{number}"
        if not dies_at(lambda: begun(path, data), path, number):  # noqa: B023 (called at once)
            break
        left = sorted(re.sub("[0-9a-f]{8}", "", one.name) for one in path.iterdir()) if path.exists() else None
        if left is not None and "config.json" in left:  # from here on it is a run, which is gone on with
            continue
        seen.add(repr(left))
        begun(path, data)
        assert {one.name for one in path.iterdir()} == {".lock", "config.json", "environment.json"}
    assert {
        "None",
        "[]",
        "['.lock']",
        "['.environment.json..part', '.lock']",
        "['.lock', 'environment.json']",
        "['.config.json..part', '.lock', 'environment.json']",
    } == seen


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("environment.json", '{"python": "3.11"}'),
        ("environment.json", "[]"),
        (".config.json.part", "years of work"),
        (".thesis.tex.0123abcd.part", "years of work"),
    ],
)
def test_what_is_not_surely_a_beginning_is_left_alone(data, tmp_path, name, content):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_text(content)
    for work in (
        lambda: train(tmp_path / "run", data, "tiny", TRAINING),
        lambda: roaring.roar(tmp_path / "run", data, "tiny", RoarOptions(measures=("grad-l2",)), TRAINING),
    ):
        with pytest.raises(InputError, match="already exists, and nothing is overwritten"):
            work()
    assert (tmp_path / "run" / name).read_text() == content


# -------------------------------------------------------------------------------------- two processes on one run


HOLD = "import sys; from pathlib import Path; from faithmeter.files import only_one\n"
HOLD += "with only_one(Path(sys.argv[1]), together=len(sys.argv) > 2): print('held', flush=True); sys.stdin.read()"


@pytest.fixture
def held(run):
    """Another process that is at work in the run."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


@pytest.mark.usefixtures("without_figures")
def test_whatever_writes_into_a_run_refuses_while_another_process_does(run, held, data):
    for work in (
        lambda: resume(run.path),
        lambda: check(run.path),
        lambda: measure(run.path, MEASURED),
        lambda: begin_measuring(run.path, MEASURED),
        lambda: measure_part(run.path, MEASURED, "grad-l2", 0, 1),
        lambda: audit(run.path, AUDITED),
        lambda: attack(run.path, rows=5),
        lambda: select(run.path, SelectOptions(measures=("grad-l2",), rows=10)),
    ):
        with pytest.raises(InputError, match=r"Another process is working in .*: wait until it is done, or stop it"):
            work()
    report([run.path], run.path.with_name("report"))  # reads only
    held.kill()
    held.wait()
    measure(run.path, MEASURED)  # the lock went with its process


def test_two_trainings_of_one_name_do_not_mix(data, trained, tmp_path, monkeypatch):
    real = Run.create.__func__

    def beside(cls, path, config):
        # what a second process meets after it, too, saw an empty place
        with pytest.raises(InputError, match="Another process is working"), files.only_one(path):
            pass
        return real(cls, path, config)

    monkeypatch.setattr(Run, "create", classmethod(beside))
    assert train(tmp_path / "run", data, "small", TRAINING).weights == trained.weights


def test_processes_that_share_a_measurement_work_side_by_side_and_keep_others_out(run, tmp_path):
    with files.only_one(run.path, together=True):
        measure_part(run.path, MEASURED, "grad-l2", 0, 2)
        with pytest.raises(InputError, match="Another process"):
            measure(run.path, MEASURED)


def test_a_run_on_another_domain_is_not_written_into_while_another_process_does(run, data, tmp_path):
    made = transfer(run.path, tmp_path / "out", data)
    with files.only_one(made.path), pytest.raises(InputError, match="Another process"):
        transfer(run.path, tmp_path / "out", data)


# ---------------------------------------------------------------------------------------------------- a full disk


@pytest.fixture
def disk(monkeypatch):
    """A disk that is full after so many more files; None is as large as it was."""
    real, room = os.fsync, {"files": None}

    def sync(file):
        if room["files"] is not None:
            if room["files"] == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            room["files"] -= 1
        real(file)

    monkeypatch.setattr(os, "fsync", sync)
    return room


@pytest.mark.parametrize("room", [0, 3, 9])
def test_a_full_disk_stops_a_measurement_in_one_sentence_and_it_goes_on(fresh, disk, faithmeter, tmp_path, room):
    whole = Run(shutil.copytree(fresh.path, tmp_path / "whole"))
    options = ("--measures", "grad-l2", "--rows", "30", "--random-runs", "2", "--without-check")
    assert faithmeter("measure", whole.path, *options)[0] == 0
    disk["files"] = room
    code, printed = faithmeter("measure", fresh.path, *options)
    assert (code, "the disk is full" in printed, "Traceback" in printed) == (2, True, False)
    assert "Finished work is kept" in printed
    assert not list(fresh.path.rglob("*.part"))
    parts = sorted(fresh.measurements.rglob("*.parquet"))
    before, disk["files"] = times(*parts), None
    assert faithmeter("measure", fresh.path, *options)[0] == 0
    assert (times(*parts), untimed(fresh)) == (before, untimed(whole))


@pytest.mark.parametrize("room", [0, 5])
def test_a_full_disk_stops_a_check_in_one_sentence_and_it_can_be_repeated(run, disk, faithmeter, room):
    shutil.rmtree(run.measurements)
    whole = untimed(run)
    disk["files"] = room
    code, printed = faithmeter("check", run.path)
    assert (code, "the disk is full" in printed) == (2, True)
    disk["files"] = None
    assert faithmeter("check", run.path)[0] == 0
    assert untimed(run) == whole


@pytest.mark.parametrize("room", [0, 7])
def test_a_full_disk_stops_an_audit_in_one_sentence_and_it_goes_on(fresh, disk, faithmeter, tmp_path, room):
    whole = Run(shutil.copytree(fresh.path, tmp_path / "whole"))
    options = ("--judges", "erasure", "--measures", "grad-l2", "--rows", "12")
    assert faithmeter("audit", whole.path, *options)[0] == 0
    disk["files"] = room
    code, printed = faithmeter("audit", fresh.path, *options)
    assert (code, "the disk is full" in printed) == (2, True)
    parts = sorted(fresh.judgements.rglob("*.parquet"))
    before, disk["files"] = times(*parts), None
    assert faithmeter("audit", fresh.path, *options)[0] == 0
    assert (times(*parts), untimed(fresh)) == (before, untimed(whole))


@pytest.mark.parametrize("room", [2, 6, 13])
def test_a_full_disk_stops_a_training_in_one_sentence_and_it_goes_on(trained, data, disk, faithmeter, tmp_path, room):
    options = ("--data", data.data, "--epochs", "3", "--no-curriculum", "--learning-rate", "2e-3")
    disk["files"] = room
    code, printed = faithmeter("train", tmp_path / "run", *options, "--batch-size", "16")
    assert (code, "the disk is full" in printed) == (2, True)
    disk["files"] = None
    assert faithmeter("train", tmp_path / "run", "--resume")[0] == 0
    assert Run(tmp_path / "run").weights == trained.weights


# ------------------------------------------------------------------- another config, model or data under results


def test_another_config_model_or_data_under_old_results_is_refused_in_words(run, data, tmp_path):
    for options in (
        MeasureOptions(measures=("grad-l2",), rows=29, random_runs=2),
        MeasureOptions(measures=("grad-l2",), rows=30, random_runs=2, target="predicted"),
        MeasureOptions(measures=("grad-l2",), rows=30, random_runs=2, seed=1),
    ):
        with pytest.raises(InputError, match=r"holds results with another .*Use the same settings"):
            measure(run.path, options)
    config = json.loads((run.path / "config.json").read_text())
    for changed, words in (
        ({"max_length": 4}, "holds results with another max_length"),
        ({"data": {**config["data"], "seed": 5}}, "data of .* has changed since the run was made"),
    ):
        (run.path / "config.json").write_text(json.dumps({**config, **changed}))
        with pytest.raises(InputError, match=words):
            measure(run.path, MEASURED)
    (run.path / "config.json").write_text(json.dumps(config))
    files.write_bytes(run.model_folder / "model.safetensors", other_weights(run))
    with pytest.raises(InputError, match="holds results with another weights"):
        measure(run.path, MEASURED)


def other_weights(run):
    tensors = load_file(run.model_folder / "model.safetensors")
    return save({name: one + 1e-3 for name, one in tensors.items()}, metadata={"format": "pt"})


# --------------------------------------------------------------------------------------------------- out of memory


def no_memory_of_the_processor():
    torch.empty(10**17)  # a real one


def no_memory_of_a_gpu():
    raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")


def no_memory_of_python():
    raise MemoryError


@pytest.fixture
def memory(monkeypatch):
    """A memory of so many tokens at once; returns a list of how many each pass has asked for."""

    def limit(tokens, fail=no_memory_of_the_processor):
        asked = []

        def refuse(_model, _positional, given):
            asked.append(given["input_ids"].numel())
            if asked[-1] > tokens:
                fail()

        def limited(make):
            def made(*args, **options):
                classifier = make(*args, **options)
                classifier.model.register_forward_pre_hook(refuse, with_kwargs=True)
                return classifier

            return made

        monkeypatch.setattr(Run, "classifier", limited(Run.classifier))
        monkeypatch.setattr(training, "fresh_classifier", limited(training.fresh_classifier))
        return asked

    return limit


def no_memory_of_one_dnn():
    raise RuntimeError("could not create a primitive")


def no_memory_to_map():
    raise RuntimeError("unable to mmap 512 bytes from file <model.safetensors>: Cannot allocate memory (12)")


NO_MEMORY = (
    no_memory_of_the_processor,
    no_memory_of_a_gpu,
    no_memory_of_python,
    no_memory_of_one_dnn,
    no_memory_to_map,
)


@pytest.mark.parametrize("fail", NO_MEMORY)
def test_a_lack_of_memory_is_known_however_it_is_said(fresh, memory, fail):
    whole = fresh.classifier()
    texts = whole.encode([row["text"] for row in sentiment_rows(20)])
    asked = memory(24, fail)
    halved = fresh.classifier()
    with pytest.warns(UserWarning, match="Memory ran out with 120 tokens at once"):
        found = halved.predict(texts)
    assert [tokens for tokens in asked if tokens > 24] == [120, 60, 30]  # each is met once
    torch.testing.assert_close(found, whole.predict(texts))


@pytest.mark.slow
def test_where_memory_runs_out_the_batch_is_halved_once_told_and_the_rows_are_the_same(fresh, memory, tmp_path):
    names = ("ig-signed", "deep-lift", "loo-signed", "scaled-attention")
    options = MeasureOptions(measures=names, rows=10, random_runs=1)
    whole, said = Run(shutil.copytree(fresh.path, tmp_path / "whole")), Listener()
    check(whole.path)
    measure(whole.path, options)
    asked = memory(24)
    check(fresh.path, reporter=said)
    assert sum("Memory ran out" in warning for warning in said.warnings) == 1
    assert max(asked) > 24  # the fault was met
    said = Listener()
    measure(fresh.path, options, reporter=said)
    assert sum("Memory ran out with" in warning for warning in said.warnings) == 1
    assert sum(tokens > 24 for tokens in asked) < 10  # and is not met again and again
    assert same_rows(fresh, whole)


def test_an_audit_halves_its_batches_too(fresh, memory, tmp_path):
    whole = audit(shutil.copytree(fresh.path, tmp_path / "whole"), AUDITED)
    memory(12)
    assert same_rows(audit(fresh.path, AUDITED), whole)


def test_a_training_that_runs_out_of_memory_halves_its_batch_to_the_same_weights(trained, data, memory, tmp_path):
    said, asked = Listener(), memory(40)
    run = train(tmp_path / "run", data, "small", TRAINING, reporter=said)
    assert max(asked) > 40
    assert sum("Memory ran out with 16 texts" in warning for warning in said.warnings) == 1
    weights = [load_file(one.model_folder / "model.safetensors") for one in (run, trained)]
    for name, tensor in weights[0].items():
        torch.testing.assert_close(tensor, weights[1][name], atol=1e-4, rtol=1e-3)
    assert run.history[-1]["train_loss"] == pytest.approx(trained.history[-1]["train_loss"], rel=1e-3)


def test_a_single_text_that_does_not_fit_is_refused_with_its_row_and_nothing_is_lost(run, measured, memory, faithmeter):
    options = ("--measures", "grad-l2,loo-signed,loo-abs", "--rows", "30", "--random-runs", "2")
    parts = sorted(run.measurements.rglob("*.parquet"))
    before = times(*parts)
    memory(3)
    code, printed = faithmeter("measure", run.path, *options)
    assert (code, "Memory does not do for one text: row " in printed) == (2, True)
    assert "of the test split" in printed
    assert "a smaller --max-length" in printed
    assert (times(*parts), untimed(run)) == (before, untimed(measured))


def test_a_single_training_row_that_does_not_fit_is_refused_in_words(data, memory, tmp_path):
    memory(3)
    with pytest.raises(InputError, match=r"Memory ran out in training. Lower --batch-size"):
        train(tmp_path / "run", data, "small", TRAINING)


def test_memory_that_runs_out_elsewhere_is_one_sentence(run, faithmeter, monkeypatch):
    def fail(*_):
        no_memory_of_the_processor()

    monkeypatch.setattr(Run, "data", fail)
    code, printed = faithmeter("measure", run.path, "--rows", "30")
    assert (code, "out of memory" in printed, "Traceback" in printed) == (2, True, False)


def test_another_error_of_a_model_is_not_taken_for_a_lack_of_memory(run, memory):
    def fail():
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    memory(3, fail)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        measure(run.path, MeasureOptions(measures=("loo-abs",), rows=30, random_runs=2))


# ------------------------------------------------------------------------------------------------------ NaN logits


def test_an_answer_that_is_no_number_is_refused_with_its_row_and_nothing_is_lost(run, measured, tmp_path, monkeypatch):
    options = MeasureOptions(measures=("grad-l2", "loo-signed", "loo-abs"), rows=30, random_runs=2)
    whole = measure(shutil.copytree(run.path, tmp_path / "whole"), options)
    texts = list(run.data().test["text"])
    part = max((whole.measurements / "loo-abs").glob("*.parquet"))
    last = next(row for row in pyarrow.parquet.read_table(part)["row"].to_pylist() if texts.count(texts[row]) == 1)
    make = Run.classifier

    def spoilt(self):
        classifier = make(self)
        wanted = classifier.encode([texts[last]]).batch([0]).input_ids[0]

        def spoil(_model, _positional, given, output):
            # on the walk, and not already when the time it will take is estimated
            if "output_hidden_states" in given and given["input_ids"].shape[1] == len(wanted):
                output.logits[(given["input_ids"] == wanted).all(dim=1)] = float("nan")

        classifier.model.register_forward_hook(spoil, with_kwargs=True)
        return classifier

    for part in (run.measurements / "grad-l2").glob("*.parquet"):
        part.unlink()  # as if it had not been measured yet
    with monkeypatch.context() as patched:
        patched.setattr(Run, "classifier", spoilt)
        with pytest.raises(InputError, match=rf"row {last} of the test split, counted from 0 are \[nan, nan\]"):
            measure(run.path, options)
    kept = sorted((run.measurements / "grad-l2").glob("*.parquet"))
    before = times(*kept)
    assert kept
    measure(run.path, options)
    assert (times(*kept), untimed(run)) == (before, untimed(whole))


def test_weights_that_are_no_numbers_are_named_by_every_job_that_asks_the_model(run, data):
    tensors = load_file(run.model_folder / "model.safetensors")
    spoilt = {name: one.fill_(float("nan")) for name, one in tensors.items()}
    files.write_bytes(run.model_folder / "model.safetensors", save(spoilt, metadata={"format": "pt"}))
    shutil.rmtree(run.measurements)
    for work, split in (
        (lambda: check(run.path), "validation"),
        (lambda: measure(run.path, dataclasses.replace(MEASURED, without_check=True)), "test"),
        (lambda: audit(run.path, AUDITED), "test"),
    ):
        with pytest.raises(
            InputError, match=rf"row \d+ of the {split} split.*train again with a lower --learning-rate"
        ):
            work()


# ----------------------------------------------------------------------------------------------------- clock jumps


def test_a_clock_that_jumps_changes_no_result_and_no_time_is_negative(
    fresh, measured, data, trained, tmp_path, monkeypatch
):
    jumps = itertools.cycle((4e9, -4e9, 0.0, 86400.0, -86400.0))
    real, real_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: real() + next(jumps))
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + int(1e9 * next(jumps)))
    again = train(tmp_path / "again", data, "small", TRAINING)
    assert again.weights == trained.weights
    assert all(row["seconds"] >= 0 for row in again.history)
    check(fresh.path)
    measure(fresh.path, MEASURED)
    assert untimed(fresh) == untimed(measured)
    spent = [row["value"] for row in fresh.results if row["metric"] == "seconds"]
    assert spent
    assert all(value >= 0 for value in spent)


def test_what_is_done_is_not_told_by_the_times_of_files(run, measured):
    written = sorted(file for file in run.path.rglob("*") if file.is_file())
    for number, file in enumerate(written):
        os.utime(file, (0, 0) if number % 2 else (4e9, 4e9))  # 1970, and 2096
    parts = sorted(run.measurements.rglob("*.parquet"))
    before = times(*parts)
    measure(run.path, MEASURED)
    assert (times(*parts), untimed(run)) == (before, untimed(measured))


def test_no_time_is_taken_from_a_clock_that_can_be_set():
    clocks = re.compile(r"\btime\.(time|time_ns|localtime|gmtime|ctime)\(|\bdatetime\b|st_[mca]time|get[mca]time")
    found = [
        f"{file.name}: {line}"
        for file in Path(files.__file__).parent.rglob("*.py")
        for line in file.read_text(encoding="utf-8").splitlines()
        if clocks.search(line.replace("now.st_mtime_ns", ""))  # which tells whether a file has changed, not when
    ]
    assert not found


# --------------------------------------------------------------------------------------------------------- kill -9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "parts", "options"),
    [
        ("measure", "measurements", ("--rows", "40", "--random-runs", "3")),
        ("audit", "audit", ("--judges", "erasure,fidelity,drift", "--rows", "40")),
    ],
)
def test_a_killed_job_goes_on_to_the_same_rows_and_repeats_nothing(run, tmp_path, command, parts, options):
    shutil.rmtree(run.measurements)
    whole = Run(shutil.copytree(run.path, tmp_path / "whole"))
    measures = ("--measures", "grad-l2,x-grad-abs,ig-abs,loo-abs,loo-signed,lime,kernel-shap")

    def call(path):
        return [sys.executable, "-m", "faithmeter", command, str(path), *measures, *options]

    subprocess.run(call(whole.path), check=True, capture_output=True)
    process = subprocess.Popen(call(run.path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while len(list((run.path / parts).rglob("*.parquet"))) < 4:
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.005)
    process.kill()
    process.wait()
    kept = sorted((run.path / parts).rglob("*.parquet"))
    before = times(*kept)
    assert len(kept) < len(list((whole.path / parts).rglob("*.parquet")))
    subprocess.run(call(run.path), check=True, capture_output=True)
    assert (times(*kept), untimed(run)) == (before, untimed(whole))


def test_every_test_that_the_page_on_faults_names_is_there():
    tests = Path(__file__).parent
    named = re.findall(r"`(test_\w+)`", (tests.parent / "docs" / "faults.md").read_text(encoding="utf-8"))
    there = {name for file in tests.rglob("test_*.py") for name in re.findall(r"def (test_\w+)", file.read_text())}
    assert len(named) > 40
    assert not set(named) - there


# ------------------------------------------------------------------------------------------------- nobody gets in


@pytest.mark.parametrize("name", [".lock", ".at-work"])
def test_a_lock_that_is_a_link_is_refused_and_what_it_leads_to_is_left_alone(tmp_path, name):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(tmp_path / "precious")
    begin = files.only_one if name == ".lock" else files.at_work
    with pytest.raises(InputError, match="is a link, and the file of a lock never is"), begin(tmp_path / "run"):
        pass
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_colleague_may_read_every_file_of_a_run(run):
    allowed = 0o666 & ~files._umask()
    modes = {
        str(file.relative_to(run.path)): file.stat().st_mode & 0o777 for file in run.path.rglob("*") if file.is_file()
    }
    assert {name: mode for name, mode in modes.items() if mode != allowed} == {}
