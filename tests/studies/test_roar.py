"""`faithmeter roar` as a whole, on a small task: the same table however it is cut, killed or gone on with."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import sentiment_rows

from faithmeter import DataSpec, InputError, Run, TrainingOptions, report, train
from faithmeter.files import only_one, wait_until_nobody_is_at_work
from faithmeter.importance.table import IMPORTANCE_MEASURES
from faithmeter.measuring.retraining import Node, explain_split, mask_split
from faithmeter.progress import Silent
from faithmeter.studies.roar.experiment import RoarRun, load_masks
from faithmeter.studies.roar.roar import RoarOptions, _fresh, _prepared, _seed, go_on, roar
from faithmeter.training.loop import fine_tune

OPTIONS = RoarOptions(measures=("x-grad-abs",), seeds=(0, 1))
TRAINING = TrainingOptions(epochs=3, learning_rate=0.02, batch_size=8)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("roar") / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in sentiment_rows(80)))
    return DataSpec(data=str(path))


@pytest.fixture(scope="module")
def done(tmp_path_factory, data):
    return roar(tmp_path_factory.mktemp("roar") / "done", data, "bilstm", OPTIONS, TRAINING, workers=1)


def table(run):
    """The results but for times, which no two runs share."""
    return [row for row in run.results if "seconds" not in row["kind"]]


def outcomes(run):
    return {node: run.folder(node) / "outcome.json" for node in run.config.nodes() if run.is_done(node)}


def test_the_results_have_curves_areas_sparsity_and_times_of_every_measure(done):
    kinds = {(row["kind"], row["measure"]) for row in done.results}
    for measure in OPTIONS.measures:
        for kind in ("performance", "acu", "racu"):
            assert (f"roar_{kind}", measure) in kinds
            assert (f"recursive_roar_{kind}", measure) in kinds
        for kind in ("sparsity", "sparsity_tokens", "trainings", "seconds_training", "seconds_explaining"):
            assert (f"roar_{kind}", measure) in kinds
    curve = [row for row in done.results if (row["kind"], row["measure"]) == ("roar_performance", "random")]
    assert [row["masking_ratio"] for row in curve] == [step / 10 for step in range(11)]
    assert all(row["over"] == "seeds" and row["n"] == 2 for row in curve)
    trained = {row["measure"]: row["value"] for row in done.results if row["kind"] == "roar_trainings"}
    assert trained == {"x-grad-abs": 2 * 17, "random": 2 * 9}


def test_0_and_100_per_cent_are_shared_and_the_first_step_is_the_same_for_both(done):
    def curve(kind, measure):
        return [row["value"] for row in done.results if (row["kind"], row["measure"]) == (kind, measure)]

    every = [curve(f"{kind}_performance", name) for kind in ("roar", "recursive_roar") for name in OPTIONS.measures]
    assert len({one[0] for one in every}) == len({one[-1] for one in every}) == 1
    for name in OPTIONS.measures:
        assert curve("roar_performance", name)[1] == curve("recursive_roar_performance", name)[1]


def test_a_recursive_step_explains_the_model_and_the_data_of_the_step_before(done):
    config = done.config
    splits, encoded, _ = _prepared(str(done.path))
    before = load_masks(done.folder(Node(1, "recursive", "x-grad-abs", 1)), encoded)
    again = _fresh(config, splits, 1)
    training = TRAINING.over(config.training)
    fine_tune(
        again, before["train"], before["validation"], training.__class__(**{**vars(training), "seed": 1}),
        metric=config.metric, checkpoints=done.path / "again",
    )  # fmt: skip
    after = load_masks(done.folder(Node(1, "recursive", "x-grad-abs", 2)), encoded)
    for name in ("train", "validation", "test"):
        measure, seed = IMPORTANCE_MEASURES["x-grad-abs"], _seed(1, name)
        importance = explain_split(again, before[name], measure, target="gold", seed=seed)
        assert np.array_equal(mask_split(before[name], importance, 2, "relative").masked, after[name].masked)
    shutil.rmtree(done.path / "again")


def test_models_are_kept_only_while_a_step_needs_them(done):
    kept = {path.parent.relative_to(done.path).as_posix() for path in done.path.rglob("model")}
    assert kept == {"seed-0/unmasked", "seed-1/unmasked"}


@pytest.mark.slow  # the quick suite kills one of two workers, and asks for the same table
def test_results_do_not_depend_on_the_number_of_workers(done, data, tmp_path):
    two = roar(tmp_path / "two", data, "bilstm", OPTIONS, TRAINING, workers=2)
    assert table(two) == table(done)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_killed_experiment_goes_on_to_the_same_table_and_repeats_nothing_that_was_done(done, data, tmp_path, workers):
    command = [
        sys.executable, "-m", "faithmeter", "roar", str(tmp_path / "run"), "--data", data.data, "--seeds", "0,1",
        "--measures", "x-grad-abs", "--epochs", "3", "--learning-rate", "0.02", "--batch-size", "8",
        "--workers", str(workers),
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    run_folder = tmp_path / "run"
    while not (run_folder / "seed-1" / "x-grad-abs" / ".recursive-05.part").exists():  # in the middle of a training
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = {path: path.stat().st_mtime_ns for path in outcomes(RoarRun(run_folder)).values()}
    assert len(kept) >= 5  # that training needs as many, however slow the other process was
    finished = go_on(RoarRun(run_folder), workers=workers)
    assert table(finished) == table(done)
    assert all(path.stat().st_mtime_ns == before for path, before in kept.items())
    assert not list(run_folder.rglob(".*.part"))


def test_who_goes_on_waits_for_processes_that_a_killed_master_left_behind(tmp_path):
    """A worker without its master may end what it does; whoever counted that as undone would do it again beside it."""
    code = (
        "import pathlib, sys, time; from faithmeter.files import at_work\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "with at_work(folder):\n    print('at work', flush=True); time.sleep(1.5); (folder / 'done').touch()"
    )
    left = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert left.stdout.readline() == "at work\n"
    wait_until_nobody_is_at_work(tmp_path)
    assert (tmp_path / "done").exists()
    assert left.wait(timeout=30) == 0
    wait_until_nobody_is_at_work(tmp_path)  # nobody there: at once


def test_a_worker_that_is_killed_costs_nothing_but_time(done, data, tmp_path):
    warned, struck = [], []

    class Killer(Silent):
        """Kills a worker when the first training is done."""

        def note(self, text):
            if "unmasked" in text and not struck:
                struck.extend(int(pid) for pid in children_of(os.getpid()))
                os.kill(struck[0], signal.SIGKILL)

        def warn(self, text):
            warned.append(text)

    killed = roar(tmp_path / "run", data, "bilstm", OPTIONS, TRAINING, workers=2, reporter=Killer())
    assert any("was killed" in text for text in warned)
    assert table(killed) == table(done)


def children_of(process):
    """The Python processes that a process started to work for it."""
    found = subprocess.run(["pgrep", "-P", str(process), "-f", "spawn_main"], capture_output=True, text=True)
    return found.stdout.split()


def test_two_processes_do_not_work_in_one_folder(done, data):
    with only_one(done.path), pytest.raises(InputError, match="Another process is working"):
        go_on(done)


def test_an_unfinished_experiment_is_not_reported_on(done, tmp_path):
    path = shutil.copytree(done.path, tmp_path / "run")
    shutil.rmtree(path / "seed-1" / "random-05")
    with pytest.raises(InputError, match="1 pieces of work are left: `faithmeter roar"):
        report([path], tmp_path / "out")


def test_an_experiment_goes_on_by_its_name_alone_and_says_what_it_would_ignore(done, tmp_path, faithmeter):
    path = shutil.copytree(done.path, tmp_path / "run")
    code, printed = faithmeter("roar", path)
    assert code == 0, printed
    assert "58 of 58 pieces of work are already done" in printed
    code, printed = faithmeter("roar", path, "--seeds", "0,1,2")
    assert (code, "--seeds has no effect here" in printed) == (2, True)


def test_a_seed_that_did_not_converge_is_said(data, tmp_path):
    said = []

    class Listener(Silent):
        def warn(self, text):
            said.append(text)

    options = RoarOptions(measures=("grad-l2",), protocols=("roar",))
    training = TrainingOptions(epochs=1, learning_rate=1e-9)
    run = roar(tmp_path / "run", data, "bilstm", options, training, reporter=Listener())
    assert any("converge" in text for text in said)
    assert [row["value"] for row in run.results if row["kind"] == "roar_not_converged"] == [1.0]


def test_more_measures_are_welcome_and_train_only_what_is_new(done, data, tmp_path):
    path = shutil.copytree(done.path, tmp_path / "run")
    before = {file: file.stat().st_mtime_ns for file in outcomes(RoarRun(path)).values()}
    more = RoarOptions(measures=("attention",), seeds=(0,), protocols=("recursive",))
    grown = roar(path, data, "bilstm", more, TRAINING, workers=1)
    assert grown.config.measures == ("x-grad-abs", "attention")
    assert all(file.stat().st_mtime_ns == was for file, was in before.items())
    old = [row for row in table(grown) if row["measure"] != "attention"]
    assert table(done) == old


def test_other_settings_are_not_mixed_and_other_folders_not_overwritten(done, data, tmp_path):
    with pytest.raises(InputError, match="another training"):
        roar(done.path, data, "bilstm", OPTIONS, TrainingOptions(epochs=1), workers=1)
    with pytest.raises(InputError, match="another steps"):
        roar(done.path, data, "bilstm", RoarOptions(steps="absolute", seeds=(0,)), TRAINING, workers=1)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(InputError, match="nothing is overwritten"):
        roar(tmp_path / "other", data, "bilstm", OPTIONS, TRAINING)
    with pytest.raises(InputError, match="is a ROAR experiment, not a run"):
        Run(done.path)
    with pytest.raises(InputError, match="is not a ROAR experiment: it holds something else"):
        RoarRun(tmp_path / "other")
    with pytest.raises(InputError, match="not there yet"):
        RoarRun(tmp_path / "new")
    with pytest.raises(InputError, match="holds a ROAR experiment"):
        train(done.path, data, "small")


def test_steps_of_one_token_end_at_ten_and_have_no_relative_area(data, tmp_path):
    options = RoarOptions(measures=("grad-l2",), steps="absolute", protocols=("roar",))
    run = roar(tmp_path / "run", data, "bilstm", options, TrainingOptions(epochs=1), workers=1)
    curve = [row for row in run.results if (row["kind"], row["measure"]) == ("roar_performance", "grad-l2")]
    assert [row["tokens"] for row in curve] == list(range(11))
    assert {row["kind"] for row in run.results if row["kind"].endswith("acu")} == {"roar_acu"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"protocols": ("hooker",)}, "no protocol 'hooker'"),
        ({"steps": "half"}, "no kind of steps 'half'"),
        ({"target": "wish"}, "no target 'wish'"),
        ({"seeds": ()}, "at least one seed"),
        ({"seeds": (0, 0)}, "each named once"),
        ({"seeds": (-1,)}, "from 0 on"),
        ({"ig_steps": 0}, "at least one step"),
    ],
)
def test_what_cannot_be_done_is_said(options, message):
    with pytest.raises(InputError, match=message):
        RoarOptions(**options)


def test_a_measure_that_the_model_has_not_and_changed_data_are_refused(data, tmp_path, write):
    with pytest.raises(InputError, match="attention-rollout cannot explain"):
        roar(tmp_path / "small", data, "bilstm", RoarOptions(measures=("attention-rollout",)))
    with pytest.raises(InputError, match="cannot train with attacked texts"):
        roar(tmp_path / "small", data, "bilstm", training=TrainingOptions(robust=("adversarial",)))
    rows = sentiment_rows(40)
    options, training = RoarOptions(measures=("grad-l2",), protocols=("roar",)), TrainingOptions(epochs=1)
    changing = DataSpec(data=str(write("changing.csv", rows)))
    roar(tmp_path / "run", changing, "bilstm", options, training, workers=1)
    shutil.rmtree(tmp_path / "run" / "seed-0" / "random-03")
    write("changing.csv", [{**row, "text": f"{row['text']} plot"} for row in rows])
    with pytest.raises(InputError, match="have changed"):
        go_on(RoarRun(tmp_path / "run"), workers=1)
