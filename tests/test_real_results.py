"""What the documentation claims, on real sizes. Slow: run with `make test-all`."""

import subprocess
import sys
from pathlib import Path

import pytest

from faithmeter import DataSpec, MeasureOptions, Run, TrainingOptions, check, measure, train
from faithmeter.data.splits import load_splits
from faithmeter.in_distribution.p_values import smallest_of
from faithmeter.performance import performance
from faithmeter.runs.results import find
from faithmeter.statistics import LEVEL


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
    generated = find(run.results, "performance", ratio=0.0)["value"]
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
        performance_at_100[strategy] = find(run.results, "performance", ratio=1.0)["value"]
        majority = find(run.results, "majority")["value"]
    assert abs(performance_at_100["masked"] - majority) <= 0.03
    assert performance_at_100["plain"] < majority - 0.2


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_on_the_quick_start_signed_measures_beat_absolute_ones_and_all_beat_random(tmp_path, seed):
    run = train(tmp_path / "run", DataSpec(task="babi-1"), "small", TrainingOptions(seed=seed))
    check(run.path)
    measures = ("grad-l1", "grad-l2", "x-grad-abs", "ig-signed", "ig-abs", "loo-signed", "loo-abs")
    measure(run.path, MeasureOptions(measures=measures, rows=200))
    racu = {row["measure"]: row["value"] for row in run.results if row["kind"] == "racu"}
    assert min(racu.values()) >= 0.7
    for name in ("loo", "ig"):
        assert racu[f"{name}-signed"] >= max(1.0, racu[f"{name}-abs"] + 0.15)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_in_distribution_test_holds_its_level_and_finds_what_is_strange(tmp_path, seed):
    script = Path(__file__).parents[1] / "benchmarks" / "in_distribution.py"
    command = [sys.executable, str(script), str(tmp_path), "--seed", str(seed)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    table = {line[:40].strip(): [float(share) for share in line[40:].split()] for line in printed.splitlines()}
    assert all(3.5 <= share <= 6.5 for share in table["calibrated, level"])
    assert min(table["plain model, power"][1:]) >= 90
    assert min(table["random words, power"][1:]) >= 95
    for name in ("plain model, power, verdict", "random words, power, verdict outside"):
        assert min(table[name][1:]) == 100


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_a_decoder_learns_its_mask_and_its_masked_texts_are_in_distribution(tmp_path, seed):
    run = train(tmp_path / "run", DataSpec(task="babi-1"), "gpt2-small", TrainingOptions(seed=seed))
    assert find(run.results, "performance", ratio=0.0)["value"] >= 0.95
    verdicts = check(run.path)
    assert smallest_of([verdict.anywhere.dataset_p_value for verdict in verdicts]) > LEVEL
