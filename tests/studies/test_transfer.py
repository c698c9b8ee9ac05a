"""Out of domain: a run's model on other texts, with the in-distribution test of its own domain."""

import json
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch
from conftest import sentiment_rows

from faithmeter import (
    DataSpec,
    InputError,
    MeasureOptions,
    Run,
    TrainingOptions,
    attack,
    audit,
    check,
    measure,
    report,
    select,
    train,
    transfer,
)
from faithmeter.data.splits import load_splits
from faithmeter.files import write_bytes
from faithmeter.progress import Silent
from faithmeter.reports.sentences import verdict
from faithmeter.reports.transfer import transfer_sections
from faithmeter.runs.results import CHECKED_TEXTS, find, rows_of
from faithmeter.studies.audit import AuditOptions
from faithmeter.studies.check import in_words
from faithmeter.studies.report import _repetitions, commands_of
from faithmeter.studies.transfer import match_classes

pytestmark = pytest.mark.usefixtures("without_figures")


class Heard(Silent):
    def __init__(self):
        self.said = []

    def note(self, text):
        self.said.append(text)

    warn = note


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def elsewhere(count, names=("negative", "positive")):
    """Texts of another domain: longer, and of a word that is rare at home."""
    rows = sentiment_rows(count, seed=5)
    return [{"text": f"{'plot ' * 6}{row['text']}", "label": names[row["label"] == "positive"]} for row in rows]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    data = DataSpec(data=write_rows(folder / "reviews.jsonl", sentiment_rows(600)))
    options = TrainingOptions(epochs=6, curriculum=False, learning_rate=2e-3, batch_size=16)
    train(folder / "run", data, "small", options)
    check(folder / "run")
    return Run(folder / "run")


@pytest.fixture(scope="module")
def made(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("elsewhere")
    data = DataSpec(data=write_rows(folder / "other.jsonl", elsewhere(100)))
    run = transfer(trained.path, folder / "run", data)
    check(run.path)
    return run


# ------------------------------------------------------------------------------------------------------- classes


def test_classes_are_matched_where_there_is_no_doubt():
    assert match_classes(("neg", "pos"), ("NEGATIVE", "POSITIVE")) == {"neg": "NEGATIVE", "pos": "POSITIVE"}
    assert match_classes(("Positive", "negative"), ("negative", "positive")) == {
        "Positive": "positive", "negative": "negative",
    }  # fmt: skip
    assert match_classes(("a", "A"), ("A", "a", "b")) == {"a": "a", "A": "A"}  # the very name before any other
    assert match_classes(("0", "1"), ("0", "1")) == {"0": "0", "1": "1"}


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (("0", "1"), ("negative", "positive")),  # which is the first?
        (("negative", "positive"), ("LABEL_0", "LABEL_1")),
        (("neg", "negative", "pos"), ("negative", "positive")),  # two labels for a class
        (("Pos",), ("pos", "POS")),
        (("ham", "spam"), ("negative", "positive")),
        (("negative", "positive", "neutral"), ("negative", "positive")),
    ],
)
def test_classes_are_never_guessed(labels, classes):
    assert match_classes(labels, classes) is None


def test_what_is_taken_for_what_is_said_and_found_again(trained, tmp_path):
    heard = Heard()
    data = DataSpec(data=write_rows(tmp_path / "other.jsonl", elsewhere(40, ("neg", "pos"))))
    run = transfer(trained.path, tmp_path / "run", data, reporter=heard)
    assert "Classes, data to model: neg is negative, pos is positive." in heard.said
    assert run.data().labels == trained.config.labels
    assert find(run.results, "performance", ratio=0.0)["value"] > 0.9  # and not turned round
    assert run.config.data.classes == "neg=negative,pos=positive"


def test_other_names_are_given_by_hand(trained, tmp_path):
    file = write_rows(tmp_path / "other.jsonl", elsewhere(40, (1, 0)))  # 0 is the positive one
    with pytest.raises(InputError, match=r"--classes 0=negative,1=positive, if that is what they mean"):
        transfer(trained.path, tmp_path / "run", DataSpec(data=file))
    with pytest.raises(InputError, match="no label 'zero'"):
        transfer(trained.path, tmp_path / "run", DataSpec(data=file, classes="zero=negative"))
    assert not (tmp_path / "run").exists()
    run = transfer(trained.path, tmp_path / "run", DataSpec(data=file, classes="0=positive,1=negative"))
    assert find(run.results, "performance", ratio=0.0)["value"] > 0.9


def test_labels_get_other_names_in_any_data(tmp_path):
    rows = [{"text": "a", "label": label} for label in ("hate", "rude", "fine", "fine") * 10]
    file = write_rows(tmp_path / "rows.jsonl", rows)
    splits = load_splits(DataSpec(data=file, classes="hate=bad,rude=bad"))
    assert splits.labels == ("bad", "fine")
    assert splits.test["label"].count(0) == pytest.approx(len(splits.test) / 2, abs=3)
    for classes in ("hate", "hate=", "=bad", "hate=bad,hate=fine"):
        with pytest.raises(InputError, match="neg=negative"):
            load_splits(DataSpec(data=file, classes=classes))
    with pytest.raises(InputError, match=r"no label 'late'.*'hate'"):
        load_splits(DataSpec(data=file, classes="late=bad"))


def test_the_labels_of_a_named_task_keep_their_order_under_other_names():
    spec = DataSpec(task="babi-1", train_rows=40, classes="bedroom=upstairs,bathroom=upstairs")
    assert load_splits(spec).labels == ("upstairs", "garden", "hallway", "kitchen", "office")


# --------------------------------------------------------------------------------------------------------- the run


def test_all_rows_of_a_file_are_tested_by_the_same_model(trained, made):
    assert len(made.data().test) == 100
    assert made.config.reference == str(trained.path.resolve())
    assert made.config.knows_masks == trained.config.knows_masks
    assert made.weights == trained.weights
    assert made.config.how == "out of domain"


def test_a_folder_with_a_test_file_keeps_its_splits(trained, tmp_path):
    (tmp_path / "data").mkdir()
    for part, count in (("train", 30), ("test", 20)):
        write_rows(tmp_path / "data" / f"{part}.jsonl", elsewhere(count))
    run = transfer(trained.path, tmp_path / "run", DataSpec(data=str(tmp_path / "data")))
    assert len(run.data().test) == 20


def test_performance_at_home_and_elsewhere_stands_side_by_side(trained, made):
    rows = {row["detail"]: row for row in rows_of(made.results, "transfer")}
    assert list(rows) == ["in domain: reviews", "out of domain: other"]
    for run, row in zip((trained, made), rows.values(), strict=True):
        assert row["value"] == find(run.results, "performance", ratio=0.0)["value"]
        assert row["low"] <= row["value"] <= row["high"]
        assert row["n"] == len(run.data().test)
    majority = find(made.results, "transfer_majority", detail="out of domain: other")
    assert majority["value"] == find(made.results, "majority")["value"]


def test_the_in_distribution_test_is_that_of_the_domain_the_model_was_trained_on(trained, made):
    own, home = made.in_distribution_test(), trained.in_distribution_test()
    assert (own.rows, own.seed) == (home.rows, home.seed)
    first = [masf.references[0][0].atypicality for masf in (own, home)]
    assert torch.equal(*first)
    # six words more than at home are strange, masked or not
    assert find(made.results, "check_p_value", ratio=0.0)["value"] < 0.05
    assert find(trained.results, "check_p_value", ratio=0.0)["value"] > 0.05


def test_texts_of_the_same_domain_are_not_strange(trained, tmp_path):
    heard = Heard()
    data = DataSpec(data=write_rows(tmp_path / "more.jsonl", sentiment_rows(200, seed=9)))
    run = transfer(trained.path, tmp_path / "run", data)
    verdicts = check(run.path, rows=7, reporter=heard)
    assert find(run.results, "check_p_value", ratio=0.0)["value"] > 0.05
    assert any("tests whether the texts of this other domain" in line for line in heard.said)
    assert any("--rows 7 is ignored" in line for line in heard.said)
    assert verdicts
    (section,) = transfer_sections(run.results)
    assert section.words[-1].startswith("Unmasked they were not found to be out-of-distribution. Too few texts for a")
    enough = [{**row, "value": 100} if row["kind"] in CHECKED_TEXTS else row for row in run.results]
    assert "Unmasked they are in-distribution" in transfer_sections(enough)[0].words[-1]


def test_the_advice_where_masking_fails_is_not_to_train_on_the_other_domain(made):
    check(made.path)
    assert "faithmeter train" not in in_words(made.path)
    with pytest.raises(InputError, match="pass --form calibrated"):
        check(made.path, form="paper")
    assert made.checked  # what was found before is still there


def test_the_other_jobs_take_it_as_any_run(made, trained, tmp_path):
    path = shutil.copytree(made.path, tmp_path / "copy")
    measured = measure(path, MeasureOptions(measures=("loo-signed",), rows=10, random_runs=1))
    audit(path, AuditOptions(("erasure",), ("loo-signed",), rows=5))
    assert verdict(measured.results)[0].endswith("masked texts of this domain are out-of-distribution for it.")
    page = report([path, trained.path], tmp_path / "report", examples=False)[0].read_text()
    assert "Out of domain" in page
    assert "in domain: reviews" in page
    assert "Even unmasked they are out-of-distribution" in page
    attack(path, rows=3)
    commands = commands_of(Run(path))
    assert [line.split()[1] for line in commands] == ["transfer", "check", "measure", "audit", "attack"]
    with pytest.raises(InputError, match="initial weights are unknown"):
        select(path)


def test_the_same_call_finds_the_run_and_another_is_refused(trained, made, tmp_path):
    before = (made.path / "model" / "model.safetensors").stat().st_mtime_ns
    data = DataSpec(data=made.config.data.data)
    assert transfer(trained.path, made.path, data).path == made.path
    assert (made.path / "model" / "model.safetensors").stat().st_mtime_ns == before
    other = DataSpec(data=write_rows(tmp_path / "third.jsonl", elsewhere(40)))
    with pytest.raises(InputError, match="another data"):
        transfer(trained.path, made.path, other)


def test_a_home_that_was_trained_anew_is_not_taken_for_the_old_one(trained, tmp_path):
    home = Run(shutil.copytree(trained.path, tmp_path / "home"))
    data = DataSpec(data=write_rows(tmp_path / "other.jsonl", elsewhere(40)))
    transfer(home.path, tmp_path / "out", data)
    weights = safetensors.torch.load_file(home.model_folder / "model.safetensors")
    changed = {name: tensor + 1e-3 for name, tensor in weights.items()}
    write_bytes(home.model_folder / "model.safetensors", safetensors.torch.save(changed, metadata={"format": "pt"}))
    with pytest.raises(InputError, match="trained anew"):
        transfer(home.path, tmp_path / "out", data)


def test_homes_of_several_seeds_are_pooled_elsewhere(trained, tmp_path):
    data = DataSpec(data=write_rows(tmp_path / "other.jsonl", elsewhere(40)))
    paths = []
    for seed in (0, 1):
        home = Path(shutil.copytree(trained.path, tmp_path / f"home-{seed}"))
        config = json.loads((home / "config.json").read_text())
        config["training"]["seed"] = seed
        (home / "config.json").write_text(json.dumps(config))
        paths.append(transfer(home, tmp_path / f"out-{seed}", data).path)
    (same,) = _repetitions([Run(path) for path in paths]).values()
    assert len(same) == 2


def test_a_run_that_was_not_checked_or_is_no_home_is_refused(trained, made, tmp_path):
    data = DataSpec(data=made.config.data.data)
    unchecked = Run(shutil.copytree(trained.path, tmp_path / "unchecked"))
    unchecked.store_results({row["kind"] for row in unchecked.results if row["kind"].startswith("check")}, [])
    with pytest.raises(InputError, match=r"Run `faithmeter check .*unchecked` first"):
        transfer(unchecked.path, tmp_path / "run", data)
    with pytest.raises(InputError, match="already a run on another domain"):
        transfer(made.path, tmp_path / "run", data)
    with pytest.raises(InputError, match="single texts"):
        transfer(trained.path, tmp_path / "run", DataSpec(data=data.data, context="label"))
    shutil.rmtree(unchecked.model_folder)
    with pytest.raises(InputError, match="is unfinished"):
        transfer(unchecked.path, tmp_path / "run", data)
    assert not (tmp_path / "run").exists()


def test_the_section_says_where_nobody_checked(made):
    rows = [row for row in made.results if not row["kind"].startswith("check")]
    (section,) = transfer_sections(rows)
    assert "not checked" in section.cautions[0]
    assert any("cannot" in line for line in section.words)
    assert not transfer_sections([])


def test_the_command_prints_both_performances_and_the_classes(trained, tmp_path, faithmeter):
    file = write_rows(tmp_path / "other.jsonl", elsewhere(40, ("bad", "good")))
    code, printed = faithmeter("transfer", trained.path, tmp_path / "run", "--data", file)
    assert (code, "--classes bad=negative,good=positive" in printed) == (2, True)
    code, printed = faithmeter(
        "transfer", trained.path, tmp_path / "run", "--data", file, "--classes", "bad=negative,good=positive"
    )
    assert code == 0, printed
    for words in (
        "bad is negative, good is positive",
        "in domain: reviews",
        "out of domain: other",
        "faithmeter check",
    ):
        assert words in printed
    code, printed = faithmeter("check", tmp_path / "run")
    assert (code, "texts of this domain differ from those of the model's own" in printed) == (0, True), printed
    code, printed = faithmeter("transfer", trained.path, tmp_path / "other")
    assert (code, "--task" in printed) == (2, True)
