"""SetFit's models as one: a body of sentence-transformers' shape and a real head of scikit-learn, folded exactly."""

import copy

import numpy as np
import pytest
import torch
from conftest import random_classifier
from setfit_like import CLS, MEAN, Dense, Normalize, Pooling, SetFit
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.svm import SVC
from torch import nn

from faithmeter import InputError, explain_texts
from faithmeter.models.classifier import Classifier, load_classifier
from faithmeter.models.objects import hash_of
from faithmeter.models.setfit import SentenceForSequenceClassification, folded

TEXTS = ["the film was great", "it was not a very good story at all, was it?", "bad", "Was the plot awful"]


def probabilities(model: SetFit) -> np.ndarray:
    classifier = Classifier(*folded(model))
    logits = classifier.predict(classifier.encode(TEXTS))
    return classifier.problem.scores(logits).numpy()


# ----------------------------------------------------------------------------------------------------------- exact


@pytest.mark.parametrize("classes", [("bad", "good"), ("bad", "fair", "good")])
@pytest.mark.parametrize(
    ("modes", "more", "normalize"),
    [
        (MEAN, (), False), (CLS, (), False), (MEAN, (Normalize(),), False), (CLS, (), True),
        ({"pooling_mode": "mean"}, (), False), ({"pooling_mode": "cls"}, (Normalize(),), True),
    ],
)  # fmt: skip
def test_its_probabilities_are_those_of_the_objects(modes, more, normalize, classes):
    model = SetFit(modes=modes, more=more, normalize=normalize).fit(LogisticRegression(C=1e3), classes)
    expected = model.predict_proba(TEXTS)
    assert expected.std(axis=0).max() > 1e-3
    np.testing.assert_allclose(probabilities(model), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("architecture", ["mpnet", "roberta", "distilbert", "modernbert", "deberta", "albert"])
def test_bodies_of_other_shapes_are_folded_saved_and_loaded(architecture, tmp_path):
    model = SetFit(architecture).fit(LogisticRegression(C=1e3))
    np.testing.assert_allclose(probabilities(model), model.predict_proba(TEXTS), rtol=0, atol=1e-5)
    whole = Classifier(*folded(model))
    whole.save(tmp_path)
    loaded = load_classifier(str(tmp_path), ("bad", "good"))
    assert isinstance(loaded.model, SentenceForSequenceClassification)
    assert torch.equal(loaded.predict(loaded.encode(TEXTS)), whole.predict(whole.encode(TEXTS)))
    assert loaded.limit == whole.limit == random_classifier(architecture).limit
    batch = whole.encode(TEXTS).batch(range(4))
    _, layers = whole.logits_and_attentions(batch)
    assert layers[0].shape[2:] == (batch.input_ids.shape[1],) * 2
    np.testing.assert_allclose(probabilities(model), model.predict_proba(TEXTS), rtol=0, atol=1e-5)


def test_of_two_classes_both_have_a_logit_and_they_are_opposite():
    model = SetFit().fit(LogisticRegression())
    classifier = Classifier(*folded(model))
    logits = classifier.predict(classifier.encode(TEXTS)).numpy()
    decision = model.model_head.decision_function(model.encode(TEXTS))
    np.testing.assert_allclose(logits[:, 1] - logits[:, 0], decision, atol=1e-5)
    np.testing.assert_allclose(logits[:, 0], -logits[:, 1], atol=1e-6)


@pytest.mark.parametrize("head", [MultiOutputClassifier, OneVsRestClassifier])
def test_a_head_per_label_becomes_several_labels(head):
    model = SetFit(labels=["toxic", "threat", "insult"]).fit(head(LogisticRegression()), labels=3)
    expected = model.predict_proba(TEXTS)
    if isinstance(expected, list):
        expected = np.stack([one[:, 1] for one in expected], axis=1)
    classifier = Classifier(*folded(model))
    assert classifier.problem.name == "labels"
    assert classifier.labels == ("toxic", "threat", "insult")
    np.testing.assert_allclose(probabilities(model), expected, rtol=0, atol=1e-5)


def test_the_body_s_length_and_lower_case_are_kept():
    model = SetFit("deberta", max_seq_length=8, do_lower_case=True).fit(LogisticRegression())
    classifier = Classifier(*folded(model))
    assert classifier.max_length == 8
    np.testing.assert_allclose(probabilities(model), model.predict_proba(TEXTS), rtol=0, atol=1e-5)
    plain = SetFit("deberta").fit(LogisticRegression())
    assert not np.allclose(model.predict_proba(TEXTS), plain.predict_proba(TEXTS), atol=1e-5)


@pytest.mark.parametrize(
    ("classes", "labels", "expected"),
    [
        (("bad", "good"), None, ("bad", "good")),
        ((0, 1), ["no", "yes"], ("no", "yes")),
        ((1, 5), None, ("1", "5")),
        ((0, 2), ["a", "b", "c"], ("a", "c")),  # the head never saw b
    ],
)
def test_classes_have_setfit_s_names_or_the_head_s_own(classes, labels, expected):
    assert Classifier(*folded(SetFit(labels=labels).fit(LogisticRegression(), classes))).labels == expected


# --------------------------------------------------------------------------------------------- a model like any other


@pytest.mark.parametrize(
    "measure", ["grad-l2", "x-grad-signed", "ig-signed", "loo-signed", "attention", "lime", "beam"]
)
@pytest.mark.parametrize("modes", [MEAN, CLS])
def test_every_kind_of_measure_explains_it(measure, modes):
    classifier = Classifier(*folded(SetFit(modes=modes, more=(Normalize(),)).fit(LogisticRegression())))
    (found,) = explain_texts(classifier, ["the film was great"], measure=measure)
    assert [word.text for word in found.words] == ["the", "film", "was", "great"]
    assert any(word.importance for word in found.words)


def test_gradients_are_those_of_the_logits():
    classifier = Classifier(*folded(SetFit(more=(Normalize(),)).fit(LogisticRegression(C=1e3))))
    batch = classifier.encode(TEXTS[:2]).batch([0, 1])
    embeddings, targets = classifier.embed(batch), torch.tensor([0, 1])
    torch.manual_seed(1)
    step = torch.randn_like(embeddings) * batch.maskable[..., None]
    _, gradients = classifier.logits_and_gradients(batch, embeddings, targets)
    ahead, behind = (classifier.logits_from(batch, embeddings + sign * 1e-2 * step) for sign in (1, -1))
    slope = (ahead - behind).gather(1, targets[:, None])[:, 0] / 2e-2
    assert slope.abs().min() > 1e-3
    torch.testing.assert_close((gradients * step).sum(dim=(1, 2)), slope.detach(), rtol=2e-2, atol=1e-3)


def test_the_objects_are_not_changed():
    model = SetFit(max_seq_length=8, do_lower_case=True).fit(LogisticRegression())
    first = model.model_body[0]
    model.model_body.train()
    before = (hash_of(first.auto_model, first.tokenizer), repr(first.tokenizer), first.tokenizer.model_max_length)
    coefficients = copy.deepcopy(model.model_head.coef_)
    whole, _ = folded(model)
    with torch.no_grad():
        for parameter in whole.parameters():
            parameter.zero_()
    assert first.auto_model.pooler is not None
    assert all(module.training for module in model.model_body.modules())
    assert (
        hash_of(first.auto_model, first.tokenizer),
        repr(first.tokenizer),
        first.tokenizer.model_max_length,
    ) == before
    assert (model.model_head.coef_ == coefficients).all()


# ----------------------------------------------------------------------------------------------------------- refused


def changed(model, **parts):
    for name, part in parts.items():
        setattr(model, name, part)
    return model


def with_prompt(model):
    model.model_body.default_prompt_name = "query"
    return model


class Louder(Pooling):
    """A pooling that does something more than it says."""

    def forward(self, features):
        found = super().forward(features)
        return {**found, "sentence_embedding": 2 * found["sentence_embedding"]}


def louder():
    model = SetFit()
    model.model_body[1] = Louder(**MEAN)
    return model.fit(LogisticRegression())


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: SetFit(modes={"pooling_mode_max_tokens": True}).fit(LogisticRegression()), "states by max_tokens;"),
        (lambda: SetFit(modes={**MEAN, "pooling_mode_cls_token": True}), "cls_token and mean_tokens"),
        (lambda: SetFit(more=(Dense(),)).fit(LogisticRegression()), "a module Dense after its pooling"),
        (lambda: SetFit("t5").fit(LogisticRegression()), "a body of the kind t5-encoder-mean is not supported"),
        (lambda: SetFit().fit(SVC()), "The head is a SVC, and only"),
        (lambda: changed(SetFit(), model_head=nn.Linear(32, 2)), "The head is a Linear, and only"),
        (lambda: SetFit().fit(RidgeClassifier()), "probabilities of the RidgeClassifier are not"),
        (lambda: SetFit().fit(ClassifierChain(LogisticRegression()), labels=3), "which all read the embedding alone"),
        (lambda: SetFit().fit(OneVsRestClassifier(LogisticRegression()), ("a", "b", "c")), "a sigmoid per label"),
        (lambda: changed(SetFit(), model_head=LogisticRegression().fit(np.eye(4), [0, 1, 0, 1])),
         "The head reads 4 numbers, and the body gives 32"),
        (lambda: changed(SetFit(), model_body=nn.Linear(2, 2)), "this Linear has none"),
        (lambda: with_prompt(SetFit().fit(LogisticRegression())), "the prompt 'query' before each text"),
        (louder, "it does something more"),
    ],
)  # fmt: skip
def test_what_cannot_be_folded_exactly_is_refused_in_a_sentence(made, said):
    with pytest.raises(InputError) as error:
        folded(made())
    assert said in str(error.value)


def test_a_folder_of_setfit_is_refused_and_its_body_can_still_be_trained(tmp_path):
    classifier = random_classifier("bert", classes=2)
    classifier.model.base_model.save_pretrained(tmp_path)
    classifier.tokenizer.save_pretrained(tmp_path)
    (tmp_path / "model_head.pkl").write_bytes(b"never read")
    said = r"its head in model_head\.pkl, a pickle file.* SetFitModel\.from_pretrained\(.*give the object"
    with pytest.raises(InputError, match=said):
        load_classifier(str(tmp_path), ("bad", "good"))
    assert load_classifier(str(tmp_path), ("bad", "good"), new_head=True).labels == ("bad", "good")
