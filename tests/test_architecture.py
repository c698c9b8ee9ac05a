"""docs/architecture.md is true: what it names is there, and what is there is named."""

import re

from test_public import LAYERS, PACKAGE

from faithmeter.in_distribution import masf
from faithmeter.runs import run
from faithmeter.studies import attack, audit, measure, select
from faithmeter.studies.roar import experiment
from faithmeter.studies.suite import jobs

TEXT = (PACKAGE.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_every_package_and_flat_file_is_listed_in_the_order_of_the_layers():
    listed = re.findall(r"^\| `([a-z_]+)(/|\.py)` \|", section("The packages, in layers"), re.MULTILINE)
    assert [name for name, _ in listed] == list(LAYERS)
    assert all((PACKAGE / f"{name}{ending}").exists() for name, ending in listed)


def test_every_place_that_it_names_is_there():
    places = re.findall(r"`([a-z_]+(?:/[a-z_]+)*(?:/|\.py))`", section("Where a change goes"))
    assert len(places) >= 9
    assert not [place for place in places if not (PACKAGE / place).exists()]
    assert len(re.findall(r"^\| [a-z]", section("Where a change goes"), re.MULTILINE)) >= 10


def test_the_formats_that_it_gives_are_those_of_the_code():
    said = [int(number) for number in re.findall(r"^\| [^|]+ \| (\d) \|", section("Old runs"), re.MULTILINE)]
    assert audit.FORMAT == select.FORMAT == attack.FORMAT
    assert said == [run.FORMAT, masf.FORMAT, measure.FORMAT, audit.FORMAT, experiment.FORMAT, jobs.FORMAT]
