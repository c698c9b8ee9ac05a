"""The package as people install it: built, put into an environment of its own, and used from there."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from conftest import sentiment_rows

import faithmeter as package

ROOT = Path(__file__).parents[1]
HERE = ROOT / "src" / "faithmeter"

pytestmark = pytest.mark.slow


def run(*command, **options) -> str:
    """Run a command without this project's source on the path, and return what it printed."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([*map(str, command)], env=clean, capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built from a copy: building writes into the folder that it builds."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(HERE, source / "src" / "faithmeter", ignore=shutil.ignore_patterns("__pycache__"))
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", built, source)
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The bin folder of a fresh environment with the wheel, which borrows what it needs from the one of the tests."""
    home = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", home)
    (site,) = home.glob("lib/python*/site-packages")
    # before it borrows, so that pip sees no other faithmeter; the path file runs no path files of what it names, so
    # that the tests' own faithmeter, which is linked by one, stays out of sight
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", home / "bin" / "python")
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel)
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin"


def test_every_file_of_the_package_is_in_the_wheel(wheel):
    inside = set(zipfile.ZipFile(wheel).namelist())
    here = {f"faithmeter/{path.relative_to(HERE).as_posix()}" for path in HERE.rglob("*") if path.is_file()}
    assert not {name for name in here if "__pycache__" not in name} - inside
    assert {
        "faithmeter/py.typed",
        "faithmeter/web/static/page.js",
        "faithmeter/reports/templates/report.html",
    } <= inside


def test_the_wheel_has_the_version_of_the_package(wheel):
    assert wheel.name == f"faithmeter-{package.__version__}-py3-none-any.whl"


def test_an_installed_faithmeter_trains_reports_and_knows_its_suites(installed, tmp_path):
    where = run(installed / "python", "-c", "import faithmeter; print(faithmeter.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parent)
    faithmeter = installed / "faithmeter"
    assert run(faithmeter, "--version", cwd=tmp_path) == f"faithmeter {package.__version__}\n"
    assert "babi-1" in run(faithmeter, "tasks", cwd=tmp_path)
    ready = {path.stem for path in HERE.glob("studies/suite/ready/*.toml")}
    listed = run(faithmeter, "bench-suite", "--list", cwd=tmp_path)
    assert ready
    assert all(name in listed for name in ready)
    rows = "".join(json.dumps(row) + "\n" for row in sentiment_rows(60, 0))
    (tmp_path / "rows.jsonl").write_text(rows, encoding="utf-8")
    run(faithmeter, "train", "runs/wheel", "--data", "rows.jsonl", "--model", "tiny", "--epochs", "1", cwd=tmp_path)
    run(faithmeter, "report", "runs/wheel", cwd=tmp_path)
    assert "<html" in (tmp_path / "runs/wheel/report/report.html").read_text(encoding="utf-8")
    page = "from faithmeter.web import app; print(app.__file__)"
    assert str(installed.parent) in run(installed / "python", "-c", page, cwd=tmp_path)
