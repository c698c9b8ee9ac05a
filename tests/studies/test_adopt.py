"""Models that came trained: check and measure take them, and training goes on from them with their head."""

import json
import re
import shlex
import shutil
from dataclasses import replace

import pytest
from conftest import random_classifier, sentiment_rows
from safetensors.torch import load_file, save_file

from faithmeter import (
    DataSpec,
    InputError,
    MeasureOptions,
    Run,
    TrainingOptions,
    adopt,
    check,
    explain,
    measure,
    report,
    train,
)
from faithmeter.in_distribution.p_values import smallest_of
from faithmeter.progress import Silent
from faithmeter.reports import sentences
from faithmeter.reports.evidence import contradicted, known_masks
from faithmeter.runs.results import find, rows_of
from faithmeter.studies import adopt as adopting
from faithmeter.studies.check import in_words
from faithmeter.studies.report import commands_of


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    (folder / "reviews.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sentiment_rows(400)))
    options = TrainingOptions(strategy="plain", epochs=4, curriculum=False, learning_rate=2e-3, batch_size=16)
    return train(folder / "run", DataSpec(data=str(folder / "reviews.jsonl")), "small", options)


@pytest.fixture
def data(trained):
    return trained.config.data


@pytest.fixture
def turned(trained, tmp_path):
    """The same model with its two classes the other way round, and in capitals, as hub models name them."""
    return turned_round(trained, tmp_path / "turned", ("POSITIVE", "NEGATIVE"))


def turned_round(trained, folder, names):
    shutil.copytree(trained.model_folder, folder)
    weights = load_file(folder / "model.safetensors")
    for name in ("classifier.out_proj.weight", "classifier.out_proj.bias"):
        weights[name] = weights[name].flip(0).contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = dict(enumerate(names))
    config["label2id"] = {name: number for number, name in enumerate(names)}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


class Heard(Silent):
    def __init__(self):
        self.said = []

    def note(self, text):
        self.said.append(text)

    warn = note


def test_a_model_is_judged_with_its_classes_in_its_own_order(trained, turned, data, tmp_path):
    run = adopt(tmp_path / "run", str(turned), data)
    assert run.config.labels == ("POSITIVE", "NEGATIVE")
    assert run.classifier().labels == ("POSITIVE", "NEGATIVE")
    for ratio in (0.0, 1.0):
        assert (
            find(run.results, "performance", ratio=ratio)["value"]
            == find(trained.results, "performance", ratio=ratio)["value"]
        )
    assert run.data().labels == ("POSITIVE", "NEGATIVE")  # found again with the order of the run
    assert not run.config.knows_masks


def test_the_same_model_and_data_is_the_same_run_and_another_is_refused(turned, data, tmp_path):
    first = adopt(tmp_path / "run", str(turned), data)
    written = (first.path / "results.jsonl").stat().st_mtime_ns
    again = adopt(tmp_path / "run", str(turned), data)
    assert (again.path / "results.jsonl").stat().st_mtime_ns == written
    with pytest.raises(InputError, match="another masked before"):
        adopt(tmp_path / "run", str(turned), data, masked_before=True)
    with pytest.raises(InputError, match="another max length"):
        adopt(tmp_path / "run", str(turned), data, max_length=4)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="nothing is overwritten"):
        adopt(tmp_path / "mine", str(turned), data)


def test_training_goes_on_from_a_trained_model_with_its_head_and_classes(trained, turned, data, tmp_path):
    heard = Heard()
    options = TrainingOptions(epochs=1, learning_rate=1e-9)
    run = train(tmp_path / "onward", data, str(turned), options, reporter=heard)
    assert any("it keeps its head and classes (POSITIVE, NEGATIVE)" in line for line in heard.said)
    assert (
        find(run.results, "performance", ratio=0.0)["value"] == find(trained.results, "performance", ratio=0.0)["value"]
    )


def test_other_classes_are_learnt_anew_and_said(trained, tmp_path):
    rows = [{**row, "label": "ham" if row["label"] == "positive" else "spam"} for row in sentiment_rows(100)]
    (tmp_path / "mail.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    heard, other = Heard(), DataSpec(data=str(tmp_path / "mail.jsonl"))
    train(tmp_path / "onward", other, str(trained.model_folder), TrainingOptions(epochs=1), reporter=heard)
    assert any("are not those of the data (ham, spam)" in line for line in heard.said)
    with pytest.raises(InputError, match=r"classes \(negative, positive\) are not those of the data \(ham, spam\)"):
        adopt(tmp_path / "run", str(trained.model_folder), other)
    assert not (tmp_path / "run").exists()


def test_nameless_classes_in_the_wrong_order_are_found_by_the_accuracy(trained, data, tmp_path):
    heard = Heard()
    nameless = turned_round(trained, tmp_path / "nameless", ("LABEL_0", "LABEL_1"))
    adopt(tmp_path / "run", str(nameless), data, reporter=heard)
    assert any("Is the order of its classes right" in line for line in heard.said)


def test_a_model_without_a_head_has_nothing_to_explain(turned, data, tmp_path):
    config = json.loads((turned / "config.json").read_text())
    (turned / "config.json").write_text(json.dumps({**config, "architectures": ["RoFormerModel"]}))
    with pytest.raises(InputError, match=r"no classification head yet.*faithmeter train"):
        adopt(tmp_path / "run", str(turned), data)


def test_an_interrupted_adoption_leaves_nothing_behind(turned, data, tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(adopting, "store_performance", killed)
    with pytest.raises(KeyboardInterrupt):
        adopt(tmp_path / "run", str(turned), data)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["turned"]


def test_the_command_line_takes_a_model_in_place_of_a_run(turned, data, tmp_path, faithmeter):
    where = ("--data", data.data, "--run", tmp_path / "run")
    code, printed = faithmeter("check", turned, *where)
    assert code == 0, printed
    assert "trained elsewhere" in " ".join(printed.split())  # a title may wrap
    code, printed = faithmeter("measure", turned, *where, "--measures", "loo-abs", "--rows", "8", "--random-runs", "1")
    assert code == 0, printed
    assert "RACU" in printed
    assert "trained elsewhere" not in " ".join(printed.split())
    # from now on it is a run like any other
    code, printed = faithmeter("explain", tmp_path / "run", "good film")
    assert (code, "POSITIVE" in printed) == (0, True)
    code, printed = faithmeter("check", turned)
    assert (code, "is a model, not a run" in printed) == (2, True)
    code, printed = faithmeter("train", tmp_path / "run", "--resume")
    assert (code, "nothing to resume" in printed) == (2, True)


def test_that_a_model_knows_masks_is_its_owners_claim_and_the_test_without_it_stands_beside(
    turned, tmp_path, faithmeter
):
    # 800 rows: 128 for validation and 160 for the test, enough for a verdict
    (tmp_path / "more.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sentiment_rows(800, seed=1)))
    where = ("--data", tmp_path / "more.jsonl", "--run")
    code, printed = faithmeter("check", turned, *where, tmp_path / "plain")
    assert "Masking cannot be trusted on this model." in printed
    assert "randomly masked texts are out-of-distribution" in printed
    assert "Against unmasked texts" not in printed
    code, printed = faithmeter("check", turned, *where, tmp_path / "claimed", "--masked-before")
    assert code == 0, printed
    assert "its owner's claim (--masked-before), not evidence" in printed
    assert "Masking cannot be trusted on this model." in printed  # what it does with everything masked contradicts it
    assert "Against unmasked texts" in printed
    plain, claimed = (Run(tmp_path / name) for name in ("plain", "claimed"))
    # exactly the numbers of the model without the claim
    for kind in ("p_value", "share_out_of_distribution"):
        found, expected = (
            {row["masking_ratio"]: row["value"] for row in run.results if row["kind"] == f"{name}_{kind}"}
            for run, name in ((claimed, "check_unmasked"), (plain, "check"))
        )
        assert found == expected
        assert len(found) == 11
    most = max(row["value"] for row in plain.results if row["kind"] == "check_share_out_of_distribution")
    assert most > 0.5
    said = f"Compared with unmasked texts, as for a model never trained on masks, up to {100 * most:.1f} % of the"
    assert said in printed
    card = (claimed.model_folder / "README.md").read_text()
    assert said in card
    measure(claimed.path, MeasureOptions(measures=("loo-signed",), rows=60, random_runs=1))
    assert sentences.verdict(claimed.results)[0].startswith("No explanation of this model can be judged by masking")


def test_measure_and_explain_say_once_where_the_zero_embedding_is_no_start(trained, data, tmp_path):
    random_classifier("deberta", 2).save(tmp_path / "deberta")
    adopt(tmp_path / "run", str(tmp_path / "deberta"), data)
    options = MeasureOptions(("x-grad-signed", "ig-abs", "loo-signed"), rows=2, random_runs=1, without_check=True)

    def said(path):
        heard = Heard()
        measure(path, options, reporter=heard)
        explain(path, ["good film", "bad plot"], measure="ig-signed", reporter=heard)
        return [line for line in heard.said if "start from the zero embedding" in line]

    measured, explained = said(tmp_path / "run")
    assert measured.startswith("x-grad-signed, ig-abs: ")
    assert explained.startswith("ig-signed: ")
    assert "ig-mask-signed and ig-mask-abs" in measured
    own = Run(shutil.copytree(trained.path, tmp_path / "own"))
    assert said(own.path) == []  # types are added to its embeddings before the norm
    measure(tmp_path / "run", replace(options, measures=("ig-mask-abs", "ig-mask-signed")))
    assert find(Run(tmp_path / "run").results, "acu", "ig-mask-abs")["value"] is not None


def test_the_command_line_cuts_the_texts_of_a_model_and_says_so_in_the_report(turned, data, tmp_path, faithmeter):
    where = ("--data", data.data, "--run", tmp_path / "run")
    code, printed = faithmeter("check", turned, *where, "--max-length", 4)
    assert (code, "cut" in printed) == (0, True), printed
    assert Run(tmp_path / "run").classifier().max_length == 4
    assert "--max-length 4" in commands_of(Run(tmp_path / "run"))[0]
    code, printed = faithmeter("measure", turned, *where)
    assert (code, "another max length" in printed) == (2, True)
    code, printed = faithmeter("check", tmp_path / "run", "--max-length", 4)
    assert (code, "a run keeps its own settings" in printed) == (2, True)


def test_the_remedy_that_check_and_measure_print_can_be_given_as_it_is(trained, tmp_path, faithmeter, monkeypatch):
    rows = [{"the text": row["text"], "said": row["label"].upper()} for row in sentiment_rows(300, seed=1)]
    (tmp_path / "it's mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    said = ("--data", "it's mine.jsonl", "--text", "the text", "--label", "said", "--metric", "macro-f1")
    said += ("--classes", "POSITIVE=positive,NEGATIVE=negative", "--train-rows", 40, "--test-rows", 60)
    said += ("--data-seed", 3, "--max-length", 32)
    place = ("--run", "my runs/plain")
    code, checked = faithmeter("check", trained.model_folder, *said, *place)
    assert code == 0, checked
    few = ("--measures", "grad-l2", "--rows", 5, "--random-runs", 1)
    code, measured = faithmeter("measure", trained.model_folder, *said, *place, *few)
    assert code == 0, measured
    remedies = [re.findall(r"`faithmeter (train [^`]+)`", printed) for printed in (checked, measured)]
    assert remedies[0] == remedies[1]
    ((remedy,), _) = remedies
    code, printed = faithmeter(*shlex.split(remedy))
    assert code == 0, printed
    plain, onward = Run("my runs/plain").config, Run("my runs/plain-masked").config
    assert onward.training.strategy == "masked"
    assert (onward.data, onward.fingerprint, onward.labels) == (plain.data, plain.fingerprint, plain.labels)
    assert (onward.metric, onward.max_length) == ("macro-f1", 32)
    assert onward.model == str(Run("my runs/plain").model_folder.resolve())


def test_the_command_line_pools_runs(trained, tmp_path, faithmeter):
    paths = [shutil.copytree(trained.path, tmp_path / name) for name in ("one", "two")]
    code, printed = faithmeter(
        "measure", *paths, "--measures", "loo-abs", "--rows", "8", "--random-runs", "1", "--without-check"
    )
    assert code == 0, printed
    assert "All 2 runs together" in printed
    assert "Intervals over trainings" in printed
    assert Run(paths[1]).results


def test_plain_weights_declared_as_masked_are_found_out_by_check_report_and_card(trained, tmp_path):
    """The exchangeable test passes, as it must; neither it nor the claim makes a verdict."""
    run = adopt(tmp_path / "run", str(trained.model_folder), trained.config.data, masked_before=True)
    check(run.path)
    rows = run.results
    assert smallest_of([row["value"] for row in rows_of(rows, "check_p_value")]) > 0.05
    said = in_words(run.path)
    assert said.startswith("Masking cannot be trusted on this model.")
    assert "It is then much more confident than the class frequencies allow" in said
    assert "is its owner's claim (--masked-before), not evidence" in said
    assert "passes by construction whatever the model does" in said
    measure(run.path, MeasureOptions(measures=("grad-l2", "loo-signed"), rows=10, random_runs=1))
    assert sentences.recommended(run.results) is None
    (page,) = report([run.path], tmp_path / "report")
    for shown in (page.read_text(), (run.model_folder / "README.md").read_text()):
        assert "No explanation of this model can be judged by masking" in shown
        assert "Use loo-signed" not in shown


def test_a_model_trained_on_masks_here_is_not_accused(checked_toy):
    rows = Run(checked_toy).results
    assert find(rows, "all_masked_p_value")["value"] > 0.05
    assert find(rows, "all_masked_excess_loss")["low"] < 0.05
    assert not contradicted(rows)
    assert known_masks(rows) == "masked"
    assert "checks the test, not the model" in in_words(checked_toy)
