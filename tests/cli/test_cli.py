"""The command line as a person uses it: what it prints, its exit codes, and that nothing is lost."""

import dataclasses
import errno
import inspect
import itertools
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest
import transformers
from conftest import random_classifier, sentiment_rows

from faithmeter import IMPORTANCE_MEASURES, AuditOptions, EngineOptions, InputError, Run, SelectOptions, TrainingOptions
from faithmeter.attacks.kinds import ATTACKS
from faithmeter.cli import main as cli
from faithmeter.cli import options as choices
from faithmeter.data.units import UNITS
from faithmeter.judges.known_token import PLACES
from faithmeter.judges.selection import RATIONALES
from faithmeter.judges.table import JUDGES
from faithmeter.measuring.curves import TARGETS
from faithmeter.measuring.retraining import PROTOCOLS, STEP_KINDS
from faithmeter.performance import METRICS
from faithmeter.reports.formats import FORMATS
from faithmeter.studies.check import FORMS
from faithmeter.studies.suite.suite import ENGINES
from faithmeter.training.config import OPTIMIZERS, PRECISIONS, ROBUST, WAYS, TrainingConfig
from faithmeter.training.strategy import STRATEGIES, VALIDATIONS

QUICK = ("--epochs", "3", "--no-curriculum", "--batch-size", "16")


def test_tasks_lists_every_task_for_people_and_machines(faithmeter):
    code, printed = faithmeter("tasks")
    assert code == 0
    assert "sst2" in printed
    code, printed = faithmeter("tasks", "--json")
    rows = [json.loads(line) for line in printed.splitlines()]
    assert {"name": "babi-1", "text / context": "context / question"}.items() <= {
        k: v for row in rows if row["name"] == "babi-1" for k, v in row.items()
    }.items()


# ------------------------------------------------------------------------------------------------ the help

COMMANDS = [command.callback.__name__.replace("_", "-") for command in cli.app.registered_commands]
WITH_DATA = ("train", "prompt", "check", "measure", "roar", "scale", "compare", "transfer")
SOURCE = "".join(path.read_text(encoding="utf-8") for path in Path(choices.__file__).parent.glob("*.py"))
TABLES = sorted(set(re.findall(r"[\"']((?:[a-z_]+\.)+[A-Z_]+)[\"']", SOURCE)))  # that the help is made from


@pytest.mark.parametrize(
    ("command", "tables"),
    [
        ("train", (METRICS, STRATEGIES, VALIDATIONS, PRECISIONS, OPTIMIZERS, ROBUST)),
        ("check", (FORMS,)),
        ("measure", (IMPORTANCE_MEASURES, UNITS, TARGETS)),
        ("explain", (IMPORTANCE_MEASURES, UNITS)),
        ("roar", (IMPORTANCE_MEASURES, PROTOCOLS, STEP_KINDS, TARGETS)),
        ("audit", (IMPORTANCE_MEASURES, JUDGES, ATTACKS, PLACES)),
        ("attack", (ATTACKS,)),
        ("compare", (IMPORTANCE_MEASURES, WAYS)),
        ("select", (IMPORTANCE_MEASURES, RATIONALES)),
        ("bench-suite", (ENGINES,)),
        ("report", (FORMATS,)),
    ],
)
def test_the_help_names_every_choice(faithmeter, command, tables):
    _, printed = faithmeter(command, "--help")
    words = set(re.split(r"[\s,;.:()]+", printed))
    assert {name for table in tables for name in table} <= words


@pytest.mark.parametrize("table", TABLES)
def test_the_names_read_from_the_source_of_a_table_are_those_in_it(table):
    module, _, name = table.rpartition(".")
    there = getattr(import_module(f"faithmeter.{module}"), name)
    assert choices.names_in(table) == ((there,) if isinstance(there, str) else tuple(there))


def test_a_row_of_any_table_appears_in_the_help_by_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(choices, "PACKAGE", tmp_path)
    (tmp_path / "other.py").write_text('MORE = ("c", "d")\n')
    (tmp_path / "toy.py").write_text(
        "import torch\nfrom faithmeter.other import MORE as REST\n"
        'A, B = BOTH = ("a", "b")\n'
        'TUPLE = (B, *REST, "e")\n'
        "_ROWS = (Row('a', 1, expensive=True), Row('b', other, expensive=False), Row('c', 2))\n"
        "TABLE: Mapping[str, Row] = MappingProxyType({row.name: row for row in _ROWS})\n"
        "DICT = {A: 1, 'f': 2}\n"
        "EXPENSIVE = tuple(row.name for row in _ROWS if row.expensive)\n"
        "CHEAP = {row.name: row for row in _ROWS if not row.expensive}\n"
        "SOME = {row.name: row for row in _ROWS if row.cost > 3}\n"
    )
    assert choices.names_in("toy.BOTH") == ("a", "b")
    assert choices.names_in("toy.TUPLE") == ("b", "c", "d", "e")
    assert choices.names_in("toy.TABLE") == ("a", "b", "c")
    assert choices.names_in("toy.EXPENSIVE") == ("a",)
    assert choices.names_in("toy.CHEAP") == ("b", "c")
    assert choices.names_in("toy.DICT") == ("a", "f")
    assert choices.either("toy.TUPLE") == "b, c, d or e"
    for table in ("toy.SOME", "toy.NONE"):  # rather than a help that says something else than the table
        with pytest.raises(LookupError):
            choices.names_in(table)


def test_the_list_of_commands_is_not_cut_and_says_the_exit_codes(faithmeter, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, printed = faithmeter("--help")
    listed = printed.split("Commands:\n")[1].splitlines()[: len(COMMANDS)]
    assert code == 0
    assert [line.split()[0] for line in listed] == COMMANDS
    assert not [line for line in listed if line.endswith("...")]
    assert re.findall(r"^ +(\d+)  ", printed.split("Exit codes:")[1], re.MULTILINE) == ["0", "1", "2", "130"]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_own_options_of_a_command_come_first_and_those_of_data_last_and_no_name_is_broken(
    faithmeter, monkeypatch, command
):
    monkeypatch.setenv("COLUMNS", "80")
    _, printed = faithmeter(command, "--help")
    panels = re.findall(r"^(\S.*):$", printed, re.MULTILINE)
    assert next(panel for panel in panels if panel != "Arguments") == "Options"
    assert ("Data" in panels) == (command in WITH_DATA) == (panels[-1] == "Data")
    assert not re.findall(r"\w-$", printed, re.MULTILINE)


def test_completion_offers_commands_and_options():
    main = "import sys; sys.argv = ['faithmeter']; from faithmeter.cli.main import main; main()"
    for typed, offered in (("faithmeter me", {"measure"}), ("faithmeter measure runs/x --ma", {"--masked-before"})):
        asked = {"_FAITHMETER_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
        done = subprocess.run([sys.executable, "-c", main], env={**os.environ, **asked}, capture_output=True, text=True)
        assert offered <= set(done.stdout.split()), done.stderr


def test_a_quiet_command_says_results_and_warnings_alone(faithmeter, write, tmp_path):
    options = ("--data", write("reviews.csv", sentiment_rows(40)), "--robust", "explanation-guided", *QUICK)
    for said, quiet in (("loud", ()), ("quiet", ("--quiet",)), ("again", ())):  # and only the one that is asked to be
        code, printed = faithmeter(*quiet, "train", tmp_path / said, *options)
        assert code == 0, printed
        assert ("Epoch 1/3" in printed) == (not quiet)
        assert "Warning: " in printed
        assert "class majority" in printed


def test_train_leaves_a_run_that_later_commands_and_transformers_can_use(faithmeter, write, tmp_path):
    data = write("reviews.csv", sentiment_rows(200))
    code, printed = faithmeter("train", tmp_path / "run", "--data", data, *QUICK)
    assert code == 0, printed
    for word in ("none", "50 %", "100 %", "class majority"):
        assert word in printed
    run = Run(tmp_path / "run")
    assert {(row["kind"], row["masking_ratio"]) for row in run.results} == {
        ("trained_on_masks", None),
        ("performance", 0.0), ("performance", 0.5), ("performance", 1.0), ("majority", None),
        ("majority_p_value", None),
    }  # fmt: skip
    assert [row["epoch"] for row in run.history] == [1, 2, 3]
    assert run.config.labels == ("negative", "positive")
    assert run.data().labels == run.config.labels
    assert json.loads((run.path / "environment.json").read_text())["packages"]["torch"]
    assert not run.checkpoints.exists()
    model = transformers.AutoModelForSequenceClassification.from_pretrained(run.model_folder)
    assert model.config.id2label == {0: "negative", 1: "positive"}
    assert (run.model_folder / "model.safetensors").exists()


def test_a_pair_of_texts_and_a_model_folder(faithmeter, write, tmp_path):
    random_classifier("roberta", classes=2).save(tmp_path / "model")
    rows = [{"claim": row["text"], "about": "a film", "verdict": row["label"]} for row in sentiment_rows(60)]
    columns = ("--text", "claim", "--context", "about", "--label", "verdict")
    code, printed = faithmeter(
        "train", tmp_path / "run", "--data", write("pairs.jsonl", rows), *columns, "--model", tmp_path / "model",
        "--epochs", "1", "--metric", "macro-f1", "--mask-context",
    )  # fmt: skip
    assert code == 0, printed
    assert "test macro-f1" in printed


def test_the_same_command_gives_the_same_results(faithmeter, write, tmp_path):
    data = write("reviews.csv", sentiment_rows(120))
    for name in ("a", "b"):
        assert faithmeter("train", tmp_path / name, "--data", data, *QUICK)[0] == 0
    assert Run(tmp_path / "a").results == Run(tmp_path / "b").results
    assert (tmp_path / "a/model/model.safetensors").read_bytes() == (
        tmp_path / "b/model/model.safetensors"
    ).read_bytes()


# ------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--task", "sts2"), "Did you mean 'sst2'"),
        (("--data", "nowhere.csv"), "There is no file nowhere.csv"),
        ((), "either --task NAME"),
        (("--task", "babi-1", "--strategy", "half"), "no strategy 'half'"),
        (("--task", "babi-1", "--model", "minilmm"), "Did you mean 'minilm'"),
        (("--task", "babi-1", "--metric", "x", "--data", "y"), "and not both"),
        (("--task", "babi-1", "--mixed-precision", "fp17"), "no precision 'fp17'"),
        (("--resume",), "is not a run"),
        (("--data", "reviews.csv", "--context", "label"), "The column 'label' is used twice"),
        (("--data", "reviews.csv", "--label", "text"), "The column 'text' is used twice"),
        (("--data", "reviews.csv", "--context", "text"), "The column 'text' is used twice"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(faithmeter, write, tmp_path, monkeypatch, arguments, says):
    write("reviews.csv", sentiment_rows(20))
    monkeypatch.chdir(tmp_path)
    code, printed = faithmeter("train", tmp_path / "run", *arguments)
    assert code == 2
    assert says in printed
    assert next(line for line in printed.splitlines() if not line.startswith("Warning: ")).startswith("Error: ")
    assert "Traceback" not in printed
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "option", [("--epochs", "many"), ("--seed", "-1"), ("--data-seed", "-1"), ("--train-rows", "0")]
)
def test_a_bad_option_value_exits_with_2_too(faithmeter, tmp_path, option):
    assert faithmeter("train", tmp_path / "run", "--task", "babi-1", *option)[0] == 2
    assert not (tmp_path / "run").exists()


def test_every_number_of_every_command_is_refused_where_it_is_not_finite(faithmeter, tmp_path):
    options = [
        (command.callback.__name__.replace("_", "-"), option)
        for command in cli.app.registered_commands
        for option, parameter in inspect.signature(command.callback).parameters.items()
        if "float" in str(parameter.annotation)
    ]
    assert {"train", "roar", "audit", "attack", "scale", "compare", "select", "explain", "bench-suite", "plan"} == {
        name for name, _ in options
    }
    for (name, option), value in itertools.product(options, ("nan", "inf", "-inf")):
        places = [tmp_path / "one", tmp_path / "two"][: 2 if name == "bench-suite" else 1]
        code, printed = faithmeter(name, *places, f"--{option.replace('_', '-')}={value}")
        assert code == 2
        assert f"Error: The value {value} of {option.replace('_', ' ')} is not a finite number" in printed
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", [TrainingOptions, TrainingConfig, EngineOptions, AuditOptions, SelectOptions])
def test_every_number_among_the_options_of_python_is_refused_where_it_is_not_finite(kind):
    numbers = [field.name for field in dataclasses.fields(kind) if "float" in str(field.type)]
    assert numbers
    engine = {"engine": "ray"} if kind is EngineOptions else {}
    for name, value in itertools.product(numbers, (math.nan, math.inf)):
        with pytest.raises(InputError):
            kind(**engine, **{name: (value, 0.9) if name == "betas" else value})


def test_an_existing_directory_is_refused_and_left_alone(faithmeter, write, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/thesis.txt").write_text("years of work")
    code, printed = faithmeter("train", tmp_path / "run", "--data", write("r.csv", sentiment_rows(40)))
    assert code == 2
    assert "already exists, and nothing is overwritten" in printed
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.txt"]


def test_a_finished_run_cannot_be_resumed_nor_a_changed_one(faithmeter, write, tmp_path):
    data = write("reviews.csv", sentiment_rows(80))
    faithmeter("train", tmp_path / "run", "--data", data, *QUICK)
    code, printed = faithmeter("train", tmp_path / "run", "--resume")
    assert (code, "nothing to resume" in printed) == (2, True)
    code, printed = faithmeter("train", tmp_path / "run", "--resume", "--epochs", "5")
    assert (code, "leave out the other options" in printed) == (2, True)
    (tmp_path / "run/results.jsonl").unlink()
    write("reviews.csv", sentiment_rows(80, seed=9))
    code, printed = faithmeter("train", tmp_path / "run", "--resume")
    assert (code, "has changed since the run was made" in printed) == (2, True)


def test_odd_rows_are_reported_and_kept(faithmeter, write, tmp_path):
    rows = [*sentiment_rows(60), {"text": "", "label": "positive"}, {"text": "[SEP] [MASK]", "label": "negative"}]
    rows += [{"text": "good " * 600, "label": "positive"}] * 2
    code, printed = faithmeter("train", tmp_path / "run", "--data", write("odd.csv", rows), *QUICK)
    assert code == 0, printed
    assert "have an empty text: kept" in printed
    assert "no maskable token" in printed
    assert "texts were truncated to 512 tokens" in printed
    assert sum(len(getattr(Run(tmp_path / "run").data(), part)) for part in ("train", "validation", "test")) == 64


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("I/O error: No space left on device (os error 28)"),
    ],
    ids=["python", "safetensors"],
)
def test_a_full_disk_is_one_sentence_and_the_training_can_go_on(faithmeter, write, tmp_path, monkeypatch, error):
    data = write("reviews.csv", sentiment_rows(120))
    import faithmeter.training.checkpoint as checkpoint

    real, calls = checkpoint.write_bytes, []

    def full(path: Path, content: bytes) -> None:
        calls.append(path)
        if len(calls) > 2:  # the second epoch's model
            raise error
        real(path, content)

    monkeypatch.setattr(checkpoint, "write_bytes", full)
    code, printed = faithmeter("train", tmp_path / "run", "--data", data, *QUICK)
    assert code == 2
    assert "the disk is full" in printed
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["epoch-0001"]
    monkeypatch.setattr(checkpoint, "write_bytes", real)
    code, printed = faithmeter("train", tmp_path / "run", "--data", data, *QUICK)
    assert (code, "--resume" in printed) == (2, True)
    assert faithmeter("train", tmp_path / "run", "--resume")[0] == 0
    assert faithmeter("train", tmp_path / "whole", "--data", data, *QUICK)[0] == 0
    weights = [(tmp_path / name / "model/model.safetensors").read_bytes() for name in ("run", "whole")]
    assert weights[0] == weights[1]


def test_a_really_full_disk_leaves_the_old_file(tmp_path):
    """On a file system of 64 KiB, where one can be mounted."""
    from faithmeter.files import write_bytes

    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("no small file system can be mounted here")
    try:
        write_bytes(small / "file", b"old")
        with pytest.raises(OSError, match="No space left"):
            write_bytes(small / "file", b"x" * 200_000)
        assert (small / "file").read_bytes() == b"old"
        assert [path.name for path in small.iterdir()] == ["file"]
    finally:
        subprocess.run(["umount", small], check=True)


# ------------------------------------------------------------------------------------------------ kill -9


def command(*arguments):
    return [sys.executable, "-m", "faithmeter", *map(str, arguments)]


def test_a_killed_training_resumes_to_the_same_weights(write, tmp_path, faithmeter):
    data = write("reviews.csv", sentiment_rows(600))
    options = ("--data", data, "--epochs", "3", "--no-curriculum", "--batch-size", "8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command("train", tmp_path / "killed", *options), env=environment, stdout=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 300
    while not (tmp_path / "killed/checkpoints/epoch-0001").exists():
        assert process.poll() is None, "the training ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.1)  # into the next epoch
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed/model").exists()
    for name, arguments in (("killed", ("--resume",)), ("whole", options)):
        code, printed = faithmeter("train", tmp_path / name, *arguments)
        assert code == 0, printed
    weights = [(tmp_path / name / "model/model.safetensors").read_bytes() for name in ("killed", "whole")]
    assert weights[0] == weights[1]
    assert Run(tmp_path / "killed").results == Run(tmp_path / "whole").results
    assert not (tmp_path / "killed/checkpoints").exists()


def test_two_processes_train_the_same_model_as_one(write, tmp_path, faithmeter):
    data = write("reviews.csv", sentiment_rows(203))  # odd, so that shares are uneven
    options = ("--data", data, "--epochs", "2", "--no-curriculum", "--batch-size", "7", "--strategy", "masked")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    launch = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--cpu",
        "--num_processes",
        "2",
        "--num_machines",
        "1",
    ]
    launch += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    launch += ["-m", "faithmeter", "train", str(tmp_path / "two"), *map(str, options)]
    done = subprocess.run(launch, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("Epoch 1/2") == 1  # only the first process speaks
    code, printed = faithmeter("train", tmp_path / "one", *options)
    assert code == 0, printed
    losses = [[row["train_loss"] for row in Run(tmp_path / name).history] for name in ("one", "two")]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


def test_an_interrupted_command_says_how_to_go_on(faithmeter, monkeypatch, trained_toy):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("faithmeter.studies.measure.measure", interrupted)
    code, printed = faithmeter("measure", trained_toy)
    assert code == 130
    assert "interrupted. Finished work is kept" in printed


def test_an_unknown_option_ends_with_code_2_and_the_help_with_0(faithmeter):
    code, printed = faithmeter("measure", "runs/any", "--colour")
    assert (code, "No such option" in printed) == (2, True)
    assert faithmeter("measure", "--help")[0] == 0
    assert faithmeter("--version")[0] == 0


def test_a_verbose_command_says_how_passes_are_computed(faithmeter, trained_toy, monkeypatch, caplog):
    from faithmeter.models.fast.options import PassOptions, use_pass_options

    try:
        code, printed = faithmeter("--verbose", "--linear-layers", "torch", "explain", trained_toy, "a good film")
        assert code == 0, printed
        assert "torch, 1024 tokens at once" in caplog.text
        code, printed = faithmeter("--linear-layers", "fast", "explain", trained_toy, "a good film")
        assert code == 2
        assert "There are no linear layers 'fast'" in printed
    finally:
        use_pass_options(PassOptions())


@pytest.mark.parametrize("text", ["good \x1b]0;mine\x07 film", "good \x9b31m film", "good \u202e film"])
def test_what_a_terminal_would_obey_in_a_text_is_shown_and_not_sent(checked_toy, faithmeter, text):
    code, said = faithmeter("explain", checked_toy, text, "--measure", "grad-l2", "--orders", "0")
    assert code == 0
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", said)
    assert re.search("␛|U\\+009B|U\\+202E", said)
    code, said = faithmeter("explain", checked_toy, "good", "--target", text)
    assert code == 2
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", said)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (
            errno.EACCES,
            "the system refused /some/file: Permission denied. Commands that write need a run that is yours",
        ),
        (errno.EROFS, "Read-only file system. Commands that write"),
        (errno.EFBIG, r"File too large. Raise the limit on the size of files \(`ulimit -f`\)"),
        (errno.EISDIR, "Is a directory. Is it there, and is it a file where a file is expected"),
    ],
)
def test_what_the_system_refuses_is_one_sentence(checked_toy, faithmeter, monkeypatch, number, words):
    def refuse(*_, **__):
        raise OSError(number, os.strerror(number), "/some/file")

    monkeypatch.setattr("faithmeter.studies.explain.explain", refuse)
    code, said = faithmeter("explain", checked_toy, "good film")
    assert code == 2
    assert re.search(words, said)
    assert "Traceback" not in said
