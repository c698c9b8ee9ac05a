"""The battery on every kind of model: each judge gives a number or nan for each text, whatever its neighbours."""

import copy
import dataclasses
import json

import numpy as np
import pytest
import torch
from conftest import random_classifier, sentiment_rows

from faithmeter import AuditOptions, DataSpec, TrainingOptions, audit, check, train
from faithmeter.importance.table import IMPORTANCE_MEASURES
from faithmeter.in_distribution.masf import fit_calibrated, step_features
from faithmeter.judges.drift import fit_space
from faithmeter.judges.judge import Bench
from faithmeter.judges.table import JUDGES
from faithmeter.masking import STEPS
from faithmeter.runs.results import find

TEXTS = ["the film was great", "was the story bad? the plot was very good!", "good film", "it was not awful at all"]
SHAPES = ("bert", "roberta", "distilbert", "t5", "gpt2")


@pytest.fixture(scope="module", params=SHAPES)
def bench(request):
    classifier = random_classifier(request.param)
    classifier.model.eval()
    test = classifier.encode(TEXTS)
    reference = classifier.encode(TEXTS * 3)
    features = step_features(classifier, reference, seed=0, steps=range(STEPS + 1))
    masf = fit_calibrated(features, torch.from_numpy(reference.lengths), steps=STEPS + 1)
    truth = np.zeros(len(test.ids), dtype=np.bool_)
    for start, end in zip(test.offsets[:-1], test.offsets[1:], strict=True):
        truth[start + np.flatnonzero(test.maskable[start:end])[0]] = True  # the first word of each text
    space, other = fit_space(classifier, test), copy.copy(classifier)
    other.model = copy.deepcopy(classifier.model)
    with torch.no_grad():  # not the same model, and much the same answers
        other.model.get_input_embeddings().weight *= 1.01
    return Bench(classifier, test, masf, seed=0, truth=truth, adversary_steps=3, space=space, other=other)


@pytest.mark.parametrize("name", JUDGES)
def test_a_judge_judges_random_weights_of_every_architecture_text_by_text(bench, name):
    judge, measure = JUDGES[name], IMPORTANCE_MEASURES["x-grad-signed"]
    together = judge.judge(bench, bench.test.batch(range(len(TEXTS))), measure)
    assert together
    assert set(judge.scores) <= {column.partition("@")[0] for column in together}
    for row in (0, 2):
        alone = judge.judge(bench, bench.test.batch([row]), measure)
        for column, values in together.items():
            assert values.shape == (len(TEXTS),)
            assert not np.isinf(values).any()
            np.testing.assert_allclose(alone[column][0], values[row], atol=1e-4, err_msg=column)
    # random weights hardly change their answer: there is no flip, nothing to normalise by, no text of another class;
    # and where all answers are close to each other, all may change with a token
    untold = ("flip", "norm", "focus", "inserted", "removed")
    told = [values for column, values in together.items() if not any(word in column for word in untold)]
    assert all(np.isfinite(values).any() for values in told)


def test_an_explanation_that_two_judges_ask_for_is_made_once(bench):
    asked = []
    measure = IMPORTANCE_MEASURES["grad-l2"]

    def explain(classifier, batch, targets, seed):
        asked.append(len(batch))
        return measure.explain(classifier, batch, targets, seed)

    counted = type(measure)(**{**vars(measure), "name": "counted", "explain": explain})
    batch = bench.test.batch([0, 1])
    for name in ("erasure", "sparsity", "fidelity"):
        JUDGES[name].judge(bench, batch, counted)
    assert asked == [2]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["small", "gpt2-tiny"])
def test_the_battery_runs_on_trained_models_of_two_architectures_and_knows_chance_from_an_explanation(tmp_path, model):
    rows = sentiment_rows(600)
    for row in rows:
        row["reason"] = [int(word in ("good", "bad")) for word in row["text"].split()]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = TrainingOptions(epochs=12, curriculum=False, learning_rate=2e-3, batch_size=16)
    run = train(tmp_path / "run", DataSpec(data=str(tmp_path / "rows.jsonl")), model, options)
    other = train(tmp_path / "other", run.config.data, model, dataclasses.replace(options, seed=1))
    assert find(run.results, "performance", ratio=0.0)["value"] > 0.95
    check(run.path)
    measures = ("grad-l2", "x-grad-signed", "ig-signed", "loo-signed", "lime", "kernel-shap", "attention", "deep-lift")
    options = AuditOptions(tuple(JUDGES), measures, rows=20, rationales="reason", adversary_steps=40, other=other.path)
    found = audit(run.path, options).results
    for kind, sign in {
        "known-token_overlap": 1,
        "plausibility_average_precision": 1,
        "erasure_comprehensiveness": 1,
        "fidelity_masked_until_flip": -1,
    }.items():
        for name in ("loo-signed", "kernel-shap"):
            chance, value = (find(found, f"audit_{kind}", one)["value"] for one in ("random", name))
            assert sign * (value - chance) > 0.05, (kind, name)
    assert {row["kind"] for row in found} >= {"audit_agreement", "audit_adversarial_rank_change", "audit_sparsity_held"}
