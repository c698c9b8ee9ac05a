"""Select, then predict: second models on a small trained run, resumable, and what their rows mean."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet
import pytest

from faithmeter import InputError, Run, SelectOptions, adopt, report, select
from faithmeter.judges.selection import only
from faithmeter.progress import Silent
from faithmeter.reports.select import select_sections
from faithmeter.runs import shards
from faithmeter.runs.results import Result, find, rows_of
from faithmeter.studies import select as selecting
from faithmeter.studies.faithfulness_rows import pool
from faithmeter.studies.report import _repetitions, commands_of

pytestmark = pytest.mark.usefixtures("without_figures")
OPTIONS = SelectOptions(("loo-signed",), ("top",))


@pytest.fixture
def run(trained_toy, tmp_path):
    return Run(shutil.copytree(trained_toy, tmp_path / "run"))


@pytest.fixture(scope="module")
def selected(trained_toy, tmp_path_factory):
    path = shutil.copytree(trained_toy, tmp_path_factory.mktemp("selected") / "run")
    return select(path, SelectOptions(("loo-signed",)))


def test_a_faithful_measure_keeps_the_performance_and_random_tokens_do_not(selected):
    rows = selected.results
    for detail in ("top, 20 %", "contiguous, 20 %"):
        kept, chance = (find(rows, "select", name, detail=detail) for name in ("loo-signed", "random"))
        above = find(rows, "select_above_random", "loo-signed", detail=detail)
        assert kept["value"] > 0.95  # one of four words tells the label, and it is found
        assert 0.4 < chance["value"] < 0.8  # by chance it is found in one text of four
        assert above["value"] == pytest.approx(kept["value"] - chance["value"])
        assert 0 < above["low"] < above["value"] < above["high"]
        assert kept["low"] <= kept["value"] <= kept["high"]
        assert (kept["n"], kept["over"], kept["metric"]) == (80, "observations", "accuracy")
    assert find(rows, "select_full")["value"] == find(rows, "performance", ratio=0.0)["value"]
    assert not rows_of(rows, "select_above_random", "random")


def test_the_section_says_what_it_shows_and_what_it_cannot(selected, tmp_path):
    (section,) = select_sections(selected.results)
    names = [row[0] for row in section.tables[0].rows]
    assert section.tables[0].columns[1:3] == ("top, 20 %", "contiguous, 20 %")
    assert names == ["full text", "loo-signed", "random", "class majority"]
    assert any("significantly more than with random tokens" in line for line in section.words)
    assert any("cannot show" in line for line in section.words)
    files = report([selected.path], tmp_path / "report", formats=("html", "csv"), examples=False)
    assert "Select, then predict" in files[0].read_text()
    assert "select.csv" in {file.name for file in files}
    (command,) = [line for line in commands_of(selected) if line.startswith("faithmeter select")]
    assert "--measures loo-signed,random --rationales contiguous,top --length 0.2 --seeds 0" in command
    assert not select_sections([])


def test_the_second_model_sees_nothing_but_the_rationales(run, monkeypatch):
    seen = {}

    def spied(classifier, train, validation, config, **_):
        seen.update(train=train, validation=validation, config=config, strategy=config.strategy)
        return SimpleNamespace(warnings=(), history=[], best_epoch=1)

    stored = json.loads((run.path / "config.json").read_text())
    stored["training"]["robust"] = ["vat"]
    (run.path / "config.json").write_text(json.dumps(stored))
    monkeypatch.setattr(selecting, "fine_tune", spied)
    select(run.path, OPTIONS)
    vocabulary = {number: word for word, number in run.classifier().tokenizer.get_vocab().items()}
    texts = run.data().train["text"]
    for row, text in enumerate(texts):
        ids = seen["train"].ids[seen["train"].offsets[row] : seen["train"].offsets[row + 1]].tolist()
        words = [vocabulary[number] for number in ids]
        (kept,) = [word for word in words if word in text.split()]  # one of four words
        assert kept in ("good", "bad")
    assert seen["strategy"] == "plain"
    assert (seen["config"].validation, seen["config"].robust) == ("unmasked", ())
    assert len(seen["validation"]) == len(run.data().validation)


def test_the_class_that_is_explained_is_the_predicted_one(run, monkeypatch):
    asked = []
    explain = selecting._explained

    def spied(classifier, encoded, rows, one, seed, answers=True):
        if one.name != "random":
            asked.append(answers)
        return explain(classifier, encoded, rows, one, seed, answers)

    monkeypatch.setattr(selecting, "_explained", spied)
    monkeypatch.setattr(selecting, "only", lambda encoded, _: only(encoded, encoded.maskable))  # as it is, for speed
    select(run.path, SelectOptions(("grad-l2",), ("top",), epochs=1, rows=20))
    assert asked
    assert all(asked)


def test_work_that_was_stopped_goes_on_and_ends_in_the_same_rows(run, tmp_path, monkeypatch):
    monkeypatch.setattr(selecting, "TEXTS_AT_ONCE", 100)
    options = SelectOptions(("loo-signed",), epochs=2)
    whole = select(shutil.copytree(run.path, tmp_path / "whole"), options).results
    done, write = [], selecting.write_bytes

    def failing(path, content):
        if len(done) == 4:
            raise KeyboardInterrupt
        done.append(path)
        write(path, content)

    times = {}
    for _ in range(2):  # while it explains, and after a training
        done.clear()
        for module in (selecting, shards):
            monkeypatch.setattr(module, "write_bytes", failing)
        with pytest.raises(KeyboardInterrupt):
            select(run.path, options)
        for module in (selecting, shards):
            monkeypatch.setattr(module, "write_bytes", write)
        times |= {path: path.stat().st_mtime_ns for path in done}
    assert select(run.path, options).results == whole
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert not list(run.selections.rglob("checkpoints"))


def test_a_training_that_was_killed_goes_on_from_its_checkpoint(run, tmp_path, monkeypatch):
    options = SelectOptions((), ("top",), epochs=3, rows=60)
    whole = select(shutil.copytree(run.path, tmp_path / "whole"), options).results
    from faithmeter.training import checkpoint

    save = checkpoint.save

    def saved_then_killed(folder, state, *rest):
        save(folder, state, *rest)
        if state.epoch == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "save", saved_then_killed)
    with pytest.raises(KeyboardInterrupt):
        select(run.path, options)
    monkeypatch.setattr(checkpoint, "save", save)
    assert [folder.name for folder in run.selections.rglob("epoch-*")]
    assert select(run.path, options).results == whole


def answered(run, measure, wrong):
    """Second models that were trained before, with so many wrong answers in each seed."""
    gold = np.array(run.data().test["label"])
    for seed, count in enumerate(wrong):
        folder = run.selections / measure / "top-0.2" / f"seed-{seed}"
        folder.mkdir(parents=True)
        predicted = np.where(np.arange(len(gold)) < count, 1 - gold, gold)
        table = pyarrow.table({"row": np.arange(len(gold)), "predicted": predicted})
        pyarrow.parquet.write_table(table, folder / "answers.parquet")


def test_several_seeds_have_students_interval_over_them(run, monkeypatch):
    monkeypatch.setattr(selecting, "require_same", lambda *_: None)  # these answers are made up, without settings
    monkeypatch.setattr("faithmeter.runs.run.require_settings", lambda *_: None)
    answered(run, "grad-l2", (4, 6, 8))  # of 80: 0.95, 0.925, 0.9
    answered(run, "random", (40, 32, 36))  # 0.5, 0.6, 0.55
    done = select(run.path, SelectOptions(("grad-l2",), ("top",), seeds=(0, 1, 2)))
    row = find(done.results, "select", "grad-l2", detail="top, 20 %")
    assert (row["n"], row["over"]) == (3, "seeds")
    # the standard deviation is 0.025, and Student's with two degrees of freedom 4.3027 standard errors: 0.0621
    assert [row["value"], row["low"], row["high"]] == pytest.approx([0.925, 0.8629, 0.9871], abs=1e-4)
    above = find(done.results, "select_above_random", "grad-l2", detail="top, 20 %")
    # differences 0.45, 0.325, 0.35: standard deviation 0.06614, half the interval 0.1643
    assert [above["value"], above["low"], above["high"]] == pytest.approx([0.375, 0.2107, 0.5393], abs=1e-4)
    assert "trainings" in select_sections(done.results)[0].tables[0].title


def test_random_rationales_are_drawn_anew_for_each_second_model_and_each_split(run, monkeypatch):
    monkeypatch.setattr(selecting, "_learn", lambda work, measure, kind, seed, cut: seen.append(cut))
    monkeypatch.setattr(selecting, "_store", lambda *_: None)
    seen = []
    select(run.path, SelectOptions((), ("top",), seeds=(0, 1)))
    first, second = (cut["train"].ids for cut in seen)
    assert len(first) == len(second)  # the same lengths
    assert not np.array_equal(first, second)
    numbers = [selecting._seed(seed, part) for seed in range(3) for part in ("train", "validation", "test")]
    assert len(set(numbers)) == 9


def test_other_lengths_stand_beside_each_other_and_other_settings_are_refused(run):
    cheap = {"measures": (), "rationales": ("top",), "epochs": 1, "rows": 60}
    select(run.path, SelectOptions(**cheap))
    select(run.path, SelectOptions(**cheap, length=0.5))
    assert {row["detail"] for row in rows_of(run.results, "select")} == {"top, 20 %", "top, 50 %"}
    assert len([line for line in commands_of(run) if line.startswith("faithmeter select")]) == 2
    with pytest.raises(InputError, match="another rows"):
        select(run.path, SelectOptions(**{**cheap, "rows": 50}))
    with pytest.raises(InputError, match="another epochs"):
        select(run.path, SelectOptions(**{**cheap, "epochs": 2}))
    (run.model_folder / "extra.safetensors").write_bytes(b"other weights")
    with pytest.raises(InputError, match="another weights"):
        select(run.path, SelectOptions(**cheap))


def test_fewer_training_texts_are_said(run):
    done = select(run.path, SelectOptions((), ("top",), epochs=1, rows=60))
    (section,) = select_sections(done.results)
    assert "60 texts of the 256 that the first one was trained on, 1 epochs" in section.words[0]


def test_the_most_faithful_measure_is_the_default_if_it_is_not_too_dear(run):
    classifier = run.classifier()

    def default():
        return [one.name for one in selecting._measures(run, SelectOptions(), classifier)]

    assert default() == ["random", "loo-signed"]  # nothing was measured
    areas = {"beam": 0.5, "ig-signed": 0.3, "grad-l2": 0.2}
    run.store_results(
        ("acu",),
        [
            Result(kind="acu", value=v, metric="accuracy", n=9, measure=name, low=v - 0.1, high=v + 0.1)
            for name, v in areas.items()
        ],
    )
    assert default() == ["random", "ig-signed"]


def test_what_takes_long_is_said_before_it_starts(run, monkeypatch):
    heard = []

    class Heard(Silent):
        def note(self, text):
            heard.append(text)

    monkeypatch.setattr(selecting, "WORTH_SAYING", 0)
    monkeypatch.setattr(selecting, "_learn_from_rationales", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        select(run.path, OPTIONS, reporter=Heard())
    assert any("2 trainings: about" in line for line in heard)


def test_bad_options_are_refused_with_what_there_is():
    with pytest.raises(InputError, match=r"'loo-sign'.*loo-signed"):
        SelectOptions(("loo-sign",))
    with pytest.raises(InputError, match=r"'best'.*top, contiguous"):
        SelectOptions(rationales=("best",))
    for length in (0, 1.5, -1):
        with pytest.raises(InputError, match="above 0 and at most 1"):
            SelectOptions(length=length)
    with pytest.raises(InputError, match="seeds are whole numbers"):
        SelectOptions(seeds=(1, 1))
    with pytest.raises(InputError, match="too few"):
        SelectOptions(rows=1)


def test_a_run_that_is_not_trained_or_whose_beginning_is_not_known_is_refused(run, tmp_path):
    adopted = adopt(tmp_path / "adopted", str(run.model_folder), run.config.data)
    with pytest.raises(InputError, match="initial weights are unknown"):
        select(adopted.path, OPTIONS)
    shutil.rmtree(run.model_folder)
    with pytest.raises(InputError, match="is unfinished"):
        select(run.path, OPTIONS)


def test_a_beginning_with_another_vocabulary_is_refused(run, monkeypatch):
    fresh = selecting.fresh_classifier

    def other(model, splits, **given):
        few = splits.train.select(range(1))
        return fresh(model, selecting.dataclasses.replace(splits, train=few), **given)

    monkeypatch.setattr(selecting, "fresh_classifier", other)
    with pytest.raises(InputError, match="another vocabulary"):
        select(run.path, OPTIONS)


def test_runs_are_pooled_where_second_models_were_made_in_the_same_way(run, tmp_path):
    other = Run(shutil.copytree(run.path, tmp_path / "other"))
    stored = json.loads((other.path / "config.json").read_text())
    stored["training"]["seed"] = 1
    (other.path / "config.json").write_text(json.dumps(stored))
    cheap = {"measures": (), "rationales": ("top",), "epochs": 1}
    for one in (run, other):
        select(one.path, SelectOptions(**cheap, rows=60))
    assert len(_repetitions([run, other])) == 1
    (row,) = rows_of(pool([run, other]), "select", "random")
    assert (row["over"], row["n"]) == ("seeds", 2)
    assert select_sections(pool([run, other]))
    shutil.rmtree(other.selections)
    select(other.path, SelectOptions(**cheap, rows=50))
    assert len(_repetitions([run, other])) == 2


def test_the_command_prints_the_table_and_what_it_can_show(run, faithmeter):
    code, printed = faithmeter(
        "select", run.path, "--measures", "grad-l2", "--rationales", "top", "--epochs", 1, "--rows", 60
    )
    assert code == 0, printed
    assert "Select, then predict" in printed
    assert "grad-l2" in printed
    assert "cannot show" in printed
    code, printed = faithmeter("select", run.path, "--length", "0")
    assert (code, "above 0" in printed) == (2, True)
