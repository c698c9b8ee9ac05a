"""Layer randomisation: which weights are replaced, and how much an explanation changes with them."""

import numpy as np
import pytest
import torch
from conftest import ARCHITECTURES, random_classifier

from faithmeter.importance.table import IMPORTANCE_MEASURES
from faithmeter.judges import other_models
from faithmeter.judges.judge import Bench
from faithmeter.judges.ranking import likeness, rank_correlation
from faithmeter.judges.table import JUDGES
from faithmeter.models.randomised import blocks, randomised, untrained


def weights(classifier):
    return {name: one.detach().clone() for name, one in classifier.model.named_parameters(remove_duplicate=False)}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_parameter_is_in_one_block_from_the_head_down_to_the_embeddings(architecture):
    model = random_classifier(architecture).model
    found = blocks(model)
    every = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    assert sorted(name for names in found.values() for name in names) == sorted(every)
    assert next(iter(found)) == "head"
    assert list(found)[-1] == "embeddings"
    layers = [name for name in found if name.startswith("layer")]
    assert layers[-1] == "layer 1"
    if architecture != "albert":  # whose layers share their weights
        assert layers == ["layer 2", "layer 1"]
    classes = model.config.num_labels
    assert any(dict(model.named_parameters())[name].shape[0] == classes for name in found["head"])
    words = model.get_input_embeddings().weight
    assert any(dict(model.named_parameters(remove_duplicate=False))[name] is words for name in found["embeddings"])


def test_cascading_replaces_a_block_with_all_above_it_and_independent_that_block_alone():
    classifier = random_classifier("bert")
    before, parts = weights(classifier), blocks(classifier.model)
    for cascading in (True, False):
        above = set()
        for name, changed in randomised(classifier, cascading=cascading, seed=0):
            above = above | set(parts[name]) if cascading else set(parts[name])
            after = weights(changed)
            for parameter, value in before.items():
                same = torch.equal(value, after[parameter])
                # biases and norms of a random model are still as they were drawn: zeros and ones
                assert same or parameter in above
                assert not (same and parameter in above and value.ndim == 2)
    assert all(torch.equal(value, weights(classifier)[name]) for name, value in before.items())


def test_a_seed_gives_the_same_weights_and_leaves_the_callers_random_numbers_alone():
    classifier = random_classifier("distilbert")
    torch.manual_seed(3)
    first, second, other = (
        weights(dict(randomised(classifier, cascading=True, seed=seed))["embeddings"]) for seed in (0, 0, 1)
    )
    drawn = torch.rand(1)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(1))


def test_rank_correlation_is_spearmans_over_maskable_tokens():
    maskable = torch.tensor([[False, True, True, True], [True, True, True, True], [True, False, False, False]])
    before = torch.tensor([[9.0, 0.1, 0.2, 0.3], [1.0, 2.0, 3.0, 4.0], [1.0, 0.0, 0.0, 0.0]])
    after = torch.tensor([[-9.0, 3.0, 2.0, 1.0], [1.0, 3.0, 2.0, 4.0], [1.0, 0.0, 0.0, 0.0]])
    # the second: 1 − 6·(0 + 1 + 1 + 0) / (4·15) = 0.8
    np.testing.assert_allclose(rank_correlation(before, after, maskable), [-1.0, 0.8, np.nan], atol=1e-12)


def test_equal_importances_share_their_rank_and_a_flat_explanation_has_none():
    maskable = torch.ones(2, 3, dtype=torch.bool)
    before = torch.tensor([[1.0, 1.0, 2.0], [5.0, 5.0, 5.0]])
    after = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    # ranks (1.5, 1.5, 3) and (1, 2, 3): 1.5 / sqrt(1.5 · 2)
    np.testing.assert_allclose(rank_correlation(before, after, maskable), [1.5 / np.sqrt(3.0), np.nan], atol=1e-12)


def test_the_unchanged_model_correlates_fully_and_a_random_one_does_not():
    classifier = random_classifier("bert")
    batch = classifier.encode(["The film was great, it was not awful at all."] * 2).batch([0, 1])
    explain = IMPORTANCE_MEASURES["x-grad-signed"].explain
    targets = torch.zeros(2, dtype=torch.long)
    before = explain(classifier, batch, targets, 0)
    np.testing.assert_allclose(rank_correlation(before, before, batch.maskable), 1.0)
    changed = dict(randomised(classifier, cascading=True, seed=1))["embeddings"]
    after = explain(changed, batch, targets, 0)
    assert np.all(np.abs(rank_correlation(before, after, batch.maskable)) < 0.95)


def test_the_top_quarter_overlaps_by_what_is_in_both_of_what_is_in_either():
    maskable = torch.ones(3, 9, dtype=torch.bool)
    maskable[0, 8] = maskable[2, 3:] = False
    before = torch.tensor(
        [[8.0, 7, 1, 2, 3, 4, 5, 6, 99], [9.0, 8, 7, 6, 5, 4, 3, 2, 1], [3.0, 2, 1, 0, 0, 0, 0, 0, 0]]
    )
    after = torch.tensor([[1.0, 8, 7, 2, 3, 4, 5, 6, 99], [0.0, 0, 1, 2, 3, 4, 5, 6, 7], [3.0, 1, 2, 9, 9, 9, 9, 9, 9]])
    found = likeness(before, after, maskable)
    # two of eight: {0, 1} and {1, 2}; two of nine: {0, 1} and {7, 8}; one of three: {0} and {0}
    np.testing.assert_allclose(found["top_overlap"], [1 / 3, 0.0, 1.0], atol=1e-12)
    # two of eight by chance: 12/28 share one of three, 1/28 both; two of nine: 14/36 and 1/36; one of three: 1/3
    np.testing.assert_allclose(found["chance_overlap"], [(12 / 3 + 1) / 28, (14 / 3 + 1) / 36, 1 / 3], atol=1e-12)
    np.testing.assert_allclose(found["rank_correlation"], rank_correlation(before, after, maskable))


def test_what_has_no_ranking_is_like_nothing():
    maskable = torch.tensor([[True, True, True], [True, False, False], [False, False, False]])
    flat, other = torch.tensor([[5.0, 5, 5], [1, 0, 0], [0, 0, 0]]), torch.tensor([[1.0, 2, 3], [1, 0, 0], [0, 0, 0]])
    assert all(np.isnan(column).all() for column in likeness(flat, other, maskable).values())


def test_an_untrained_model_has_the_weights_of_the_last_step_of_a_cascade():
    classifier = random_classifier("bert")
    before = weights(classifier)
    found, last = untrained(classifier, seed=2), dict(randomised(classifier, cascading=True, seed=2))["embeddings"]
    assert all(torch.equal(one, weights(last)[name]) for name, one in weights(found).items())
    assert all(torch.equal(one, weights(classifier)[name]) for name, one in before.items())


def test_texts_that_the_other_model_answers_otherwise_count_among_all_texts_only(monkeypatch):
    classifier, other = random_classifier("bert"), random_classifier("bert")
    test = classifier.encode(["The film was great", "Was the story bad?", "it was not awful at all"])
    batch = test.batch(range(3))
    bench = Bench(classifier, test, None, seed=0, other=other)
    opposite = bench.predicted(batch).clone()
    opposite[1] = (opposite[1] + 1) % 3
    monkeypatch.setattr(
        other_models, "answers_of", lambda model, _: opposite if model is other else pytest.fail("asked")
    )
    found = JUDGES["other-seed"].judge(bench, batch, IMPORTANCE_MEASURES["x-grad-signed"])
    assert found["same_answer"].tolist() == [1.0, 0.0, 1.0]
    np.testing.assert_allclose(found["rank_correlation@all texts"], 1.0)  # the weights are the same
    np.testing.assert_allclose(found["top_overlap@same answer"], [1.0, np.nan, 1.0])


def test_twins_are_two_models_of_random_weights_and_the_trained_one_does_not_count():
    classifier = random_classifier("bert", spread=0.1)
    test = classifier.encode(["The film was great", "Was the story bad?", "it was not awful at all"])
    batch, measure = test.batch(range(3)), IMPORTANCE_MEASURES["grad-l2"]
    bench = Bench(classifier, test, None, seed=3)
    found = JUDGES["random-weights"].judge(bench, batch, measure)
    targets = bench.predicted(batch)
    trained, first, second = (
        measure.explain(model, batch, targets, 3)
        for model in (classifier, untrained(classifier, 3), untrained(classifier, 4))
    )
    np.testing.assert_allclose(found["rank_correlation"], rank_correlation(trained, first, batch.maskable))
    np.testing.assert_allclose(found["twins"], rank_correlation(first, second, batch.maskable))
    assert not np.allclose(found["twins"], found["rank_correlation"])


def test_decoders_attention_is_nearly_the_same_in_two_models_that_learnt_nothing_and_gradients_are_not():
    classifier = random_classifier("gpt2", spread=0.1)
    test = classifier.encode(["The film was great, it was not awful at all.", "Was the story bad? The plot was good!"])
    batch, bench = test.batch(range(2)), Bench(classifier, test, None, seed=0)
    twins = {
        name: JUDGES["random-weights"].judge(bench, batch, IMPORTANCE_MEASURES[name])["twins"].mean()
        for name in ("attention-average", "attention-rollout", "x-grad-signed")
    }
    # earlier positions are seen by more queries, whatever the weights
    assert min(twins["attention-average"], twins["attention-rollout"]) > other_models.NEARLY_THE_SAME
    assert abs(twins["x-grad-signed"]) < other_models.NEARLY_THE_SAME
