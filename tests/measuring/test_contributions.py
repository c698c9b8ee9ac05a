import numpy as np
import pytest

from faithmeter.measuring.contributions import areas_of, paired_differences
from faithmeter.measuring.curves import Curve, area_and_scale, faithfulness_over_observations
from faithmeter.performance import performance


def curves_of(count, texts, seed=0):
    random = np.random.default_rng(seed)
    gold = random.integers(3, size=texts)
    wrong = random.random((count, texts, 5)) < np.linspace(0.1, 0.8, 5)
    predicted = np.where(wrong, random.integers(3, size=(count, texts, 5)), gold[None, :, None])
    return gold, [Curve(each, np.zeros((texts, 5))) for each in predicted]


@pytest.mark.parametrize("metric", ["accuracy", "macro-f1", "matthews"])
def test_areas_are_those_of_each_measure_by_itself(metric):
    gold, (first, second, *random) = curves_of(4, 30)
    ones = np.ones((1, 30))
    expected = [faithfulness_over_observations(metric, gold, each, random) for each in (first, second)]
    assert areas_of(metric, gold, [first, second], random)(ones)[0] == pytest.approx([one.acu for one in expected])
    acu, scale = area_and_scale(metric, gold, first, random)(ones)[0]
    assert (acu, acu / scale) == pytest.approx((expected[0].acu, expected[0].racu))
    without = areas_of(metric, gold, [first, second], [])(ones)[0]
    assert without[0] - without[1] == pytest.approx(expected[0].acu - expected[1].acu)


def test_a_text_adds_its_own_areas_difference_to_accuracy():
    gold = np.array([1, 1])
    # right at the first step alone, and at the first three of five: areas of ½·¼ and of 2.5·¼
    early = Curve(np.array([[1, 0, 0, 0, 0], [1, 1, 1, 1, 1]]), np.zeros((2, 5)))
    late = Curve(np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]), np.zeros((2, 5)))
    differences = paired_differences("accuracy", gold, [early, late], [np.arange(2)] * 2)
    assert differences[:, 0, 1] == pytest.approx([0.5, 0])
    assert differences[:, 1, 0] == pytest.approx([-0.5, 0])


def test_a_pair_is_compared_on_common_texts_by_the_metric_of_these_texts():
    gold, curves = curves_of(3, 20)
    rows = [np.arange(20), np.arange(20), np.array([3, 5, 6, 11, 12, 17])]
    curves[2] = Curve(curves[2].predicted[rows[2]], curves[2].probability[rows[2]])
    differences = paired_differences("macro-f1", gold, curves, rows)

    def area(curve, at, texts):
        return -np.trapezoid([performance("macro-f1", gold[texts], step) for step in curve.predicted[at].T], dx=0.25)

    def naive(texts, first, second):
        whole = area(*first, texts) - area(*second, texts)
        left = [
            area(first[0], np.delete(first[1], t), np.delete(texts, t))
            - area(second[0], np.delete(second[1], t), np.delete(texts, t))
            for t in range(len(texts))
        ]
        return len(texts) * whole - (len(texts) - 1) * np.array(left)

    few, everything = rows[2], rows[0]
    assert differences[few, 0, 2] == pytest.approx(naive(few, (curves[0], few), (curves[2], np.arange(6))))
    assert differences[:, 0, 1] == pytest.approx(naive(everything, (curves[0], everything), (curves[1], everything)))
    assert np.isnan(np.delete(differences[:, 0, 2], few)).all()


def test_measures_without_common_texts_have_no_differences():
    gold, curves = curves_of(2, 6)
    half = [Curve(each.predicted[:3], each.probability[:3]) for each in curves]
    differences = paired_differences("accuracy", gold, half, [np.arange(3), np.arange(3, 6)])
    assert np.isnan(differences[:, 0, 1]).all()
    assert (differences[:3, 0, 0] == 0).all()
