"""What a head reads: the very numbers that its logits are made of, whatever the architecture."""

import pytest
import torch
from conftest import ARCHITECTURES, WORDS, random_classifier

from faithmeter.models.fast.last_layer import touched
from faithmeter.models.from_scratch import bilstm_classifier

TEXTS = ["the film was great", "was the story bad? the plot was very good!", "good", "it was not awful at all"]


def head(model, vectors):
    """The logits of what was read, by the model's own head, a text at a time as if it had one token."""
    kind, states = model.config.model_type, vectors[:, None]
    if kind in ("bert", "albert"):
        pooler = model.base_model.pooler
        return model.classifier(
            pooler(states) if kind == "bert" else model.base_model.pooler_activation(pooler(vectors))
        )
    if kind == "distilbert":
        return model.classifier(model.pre_classifier(vectors).relu())
    if kind == "deberta-v2":
        return model.classifier(model.pooler(states))
    if kind == "modernbert":
        return model.classifier(model.head(vectors))
    if kind in ("gpt2", "llama"):
        return model.score(vectors)
    return model.classifier(vectors if kind == "t5-encoder-mean" else states)


@pytest.mark.parametrize("features", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_head_makes_the_logits_of_what_it_is_said_to_read(architecture, features):
    classifier = random_classifier(architecture)
    classifier.model.eval()
    encoded = classifier.encode(TEXTS)
    batch = encoded.batch(range(len(TEXTS)))
    batch = batch.with_masked(batch.maskable & (torch.arange(batch.maskable.shape[1]) % 3 == 1))
    found, of_test = classifier.representations(batch, features=features)
    with torch.no_grad():
        torch.testing.assert_close(head(classifier.model, found), classifier.logits(batch), atol=1e-5, rtol=1e-5)
    assert (of_test is not None) == features
    if of_test is not None:
        torch.testing.assert_close(of_test, classifier.predict_with_features(batch)[1], atol=1e-5, rtol=1e-5)
    for row in range(len(TEXTS)):  # the same alone as padded beside others
        alone = batch.take(torch.tensor([row]))
        torch.testing.assert_close(classifier.representations(alone)[0][0], found[row], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("pairs", [False, True])
def test_what_bilstm_attention_reads_is_what_its_last_layer_is_given(pairs):
    classifier = bilstm_classifier([" ".join(WORDS)] * 2, ("no", "yes"), pairs=pairs, seed=0)
    classifier.model.train()
    batch = classifier.encode(TEXTS, ["the plot"] * len(TEXTS) if pairs else None).batch(range(len(TEXTS)))
    found, _ = classifier.representations(batch)
    expected = classifier.predict_with_features(batch)[0]
    with torch.no_grad():
        torch.testing.assert_close(classifier.model.decoder(found), expected, atol=1e-5, rtol=1e-5)
    assert classifier.model.training


def test_nobody_listens_to_the_model_afterwards():
    for classifier in (
        random_classifier("bert"),
        bilstm_classifier([" ".join(WORDS)] * 2, ("no", "yes"), pairs=False, seed=0),
    ):
        classifier.representations(classifier.encode(TEXTS).batch([0]))
        assert not any(touched(module) for module in classifier.model.modules())
