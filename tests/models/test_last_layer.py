"""The packed passes and the short last layer give what the bare model gives."""

import pytest
import torch
from conftest import ARCHITECTURES, WORDS
from hypothesis import given, settings
from hypothesis import strategies as st
from importance.reference import TEXTS, alone, example_batch, plain_logit, strong_classifier

from faithmeter.data.batch import packed
from faithmeter.models.fast.last_layer import first_position_only, touched
from faithmeter.models.from_scratch import small_classifier
from faithmeter.models.temporary import evaluating, explaining


def classifier_of(architecture):
    if architecture == "roformer":
        return small_classifier([" ".join(WORDS), *TEXTS], ("a", "b", "c"), seed=0)
    return strong_classifier(architecture)


EVERY_ARCHITECTURE = pytest.mark.parametrize("architecture", [*ARCHITECTURES, "roformer"])


@EVERY_ARCHITECTURE
def test_explaining_changes_no_logit(architecture):
    classifier = classifier_of(architecture)
    batch = example_batch(classifier, pairs=True, masked=True)
    with evaluating(classifier.model), torch.no_grad():
        expected = classifier.logits(batch)
    with explaining(classifier.model), torch.no_grad():
        torch.testing.assert_close(classifier.logits(batch), expected, atol=1e-5, rtol=1e-5)
    with evaluating(classifier.model), torch.no_grad():
        assert torch.equal(classifier.logits(batch), expected)


@pytest.mark.parametrize("architecture", ["bert", "roberta", "xlm-roberta", "camembert", "electra", "roformer"])
def test_the_last_feed_forward_block_sees_one_position_only(architecture):
    classifier = classifier_of(architecture)
    batch = example_batch(classifier)
    seen = []
    layers = classifier.model.base_model.encoder.layer
    with explaining(classifier.model), torch.no_grad():
        for layer in layers:
            layer.intermediate.register_forward_hook(lambda _, given, __: seen.append(given[0].shape[1]))
        classifier.logits(batch)
    assert seen == [batch.input_ids.shape[1]] * (len(layers) - 1) + [1]


@pytest.mark.parametrize("architecture", ["bert", "roberta", "electra"])
def test_features_and_attentions_leave_no_listener_that_would_keep_the_whole_last_layer(architecture):
    classifier = classifier_of(architecture)
    batch = example_batch(classifier)
    classifier.predict_with_features(batch)
    classifier.logits_and_attentions(batch)
    assert not [name for name, module in classifier.model.named_modules() if touched(module)]


def test_a_layer_that_somebody_hooked_into_is_left_alone():
    classifier = classifier_of("bert")
    seen = []
    last = classifier.model.bert.encoder.layer[-1]
    last.register_forward_hook(lambda _, __, output: seen.append(output.shape[1]))
    batch = example_batch(classifier)
    with explaining(classifier.model), torch.no_grad():
        classifier.logits(batch)
    assert seen == [batch.input_ids.shape[1]]


def test_a_head_that_may_read_more_than_the_first_token_keeps_its_whole_last_layer():
    class Other(type(classifier_of("bert").model)):
        pass

    model = classifier_of("bert").model
    model.__class__ = Other
    with first_position_only(model):
        assert "forward" not in vars(model.bert.encoder.layer[-1])


@EVERY_ARCHITECTURE
def test_logits_from_the_word_embeddings_equal_logits_from_the_ids(architecture):
    classifier = classifier_of(architecture)
    batch = example_batch(classifier, pairs=True, masked=True)
    with evaluating(classifier.model), torch.no_grad():
        embeddings = classifier.embed(batch)
        expected = classifier.logits(batch)
        torch.testing.assert_close(classifier.logits_from(batch, embeddings), expected, atol=1e-5, rtol=1e-5)
        assert not torch.allclose(classifier.logits_from(batch, embeddings.flip(1)), expected, atol=1e-4)
    assert torch.equal(classifier.vocabulary()[batch.masked_ids(classifier.mask_token_id)], embeddings)


@pytest.mark.parametrize("tokens", [1, 40, 10_000])
@EVERY_ARCHITECTURE
def test_packed_maskings_equal_one_pass_each(architecture, tokens):
    classifier = classifier_of(architecture)
    classifier.tokens_per_batch = tokens
    batch = example_batch(classifier)
    rows = torch.tensor([3, 0, 0, 2, 1, 3])
    generator = torch.Generator().manual_seed(0)
    masked = batch.maskable[rows] & (torch.rand(6, batch.input_ids.shape[1], generator=generator) < 0.5)
    found = classifier.logits_of_masks(batch, rows, masked)
    for row, mask, logits in zip(rows.tolist(), masked, found, strict=True):
        one = alone(batch, row)
        one = one.with_masked(mask[None, : one.input_ids.shape[1]])
        with torch.no_grad():
            expected = torch.stack([plain_logit(classifier, one, target) for target in range(3)])
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


@settings(deadline=None)
@given(st.lists(st.integers(1, 600), max_size=80), st.integers(1, 2000))
def test_packing_holds_every_row_once_within_the_budget(lengths, tokens):
    groups = list(packed(torch.tensor(lengths, dtype=torch.long), tokens))
    assert sorted(torch.cat(groups).tolist() if groups else []) == list(range(len(lengths)))
    for group in groups:
        assert len(group) == 1 or len(group) * max(lengths[i] for i in group.tolist()) <= tokens


def test_packing_leaves_much_shorter_rows_to_another_pass_once_there_is_enough_for_one():
    lengths = [44] * 4 + [25] * 8 + [12] * 11
    groups = [sorted(group.tolist()) for group in packed(torch.tensor(lengths), 1024)]
    assert groups == [list(range(4)), list(range(4, 12)), list(range(12, 23))]
    assert len(list(packed(torch.tensor([44, 25, 12]), 1024))) == 1  # too few tokens for passes of their own
    assert len(list(packed(torch.tensor([44] * 4 + [40] * 8), 1024))) == 1  # nearly alike
