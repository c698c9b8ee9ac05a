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
    code, modules = json.loads(done.stderr.splitlines()[-1])
    return code, set(modules), done.stdout


@pytest.mark.parametrize("asked", [["--help"], ["--version"], ["explain", "--help"]])
def test_help_and_version_import_no_library_for_numbers(asked):
    code, modules, _ = modules_after(*asked)
    assert code == 0
    assert not modules & (FOR_NUMBERS | FOR_DATA_AND_REPORTS)


def test_a_missing_column_is_refused_before_torch_is_imported(write, tmp_path):
    file = write("reviews.csv", [{"review": "good", "label": "positive"}])
    code, modules, _ = modules_after("train", tmp_path / "run", "--data", file)
    assert code == 2
    assert not modules & (FOR_DATA_AND_REPORTS | {"torch", "transformers", "pyarrow"})


def test_a_text_is_explained_without_what_builds_data_sets_scores_and_figures(checked_toy):
    code, modules, printed = modules_after("explain", checked_toy, "a good film", "--json")
    assert code == 0
    assert json.loads(printed)["text"] == "a good film"
    assert "torch" in modules
    assert not modules & {"datasets", "sklearn", "matplotlib", "pandas"}
