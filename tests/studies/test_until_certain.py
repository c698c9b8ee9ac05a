"""Measured in rounds until it is certain: who is dropped, when it ends, and that an interruption changes nothing."""

import json
import shutil

import numpy as np
import pyarrow.parquet
import pytest

from faithmeter import IMPORTANCE_MEASURES, InputError, Run
from faithmeter.files import write_json
from faithmeter.progress import Silent
from faithmeter.runs.results import find, rows_of
from faithmeter.statistics.best_set import best_set, differences_between
from faithmeter.statistics.stopping import planned_looks
from faithmeter.studies import measure as measuring
from faithmeter.studies.measure import MeasureOptions, measure
from faithmeter.studies.plan import plan
from faithmeter.studies.report import commands_of, report
from faithmeter.studies.until_certain import cut_at_looks, scores_on

pytestmark = pytest.mark.usefixtures("without_figures")
GOOD, BAD = "loo-signed", "worst"


def worst(classifier, batch, targets, seed):
    """The least important tokens first: surely not the best."""
    return -IMPORTANCE_MEASURES[GOOD].explain(classifier, batch, targets, seed)


def asked(**others):
    return MeasureOptions(
        **{"measures": (GOOD, worst), "rows": 80, "random_runs": 1, "without_check": True, "until_certain": True}
        | others
    )


class Heard(Silent):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


@pytest.fixture
def path(trained_toy, tmp_path):
    return shutil.copytree(trained_toy, tmp_path / "run")


def texts_of(run):
    return {row["measure"]: row["n"] for row in rows_of(run.results, "acu")}


def without_times(run):
    return [row for row in run.results if row["kind"] != "seconds_per_text"]


def test_rows_are_cut_at_the_looks_of_the_whole_study_and_a_short_walk_has_the_first_of_them():
    rows = np.arange(100, 200)
    assert planned_looks(100) == (20, 28, 40, 56, 79, 100)
    assert [len(part) for part in cut_at_looks(rows, 100)] == [20, 8, 12, 16, 23, 21]
    assert [part.tolist() for part in cut_at_looks(rows[:28], 100)] == [list(range(100, 120)), list(range(120, 128))]
    assert [len(part) for part in cut_at_looks(rows[:50], 100)] == [20, 8, 12, 10]  # beam search on 50 texts
    assert [len(part) for part in cut_at_looks(rows[:10], 100)] == [10]


def test_a_text_adds_the_area_under_its_own_curve_with_the_sign_turned(path):
    run = measure(path, asked(until_certain=False, rows=12))
    rows = np.array(_rows(run, GOOD)[::-3])  # in an order of their own
    test = measuring.encode(run.classifier(), run.data().test, "test", Silent())
    scores = scores_on(run, test, [GOOD, BAD], rows)
    table = pyarrow.parquet.read_table(run.measurements / GOOD).to_pandas()
    for k, row in enumerate(rows):
        mine = table[table["row"] == row].sort_values("step")
        right = (mine["predicted"] == test.labels[row]).to_numpy(dtype=float)
        assert scores[k, 0] == pytest.approx(-(right[1:] + right[:-1]).sum() / 20)


def _rows(run, name):
    return sorted(set(pyarrow.parquet.read_table(run.measurements / name)["row"].to_pylist()))


def test_it_ends_early_with_the_best_set_of_all_texts_and_says_what_was_saved(path, tmp_path):
    heard = Heard()
    full = measure(shutil.copytree(path, tmp_path / "full"), asked(until_certain=False))
    run = measure(path, asked(), reporter=heard)
    test = measuring.encode(run.classifier(), run.data().test, "test", Silent())
    scores = scores_on(full, test, [GOOD, BAD], np.array(_rows(full, GOOD)))
    assert best_set(differences_between(scores)).may_be_best.tolist() == [True, False]
    assert texts_of(full) == {GOOD: 80, BAD: 80}
    assert texts_of(run) == {GOOD: 20, BAD: 20}
    # all texts have four words, and all walks, that of the draw too, have 20 of 80 texts
    assert heard.notes == [
        "Measured until certain, on 20 of 80 texts: one measure is left; 75% of the passes were saved. May be best: "
        "loo-signed."
    ]
    assert find(run.results, "random_spread", "random")["n"] == 20


def test_a_dropped_measure_is_not_measured_further_and_the_baseline_has_all_texts(path, monkeypatch):
    explained = {"worst": 0, "twin": 0}

    def counted(name, explain):
        def explain_and_count(classifier, batch, targets, seed):
            explained[name] += len(batch)
            return explain(classifier, batch, targets, seed)

        explain_and_count.__name__ = name
        return explain_and_count

    monkeypatch.setattr(measuring, "Rounds", NeverHopeless)
    twin = counted("twin", IMPORTANCE_MEASURES[GOOD].explain)
    run = measure(path, asked(measures=(GOOD, twin, counted("worst", worst)), random_runs=2))
    assert texts_of(run) == {GOOD: 80, "twin": 80, "worst": 20}
    assert explained == {"worst": 20 * 9, "twin": 80 * 9}  # before each step but the last, which masks all
    assert find(run.results, "random_spread", "random")["n"] == 80
    assert "all texts were measured" in run.measurement_settings["asked"]["ended"]


def letters(run):
    return {row["measure"]: (row["value"], row["detail"]) for row in rows_of(run.results, "best_set")}


def test_the_best_set_and_its_letters_are_those_of_the_looks_and_not_of_a_test_that_knows_nothing_of_them(
    path, tmp_path, monkeypatch
):
    assert letters(measure(shutil.copytree(path, tmp_path / "looked"), asked())) == {GOOD: (1, "a"), BAD: (0, "b")}

    class SawNothing(measuring.Rounds):
        def look(self, run, test):
            decision = super().look(run, test)
            self.ahead = set()
            return decision

    monkeypatch.setattr(measuring, "Rounds", SawNothing)
    assert letters(measure(path, asked())) == {GOOD: (1, "a"), BAD: (1, "a")}


class NeverHopeless(measuring.Rounds):
    def __init__(self, names, rows, seed):
        super().__init__(names, rows, seed)
        self.looks = type(self.looks)(self.looks.texts, hopeless=-1.0, seed=seed)


def test_two_measures_that_never_differ_are_given_up_at_the_first_look(path):
    def twin(classifier, batch, targets, seed):
        return IMPORTANCE_MEASURES[GOOD].explain(classifier, batch, targets, seed)

    run = measure(path, asked(measures=(GOOD, twin)))
    assert texts_of(run) == {GOOD: 20, "twin": 20}
    assert "the full number of texts would hardly leave out another" in run.measurement_settings["asked"]["ended"]


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_killed_study_resumes_to_the_same_rows(path, tmp_path, monkeypatch, at):
    options = asked(measures=(GOOD, "loo-abs", "grad-l2", "x-grad-signed"))
    monkeypatch.setattr(measuring, "Rounds", NeverHopeless)  # so that there are three rounds to be killed in
    whole = measure(shutil.copytree(path, tmp_path / "whole"), options)
    assert 80 in texts_of(whole).values()
    look, looks = NeverHopeless.look, []

    def killed(rounds, run, test):
        looks.append(len(rounds.rows))
        if len(looks) == at:
            raise KeyboardInterrupt
        return look(rounds, run, test)

    with monkeypatch.context() as patch:
        patch.setattr(NeverHopeless, "look", killed)
        with pytest.raises(KeyboardInterrupt):
            measure(path, options)
    assert not rows_of(Run(path).results, "acu")
    resumed = measure(path, options)
    assert without_times(resumed) == without_times(whole)


def test_a_measure_that_is_added_is_compared_with_those_before(path):
    measure(path, asked(measures=(GOOD, "grad-l2")))
    run = measure(path, asked(measures=(worst,)))
    assert set(texts_of(run)) == {GOOD, "grad-l2", "worst"}
    assert texts_of(run)["worst"] == 20


def test_beam_search_on_fewer_texts_takes_no_part(path):
    heard = Heard()
    run = measure(path, asked(measures=(GOOD, worst, "beam"), beam_rows=5), reporter=heard)
    assert texts_of(run) == {GOOD: 20, BAD: 20, "beam": 5}
    assert any("beam has fewer texts, so it took no part" in note for note in heard.notes)
    with pytest.raises(InputError, match="two measures or more that have the same texts"):
        measure(path.parent / "run", asked(measures=("beam",), beam_rows=5, seed=1))


def test_one_measure_alone_is_refused_before_anything_is_stored(path):
    with pytest.raises(InputError, match=r"two measures or more.*without --until-certain"):
        measure(path, asked(measures=(GOOD,)))
    assert not Run(path).measurement_settings


def test_settings_command_and_report_say_it_and_other_measurements_do_not_mix(path, faithmeter):
    options = ("--measures", "loo-signed,grad-l2", "--rows", "40", "--random-runs", "1", "--without-check")
    code, printed = faithmeter("measure", path, *options, "--until-certain", "--workers", "2")
    assert code == 0, printed
    assert "Measuring in one process" in printed
    assert "of the passes were saved" in printed
    run = Run(path)
    (command,) = [line for line in commands_of(run) if line.startswith("faithmeter measure")]
    assert " --until-certain " in command
    assert faithmeter(*command.split()[1:])[0] == 0  # which repeats it
    page, *_ = report([path], path / "report", formats=("markdown",), examples=False)
    assert "Measured in rounds until it was certain" in page.read_text()
    assert "measured until certain" in page.read_text()
    code, printed = faithmeter("measure", path, *options)
    assert code == 2
    assert "another until_certain" in printed


def test_a_run_from_before_the_option_was_not_measured_until_certain(path):
    run = measure(path, asked(until_certain=False, rows=8))
    file = run.measurements / "settings.json"
    stored = json.loads(file.read_text())
    assert stored.pop("until_certain") is False
    write_json(file, stored)
    assert run.measurement_settings["until_certain"] is False
    measure(path, asked(until_certain=False, rows=8))
    assert "--until-certain" not in " ".join(commands_of(run))


def test_parts_of_a_measurement_are_not_measured_until_certain(path):
    with pytest.raises(InputError, match="in parts cannot be measured until it is certain"):
        measuring.begin_measuring(path, asked(measures=(GOOD, "grad-l2")))


def test_a_plan_is_made_from_a_pilot_that_is_kept_and_fixes_nothing(path, faithmeter, monkeypatch):
    code, printed = faithmeter("plan", path, "--measures", "loo-signed,grad-l2,x-grad-abs", "--texts", "20")
    assert code == 0, printed
    assert "On 20 texts" in printed
    assert "All 80 test texts would separate" in printed
    run = Run(path)
    assert not run.measurement_settings
    assert not run.results or not rows_of(run.results, "acu")
    monkeypatch.setattr(measuring, "_walk_table", None)  # nothing is measured again
    planned = plan(path, ("loo-signed", "grad-l2", "x-grad-abs"), texts=20)
    assert planned.pilot_texts == 20
    assert len(planned.texts) == 2
    assert planned.ahead not in planned.texts
    assert planned.seconds_per_text > 0


def test_a_plan_uses_what_is_measured_already(path, monkeypatch):
    measure(path, asked(until_certain=False, measures=(GOOD, "grad-l2"), rows=30))
    monkeypatch.setattr(measuring, "_walk_table", None)
    planned = plan(path)
    assert planned.pilot_texts == 30
    assert {planned.ahead, *planned.texts} == {GOOD, "grad-l2"}
    assert not (path / "pilot").exists()


def test_a_pilot_of_other_settings_is_made_anew(path):
    assert plan(path, (GOOD, "grad-l2"), texts=12).pilot_texts == 12
    assert plan(path, (GOOD, "grad-l2"), texts=15).pilot_texts == 15


def test_a_plan_refuses_a_run_without_a_model_one_measure_and_a_power_of_one(path, faithmeter):
    for wrong in (("--measures", "loo-signed"), ("--power", "1")):
        code, printed = faithmeter("plan", path, *wrong)
        assert code == 2, printed
    shutil.rmtree(path / "model")
    code, printed = faithmeter("plan", path)
    assert code == 2
    assert "is unfinished" in printed
