import pytest

from faithmeter.errors import InputError
from faithmeter.performance import majority_performance, performance


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
