"""Scores that are written can be judged: explanations from elsewhere beside our own, in measure, audit and report."""

import json
import shutil

import pyarrow.parquet
import pytest
import torch

from faithmeter import AuditOptions, InputError, MeasureOptions, Run, audit, measure
from faithmeter.data.tables import read_rows
from faithmeter.reports.ranked import ranked_table
from faithmeter.reports.sentences import explained_once
from faithmeter.runs.measurements import read_measurement
from faithmeter.runs.results import find, rows_of
from faithmeter.studies.scores import ScoresOptions, scores

pytestmark = pytest.mark.usefixtures("without_figures")
ROWS = 20


@pytest.fixture
def run(checked_toy, tmp_path):
    return Run(shutil.copytree(checked_toy, tmp_path / "run"))


@pytest.fixture(scope="module")
def judged(checked_toy, tmp_path_factory):
    """A run on which loo-signed, written and read again as elsewhere's, was measured, and a person's spans."""
    folder = tmp_path_factory.mktemp("judged")
    run = Run(shutil.copytree(checked_toy, folder / "run"))
    scores(run.path, folder / "again.jsonl", ScoresOptions("loo-signed", rows=ROWS))
    lines = ["row,start,end,score"]
    for line in read_rows(folder / "again.jsonl"):
        word = "good" if "good" in line["text"] else "bad"
        start = line["text"].index(word)
        lines.append(f"{line['row']},{start},{start + len(word)},1")
    (folder / "person.csv").write_text("\n".join(lines) + "\n")
    files = (folder / "again.jsonl", folder / "person.csv")
    return measure(run.path, MeasureOptions(measures=("loo-signed",), rows=ROWS, random_runs=2, scores=files))


def test_scores_that_were_written_give_the_curve_of_the_measure_explained_once(judged):
    once, again = (read_measurement(judged, name) for name in ("loo-signed-once", "again"))
    for column in ("row", "predicted", "probability", "p_own", "p_outside", "held"):
        assert (once[column] == again[column]).all(), column
    often = read_measurement(judged, "loo-signed")
    assert (often["probability"] != again["probability"]).any()  # explained again, it masks other tokens


def test_all_kinds_of_file_hold_the_same_numbers(run, tmp_path):
    found = []
    for kind in ("jsonl", "csv", "parquet"):
        file = scores(run.path, tmp_path / f"mine.{kind}", ScoresOptions("loo-signed", rows=3))
        found.append([{k: json.loads(v) if isinstance(v, str) and v.startswith("[") else v for k, v in line.items()}
                      for line in read_rows(file)])  # fmt: skip
    for lines in found:
        for line in lines:
            line["row"] = int(line["row"])
    assert found[0] == found[1] == found[2]
    assert set(found[0][0]) == {"row", "text", "target", "tokens", "spans", "scores"}
    for line in found[0]:
        said = run.data().test[line["row"]]
        assert said["text"] == line["text"]
        assert run.config.labels[said["label"]] == line["target"]
        assert [line["text"][start:end] for start, end in line["spans"]] == line["tokens"]


def test_the_written_numbers_are_those_of_the_measure_for_the_class_that_was_asked(run, tmp_path):
    classifier = run.classifier()
    for target in ("gold", "predicted"):
        (line,) = read_rows(scores(run.path, tmp_path / "one.jsonl", ScoresOptions("loo-signed", target, rows=1)))
        test = classifier.encode([line["text"]])
        batch = test.batch([0])
        logits = classifier.predict(test)
        label = run.data().test[line["row"]]["label"] if target == "gold" else int(logits.argmax())
        assert line["target"] == run.config.labels[label]
        for place, score in zip(batch.maskable[0].nonzero()[:, 0].tolist(), line["scores"], strict=True):
            masked = torch.zeros_like(batch.masked)
            masked[0, place] = True
            dropped = logits[0, label] - classifier.logits(batch.with_masked(masked))[0, label]
            assert score == pytest.approx(dropped.item(), abs=1e-5)


def test_results_say_which_measures_are_explained_once_and_which_are_from_elsewhere(judged):
    rows = {row["measure"]: (row["value"], row.get("detail")) for row in rows_of(judged.results, "explained_once")}
    assert rows == {
        "loo-signed": (0, None), "loo-signed-once": (1, None), "again": (1, "again.jsonl"), "person": (1, "person.csv"),
    }  # fmt: skip
    first, second = explained_once(judged.results)
    assert "Explained once, for the unmasked text: loo-signed-once, again (from again.jsonl), person" in first
    assert second.startswith("Of those explained once, ")
    table = ranked_table(judged.results)
    assert table.columns[1] == "explained"
    assert {row[0]: row[1] for row in table.rows} == {
        "loo-signed": "at each step", "loo-signed-once": "once", "again": "once, in again.jsonl",
        "person": "once, in person.csv",
    }  # fmt: skip


def test_a_person_who_marks_the_telling_word_beats_random_masking(judged):
    assert find(judged.results, "acu", "person")["low"] > 0


def test_a_run_without_scores_has_no_word_about_it(run):
    measure(run.path, MeasureOptions(measures=("grad-l2",), rows=4, random_runs=1))
    assert not rows_of(run.results, "explained_once")
    assert explained_once(run.results) == []
    assert "explained" not in ranked_table(run.results).columns


def test_the_command_line_writes_and_judges_scores_and_the_report_repeats_the_command(run, faithmeter, tmp_path):
    file = tmp_path / "again.csv"
    code, printed = faithmeter("scores", run.path, "--measure", "grad-l2", "--rows", "6", "--out", file)
    assert code == 0, printed
    asked = ("--measures", "grad-l2,loo-signed-once", "--rows", "6", "--random-runs", "1", "--scores", file)
    code, printed = faithmeter("measure", run.path, *asked)
    assert code == 0, printed
    assert "again (from again.csv)" in printed
    assert "grad-l2-once" in printed
    code, printed = faithmeter("report", run.path, "--format", "markdown", "--no-examples")
    assert code == 0, printed
    page = (run.path / "report" / "report.md").read_text()
    assert "--scores again.csv" in page  # not where it is on the machine
    assert "measured from Python" not in page
    assert "once, in again.csv" in page


def test_a_measure_that_is_explained_once_anyway_has_no_such_form(run, faithmeter):
    code, printed = faithmeter("measure", run.path, "--measures", "beam-once")
    assert code == 2
    assert "no importance measure 'beam-once'" in printed


def test_a_file_that_does_not_fit_is_refused_before_anything_is_stored(run, faithmeter, tmp_path):
    scores(run.path, tmp_path / "few.jsonl", ScoresOptions("grad-l2", rows=3))
    few = tmp_path / "few.jsonl"
    with pytest.raises(InputError, match="no scores for 3 of the 6 texts"):
        measure(run.path, MeasureOptions(measures=("grad-l2",), rows=6, random_runs=1, scores=(few,)))
    assert not run.measurements.exists()
    known = shutil.copy(few, tmp_path / "loo-signed.jsonl")
    with pytest.raises(InputError, match=r"loo-signed is the name of a measure here\. Rename"):
        measure(run.path, MeasureOptions(measures=("grad-l2",), rows=3, random_runs=1, scores=(known,)))
    code, printed = faithmeter("measure", run.path, "--scores", tmp_path / "none.csv")
    assert code == 2
    assert "There is no file" in printed
    code, printed = faithmeter("scores", run.path, "--out", tmp_path / "x.txt", "--measure", "grad-l2")
    assert code == 2
    assert ".jsonl, .csv, .parquet" in printed


def test_judges_that_need_no_other_explanation_judge_scores_as_the_measure_they_are_of(run, tmp_path):
    file = scores(run.path, tmp_path / "again.jsonl", ScoresOptions("loo-signed", target="predicted"))
    audit(run.path, AuditOptions(("erasure", "sparsity"), ("loo-signed",), rows=5, scores=(file,)))
    for judge in ("erasure", "sparsity"):
        tables = [pyarrow.parquet.read_table(run.judgements / judge / name) for name in ("loo-signed", "again")]
        assert tables[0].equals(tables[1])
    with pytest.raises(InputError, match="None of these judges can judge explanations from elsewhere"):
        audit(run.path, AuditOptions(("randomisation",), ("grad-l2",), rows=5, scores=(file,)))
    few = scores(run.path, tmp_path / "few.jsonl", ScoresOptions("loo-signed", rows=1))
    with pytest.raises(InputError, match="no scores for"):
        audit(run.path, AuditOptions(("sparsity",), ("loo-signed",), rows=5, scores=(few,)))
