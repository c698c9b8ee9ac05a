"""What a command does not import: the cost of its start, held without a clock."""

import json
import subprocess
import sys

import pytest

AFTER = """
import json, sys
from faithmeter.cli.main import main
code = 0
try:
    main()
except SystemExit as end:
    code = end.code or 0
print(json.dumps([code, sorted(name for name in sys.modules)]), file=sys.stderr)
"""
FOR_NUMBERS = {"numpy", "scipy", "pyarrow", "torch", "transformers"}
FOR_DATA_AND_REPORTS = {"datasets", "sklearn", "matplotlib", "accelerate", "pandas", "scipy.stats", "scipy.optimize"}


def modules_after(*arguments):
    done = subprocess.run([sys.executable, "-c", AFTER, *map(str, arguments)], capture_output=True, text=True)
    *printed, last = done.stderr.splitlines()
    code, modules = json.loads(last)
    return code, set(modules), "\n".join((done.stdout, *printed))


@pytest.mark.parametrize("asked", [["--help"], ["--version"], ["explain", "--help"]])
def test_help_and_version_import_no_library_for_numbers(asked):
    code, modules, _ = modules_after(*asked)
    assert code == 0
    assert not modules & (FOR_NUMBERS | FOR_DATA_AND_REPORTS)


# {toy} is a checked run, {csv} a file of reviews with the columns `review` and `label`, {text} the same with `text`
REFUSED = (
    ("train {new} --data {csv}", "no column 'text'"),
    ("train {new} --data {new}.csv", "There is no file"),
    ("train {new} --data {new}.doc", "There is no file"),
    ("train {new} --data {text} --test-data {new}.csv", "There is no file"),
    ("train {new} --data {text} --strategy makes", "There is no strategy 'makes': choose from plain, masked"),
    ("train {new} --data {text} --validation none", "There is no validation 'none'"),
    ("train {new} --data {text} --optimizer sdg", "There is no optimizer 'sdg'"),
    ("train {new} --data {text} --mixed-precision int8", "There is no precision 'int8'"),
    ("train {new} --data {text} --metric acuracy", "Did you mean 'accuracy'?"),
    ("train {new}", "Give either --task NAME"),
    ("train {new} --resume", "is not a run"),
    ("train {toy} --data {text}", "already exists, and nothing is overwritten"),
    ("check {new}", "is not a run"),
    ("check {toy} --form papers", "There is no form 'papers'"),
    ("check {toy} --other {new}.csv", "There is no file"),
    ("check {toy} --masked-before", "a run keeps its own settings"),
    ("check {toy}/model --data {text} --run {toy}/model", "is the model itself"),
    ("measure {toy} {new}", "is not a run"),
    ("measure {toy} --measures loo-sgned", "Did you mean 'loo-signed'?"),
    ("explain {new} good", "is not a run"),
    ("explain {toy} good --measure loo-sgned", "Did you mean 'loo-signed'?"),
    ("explain {toy} good --target positiv", "Did you mean 'positive'?"),
    ("explain {toy} good --orders 3", "3 random orders are too few"),
    ("explain {toy} good --by words", "Did you mean 'word'?"),
    ("explain {toy} good --context bad", "This model takes single texts"),
    ("explain {toy} --file {csv}", "no column 'text'"),
    ("explain {toy} --file {new}.csv", "There is no file"),
    ("explain {toy} --file {new}.txt", "There is no file"),
    ("scores {toy} --out {new} --measure grad", "There is no importance measure 'grad'"),
    ("serve {new}", "is not a run"),
    ("report {toy} {new}", "is not a run"),
    ("audit {toy} --measures grad", "There is no importance measure 'grad'"),
    ("attack {new}", "is not a run"),
    ("plan {new}", "is not a run"),
    ("select {new}", "is not a run"),
    ("transfer {toy} {new}", "Give either --task NAME"),
)


@pytest.mark.parametrize(("command", "says"), REFUSED)
def test_what_is_wrong_is_refused_before_torch_is_imported(command, says, write, tmp_path, checked_toy):
    reviews = write("reviews.csv", [{"review": "good", "label": "positive"}])
    texts = write("texts.csv", [{"text": "good", "label": "positive"}])
    given = command.format(new=tmp_path / "new", toy=checked_toy, csv=reviews, text=texts)
    code, modules, printed = modules_after(*given.split())
    assert code == 2
    assert says in " ".join(printed.split())
    assert not modules & (FOR_DATA_AND_REPORTS | {"torch", "transformers", "pyarrow"})
    assert not (tmp_path / "new").exists()


def test_a_text_is_explained_without_what_builds_data_sets_scores_and_figures(checked_toy):
    code, modules, printed = modules_after("explain", checked_toy, "a good film", "--json")
    assert code == 0
    assert json.loads(printed.splitlines()[0])["text"] == "a good film"
    assert "torch" in modules
    assert not modules & {"datasets", "sklearn", "matplotlib", "pandas", "pyarrow"}


def test_python_does_not_look_for_garbage_among_the_libraries_that_a_command_loads():
    code = (
        "import gc, sys\nfrom faithmeter.cli.options import load_libraries\n"
        "looked = []\ngc.callbacks.append(lambda phase, _: looked.append('torch' in sys.modules))\n"
        "load_libraries()\n"
        "assert not any(looked) and gc.isenabled() and gc.get_freeze_count() > 100_000\n"
        "before = gc.get_freeze_count()\nload_libraries()\nassert gc.get_freeze_count() == before"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
