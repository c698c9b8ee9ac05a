import numpy as np
import pytest
from conftest import sentiment_rows

from faithmeter.training.config import TrainingConfig, TrainingOptions
from faithmeter.training.strategy import mask_for_training, masked_copy, masked_positions


@pytest.fixture
def encoded(toy_classifier):
    texts = [row["text"] for row in sentiment_rows(64)]
    return toy_classifier.encode(texts, ["was it good"] * 64)


def masked(encoded, rows, **changes):
    settings = {"strategy": "only-masking", "mask_context": False, "seed": 0, "epoch": 1, **changes}
    return mask_for_training(encoded, encoded.batch(rows), np.asarray(rows), **settings).masked


def test_half_of_every_mini_batch_is_masked_in_the_papers_strategy():
    for start in (0, 16, 32):
        assert masked_positions("masked", start + np.arange(16)).sum() == 8
    assert masked_positions("plain", np.arange(16)).sum() == 0
    assert masked_positions("only-masking", np.arange(16)).sum() == 16


def test_a_mini_batch_of_one_is_masked_every_second_time():
    assert [bool(masked_positions("masked", np.array([i]))[0]) for i in range(4)] == [False, True, False, True]


def test_only_the_text_is_masked_unless_the_context_is_asked_for(encoded):
    rows = list(range(64))
    maskable = encoded.batch(rows).maskable
    assert not (masked(encoded, rows) & ~maskable).any()
    assert (masked(encoded, rows, mask_context=True) & ~maskable).any()
    specials = encoded.batch(rows).input_ids == encoded.ids[0]  # [CLS]
    assert not (masked(encoded, rows, mask_context=True) & specials).any()


def test_masks_are_fresh_every_epoch_and_the_same_for_the_same_seed(encoded):
    rows = list(range(64))
    assert (masked(encoded, rows) == masked(encoded, rows)).all()
    assert (masked(encoded, rows) != masked(encoded, rows, epoch=2)).any()
    assert (masked(encoded, rows) != masked(encoded, rows, seed=1)).any()


def test_a_row_is_masked_alike_whatever_batch_it_is_in(encoded):
    together = masked(encoded, [3, 40, 41])
    alone = masked(encoded, [40])
    assert together[1][: alone.shape[1]].tolist() == alone[0].tolist()


def test_a_validation_copy_is_drawn_once(encoded):
    first, again = (masked_copy(encoded, mask_context=False, seed=0).masked for _ in range(2))
    assert (first == again).all()
    assert first.any()
    assert not (first & ~encoded.maskable).any()


@pytest.mark.parametrize(
    ("strategy", "validation"), [("plain", "unmasked"), ("only-masking", "masked"), ("masked", "both")]
)
def test_a_strategy_brings_the_validation_of_the_paper_unless_another_is_asked_for(strategy, validation):
    assert TrainingOptions(strategy=strategy).over(TrainingConfig()).validation == validation
    for other in ("unmasked", "masked", "both"):
        assert TrainingOptions(strategy=strategy, validation=other).over(TrainingConfig()).validation == other
    before = TrainingConfig.read({"strategy": strategy, "validation": "both"})  # as a run was stored
    assert before.validation == "both"
    assert TrainingOptions(epochs=3).over(before).validation == "both"
