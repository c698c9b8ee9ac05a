import numpy as np

from faithmeter.training.curriculum import (
    FIRST_ROWS,
    LEARNT,
    MOST_EPOCHS,
    ROWS_PER_EPOCH,
    STAGES,
    Position,
    mini_batches,
    stage_rows,
)

random = np.random.default_rng


def test_a_stage_ends_when_it_is_learnt_or_given_up():
    assert Position(0, 3).after(LEARNT - 0.01) == Position(0, 4)
    assert Position(0, 3).after(LEARNT) == Position(1, 0)
    assert Position(0, MOST_EPOCHS - 1).after(0.0) == Position(1, 0)
    assert Position(0, 3).after(float("nan")) == Position(0, 4)
    assert Position(len(STAGES) - 1).after(1.0).finished


def test_ordinary_epochs_only_count_up():
    assert Position(len(STAGES), 2).after(1.0) == Position(len(STAGES), 3)


def test_stages_take_the_shortest_rows_and_the_first_only_a_few_hundred():
    lengths = random(0).permutation(5000)
    first, second, last = (stage_rows(lengths, stage, random(0)) for stage in (0, 1, len(STAGES) - 1))
    assert len(set(first)) == FIRST_ROWS
    assert lengths[first].max() < 1000
    assert lengths[second].max() < 2000
    assert lengths[last].max() >= 4000
    assert len(first) == len(second) == len(last) == ROWS_PER_EPOCH


def test_a_stage_of_one_row_is_repeated():
    assert stage_rows(np.array([3, 9]), 0, random(0)).tolist() == [0] * ROWS_PER_EPOCH


def test_mini_batches_hold_every_row_once_with_like_lengths():
    lengths = random(0).integers(1, 100, 3000)
    batches = mini_batches(np.arange(3000), lengths, 16, random(1))
    assert sorted(np.concatenate(batches).tolist()) == list(range(3000))
    padded = sum(len(rows) * lengths[rows].max() for rows in batches)
    assert padded < 1.1 * lengths.sum()
    assert [rows.tolist() for rows in batches] == [
        rows.tolist() for rows in mini_batches(np.arange(3000), lengths, 16, random(1))
    ]
