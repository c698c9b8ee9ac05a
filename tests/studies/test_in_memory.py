"""Objects in memory: a model, its tokenizer and data are judged as a run is, and are not changed."""

import copy
import dataclasses
import json
import re
import warnings

import datasets
import numpy as np
import pandas
import pytest
import torch
import transformers
from conftest import random_classifier, sentiment_rows

from faithmeter import (
    AuditOptions,
    DataSpec,
    ExplainOptions,
    InputError,
    MeasureOptions,
    Run,
    adopt,
    as_run,
    audit,
    check,
    explain,
    measure,
    report,
)
from faithmeter.data.objects import tables_of
from faithmeter.models.classifier import Classifier
from faithmeter.models.objects import hash_of, quantised

pytestmark = pytest.mark.usefixtures("without_figures")
FEW = MeasureOptions(measures=("grad-l2",), rows=6, random_runs=1)
ROWS = sentiment_rows(60)


@pytest.fixture
def objects(trained_toy):
    """A model that was trained, as a notebook holds it, and its tokenizer."""
    classifier = Run(trained_toy).classifier()
    return classifier.model, classifier.tokenizer


def state(model, tokenizer):
    """Everything of both that a study might change."""
    return (
        {name: (tensor.clone(), tensor.requires_grad) for name, tensor in model.state_dict(keep_vars=True).items()},
        model.config.to_dict(), model.training, copy.deepcopy(tokenizer.init_kwargs),
        tokenizer.backend_tokenizer.to_str(), dict(tokenizer.special_tokens_map), len(tokenizer),
    )  # fmt: skip


def same(first, second):
    weights = all(torch.equal(first[0][name][0], second[0][name][0]) for name in first[0])
    return weights and first[0].keys() == second[0].keys() and first[1:] == second[1:]


def test_one_call_checks_measures_and_ranks_and_changes_nothing(objects):
    model, tokenizer = objects
    model.train()  # as a notebook may have left it
    model.config.architectures = None  # as of a model that was never saved
    before = state(model, tokenizer)
    run = measure((model, tokenizer, pandas.DataFrame(ROWS)), FEW)
    assert run.checked
    ranking = run.ranking()
    assert list(ranking["measure"]) == ["grad-l2"]
    assert ranking["acu_low"][0] <= ranking["acu"][0] <= ranking["acu_high"][0]
    assert same(state(model, tokenizer), before)


def test_the_numbers_are_those_of_the_same_model_in_a_folder(objects, tmp_path, write):
    model, tokenizer = objects
    held = measure((model, tokenizer, ROWS), FEW)
    Classifier(model, tokenizer).save(tmp_path / "model")
    stored = adopt(tmp_path / "run", str(tmp_path / "model"), DataSpec(data=str(write("rows.jsonl", ROWS))))
    check(stored)
    measured = measure(stored, FEW)
    kinds = [(row["kind"], row["measure"], row["masking_ratio"]) for row in measured.results]
    assert len(kinds) > 50
    timed = ("seconds_per_text",)
    assert [row for row in held.results if row["kind"] not in timed] == [
        row for row in measured.results if row["kind"] not in timed
    ]


def test_the_same_objects_are_the_same_run_and_changed_ones_are_another(objects):
    (model, tokenizer), own = objects, sentiment_rows(50)
    run = as_run((model, tokenizer, own))
    check((model, tokenizer, own))
    assert run.checked
    assert as_run((model, tokenizer, pandas.DataFrame(own))).path == run.path
    assert as_run((model, tokenizer, own[1:])).path != run.path
    assert as_run((model, tokenizer, own), max_length=8).path != run.path
    with torch.no_grad():
        next(model.parameters()).add_(0.1)
    assert as_run((model, tokenizer, own)).path != run.path


def test_a_named_run_is_an_ordinary_one_that_is_found_again(objects, tmp_path, faithmeter):
    model, tokenizer = objects
    run = as_run((model, tokenizer, ROWS), tmp_path / "mine")
    assert run.path == tmp_path / "mine"
    assert as_run((model, tokenizer, ROWS), tmp_path / "mine").config == run.config
    with pytest.raises(InputError, match="is a run of another model, other data or other options"):
        as_run((model, tokenizer, ROWS[2:]), tmp_path / "mine")
    code, printed = faithmeter("check", tmp_path / "mine")
    assert code == 0, printed
    code, printed = faithmeter("measure", tmp_path / "mine", "--measures", "grad-l2", "--rows", "4")
    assert code == 0, printed
    assert sorted(file.name for file in (tmp_path / "mine" / "texts").glob("*.jsonl")) == ["train.jsonl"]
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]


def test_audit_explain_and_report_take_objects(objects, tmp_path):
    mine = (*objects, ROWS)
    audited = audit(mine, AuditOptions(("sparsity",), ("grad-l2",), rows=3))
    assert any(row["kind"].startswith("audit_sparsity") for row in audited.results)
    (explanation,) = explain(mine, "a good film", options=ExplainOptions(orders=0))
    assert explanation.text == "a good film"
    (page,) = report(mine, tmp_path / "report", examples=False)
    assert page.is_file()
    assert report(audited, tmp_path / "again", examples=False)
    assert report([audited.path], tmp_path / "thrice", examples=False)


def test_a_pipeline_brings_its_tokenizer(objects):
    model, tokenizer = objects
    pipeline = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer)
    assert as_run((pipeline, ROWS)).path == as_run((pipeline.model, pipeline.tokenizer, ROWS)).path


def test_every_kind_of_table_has_the_same_rows():
    texts, labels = [row["text"] for row in ROWS], [row["label"] for row in ROWS]
    for table in (
        pandas.DataFrame(ROWS), datasets.Dataset.from_list(ROWS), {"text": texts, "label": labels}, ROWS,
        (texts, labels), {"text": np.array(texts), "label": np.array(labels)},
        {"text": pandas.Series(texts), "label": labels},
    ):  # fmt: skip
        assert tables_of(table, ()) == {"train": ROWS}
    split = {"train": pandas.DataFrame(ROWS[:40]), "test": ROWS[40:]}
    assert tables_of(split, ()) == {"train": ROWS[:40], "test": ROWS[40:]}
    as_hub = datasets.DatasetDict({part: datasets.Dataset.from_list(list(rows)) for part, rows in
                                   (("train", ROWS[:40]), ("test", ROWS[40:]))})  # fmt: skip
    assert tables_of(as_hub, ()) == {"train": ROWS[:40], "test": ROWS[40:]}
    triple = tables_of((["a"], ["b"], [1]), ())
    assert triple == {"train": [{"text": "a", "context": "b", "label": 1}]}
    missing = tables_of(pandas.DataFrame({"text": ["a", None], "label": [1.0, float("nan")]}), ())
    assert missing["train"][1] == {"text": None, "label": None}


def test_numbered_labels_have_their_names_only_where_those_are_the_models_classes():
    numbered = datasets.Dataset.from_dict(
        {"text": ["a", "b"], "label": [0, 1]},
        features=datasets.Features({"text": datasets.Value("string"),
                                    "label": datasets.ClassLabel(names=["pos", "neg"])}),
    )  # fmt: skip
    assert [row["label"] for row in tables_of(numbered, ("NEG", "POS"))["train"]] == ["pos", "neg"]
    assert [row["label"] for row in tables_of(numbered, ("LABEL_0", "LABEL_1"))["train"]] == [0, 1]


def test_columns_and_metric_are_named_as_for_a_file(objects):
    frame = pandas.DataFrame(ROWS).rename(columns={"text": "review", "label": "stars"})
    with pytest.raises(InputError, match="no column 'text'; it has 'review', 'stars'"):
        as_run((*objects, frame))
    run = as_run((*objects, frame), spec=DataSpec(text="review", label="stars", metric="macro-f1"))
    assert run.config.metric == "macro-f1"
    assert set(run.data().test["text"]) <= set(frame["review"])


def test_pairs_in_lists_are_pairs(tmp_path):
    classifier = random_classifier("bert", classes=2)
    texts = [row["text"] for row in ROWS]
    data = (texts, ["the film"] * len(texts), [number % 2 for number in range(len(texts))])
    run = as_run((classifier.model, classifier.tokenizer, data))
    assert set(run.data().test["context"]) == {"the film"}


def test_a_model_in_bfloat16_is_judged_in_float32_with_the_same_weights(objects):
    model, tokenizer = objects
    half = copy.deepcopy(model).to(torch.bfloat16)
    run = as_run((half, tokenizer, ROWS))
    loaded = run.classifier().model
    assert loaded.dtype == torch.float32
    for name, tensor in half.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor.float()), name
    assert half.dtype == torch.bfloat16


def test_adapters_are_merged_into_a_copy(objects):
    peft = pytest.importorskip("peft", reason="the extra `peft` is not installed")
    model, tokenizer = objects
    adapted = peft.get_peft_model(
        copy.deepcopy(model), peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])
    )
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.5)
    before = {name: tensor.clone() for name, tensor in adapted.state_dict().items()}
    run = as_run((adapted, tokenizer, ROWS))
    classifier = run.classifier()
    texts = [row["text"] for row in ROWS[:5]]
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    adapted.eval()
    with torch.no_grad():
        expected = adapted(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
    assert torch.allclose(classifier.predict(classifier.encode(texts)), expected, atol=1e-4)
    assert not torch.allclose(expected, model.eval()(**{k: inputs[k] for k in ("input_ids", "attention_mask")}).logits)
    after = adapted.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda m, t: (m, t), "NoneType is no tokenizer: give that of the model"),
        (lambda m, t: (m, t, 7), "int is no data that can be read: give a DataFrame"),
        (lambda m, t: (m, None, ROWS), "NoneType is no tokenizer: give that of the model"),
        (lambda m, t: (torch.nn.Linear(2, 2), t, ROWS), "Linear is no transformers model"),
        (lambda m, t: (m, t, ROWS, 1), "tuple is no run: give a run or its directory, (model, tokenizer, data)"),
        (lambda m, t: 7, "int is no run"),
        (lambda m, t: (m, t, {"text": ["a"], "label": [1, 2]}), "different lengths: 1 in 'text', 2 in 'label'"),
        (lambda m, t: (m, t, "reviews.csv"), "str is no data that can be read"),
        (lambda m, t: (m, t, (["a", "b"], ["cat", "dog"])), "too few to split off"),
        (lambda m, t: (m, t, [{**row, "label": "cat" if n % 2 else "dog"} for n, row in enumerate(ROWS)]),
         "The model's classes (negative, positive) are not those of the data (cat, dog)"),
    ],
)  # fmt: skip
def test_what_cannot_be_judged_is_refused_in_a_sentence(objects, made, said):
    with pytest.raises(InputError, match=re.escape(said)):
        check(made(*objects))


# ------------------------------------------------------------------------------------------------ quantised models


@pytest.fixture
def in_eight_bits(objects):
    """The model with its linear layers in 8 bits, as torch does it on a processor."""
    model, tokenizer = objects
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch advises another package
        smaller = torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {torch.nn.Linear}, dtype=torch.qint8)
    return smaller, tokenizer


def test_a_quantised_model_is_judged_as_it_is_by_measures_that_only_ask_it(in_eight_bits, tmp_path):
    model, tokenizer = in_eight_bits
    own = sentiment_rows(44)
    before = hash_of(model, tokenizer)
    run = measure((model, tokenizer, own), MeasureOptions(rows=3, random_runs=1))
    assert run.checked
    assert run.classifier().model is model
    names = set(run.ranking()["measure"])
    assert {"loo-signed", "lime", "attention"} <= names
    assert not names & {"grad-l1", "grad-l2", "x-grad-signed", "ig-signed", "deep-lift", "scaled-attention"}
    assert hash_of(model, tokenizer) == before
    (explanation,) = explain(run, "a good film", options=ExplainOptions(orders=0), measure="loo-signed")
    assert explanation.predicted in run.config.labels
    audited = audit(run, AuditOptions(measures=("loo-signed",), rows=3))
    assert set(audited.judgement_settings) == {"erasure", "insertion", "fidelity", "sparsity", "drift"}
    assert report(run, tmp_path / "report")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (lambda one: measure(one, MeasureOptions(measures=("grad-l2",), rows=3, without_check=True)),
         "grad-l2 needs gradients, which a quantised model does not have. Name measures that only ask the model: loo-"),
        (lambda one: explain(one, "a good film", measure="scaled-attention"), "scaled-attention needs gradients"),
        (lambda one: audit(one, AuditOptions(("randomisation",), ("loo-signed",), rows=3)),
         "The judge randomisation changes or trains weights, which a quantised model does not allow"),
        (lambda one: measure(one, MeasureOptions(rows=3, without_check=True, dtype="bfloat16")),
         "A quantised model cannot be measured in bfloat16"),
        (lambda one: as_run(one, "kept"), "is quantised, so its weights cannot be stored in kept"),
    ],
)  # fmt: skip
def test_what_a_quantised_model_cannot_do_is_said_in_a_sentence(in_eight_bits, asked, said):
    with pytest.raises(InputError, match=re.escape(said)):
        asked((*in_eight_bits, ROWS))


def test_models_in_eight_or_four_bits_are_told_by_what_their_library_leaves_behind(objects, in_eight_bits):
    model, _ = objects
    assert not quantised(model)
    assert not quantised(copy.deepcopy(model).to(torch.bfloat16))
    assert quantised(in_eight_bits[0])
    other = copy.deepcopy(model)
    other.config.quantization_config = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    assert quantised(other)


def test_a_run_is_taken_for_itself(checked_toy):
    run = Run(checked_toy)
    assert as_run(run) is run
    assert as_run(str(checked_toy)).path == run.path
    assert dataclasses.asdict(run.config)["objects"] is None
    assert "objects" in json.loads((checked_toy / "config.json").read_text())


def test_measuring_without_a_check_is_as_asked(objects):
    own = sentiment_rows(40)
    run = measure((*objects, own), options=MeasureOptions(measures=("grad-l2",), rows=3, without_check=True))
    assert not run.checked


def test_a_path_may_still_be_given_by_name(checked_toy, tmp_path):
    assert report(paths=[checked_toy], out=tmp_path / "report", examples=False)
