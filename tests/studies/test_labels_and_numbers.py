"""Models that give several labels at once, or a number: trained, checked, measured, explained, judged, reported.

In the toys a word decides a label, or the number of stars.
"""

import itertools
import json
import shutil

import numpy as np
import pyarrow.parquet
import pytest
import scipy
import torch
import transformers
from conftest import made_once, word_pieces
from starlette.testclient import TestClient

from faithmeter import (
    AuditOptions,
    DataSpec,
    ExplainOptions,
    MeasureOptions,
    Run,
    TrainingOptions,
    attack,
    audit,
    check,
    explain,
    load_classifier,
    measure,
    report,
    select,
    train,
)
from faithmeter.errors import InputError
from faithmeter.importance.table import IMPORTANCE_MEASURES
from faithmeter.in_distribution.behaviour import all_masked
from faithmeter.in_distribution.limits import EXCESS_ALLOWED
from faithmeter.measuring.curves import masking_walk
from faithmeter.progress import Silent
from faithmeter.runs.measurements import read_measurement
from faithmeter.runs.results import find, rows_of
from faithmeter.runs.texts import encode
from faithmeter.studies.adopt import adopt
from faithmeter.studies.check import in_words
from faithmeter.studies.compare import compare
from faithmeter.studies.in_memory import as_run
from faithmeter.studies.prompt import PromptOptions, prompt
from faithmeter.studies.roar.roar import begin_roar
from faithmeter.studies.scores import ScoresOptions, scores
from faithmeter.studies.transfer import transfer
from faithmeter.web.app import create_app

FILLING = ("film", "story", "actor", "plot", "the", "it")
TELLING = {"rude": "idiot", "scary": "ghost"}
STARS = {"awful": 1, "bad": 2, "fair": 3, "good": 4, "great": 5}
OPTIONS = TrainingOptions(epochs=12, curriculum=False, learning_rate=2e-3, batch_size=16)
MEASURES = ("loo-signed", "loo-abs")


def toy_rows(count: int = 400) -> list[dict]:
    random = np.random.default_rng(0)
    rows = []
    for _ in range(count):
        words = [str(word) for word in random.choice(FILLING, 5)]
        told = {name: int(random.random() < 0.4) for name in TELLING}
        praise = str(random.choice(list(STARS)))
        for word in (praise, *(TELLING[name] for name, has in told.items() if has)):
            words.insert(int(random.integers(len(words) + 1)), word)
        rows.append({"text": " ".join(words), **told, "stars": STARS[praise]})
    return rows


SPECS = {"labels": {"labels": "rude,scary", "metric": "macro-f1"}, "number": {"number": "stars"}}


def measured(tmp_path_factory, kind: str):
    def make(folder) -> None:
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in toy_rows()))
        train(folder / "run", DataSpec(data=str(folder / "rows.jsonl"), **SPECS[kind]), "small", OPTIONS)
        check(folder / "run")
        measure(folder / "run", MeasureOptions(measures=MEASURES, rows=60, random_runs=2))

    return made_once(tmp_path_factory, f"measured-{kind}", make) / "run"


@pytest.fixture(scope="session")
def labels_run(tmp_path_factory):
    return measured(tmp_path_factory, "labels")


@pytest.fixture(scope="session")
def number_run(tmp_path_factory):
    return measured(tmp_path_factory, "number")


@pytest.fixture(params=SPECS)
def either_run(request):
    return request.getfixturevalue(f"{request.param}_run")


# ------------------------------------------------------------------------------------------------ train and check


def test_a_model_of_labels_or_a_number_learns_what_the_words_tell_and_says_what_it_is(either_run):
    run = Run(either_run)
    assert find(run.results, "performance", ratio=0.0)["value"] > 0.9
    assert find(run.results, "majority_p_value")["value"] < 0.01
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(run.model_folder)
    assert loaded.config.problem_type == run.config.problem.problem_type
    assert load_classifier(str(run.model_folder), run.config.labels).problem is run.config.problem
    card = (run.model_folder / "README.md").read_text()
    assert ("several labels at once" if run.config.problem.name == "labels" else "with a number (stars)") in card
    assert run.config.problem.blind in card


def test_the_blind_answers_are_the_frequencies_and_the_mean_of_training(labels_run, number_run):
    # no label is in half of the texts, so none is given: F1 is 0. The mean explains nothing: R² is about 0.
    assert find(Run(labels_run).results, "majority")["value"] == 0
    assert find(Run(number_run).results, "majority")["value"] == pytest.approx(0, abs=0.1)


def test_with_everything_masked_a_model_is_compared_with_the_frequencies_and_the_mean(either_run):
    run = Run(either_run)
    told = in_words(either_run)
    assert f"than the {run.config.problem.blind}" in told
    assert run.config.problem.all_masked[0] in told


def test_the_loss_with_everything_masked_is_worked_by_hand(labels_run, number_run):
    for path in (labels_run, number_run):
        run = Run(path)
        classifier, splits = run.classifier(), run.data()
        test = encode(classifier, splits.test, "test", Silent())
        logits = classifier.predict(test.masked_by(lambda _, maskable: maskable)).double().numpy()
        gold, trained = test.labels, np.array(splits.train["label"], dtype=float)
        if path == labels_run:
            shares = (trained.sum(axis=0) + 1) / (len(trained) + 2)
            chance = 1 / (1 + np.exp(-logits))
            own, blind = (-(gold * np.log(p) + (1 - gold) * np.log(1 - p)).mean(axis=1) for p in (chance, shares))
        else:
            own, blind = ((given - gold)[:, 0] ** 2 / (2 * trained.var()) for given in (logits, trained.mean()))
        found = all_masked(classifier, test, splits.train["label"], run.config.metric)
        assert found.excess_loss == pytest.approx((own - blind).mean(), abs=1e-6)
        if path == number_run:  # a little worse than the mean is allowed, however many texts show it
            expected = scipy.stats.ttest_1samp(own - blind, EXCESS_ALLOWED, alternative="greater").pvalue
            assert found.p_value == pytest.approx(expected, abs=1e-6)


def test_a_number_far_from_0_is_learnt_because_the_head_begins_at_its_mean(tmp_path, write):
    rows = [row | {"stars": 100_000 + 20_000 * row["stars"]} for row in toy_rows(200)]
    data = DataSpec(data=str(write("prices.jsonl", rows)), number="stars")
    run = train(tmp_path / "run", data, "small", TrainingOptions(epochs=6, learning_rate=2e-3, batch_size=16))
    assert find(run.results, "performance", ratio=0.0)["value"] > 0.5


def test_robust_training_and_a_curriculum_of_numbers_are_refused(tmp_path, write):
    file = str(write("rows.jsonl", toy_rows(40)))
    for spec in SPECS.values():
        with pytest.raises(InputError, match="Robust training needs a model that chooses one of several classes"):
            train(tmp_path / "run", DataSpec(data=file, **spec), "small", TrainingOptions(robust=("vat",)))
    with pytest.raises(InputError, match="leave out --curriculum"):
        train(tmp_path / "run", DataSpec(data=file, number="stars"), "small", TrainingOptions(curriculum=True))
    assert not (tmp_path / "run").exists()


# ------------------------------------------------------------------------------------------------------- measure


def test_leave_one_out_finds_the_word_that_decides_a_label_or_a_number(either_run):
    rows = Run(either_run).results
    # by its size: of a number, the word that lowers it is the last that a signed measure masks
    assert find(rows, "acu", "loo-abs")["low"] > 0.2
    assert find(rows, "racu", "loo-abs")["value"] > 0.5


def test_each_label_is_masked_by_its_own_explanation(labels_run):
    run = Run(labels_run)
    classifier = run.classifier()
    test = encode(classifier, run.data().test, "test", Silent())
    table = read_measurement(run, "loo-signed")
    row = int(table["row"][7, 0])
    for label in range(2):
        walk = masking_walk(
            classifier, test.batch([row]), IMPORTANCE_MEASURES["loo-signed"], torch.tensor([label]), seed=0
        )
        expected = [float(classifier.predict_with_features(one)[0].sigmoid()[0, label]) for one in walk]
        assert table[f"score:{label}"][7].tolist() == pytest.approx(expected, abs=1e-5)
    # the first word that is masked is the one that tells the label, where the text has it
    gold = np.array(run.data().test["label"])[table["row"][:, 0]]
    for label in range(2):
        has = gold[:, label] == 1
        assert (table[f"score:{label}"][has][:, 0] > 0.5).mean() > 0.9
        assert (table[f"score:{label}"][has][:, 2] < 0.5).mean() > 0.9


def test_the_curve_by_macro_f1_is_the_mean_of_the_labels_curves(labels_run):
    rows = Run(labels_run).results
    for name, step in itertools.product((*MEASURES, "random"), range(11)):
        each = [find(rows, "label_masked_performance", name, step / 10, label)["value"] for label in ("rude", "scary")]
        whole = find(rows, "masked_performance", name, step / 10)["value"]
        assert whole == pytest.approx(np.mean(each))
    for name in MEASURES:
        each = [find(rows, "label_acu", name, detail=label)["value"] for label in ("rude", "scary")]
        assert find(rows, "acu", name)["value"] == pytest.approx(np.mean(each))


def test_a_number_has_no_rows_of_labels(number_run):
    assert not rows_of(Run(number_run).results, "label_acu")


def test_the_area_of_one_text_is_how_much_farther_its_number_moves_than_at_random(number_run):
    run = Run(number_run)
    own, *random = (
        read_measurement(run, name)["score:0"].astype(np.float64) for name in ("loo-abs", "random.0", "random.1")
    )
    near = [-np.abs(scores - scores[:, :1]) for scores in (own, *random)]
    expected = np.trapezoid((near[1] + near[2]) / 2 - near[0], dx=0.1, axis=1)
    stored = pyarrow.parquet.read_table(run.observations, filters=[("measure", "=", "loo-abs")])
    assert stored["acu"].to_pylist() == pytest.approx(expected.tolist())
    assert stored["label"].to_pylist() == ["stars"] * 60


def test_observations_of_labels_are_of_each_text_and_label(labels_run):
    stored = pyarrow.parquet.read_table(Run(labels_run).observations, filters=[("measure", "=", "loo-abs")])
    assert stored.num_rows == 2 * 60
    assert stored["label"].to_pylist()[:2] == ["rude", "scary"]


def test_every_walk_of_a_label_is_tested_for_being_in_distribution(labels_run):
    table = read_measurement(Run(labels_run), "loo-signed")
    assert {"p_own:0", "p_own:1", "p_outside:0", "p_outside:1"} <= set(table)
    assert len(rows_of(Run(labels_run).results, "share_out_of_distribution", "loo-signed")) == 11


def test_measuring_in_rounds_and_pooling_over_seeds_work_with_labels(labels_run, tmp_path):
    run = shutil.copytree(labels_run, tmp_path / "run")
    shutil.rmtree(run / "measurements")
    measure(run, MeasureOptions(measures=MEASURES, rows=40, random_runs=1, until_certain=True))
    assert find(Run(run).results, "acu", "loo-abs")["value"] > 0.2


def test_a_predicted_class_as_target_is_refused(either_run, tmp_path):
    run = shutil.copytree(either_run, tmp_path / "run")
    with pytest.raises(InputError, match=r"The target 'predicted' is a class.*Leave out --target"):
        measure(run, MeasureOptions(target="predicted"))


# ------------------------------------------------------------------------------------------------------- explain


def test_the_most_probable_label_is_explained_or_the_one_that_is_named(labels_run):
    text = "the film idiot plot great"
    options = ExplainOptions(orders=19)
    (found,) = explain(labels_run, text, options=options, measure="loo-signed")
    assert (found.predicted, found.target, found.problem) == ("rude", "rude", "labels")
    assert max(found.words, key=lambda word: word.importance).text == "idiot"
    assert found.acu > 0.1
    both = explain(labels_run, "idiot film ghost", options=ExplainOptions("scary", orders=0), measure="loo-signed")[0]
    assert (both.predicted, both.target) == ("rude, scary", "scary")
    assert max(both.words, key=lambda word: word.importance).text == "ghost"
    assert explain(labels_run, "the film", options=ExplainOptions(orders=0))[0].predicted == "none of the labels"
    with pytest.raises(InputError, match=r"no class 'rud'.*Did you mean 'rude'"):
        explain(labels_run, text, options=ExplainOptions("rud"))


def test_a_number_is_explained_by_what_raises_and_lowers_it(number_run):
    low, high = explain(
        number_run, ["the film awful plot it", "the film great plot it"], options=ExplainOptions(orders=19),
        measure="loo-signed",
    )  # fmt: skip
    assert min(low.words, key=lambda word: word.importance).text == "awful"
    assert max(high.words, key=lambda word: word.importance).text == "great"
    assert low.probability < 2 < 4 < high.probability
    assert f"stars = {high.probability:.4g}, by loo-signed" in str(high)
    assert high.curve[0] == 0
    assert max(high.curve) <= 0
    assert high.acu > 0


# ------------------------------------------------------------------------------------- judges, reports, the page


def test_judges_that_need_classes_are_refused_by_name_and_left_out_unasked(either_run, tmp_path):
    run = shutil.copytree(either_run, tmp_path / "run")
    for judge in ("erasure", "fidelity", "known-token"):
        with pytest.raises(InputError, match=f"The judge {judge} needs a model that chooses one of several classes"):
            audit(run, AuditOptions(judges=(judge,)))
    audit(run, AuditOptions(judges=("randomisation", "sparsity"), measures=("grad-l2",), rows=4))
    assert {"randomisation", "sparsity"} == set(Run(run).judgement_settings)


def test_what_needs_classes_is_refused_in_words_and_leaves_nothing(either_run, tmp_path, write):
    data, needs = Run(either_run).config.data, "needs a model that chooses one of several classes"
    for refused in (
        lambda: attack(either_run, rows=2),
        lambda: select(either_run),
        lambda: transfer(either_run, tmp_path / "out", data),
        lambda: compare(tmp_path / "out", data, "small"),
        lambda: begin_roar(tmp_path / "out", data, "small"),
    ):
        with pytest.raises(InputError, match=needs):
            refused()
    assert not (tmp_path / "out").exists()


def test_the_report_shows_each_label_and_what_is_explained(labels_run, number_run, tmp_path):
    (page,) = report([labels_run], tmp_path / "labels", examples=True)
    html = page.read_text()
    for said in ("Label by label", "Explained is the logit of every label", "label frequencies", "supports the label",
                 "True labels: "):  # fmt: skip
        assert said in html
    (page,) = report([number_run], tmp_path / "number", examples=True)
    html = page.read_text()
    for said in ("Explained is the number that the model answers", "mean number", "raises the number", "points of R²",
                 "True stars:"):  # fmt: skip
        assert said in html
    assert "Label by label" not in html


def test_the_page_explains_labels_and_numbers(labels_run, number_run):
    for path, what, true in ((labels_run, "label", "labels"), (number_run, "number", "number")):
        with TestClient(create_app(Run(path)), base_url="http://127.0.0.1") as client:
            assert f"Explain the {what}" in client.get("/").text
            row = client.get("/rows/0").json()
            assert row["what"] == true
            assert row["label"]


# ---------------------------------------------------------------------------------------- models trained elsewhere


def test_a_model_trained_elsewhere_is_judged_by_what_its_config_says(tmp_path, write):
    config = {
        "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
        "vocab_size": 60, "max_position_embeddings": 64,
    }  # fmt: skip
    file = str(write("rows.jsonl", toy_rows(60)))
    names = {"id2label": {0: "scary", 1: "rude"}, "label2id": {"scary": 0, "rude": 1}}
    for kind, spec, more in (
        ("labels", SPECS["labels"], {"problem_type": "multi_label_classification", **names}),
        ("number", SPECS["number"], {"num_labels": 1}),
    ):
        model = transformers.BertForSequenceClassification(transformers.BertConfig(**config, **more))
        model.save_pretrained(tmp_path / kind)
        word_pieces().save_pretrained(tmp_path / kind)
        run = adopt(tmp_path / f"{kind}-run", str(tmp_path / kind), DataSpec(data=file, **spec))
        assert run.config.problem.name == run.classifier().problem.name == kind
        assert run.config.labels == (("scary", "rude") if kind == "labels" else ("stars",))
        other = "number" if kind == "labels" else "labels"
        with pytest.raises(InputError, match=f"the data has {other}, so its answers would be misread"):
            adopt(tmp_path / "wrong", str(tmp_path / kind), DataSpec(data=file, **SPECS[other]))


# ------------------------------------------------------------------------------ adapters, objects, scores, prompts


@pytest.mark.parametrize("kind", SPECS)
def test_an_adapter_can_be_trained_for_labels_and_numbers(kind, trained_toy, tmp_path, write):
    pytest.importorskip("peft")
    data = DataSpec(data=str(write("rows.jsonl", toy_rows(60))), **SPECS[kind])
    options = TrainingOptions(lora=True, epochs=1, batch_size=16)
    run = train(tmp_path / "run", data, str(trained_toy / "model"), options)
    classifier = run.classifier()
    assert classifier.problem.name == kind
    assert classifier.labels == run.config.labels
    if kind == "number":  # the head begins at the mean of the numbers, and has hardly learnt anything yet
        answers = classifier.predict(classifier.encode(["the film", "a story"]))
        assert answers.tolist() == [[pytest.approx(3, abs=1.5)]] * 2


@pytest.mark.parametrize("kind", SPECS)
def test_a_model_and_data_in_memory_may_have_labels_or_a_number(kind, request):
    run = Run(request.getfixturevalue(f"{kind}_run"))
    model = transformers.AutoModelForSequenceClassification.from_pretrained(run.model_folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(run.model_folder)
    made = as_run((model, tokenizer, toy_rows(60)), spec=DataSpec(**SPECS[kind]))
    assert made.config.problem.name == kind
    assert find(made.results, "performance", ratio=0.0)["value"] > 0.8


def test_scores_of_a_number_are_written_and_read_and_those_of_labels_refused(labels_run, number_run, tmp_path):
    run = shutil.copytree(number_run, tmp_path / "run")
    file = scores(run, tmp_path / "mine.jsonl", ScoresOptions("loo-abs", rows=60))
    shutil.rmtree(run / "measurements")
    measure(run, MeasureOptions(measures=("loo-abs",), rows=60, random_runs=1, scores=(file,)))
    rows = Run(run).results
    assert find(rows, "acu", "mine")["value"] == pytest.approx(find(rows, "acu", "loo-abs-once")["value"], abs=1e-6)
    with pytest.raises(InputError, match="each label has an explanation of its own"):
        scores(labels_run, tmp_path / "other.jsonl")
    with pytest.raises(InputError, match=r"Leave out --target"):
        scores(number_run, tmp_path / "other.jsonl", ScoresOptions(target="predicted"))


def test_a_prompt_for_labels_or_a_number_is_refused(tmp_path, write):
    file = str(write("rows.jsonl", toy_rows(40)))
    for spec in SPECS.values():
        with pytest.raises(InputError, match="A prompt needs a model that chooses one of several classes"):
            prompt(tmp_path / "run", DataSpec(data=file, **spec), "small", PromptOptions("{text} is"))
