"""Whole benchmarks from one file: what is refused, what is skipped, and that engines and faults change no row."""

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet
import pytest
from conftest import sentiment_rows

from faithmeter import DataSpec, InputError, MeasureOptions, Run, TrainingOptions, check, measure, train
from faithmeter.files import only_one
from faithmeter.measuring import retraining as roar
from faithmeter.models.fast.choice import DEFAULT
from faithmeter.models.fast.fused_linear import available
from faithmeter.models.fast.options import PassOptions, pass_options, use_pass_options
from faithmeter.progress import Silent
from faithmeter.runs.engines import one_thread, work_through
from faithmeter.runs.ray_engine import RayCluster
from faithmeter.studies.measure import _measure_piece, begin_measuring, measure_part
from faithmeter.studies.roar import rows as roar_summary
from faithmeter.studies.suite import suite as suites
from faithmeter.studies.suite.file import read_suite, ready_suites
from faithmeter.studies.suite.jobs import jobs_of, plans
from faithmeter.studies.suite.suite import EngineOptions, _as_begun, bench_suite

pytestmark = pytest.mark.usefixtures("without_figures")
SUITE = """
models = ["tiny"]
seeds = [0, 1]
shards = 2
tasks = [{ data = "rows.jsonl" }]

[training]
epochs = 1
curriculum = false

[measure]
measures = ["ig-signed", "ig-abs"]
rows = 30
random_runs = 1

[audit]
judges = ["sparsity"]
rows = 6

[report]
examples = false
"""
TABLES = ("tables.csv", "tables.json")


class Listener(Silent):
    def __init__(self):
        self.notes, self.warnings = [], []

    def note(self, text):
        self.notes.append(text)

    def warn(self, text):
        self.warnings.append(text)


# ------------------------------------------------------------------------------------------------- the file


def refused(tmp_path, text):
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(InputError) as found:
        read_suite(tmp_path / "mine.toml")
    return str(found.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("models = = 3", ["mine.toml", "not TOML", "line 1"]),
        ('tasks = [{name = "../../x", data = "a.csv"}]', ["tasks", "'../../x' is the name of a folder"]),
        ('tasks = [{name = "/x", data = "a.csv"}]', ["tasks", "'/x' is the name of a folder"]),
        ('tasks = [{name = "..", data = "a.csv"}]', ["tasks", "'..' is the name of a folder"]),
        ('tasks = [{data = "a.csv"}]\nmodels = [{name = "a/../..", model = "small"}]', ["models", "'a/../..' is the"]),
        ("sedes = [0]", ["at the top", "'sedes'", "Did you mean 'seeds'?"]),
        ("seeds = 'all'", ["at the top", "seeds = 'all'", "a list of whole numbers"]),
        ("seeds = [0, 0]", ["seed 0", "twice"]),
        ("ways = ['maskd']", ["at the top", "'maskd'", "Did you mean 'masked'?"]),
        ("ways = ['robust', 'plain+igr+vat']", ["same training"]),
        ("[measure]\nmeasurs = ['beam']", ["[measure]", "'measurs'", "Did you mean 'measures'?"]),
        ("[measure]\nmeasures = ['loo']", ["[measure]", "'loo'", "loo-"]),
        ("[measure]\nmeasures = ['beam']\nrows = true", ["[measure]", "rows = True", "a whole number"]),
        ("[measure]\nmeasures = ['beam']\ntarget = 'golden'", ["[measure]", "'golden'", "gold or predicted"]),
        ("[audit]\njudges = ['erasur']", ["[audit]", "'erasur'", "Did you mean 'erasure'?"]),
        ("[audit]\njudges = ['other-seed']", ["[audit]", "name more seeds"]),
        ("[training]\nlearning_rat = 1", ["[training]", "Did you mean 'learning_rate'?"]),
        ("[training]\nlearning_rate = nan", ["[training]", "learning_rate = nan", "a finite number"]),
        ("[training]\nseed = 1", ["[training]", "'seed'"]),
        ("[training.plain]\nepochs = 1", ["[training.plain]", "not one of the suite's ways"]),
        ("[roar]\nsteps = 'relative'", ["[roar]", "name the measures"]),
        ("[report]\nformats = ['htm']", ["[report]", "Did you mean 'html'?"]),
        ("audit = 3", ["audit is a table"]),
        ("models = ['tiny']\ntasks = ['babi-1']", ["nothing to do", "[measure]"]),
        ("[measure]\nmeasures = ['beam']", ["tasks"]),
        ("tasks = ['babi1', 'babi-1']\nmodels = ['tiny']\n[measure]\nmeasures = ['beam']", ["'babi-1'", "twice"]),
        ("tasks = ['bab-1']\nmodels = ['tiny']\n[measure]\nmeasures = ['beam']", ["task 1", "Did you mean 'babi-1'?"]),
        (
            "tasks = [{ task = 'babi-1', test_row = 3 }]\nmodels = ['tiny']\n[measure]\nmeasures = ['beam']",
            ["task 1", "Did you mean 'test_rows'?"],
        ),
        (
            "tasks = ['babi-1']\nmodels = [{ modle = 'tiny' }]\n[measure]\nmeasures = ['beam']",
            ["model 1", "Did you mean 'model'?"],
        ),
    ],
)
def test_what_is_wrong_in_a_file_is_said_with_its_place_and_what_was_meant(tmp_path, text, words):
    said = refused(tmp_path, text)
    assert all(word in said for word in words), said


def test_a_suite_that_is_not_there_is_refused_with_the_nearest_name():
    with pytest.raises(InputError, match="Did you mean 'tiny'"):
        read_suite("tinny")


def test_the_papers_suites_come_along():
    suites = {name: read_suite(name) for name in ready_suites()}
    assert set(suites) == {"fmm", "recursive-roar", "regex", "thesis", "tiny"}
    fmm = suites["fmm"]
    assert (len(fmm.tasks), len(fmm.models), len(fmm.seeds)) == (16, 2, 5)
    assert len(fmm.measured.measures) == 9  # and random, which is always there
    retrained = suites["recursive-roar"]
    assert (len(retrained.tasks), len(retrained.models), len(retrained.seeds)) == (8, 2, 5)
    assert retrained.measured is None
    assert len(retrained.retrained.measures) == 4


def test_cleaned_labels_are_other_results_and_what_was_done_before_they_could_be_is_done_still(tmp_path):
    settings = []
    for said in ("", ", clean_labels = false", ", clean_labels = true"):
        (tmp_path / "mine.toml").write_text(SUITE.replace('"rows.jsonl"', f'"rows.jsonl"{said}'))
        plan, *_ = plans(read_suite(tmp_path / "mine.toml"), {("rows", "tiny"): "x"})
        settings.append(next(jobs_of(plan, 1)).settings["data"])
    assert "clean_labels" not in settings[0]
    assert settings[0] == settings[1] == {k: v for k, v in settings[2].items() if k != "clean_labels"}
    assert settings[2]["clean_labels"]


def test_a_suite_may_mask_by_larger_units_which_are_other_results(tmp_path):
    (tmp_path / "rows.jsonl").write_text("")
    settings = []
    for line in ("", 'by = "token"', 'by = "sentence"', 'by = "chunk"\nchunk = 8'):
        (tmp_path / "mine.toml").write_text(SUITE.replace("random_runs = 1", f"random_runs = 1\n{line}"))
        suite = read_suite(tmp_path / "mine.toml")
        plan = plans(suite, {(task.name, model.name): "x" for task in suite.tasks for model in suite.models})[0]
        settings.append(next(job.settings for job in jobs_of(plan, 1) if "ig-signed" in job.name))
    assert settings[0] == settings[1]
    assert not {"by", "chunk"} & set(settings[0])  # as it was before there were units
    assert [one.get("by") for one in settings] == [None, None, "sentence", "chunk"]
    assert settings[3]["chunk"] == 8
    assert "no unit 'phrase'" in refused(tmp_path, SUITE.replace("random_runs = 1", 'random_runs = 1\nby = "phrase"'))


def test_a_way_has_settings_of_its_own_and_those_of_all(tmp_path):
    (tmp_path / "mine.toml").write_text(
        "tasks = ['babi-1']\nmodels = ['tiny']\nways = ['plain', 'masked+vat']\n"
        "[measure]\nmeasures = ['beam']\n"
        "[training]\nepochs = 3\nclip = 1\n[training.plain]\nepochs = 5\n"
    )
    suite = read_suite(tmp_path / "mine.toml")
    assert suite.training == {
        "plain": TrainingOptions(strategy="plain", robust=(), epochs=5, clip=1),
        "masked+vat": TrainingOptions(strategy="masked", robust=("vat",), epochs=3, clip=1),
    }


def test_a_task_may_have_measures_and_rows_of_its_own(tmp_path):
    text = (
        "models = ['tiny']\ntasks = ['babi-1', { task = 'babi-2', measures = ['grad-l2'], rows = 7 }]\n"
        "[measure]\nmeasures = ['grad-l2', 'beam']\nrows = 40\n[audit]\njudges = ['erasure']\n"
    )
    (tmp_path / "own.toml").write_text(text)
    suite = read_suite(tmp_path / "own.toml")
    fingerprints = {(task.name, "tiny"): "x" for task in suite.tasks}
    usual, own = plans(suite, fingerprints)
    assert (usual.measured.measures, usual.measured.rows) == (("grad-l2", "beam"), 40)
    assert (own.measured.measures, own.measured.rows) == (("grad-l2",), 7)
    assert (usual.audited.measures, usual.audited.rows) == (("grad-l2", "beam"), None)
    assert (own.audited.measures, own.audited.rows) == (("grad-l2",), 7)
    (tmp_path / "own.toml").write_text(text.replace("['grad-l2'], rows = 7", "['gradl2']"))
    with pytest.raises(InputError, match="task 2: there is no importance measure 'gradl2'"):
        read_suite(tmp_path / "own.toml")


def test_the_papers_suite_has_no_beam_search_on_the_longest_texts():
    own = {task.name: task.measures for task in read_suite("fmm").tasks if task.measures}
    assert set(own) == {"babi-3", "imdb", "mimic-anemia", "mimic-diabetes"}
    usual = read_suite("fmm").measured.measures
    assert all(set(usual) - set(measures) == {"beam"} for measures in own.values())


def test_every_job_comes_after_what_it_needs_and_each_shard_is_a_job():
    suite = read_suite("tiny")
    pairs = {(task.name, model.name): "x" for task in suite.tasks for model in suite.models}
    jobs = [job for plan in plans(suite, pairs) for job in jobs_of(plan, suite.shards)]
    names = [job.name for job in jobs]
    assert len(set(names)) == len(names)
    # 2 seeds; train, check, summarise, judge; 2 shards of 7 measures and random
    assert len(jobs) == 2 * (4 + 2 * 8)
    order = {name: number for number, name in enumerate(names)}
    # the judge other-seed looks at the next seed's model, which stands later
    assert all(order[need] < order[job.name] for job in jobs for need in job.needs if "-1/train" not in need)
    assert all(need in order for job in jobs for need in job.needs)


# ------------------------------------------------------------------------------------------------- parts


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("suite")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sentiment_rows(400)))
    (folder / "mine.toml").write_text(SUITE)
    return folder


@pytest.fixture(scope="module")
def done(home):
    """The suite, done in this process."""
    bench_suite(home / "mine.toml", home / "here", estimate=False)
    return home / "here"


def columns_of(run, name):
    files = sorted((run.measurements / name).glob("*.parquet"))
    return {file.name: pyarrow.parquet.read_table(file).drop_columns("seconds") for file in files}


@pytest.mark.parametrize("by", ["token", "chunk"])
def test_a_measure_in_parts_gives_the_same_rows_as_in_one_go(home, tmp_path, monkeypatch, by):
    monkeypatch.setattr("faithmeter.studies.measure.TOKENS_AT_ONCE", 64)
    options = MeasureOptions(("loo-signed", "loo-abs"), rows=24, random_runs=2, by=by, chunk=2)
    run = train(
        tmp_path / "one", DataSpec(data=str(home / "rows.jsonl")), "tiny", TrainingOptions(epochs=1, curriculum=False)
    )
    check(run.path)
    shutil.copytree(run.path, tmp_path / "parts")
    measure(run.path, options)
    with pytest.raises(InputError, match="begin_measuring"):
        measure_part(tmp_path / "parts", options, "loo-abs", 0, 3)
    begin_measuring(tmp_path / "parts", options)
    for name in ("loo-abs", "random", "loo-signed"):
        for part in (2, 0, 1):
            measure_part(tmp_path / "parts", options, name, part, 3)
    parts = Run(tmp_path / "parts")
    names = ("random.0", "random.1", "loo-signed", "loo-abs")
    before = {name: columns_of(parts, name) for name in names}
    assert before == {name: columns_of(run, name) for name in names}
    assert len(before["loo-abs"]) > 2
    times = [file.stat().st_mtime_ns for file in sorted(parts.measurements.rglob("*.parquet"))]
    measure(parts.path, options)
    assert [file.stat().st_mtime_ns for file in sorted(parts.measurements.rglob("*.parquet"))] == times
    kept = [row for row in run.results if row["metric"] != "seconds"]
    assert [row for row in parts.results if row["metric"] != "seconds"] == kept


def one_here(classifier, batch, targets, seed):
    """A measure of the user's own, which no other process knows."""
    assert os.getpid() == HERE
    return batch.input_ids.float()


def test_a_suite_that_was_begun_in_the_order_of_its_file_goes_on_in_it(tmp_path):
    (tmp_path / "mine.toml").write_text(SUITE)
    suite = read_suite(tmp_path / "mine.toml")
    assert _as_begun(suite, tmp_path).tasks[0].data.row_order == "content"
    run = tmp_path / "runs" / "rows" / "tiny" / "masked-0"
    run.mkdir(parents=True)
    (run / "config.json").write_text(json.dumps({"data": {"data": "rows.jsonl"}}))
    begun = _as_begun(suite, tmp_path)
    assert begun.tasks[0].data.row_order == "file"
    new, old = (
        next(iter(jobs_of(plans(one, {("rows", "tiny"): "x"})[0], 1))).settings["data"] for one in (suite, begun)
    )
    assert new["row_order"] == "content"
    assert not {"row_order", "group"} & set(old)  # as marks of before have it


HERE = os.getpid()


@pytest.fixture(autouse=True, scope="module")
def fixed_passes():
    """Passes in the way of little work, so that rows agree to the last bit: other ways change their last digits."""
    before = pass_options()
    use_pass_options(PassOptions(DEFAULT.linear_layers if available() else "torch", DEFAULT.tokens))
    yield
    use_pass_options(before)


def test_several_processes_measure_the_same_rows_as_one(tmp_path, monkeypatch):
    rows = [{**row, "text": " ".join([row["text"]] * 8)} for row in sentiment_rows(400)]
    (tmp_path / "long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = train(
        tmp_path / "one",
        DataSpec(data=str(tmp_path / "long.jsonl")),
        "tiny",
        TrainingOptions(epochs=1, curriculum=False),
    )
    options = MeasureOptions(("grad-l2", "loo-abs", one_here), random_runs=2)
    with pytest.raises(InputError, match="no in-distribution test"):
        measure(run.path, options, workers=2)
    check(run.path)
    shutil.copytree(run.path, tmp_path / "several")
    with one_thread():
        measure(run.path, options, workers=None)  # too little work to start processes for
    monkeypatch.setattr("faithmeter.studies.measure.SECONDS_OF_A_PIECE", 1e-6)  # as many pieces as there are batches
    listener, sent = Listener(), []

    def watched(pieces, *given, **more):
        sent.append(pieces)
        with pytest.raises(InputError, match="Another process"), only_one(tmp_path / "several"):
            pass  # the run is locked from before the first process is at work
        work_through(pieces, *given, **more)

    monkeypatch.setattr("faithmeter.studies.measure.work_through", watched)
    with one_thread():
        several = measure(tmp_path / "several", options, workers=2, reporter=listener)
    (pieces,) = sent
    assert {name for name, _, _ in pieces} == {"random.0", "random.1", "grad-l2", "loo-abs"}
    assert ("loo-abs", 1, 3) in pieces
    assert any("2 processes" in note for note in listener.notes)
    names = ("random.0", "random.1", "grad-l2", "loo-abs", "one_here")
    assert {name: columns_of(several, name) for name in names} == {name: columns_of(run, name) for name in names}
    kept = [row for row in run.results if row["metric"] != "seconds"]
    assert [row for row in several.results if row["metric"] != "seconds"] == kept
    # what is there is not sent again; a batch that was lost is
    next((several.measurements / "random.0").glob("*.parquet")).unlink()
    (several.measurements / "loo-abs" / "00001.parquet").unlink()
    with one_thread():
        measure(several.path, options, workers=2)
    assert {piece[0] for piece in sent[1]} == {"random.0", "loo-abs"}
    assert ("loo-abs", 1, 3) in sent[1]
    assert ("loo-abs", 0, 3) not in sent[1]
    assert columns_of(several, "loo-abs") == columns_of(run, "loo-abs")
    measure(several.path, options, workers=2)
    assert len(sent) == 2


def test_a_process_that_measures_for_another_says_what_may_spoil_the_result(done, tmp_path, capfd):
    run = shutil.copytree(next(done.rglob("measurements")).parent, tmp_path / "run")
    options = read_suite(done.parent / "mine.toml").measured
    _measure_piece(str(run), options, ("ig-signed", 0, 1))
    assert "Warning" not in capfd.readouterr().err
    part = run / "measurements" / "ig-signed" / "00000.parquet"
    whole = part.read_bytes()
    part.write_bytes(whole[:-1])
    _measure_piece(str(run), options, ("ig-signed", 0, 1))
    assert "Warning: " in (said := capfd.readouterr().err)
    assert "00000.parquet is damaged" in said
    assert (
        pyarrow.parquet.read_table(part)
        .drop_columns("seconds")
        .equals(pyarrow.parquet.read_table(io.BytesIO(whole)).drop_columns("seconds"))
    )


# ------------------------------------------------------------------------------------- engines and faults


def marks_in(out):
    return sorted((out / "jobs").rglob("*.json"))


def processes_below(parent):
    """The processes that a process has started, and those that they have."""
    found = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            found[int(status.parent.name)] = int(status.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
    below, new = set(), {parent}
    while new:
        new = {process for process, above in found.items() if above in new} - below
        below |= new
    return below


def kill_one(out, parent, named, marks):
    """Kill a working process once so many jobs are done."""
    waited = time.monotonic()
    while time.monotonic() - waited < 900:
        for process in processes_below(parent) if len(marks_in(out)) >= marks else ():
            try:
                command = Path(f"/proc/{process}/cmdline").read_bytes()
            except OSError:
                continue
            if named in command:
                os.kill(process, signal.SIGKILL)
                return
        time.sleep(0.02)


def same_tables(one, other):
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in TABLES)


def test_the_tables_hold_every_run_and_no_times(done):
    rows = json.loads((done / "tables.json").read_text())
    assert {(row["task"], row["model"], row["way"], row["seed"]) for row in rows} == {
        ("rows", "tiny", "masked", 0),
        ("rows", "tiny", "masked", 1),
    }
    kinds = {row["kind"] for row in rows}
    assert {"performance", "acu", "racu", "check_p_value"} <= kinds
    assert any(kind.startswith("audit_") for kind in kinds)
    assert "seconds_per_text" not in kinds
    assert any(row["kind"] == "seconds_per_text" for row in Run(done / "runs/rows/tiny/masked-0").results)
    assert (done / "tables.csv").read_text().count("\n") == len(rows) + 1
    assert (done / "report" / "report.html").is_file()


def test_two_processes_of_which_one_is_killed_write_the_same_tables(home, done, tmp_path):
    said, out = Listener(), tmp_path / "processes"
    killer = threading.Thread(target=kill_one, args=(out, os.getpid(), b"spawn_main", 3), daemon=True)
    killer.start()
    bench_suite(home / "mine.toml", out, EngineOptions("processes", 2), estimate=False, reporter=said)
    assert [warning for warning in said.warnings if "killed" in warning]
    assert same_tables(out, done)


def test_a_killed_driver_goes_on_where_it_was_to_the_same_tables(home, done, tmp_path):
    out = tmp_path / "killed"
    command = [sys.executable, "-m", "faithmeter", "bench-suite", str(home / "mine.toml"), str(out)]
    driver = subprocess.Popen([*command, "--engine", "this-process", "--no-estimate"])
    while len(marks_in(out)) < 4:
        assert driver.poll() is None
        time.sleep(0.02)
    driver.kill()
    driver.wait()
    before = {file: file.stat().st_mtime_ns for file in marks_in(out)}
    assert not (out / "tables.csv").exists()
    said = Listener()
    bench_suite(home / "mine.toml", out, estimate=False, reporter=said)
    assert f"of which {len(before)} are already done" in said.notes[0]
    assert {file: file.stat().st_mtime_ns for file in before} == before
    assert same_tables(out, done)


def test_what_is_done_is_skipped_and_more_may_be_asked_for(home, done, tmp_path):
    out = shutil.copytree(done, tmp_path / "more")
    said = Listener()
    bench_suite(home / "mine.toml", out, reporter=said)
    assert len(said.notes) == 1
    assert said.notes[0].startswith("20 jobs in 2 folders, of which 20 are already done")
    text = SUITE.replace('"ig-signed"', '"grad-l2", "ig-signed"').replace("shards = 2", "shards = 1")
    (home / "more.toml").write_text(text.replace("seeds = [0, 1]", "seeds = [0]"))
    kept = {file: file.stat().st_mtime_ns for file in (out / "runs").rglob("measurements/ig-*/*.parquet")}
    said = Listener()
    bench_suite(home / "more.toml", out, estimate=False, reporter=said)
    assert {file: file.stat().st_mtime_ns for file in kept} == kept
    assert "acu" in {r["kind"] for r in Run(out / "runs/rows/tiny/masked-0").results if r["measure"] == "grad-l2"}


def test_what_was_done_with_something_else_is_refused_unless_it_may_be_done_anew(home, done, tmp_path):
    out = shutil.copytree(done, tmp_path / "other")
    (home / "other.toml").write_text(SUITE.replace("seeds = [0, 1]", "seeds = [1]").replace("rows = 30", "rows = 20"))
    with pytest.raises(InputError, match=r"masked-1 was done with another settings.*--redo"):
        bench_suite(home / "other.toml", out, estimate=False)
    weights = out / "runs/rows/tiny/masked-1/model/model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-4] + b"\0\0\0\0")
    with pytest.raises(InputError, match="masked-1 was done with another weights"):
        bench_suite(home / "mine.toml", out, estimate=False)
    said = Listener()
    bench_suite(home / "mine.toml", out, estimate=False, redo=True, reporter=said)
    assert said.warnings[0].endswith("weights: it is removed and done again.")
    assert weights.read_bytes() == content
    assert same_tables(out, done)


def test_what_cannot_be_done_stops_only_what_needs_it(home, done, tmp_path, monkeypatch):
    out = shutil.copytree(done, tmp_path / "failing")
    for file in (out / "jobs").rglob("judge.json"):
        file.unlink()

    def judge(path, options, reporter):
        raise InputError("no judge is here" if path.name == "masked-0" else "nor here")

    monkeypatch.setattr("faithmeter.studies.suite.jobs.audit", judge)
    (home / "few.toml").write_text(SUITE.replace("seeds = [0, 1]", "seeds = [0]"))
    found = bench_suite(home / "few.toml", out, estimate=False)
    assert found.failures == ("runs/rows/tiny/masked-0/judge: no judge is here",)
    assert found.page is None
    assert json.loads((out / "tables.json").read_text()) == []


def test_a_suite_may_retrain(home, tmp_path, monkeypatch):
    for room in (roar, roar_summary):
        monkeypatch.setattr(room, "last_step", lambda _: 2)
    (home / "roar.toml").write_text(
        'models = ["tiny"]\ntasks = [{ data = "rows.jsonl", train_rows = 60, validation_rows = 10, test_rows = 10 }]\n'
        '[roar]\nmeasures = ["grad-l2"]\nprotocols = ["recursive"]\nepochs = 1\n'
    )
    bench_suite(home / "roar.toml", tmp_path / "roar", estimate=False)
    rows = json.loads((tmp_path / "roar" / "tables.json").read_text())
    assert {row["way"] for row in rows} == {"retrained"}
    assert not list((tmp_path / "roar/roar").rglob("recursive-01/model"))  # nothing needs it any more
    said = Listener()
    bench_suite(home / "roar.toml", tmp_path / "roar", reporter=said)
    assert len(said.notes) == 1


def test_the_command_says_what_it_would_do_and_lists_and_shows_suites(home, tmp_path, faithmeter):
    code, said = faithmeter(
        "bench-suite", home / "mine.toml", tmp_path / "out", "--dry-run", "--engine", "this-process"
    )
    assert code == 0, said
    assert "20 jobs in 2 folders" in said
    assert "will take about" in said
    assert not (tmp_path / "out").exists()
    assert "tiny: offline" in faithmeter("bench-suite", "--list")[1]
    code, said = faithmeter("bench-suite", "--show", "tiny")
    (tmp_path / "copy.toml").write_text(said)
    assert read_suite(tmp_path / "copy.toml").measured == read_suite("tiny").measured
    assert faithmeter("bench-suite", "tiny")[0] == 2
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    code, said = faithmeter("bench-suite", home / "mine.toml", tmp_path / "full")
    assert (code, "is not a suite" in said) == (2, True)
    assert faithmeter("bench-suite", "tiny", tmp_path / "out", "--gpus", 1)[0] == 2


# ------------------------------------------------------------------------------------------------- Ray


def test_cells_of_the_table_of_results_start_no_formula(tmp_path, monkeypatch):
    row = {"task": "=1+1", "model": "@x", "way": "masked", "seed": 0, "value": -0.5}
    monkeypatch.setattr(suites, "result_rows", lambda *_: [{name: row.get(name) for name in suites.COLUMNS}])
    suites._write_tables(tmp_path, [])
    (cells,) = csv.DictReader((tmp_path / "tables.csv").open())
    assert (cells["task"], cells["model"], cells["value"]) == ("'=1+1", "'@x", "-0.5")
    assert json.loads((tmp_path / "tables.json").read_text())[0]["task"] == "=1+1"  # a program evaluates nothing


RAY = pytest.mark.skipif(find_spec("ray") is None, reason="the extra `ray` is not installed")


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed here")
def test_ray_that_is_not_installed_is_asked_for_in_words():
    with pytest.raises(InputError, match=r"pip install 'faithmeter\[ray\]'"):
        RayCluster(print)


@RAY
@pytest.mark.slow
def test_a_ray_cluster_of_which_a_worker_is_killed_writes_the_same_tables(home, done, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    said, out = Listener(), tmp_path / "ray"
    killer = threading.Thread(target=kill_one, args=(out, os.getpid(), b"ray::_Worker", 8), daemon=True)
    killer.start()
    bench_suite(home / "mine.toml", out, EngineOptions("ray", 2), estimate=False, reporter=said)
    assert [warning for warning in said.warnings if "killed" in warning]
    assert same_tables(out, done)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The suite that comes along, done in this process."""
    out = tmp_path_factory.mktemp("tiny") / "here"
    bench_suite("tiny", out, estimate=False)
    return out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "named"), [("processes", b"spawn_main"), pytest.param("ray", b"ray::_Worker", marks=RAY)]
)
def test_the_tiny_suite_gives_the_same_tables_on_every_engine_though_a_worker_is_killed(
    tiny, engine, named, tmp_path, monkeypatch
):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    said, out = Listener(), tmp_path / engine
    half = (len(marks_in(tiny)) - 1) // 2
    killer = threading.Thread(target=kill_one, args=(out, os.getpid(), named, half), daemon=True)
    killer.start()
    bench_suite("tiny", out, EngineOptions(engine, 2), estimate=False, reporter=said)
    assert [warning for warning in said.warnings if "killed" in warning]
    assert same_tables(out, tiny)


@RAY
@pytest.mark.slow
def test_what_a_ray_worker_refuses_is_said_here(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with RayCluster(Run, 1) as cluster:  # a worker imports what it does, and it cannot import this file
        cluster.begin(0, "no-such-run")
        ((place, error),) = cluster.ended()
    assert (place, type(error)) == (0, InputError)
    assert "no-such-run" in str(error)
