"""Whether what starts from the zero embedding adds up, and what is said where it does not."""

import pytest
import torch
from conftest import random_classifier
from importance.reference import TARGETS, any_classifier, example_batch, strong_classifier

from faithmeter.importance.completeness import LARGE_GAP, completeness_gap, relative_gap, zero_baseline_caution
from faithmeter.importance.table import IMPORTANCE_MEASURES, as_measure

ADDED_BEFORE_THE_NORM = ("bert", "roberta", "electra", "albert", "gpt2", "roformer", "bilstm-attention")
NORM_AT_ONCE = ("deberta", "modernbert", "t5", "llama")


def test_the_gap_is_what_is_missed_of_the_whole_change():
    # missed are 1 − 0.5 and −3 − (−3), of 1 + 3: an eighth
    assert relative_gap(torch.tensor([0.5, -3.0]), torch.tensor([1.0, -3.0])) == pytest.approx(1 / 8)
    assert relative_gap(torch.zeros(2), torch.tensor([1.0, -3.0])) == 1  # nothing is accounted for
    assert relative_gap(torch.tensor([2.0]), torch.tensor([-2.0])) == 2  # and worse than nothing: the wrong sign
    assert relative_gap(torch.zeros(2), torch.zeros(2)) == 0
    assert relative_gap(torch.ones(2), torch.zeros(2)) == float("inf")


def test_many_steps_close_the_gap_of_a_model_for_which_zero_is_a_start_and_of_no_other():
    bert, deberta = strong_classifier("bert"), strong_classifier("deberta")
    few, many = (completeness_gap(bert, example_batch(bert), TARGETS, steps=steps) for steps in (5, 500))
    assert many < 0.002 < few  # a right Riemann sum is off by one over its steps
    assert completeness_gap(deberta, example_batch(deberta), TARGETS, steps=100) > 0.9
    assert completeness_gap(deberta, example_batch(deberta), TARGETS, steps=500, baseline="mask") < 0.002


@pytest.mark.parametrize("architecture", [*ADDED_BEFORE_THE_NORM, *NORM_AT_ONCE])
def test_the_threshold_tells_shapes_for_which_zero_is_a_start_from_others(architecture):
    classifier = any_classifier(architecture)
    batch = example_batch(classifier)
    gap = completeness_gap(classifier, batch, TARGETS)
    assert (gap > LARGE_GAP) if architecture in NORM_AT_ONCE else (gap < LARGE_GAP / 2)
    assert completeness_gap(classifier, batch, TARGETS, baseline="mask") < LARGE_GAP / 2


def test_where_a_norm_follows_the_embeddings_at_once_the_user_is_told_and_pointed_to_the_mask():
    classifier = random_classifier("deberta")
    batch = example_batch(classifier)
    said = zero_baseline_caution(classifier, batch, map(as_measure, ["loo-signed", "x-grad-abs", "ig-signed"]))
    assert said.startswith("x-grad-abs, ig-signed: these start from the zero embedding")
    assert "miss 100 % of the change" in said
    assert "ig-mask-signed and ig-mask-abs" in said
    assert (
        zero_baseline_caution(classifier, batch, map(as_measure, ["loo-signed", "ig-mask-signed", "grad-l2"])) is None
    )
    # and rightly so: input times gradient finds nothing there, and the mask's baseline does
    found = {
        name: IMPORTANCE_MEASURES[name].explain(classifier, batch, TARGETS, 0).abs().max()
        for name in ("x-grad-signed", "ig-mask-signed")
    }
    assert found["x-grad-signed"] < 1e-3 * found["ig-mask-signed"]
    bert = random_classifier("bert")
    assert (
        zero_baseline_caution(bert, example_batch(bert), map(as_measure, ["x-grad-abs", "ig-signed", "deep-lift"]))
        is None
    )
