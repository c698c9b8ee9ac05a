"""A SetFitModel and data in memory: checked, measured, explained, audited, kept as a run, and trained further."""

import numpy as np
import pytest
from conftest import sentiment_rows
from setfit_like import SetFit
from sklearn.linear_model import LogisticRegression

from faithmeter import (
    AuditOptions,
    DataSpec,
    ExplainOptions,
    InputError,
    MeasureOptions,
    TrainingOptions,
    adopt,
    as_run,
    audit,
    check,
    explain,
    measure,
    train,
)

pytestmark = pytest.mark.usefixtures("without_figures")
ROWS = sentiment_rows(60)


def fitted() -> SetFit:
    model = SetFit(max_seq_length=64)
    texts = [row["text"] for row in ROWS]
    model.model_head = LogisticRegression(C=1e3).fit(model.encode(texts), [row["label"] for row in ROWS])
    return model


def test_it_is_judged_like_any_other_and_stays_as_a_run(tmp_path, faithmeter):
    model = fitted()
    run = as_run((model, ROWS), tmp_path / "mine")
    check(run)
    measured = measure(run, MeasureOptions(measures=("grad-l2", "loo-signed"), rows=4, random_runs=1))
    assert set(measured.ranking()["measure"]) == {"grad-l2", "loo-signed"}
    audited = audit(run, AuditOptions(("sparsity", "randomisation"), ("grad-l2",), rows=3))
    assert {"sparsity", "randomisation"} <= set(audited.judgement_settings)
    (explanation,) = explain((model, ROWS), "good film plot", options=ExplainOptions(orders=0), measure="loo-signed")
    expected = model.model_head.predict(model.encode(["good film plot"]))[0]
    assert explanation.predicted == expected
    texts = list(run.data().test["text"])
    classifier = run.classifier()
    found = classifier.predict(classifier.encode(texts)).softmax(dim=-1).numpy()
    np.testing.assert_allclose(found, model.model_head.predict_proba(model.encode(texts)), rtol=0, atol=1e-5)
    code, printed = faithmeter("measure", tmp_path / "mine", "--measures", "attention", "--rows", "4")
    assert code == 0, printed


def test_its_copy_can_be_trained_with_masks(tmp_path, write):
    run = as_run((fitted(), ROWS), tmp_path / "mine")
    data = DataSpec(data=str(write("rows.jsonl", ROWS)))
    options = TrainingOptions(epochs=1, curriculum=False)
    trained = train(tmp_path / "masked", data, str(run.path / "model"), options)
    assert type(trained.classifier().model).__name__ == "SentenceForSequenceClassification"


def test_a_folder_of_setfit_is_refused_by_the_commands(tmp_path, write, faithmeter):
    model = fitted()
    model.model_body[0].auto_model.save_pretrained(tmp_path / "setfit")
    model.model_body[0].tokenizer.save_pretrained(tmp_path / "setfit")
    (tmp_path / "setfit" / "model_head.pkl").write_bytes(b"never read")
    data = write("rows.jsonl", ROWS)
    with pytest.raises(InputError, match="SetFit model with its head in model_head"):
        adopt(tmp_path / "run", str(tmp_path / "setfit"), DataSpec(data=str(data)))
    code, printed = faithmeter("check", tmp_path / "setfit", "--data", data, "--run", tmp_path / "run")
    assert code == 2
    assert "give the object: `faithmeter.check((model, data))`" in " ".join(printed.split())
