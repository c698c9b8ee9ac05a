import numpy as np
import pytest

from faithmeter.errors import InputError
from faithmeter.performance import METRICS, majority_performance, performance, weighted_performance
from faithmeter.statistics import EachLeftOut


def test_metrics_on_four_answers_worked_by_hand():
    gold, predicted = [0, 0, 1, 1], [0, 1, 1, 1]
    assert performance("accuracy", gold, predicted) == pytest.approx(3 / 4)
    assert performance("micro-f1", gold, predicted) == pytest.approx(3 / 4)
    # class 0: precision 1, recall 1/2, F1 2/3; class 1: precision 2/3, recall 1, F1 4/5
    assert performance("macro-f1", gold, predicted) == pytest.approx((2 / 3 + 4 / 5) / 2)
    # (2*1 - 1*0) / sqrt(3 * 2 * 2 * 1)
    assert performance("matthews", gold, predicted) == pytest.approx(2 / 12**0.5)


def test_the_majority_is_that_of_train_scored_on_test():
    # train says class 1; test has it once in four
    assert majority_performance("accuracy", [1, 1, 0], [0, 0, 0, 1]) == pytest.approx(1 / 4)
    assert majority_performance("matthews", [1, 1, 0], [0, 0, 0, 1]) == 0


def test_an_unknown_metric_is_refused_with_the_nearest():
    with pytest.raises(InputError, match="Did you mean 'accuracy'"):
        performance("acuracy", [0], [0])


@pytest.mark.parametrize("metric", METRICS)
def test_weights_count_observations_as_often_as_copies_would(metric):
    random = np.random.default_rng(0)
    for classes in (2, 4):
        gold, predicted = random.integers(classes, size=30), random.integers(classes, size=(30, 3))
        weights = random.multinomial(30, np.full(30, 1 / 30), 5).astype(float)
        found = weighted_performance(metric, gold, predicted)(weights)
        assert found.shape == (5, 3)
        for resample, counts in enumerate(weights.astype(int)):
            rows = np.repeat(np.arange(30), counts)
            for column in range(3):
                expected = performance(metric, gold[rows], predicted[rows, column])
                assert found[resample, column] == pytest.approx(expected)


@pytest.mark.parametrize("metric", METRICS)
def test_each_observation_left_out_gives_the_performance_of_the_others(metric):
    random = np.random.default_rng(0)
    gold, predicted = random.integers(5, size=20), random.integers(5, size=(20, 2))
    found = weighted_performance(metric, gold, predicted)(EachLeftOut(20, 3, 9))
    for row, left_out in enumerate(range(3, 9)):
        others = np.arange(20) != left_out
        expected = [performance(metric, gold[others], column[others]) for column in predicted.T]
        assert found[row].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("metric", METRICS)
def test_one_constant_answer_has_the_same_weighted_performance(metric):
    gold, predicted = np.array([0, 0, 1]), np.zeros((3, 1), dtype=np.int64)
    expected = performance(metric, gold, predicted[:, 0])
    assert weighted_performance(metric, gold, predicted)(np.ones((1, 3)))[0, 0] == pytest.approx(expected)
