"""The job and the command `attack`, on a small trained run."""

import json
import shutil

import numpy as np
import pyarrow.parquet
import pytest
from conftest import sentiment_rows

from faithmeter import DataSpec, InputError, Run, TrainingOptions, attack, train
from faithmeter import report as write_report
from faithmeter.attacks.search import attack_texts
from faithmeter.reports.attack import attack_sections
from faithmeter.runs.results import find, rows_of
from faithmeter.studies import attack as attacking
from faithmeter.studies.attack import attacked_rows
from faithmeter.studies.faithfulness_rows import pool
from faithmeter.studies.report import _repetitions

pytestmark = pytest.mark.usefixtures("without_figures")


@pytest.fixture
def run(trained_toy, tmp_path):
    return Run(shutil.copytree(trained_toy, tmp_path / "run"))


def test_the_numbers_are_those_of_the_attacked_texts(run):
    attack(run.path, rows=20, seed=1)
    found, test = attacked_rows(run), run.data().test
    assert len(found) == len({row["row"] for row in found}) == 20
    assert [row["text"] for row in found] == [test["text"][row["row"]] for row in found]
    classifier, labels = run.classifier(), run.config.labels
    answers = classifier.predict(classifier.encode([row["attacked"] for row in found])).argmax(dim=-1).tolist()
    assert [row["after"] for row in found] == [labels[answer] for answer in answers]
    rate = np.mean([row["before"] != row["after"] for row in found if not row["skipped"]])
    assert rate > 0  # the word that tells the label has a neighbour that tells the other
    for detail, value in {
        "accuracy before": np.mean([row["before"] == row["label"] for row in found]),
        "accuracy after": np.mean([row["after"] == row["label"] for row in found]),
        "success rate": rate,
        "share of words changed": np.mean([row["changed"] / row["words"] for row in found if row["succeeded"]]),
        "texts with nothing to try": 0,
        "queries a text": np.mean([row["queries"] for row in found if not row["skipped"]]),
    }.items():
        assert find(run.results, "attack", detail=detail)["value"] == pytest.approx(value), detail
    assert len(rows_of(run.results, "performance"))  # what was there stays


def test_texts_that_nothing_was_tried_on_are_not_called_robust(run):
    attack(run.path, rows=6, kinds=("swap",), budget=0.01)  # a swap changes two words, and only one may be
    assert all(row["tried"] == 0 for row in attacked_rows(run))
    assert find(run.results, "attack", detail="texts with nothing to try")["value"] == 1
    (section,) = attack_sections(run.results)
    assert any(said.startswith("100 % of the attacked texts withstood only") for said in section.cautions)
    attack(run.path, rows=6)
    (section,) = attack_sections(run.results)
    assert not section.cautions


def test_attacked_pairs_are_stored_with_their_contexts(tmp_path):
    rows = [{**row, "question": f"Is film {number} good?"} for number, row in enumerate(sentiment_rows(60))]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = DataSpec(data=str(tmp_path / "pairs.jsonl"), context="question")
    run = train(tmp_path / "run", data, "small", TrainingOptions(epochs=1, curriculum=False))
    attack(run.path, rows=4)
    test = run.data().test
    assert [row["context"] for row in attacked_rows(run)] == [test["context"][row["row"]] for row in attacked_rows(run)]


def test_the_library_finds_the_same_attack_as_the_job(run):
    attack(run.path, rows=6, kinds=("delete", "swap"), budget=0.5)
    found = attacked_rows(run)
    labels = [run.config.labels.index(row["label"]) for row in found]
    alone = attack_texts(
        run.classifier(), [row["text"] for row in found], None, labels, kinds=("delete", "swap"), budget=0.5,
        rows=[row["row"] for row in found],
    )  # fmt: skip
    assert list(alone.texts) == [row["attacked"] for row in found]


def test_another_attack_takes_the_place_of_the_first_and_the_report_shows_it(run, tmp_path):
    attack(run.path, rows=20)
    attack(run.path, rows=5, kinds=("characters",), budget=0.3, seed=2)
    assert len(attacked_rows(run)) == 5
    assert len([row for row in run.results if row["kind"] == "attack"]) <= 6
    (page,) = write_report([run.path], tmp_path / "report", examples=False)
    assert "Attacked texts" in page.read_text()
    assert "--rows 5 --kinds characters --budget 0.3 --seed 2" in page.read_text()


def test_attacks_of_several_trainings_are_pooled(run, tmp_path):
    other = Run(shutil.copytree(run.path, tmp_path / "other"))
    for one in (run, other):
        attack(one.path, rows=8)
    row = find(pool([run, other]), "attack", detail="success rate")
    assert (row["over"], row["n"]) == ("seeds", 2)


def test_a_failure_while_writing_leaves_the_attack_that_was_there(run, monkeypatch):
    attack(run.path, rows=4)
    before = attacked_rows(run)

    def failing(*_):
        raise OSError("full")

    monkeypatch.setattr(attacking, "as_parquet", failing)
    with pytest.raises(OSError, match="full"):
        attack(run.path, rows=9)
    assert attacked_rows(run) == before


def test_the_command_prints_a_table_and_examples(run, faithmeter):
    code, said = faithmeter("attack", run.path, "--rows", 10, "--budget", "0.5")
    assert code == 0
    assert "accuracy before" in said
    assert "success rate" in said
    beaten = next(row for row in attacked_rows(run) if row["succeeded"])
    assert f"{beaten['before']}: {beaten['text']}" in said
    assert f"{beaten['after']}: {beaten['attacked']}" in said


def test_the_command_gives_json_a_line_a_text_and_nothing_else(run, faithmeter):
    code, said = faithmeter("attack", run.path, "--rows", 4, "--json", "--kinds", "delete, characters")
    assert code == 0
    assert [json.loads(line) for line in said.splitlines()] == attacked_rows(run)
    assert b"delete,characters" in pyarrow.parquet.read_schema(run.attacks).metadata[b"faithmeter"]


def test_what_cannot_be_done_is_refused_before_any_work(run, faithmeter):
    with pytest.raises(InputError, match="There is no attack"):
        attack(run.path, kinds=("erase",))
    code, said = faithmeter("attack", run.path, "--budget", "7")
    assert code == 2
    assert "budget" in said
    assert attacked_rows(run) == []


def test_attacks_with_other_settings_are_not_pooled(run, tmp_path):
    other = Run(shutil.copytree(run.path, tmp_path / "other"))
    stored = json.loads((other.path / "config.json").read_text())
    stored["training"]["seed"] = 1
    (other.path / "config.json").write_text(json.dumps(stored))
    attack(run.path, rows=5)
    attack(other.path, rows=5)
    assert len(_repetitions([run, other])) == 1
    attack(other.path, rows=5, budget=0.5)
    assert len(_repetitions([run, other])) == 2
