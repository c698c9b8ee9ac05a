import numpy as np
import pytest
import scipy
import sklearn.metrics

from faithmeter.errors import InputError
from faithmeter.performance import (
    METRICS,
    below_majority_p_value,
    majority_p_value,
    majority_performance,
    performance,
    weighted_performance,
)
from faithmeter.problems import CLASSES, LABELS, NUMBER, PROBLEMS, metric_for, problem_of
from faithmeter.statistics import LEVEL, EachLeftOut


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


@pytest.mark.parametrize("metric", PROBLEMS[CLASSES].metrics)
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


def test_a_class_that_is_predicted_and_never_gold_counts_in_macro_f1_and_one_that_is_neither_does_not():
    gold, predicted = np.array([0, 0, 1]), np.array([[0, 0], [2, 0], [1, 1]])
    found = weighted_performance("macro-f1", gold, predicted)(np.array([[1.0, 1, 1], [1, 1, 0]]))
    # first column: class 0 has 2·1/(2 + 1) = 2/3, class 1 has 1, class 2 is answered and never right: 0. Without the
    # third text class 1 is gone. Second column: class 2 is not answered, and does not count.
    assert found.tolist() == [pytest.approx([5 / 9, 1]), pytest.approx([1 / 3, 1])]


@pytest.mark.parametrize("metric", PROBLEMS[CLASSES].metrics)
def test_each_observation_left_out_gives_the_performance_of_the_others(metric):
    random = np.random.default_rng(0)
    gold, predicted = random.integers(5, size=20), random.integers(5, size=(20, 2))
    found = weighted_performance(metric, gold, predicted)(EachLeftOut(20, 3, 9))
    for row, left_out in enumerate(range(3, 9)):
        others = np.arange(20) != left_out
        expected = [performance(metric, gold[others], column[others]) for column in predicted.T]
        assert found[row].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("metric", PROBLEMS[CLASSES].metrics)
def test_one_constant_answer_has_the_same_weighted_performance(metric):
    gold, predicted = np.array([0, 0, 1]), np.zeros((3, 1), dtype=np.int64)
    expected = performance(metric, gold, predicted[:, 0])
    assert weighted_performance(metric, gold, predicted)(np.ones((1, 3)))[0, 0] == pytest.approx(expected)


UNEVEN = np.array([0] * 53 + [1] * 7)


@pytest.mark.parametrize("metric", PROBLEMS[CLASSES].metrics)
def test_a_perfect_model_of_few_texts_of_an_uneven_task_surely_beats_the_majority(metric):
    assert majority_p_value(metric, UNEVEN, UNEVEN, UNEVEN) <= 1 / 128


def test_the_majority_is_beaten_by_pairs_worked_by_hand():
    # all seven texts on which the two differ speak for the model: a coin gives that once in 128
    assert majority_p_value("accuracy", UNEVEN, UNEVEN, UNEVEN) == pytest.approx(1 / 128)
    # 59 of 60 right, and the one mistake is where the majority is right: 7 of 8, (8 + 1) / 256
    one_wrong = np.where(np.arange(60) == 0, 1, UNEVEN)
    assert majority_p_value("micro-f1", UNEVEN, UNEVEN, one_wrong) == pytest.approx(9 / 256)
    # the majority is that of train: where it is the other class, all seven texts speak for the model again
    assert majority_p_value("accuracy", [1, 1, 0], np.zeros(7, dtype=int), np.zeros(7, dtype=int)) == 1 / 128


@pytest.mark.parametrize("metric", PROBLEMS[CLASSES].metrics)
def test_a_model_that_answers_the_majority_never_beats_it(metric):
    assert majority_p_value(metric, UNEVEN, UNEVEN, np.zeros(60, dtype=int)) == 1


@pytest.mark.parametrize("metric", PROBLEMS[CLASSES].metrics)
@pytest.mark.parametrize("gold", [UNEVEN, np.arange(60) % 2, np.arange(60) % 3], ids=["uneven", "even", "three"])
def test_a_coin_is_seldom_taken_for_a_model(metric, gold):
    random, draws = np.random.default_rng(1), 300
    called = sum(
        majority_p_value(metric, gold, gold, random.integers(gold.max() + 1, size=60)) <= LEVEL for _ in range(draws)
    )
    assert called <= draws * (LEVEL + 3 * np.sqrt(LEVEL * (1 - LEVEL) / draws))  # three standard errors over 5 %


@pytest.mark.parametrize("metric", ["macro-f1", "matthews"])
def test_a_model_that_finds_the_rare_class_is_not_measured_by_its_accuracy(metric):
    """It finds all seven of the rare class, and seven more: as many are right as the majority has, and yet it reads."""
    finds = np.where((UNEVEN == 1) | (np.arange(60) < 7), 1, 0)
    assert majority_p_value("accuracy", UNEVEN, UNEVEN, finds) > LEVEL
    assert majority_p_value(metric, UNEVEN, UNEVEN, finds) <= LEVEL


def test_worse_than_the_majority_is_mcnemars_exact_test_worked_by_hand():
    gold = np.array([0] * 8 + [1] * 4)
    # the majority is right on the first eight. The model is right on three of them and on one of the others: of six
    # texts on which one of the two is right, it has one: (1 + 6)/2^6
    predicted = np.array([0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0])
    assert below_majority_p_value("accuracy", [0, 0, 1], gold, predicted) == pytest.approx(7 / 64)
    assert below_majority_p_value("accuracy", [0, 0, 1], gold, np.zeros(12, dtype=int)) == 1
    assert below_majority_p_value("accuracy", [0, 0, 1], gold, gold) == 1
    assert below_majority_p_value("accuracy", [0, 0, 1], gold, 1 - gold) == pytest.approx(1 / 256)


@pytest.mark.parametrize("metric", ["accuracy", "macro-f1"])
def test_worse_than_the_majority_holds_its_level_and_finds_what_is_worse(metric):
    random = np.random.default_rng(0)
    wrongly = found = 0
    for _ in range(200):
        gold = (random.random(100) < 0.5).astype(int)
        wrongly += below_majority_p_value(metric, [0, 0, 1], gold, random.integers(0, 2, 100)) <= 0.05
        found += below_majority_p_value(metric, [0, 0, 1], gold, 1 - gold) <= 0.05
    assert wrongly <= 18  # 5 % of 200, and 2.6 standard errors of 3.1
    assert found == 200


def test_worse_than_the_majority_by_draws_is_about_the_exact_test_where_both_can_be_asked():
    random = np.random.default_rng(1)
    gold = random.integers(0, 3, 90)
    predicted = np.where(random.random(90) < 0.25, gold, 2)
    # by Matthews' coefficient the majority has 0, and answers that have something to do with the class more
    assert below_majority_p_value("matthews", [2, 2, 1], gold, predicted) > 0.5
    assert below_majority_p_value("matthews", [2, 2, 1], gold, np.where(gold == 0, 1, 0)) < 0.05


# -------------------------------------------------------------------------------------------- labels and numbers


def drawn_outputs(metric: str, texts: int = 30, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Gold answers of two labels or of one number, and answers that know a little of them, in three columns."""
    random = np.random.default_rng(seed)
    if metric in PROBLEMS[LABELS].metrics:
        gold = (random.random((texts, 2)) < 0.4).astype(float)
        answers = np.round(0.6 * random.random((texts, 3, 2)) + 0.3 * gold[:, None], 1)  # rounded: with ties
        return gold, answers
    gold = np.round(random.normal(3, 1, (texts, 1)))
    return gold, np.round(gold[:, None] + random.normal(0, 0.4, (texts, 3, 1)), 1)


def test_label_metrics_on_four_texts_worked_by_hand():
    gold = [[1, 0], [1, 1], [0, 1], [0, 0]]
    answers = [[0.9, 0.2], [0.45, 0.8], [0.7, 0.6], [0.1, 0.7]]
    # label 1: given to texts 1 and 3, right once of two: F1 1/2. Label 2: given to 2, 3 and 4, right twice: 4/5.
    assert performance("label-macro-f1", gold, answers) == pytest.approx((1 / 2 + 4 / 5) / 2)
    assert performance("label-micro-f1", gold, answers) == pytest.approx(2 * 3 / (4 + 5))
    # label 1 in order .9 (true), .7, .45 (true): (1 + 2/3) / 2; label 2: .8 (true), .7, .6 (true): the same
    assert performance("label-map", gold, answers) == pytest.approx((1 + 2 / 3) / 2)


def test_number_metrics_on_three_texts_worked_by_hand():
    gold, answers = [[1], [2], [3]], [[1], [3], [2]]
    assert performance("r2", gold, answers) == pytest.approx(1 - 2 / 2)
    assert performance("pearson", gold, answers) == performance("spearman", gold, answers) == pytest.approx(1 / 2)
    assert performance("r2", gold, [[2], [2], [2]]) == 0
    assert performance("pearson", gold, [[2], [2], [2]]) == performance("spearman", gold, [[2], [2], [2]]) == 0
    assert performance("r2", gold, [[12], [13], [14]]) < -100  # a wrong mean costs R², and no correlation
    assert performance("spearman", gold, [[12], [13], [14]]) == pytest.approx(1)


@pytest.mark.parametrize("metric", [*PROBLEMS[LABELS].metrics, *PROBLEMS[NUMBER].metrics])
def test_label_and_number_metrics_are_those_of_other_libraries(metric):
    gold, answers = drawn_outputs(metric)
    column = answers[:, 0]
    references = {
        "label-micro-f1": lambda: sklearn.metrics.f1_score(gold, column > 0.5, average="micro"),
        "label-macro-f1": lambda: sklearn.metrics.f1_score(gold, column > 0.5, average="macro"),
        "label-map": lambda: sklearn.metrics.average_precision_score(gold, column, average="macro"),
        "r2": lambda: sklearn.metrics.r2_score(gold, column),
        "pearson": lambda: scipy.stats.pearsonr(gold[:, 0], column[:, 0]).statistic,
        "spearman": lambda: scipy.stats.spearmanr(gold[:, 0], column[:, 0]).statistic,
    }
    assert performance(metric, gold, column) == pytest.approx(references[metric]())


@pytest.mark.parametrize("metric", [*PROBLEMS[LABELS].metrics, *PROBLEMS[NUMBER].metrics])
def test_weights_count_labels_and_numbers_as_often_as_copies_would(metric):
    gold, answers = drawn_outputs(metric)
    weights = np.random.default_rng(1).multinomial(30, np.full(30, 1 / 30), 5).astype(float)
    found = weighted_performance(metric, gold, answers)(weights)
    assert found.shape == (5, 3)
    for resample, counts in enumerate(weights.astype(int)):
        rows = np.repeat(np.arange(30), counts)
        for column in range(3):
            assert found[resample, column] == pytest.approx(performance(metric, gold[rows], answers[rows, column]))
    left = weighted_performance(metric, gold, answers)(EachLeftOut(30, 0, 30))
    for row in range(30):
        kept = np.arange(30) != row
        assert left[row, 0] == pytest.approx(performance(metric, gold[kept], answers[kept, 0]))


def test_a_label_that_no_text_has_counts_in_f1_as_0_and_not_in_average_precision():
    gold, answers = [[1, 0], [0, 0]], [[0.9, 0.1], [0.2, 0.1]]
    assert performance("label-macro-f1", gold, answers) == 1 / 2
    assert performance("label-map", gold, answers) == 1


@pytest.mark.parametrize("metric", [*PROBLEMS[LABELS].metrics, *PROBLEMS[NUMBER].metrics])
def test_who_reads_labels_and_numbers_beats_their_means_and_who_answers_badly_does_not(metric):
    gold, answers = drawn_outputs(metric, 60)
    assert majority_p_value(metric, gold, gold, answers[:, 0]) <= LEVEL
    dealt = [np.random.default_rng(seed).permutation(answers[:, 0]) for seed in range(20)]
    by_chance = [majority_p_value(metric, gold, gold, one) for one in dealt]
    assert np.mean([p <= 0.2 for p in by_chance]) <= 0.45  # level 0.2 within what 20 draws allow
    assert below_majority_p_value(metric, gold, gold, answers[:, 0]) > LEVEL
    opposite = 1 - gold if metric in PROBLEMS[LABELS].metrics else 2 * gold.mean() - gold
    worse = majority_performance(metric, gold, gold)
    assert performance(metric, gold, opposite) <= worse
    if worse > performance(metric, gold, opposite):
        assert below_majority_p_value(metric, gold, gold, opposite) <= LEVEL


def test_the_blind_answer_is_the_mean_of_train():
    # label frequencies 3/4 and 1/4: the first is given to every text
    train = [[1, 0], [1, 0], [1, 1], [0, 0]]
    assert majority_performance("label-micro-f1", train, [[1, 0], [0, 1]]) == pytest.approx(2 * 1 / (2 + 2))
    assert majority_performance("r2", [[1], [3]], [[1], [2], [3]]) == 0


def test_a_metric_of_another_problem_is_refused_in_words():
    assert metric_for(LABELS, "macro-f1") == "label-macro-f1"
    assert metric_for(NUMBER, "") == "r2"
    assert metric_for(CLASSES, "") == "accuracy"
    with pytest.raises(InputError, match=r"no metric 'accuracy' for --number COLUMN.*r2, pearson, spearman"):
        metric_for(NUMBER, "accuracy")


def test_every_metric_is_of_one_problem():
    named = [name for problem in PROBLEMS.values() for name in problem.metrics]
    assert sorted(named) == sorted(METRICS)
    assert {name: problem_of(name).name for name in ("accuracy", "label-map", "r2", "seconds")} == {
        "accuracy": CLASSES, "label-map": LABELS, "r2": NUMBER, "seconds": CLASSES,
    }  # fmt: skip
