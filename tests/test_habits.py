"""What checks a commit, a pull request and a release says the same as the Makefile."""

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
RECIPES = (ROOT / "Makefile").read_text(encoding="utf-8")


def test_hooks_run_the_tools_that_make_runs_with_the_same_options():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    assert [one["repo"] for one in hooks] == ["local"]
    entries = {hook["entry"].replace(".venv/bin/", "\t$(BIN)/") for hook in hooks[0]["hooks"]}
    recipes = set(RECIPES.splitlines())
    assert entries <= recipes
    # all that `make check` runs before the tests
    asked = re.search(r"^test: setup.*\n((?:\t.*\n)+)", RECIPES, re.MULTILINE)[1].splitlines()
    assert {line for line in asked if "pytest" not in line and "--check" not in line} <= entries


def test_every_python_that_is_promised_is_tested():
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    promised = [name.rsplit(" ")[-1] for name in project["classifiers"] if re.search(r"Python :: 3\.\d+$", name)]
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == promised
    assert project["requires-python"] == f">={promised[0]}"
    commands = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert commands == ["make test", "make docs"]
