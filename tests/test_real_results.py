"""What the documentation claims, on real sizes. Slow: run with `make test-all`."""

import pytest

from faithmeter import DataSpec, Run, TrainingOptions, load_splits, train
from faithmeter.performance import performance
from faithmeter.results import find


def accuracy_on(run: Run, splits) -> float:
    classifier = run.classifier()
    test = classifier.encode(splits.test["text"], splits.test["context"], splits.test["label"])
    return performance("accuracy", test.labels, classifier.predict(test).argmax(dim=-1).numpy())


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("data_seed", [0, 1])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_quick_start_learns_babi_1_and_does_as_well_on_the_published_questions(tmp_path, shared, seed, data_seed):
    run = train(tmp_path / "run", DataSpec(task="babi-1", seed=data_seed), "small", TrainingOptions(seed=seed))
    generated = find(run.results, "performance", 0.0)
    assert generated >= 0.98
    published = accuracy_on(run, load_splits(DataSpec(task="babi-1", data_dir=str(shared))))
    assert abs(published - generated) <= 0.01


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.sentiment
def test_only_a_model_trained_with_masks_answers_the_majority_when_everything_is_masked(tmp_path, shared):
    data = DataSpec(task="davidson-hate", data_dir=str(shared), train_rows=6000, validation_rows=500)
    performance_at_100 = {}
    for strategy in ("plain", "masked"):
        options = TrainingOptions(strategy=strategy, epochs=1, learning_rate=1e-4, batch_size=32)
        run = train(tmp_path / strategy, data, "minilm", options)
        performance_at_100[strategy] = find(run.results, "performance", 1.0)
        majority = find(run.results, "majority")
    assert abs(performance_at_100["masked"] - majority) <= 0.03
    assert performance_at_100["plain"] < majority - 0.2
