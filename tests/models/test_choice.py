import json
import os
import subprocess
import sys

import pytest
import torch
from importance.reference import example_batch, strong_classifier

from faithmeter.errors import InputError
from faithmeter.importance.table import IMPORTANCE_MEASURES
from faithmeter.models.fast import choice, fused_linear
from faithmeter.models.fast.choice import DEFAULT, SHARE, STAGES, WARM_UP, Choice, Way
from faithmeter.models.fast.fused_linear import available
from faithmeter.models.fast.options import FORWARD, GRADIENT, TRAINING, PassOptions, pass_options, use_pass_options
from faithmeter.runs import engines

needs_onednn = pytest.mark.skipif(not available(), reason="this build of torch has no oneDNN")


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("FAITHMETER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "passes"


def linear_model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(3, 2))


def seconds_by(layers: dict[str, float], sizes: dict[int, float], tried: list):
    def seconds(way: Way, tokens: int) -> float:
        tried.append((way, tokens))
        return layers[way.linear_layers] * sizes.get(way.tokens, 1.0)

    return seconds


@needs_onednn
@pytest.mark.parametrize("architecture", ["bert", "roberta", "deberta"])
@pytest.mark.parametrize("measure", ["loo-signed", "lime", "ig-signed", "grad-l2"])
def test_every_way_explains_the_same(architecture, measure, monkeypatch):
    monkeypatch.setattr(fused_linear, "WORTH", 0)
    monkeypatch.setattr(fused_linear, "LARGE", 0)
    classifier = strong_classifier(architecture)
    batch = example_batch(classifier, pairs=True, masked=True)
    explain = IMPORTANCE_MEASURES[measure].explain
    found = []
    for layers in choice.LINEAR_LAYERS:
        for tokens in (1, 8192):
            classifier.choice = Choice(classifier.model, PassOptions(layers, tokens))
            found.append(explain(classifier, batch, batch.labels, 0))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], atol=1e-5, rtol=1e-4)
    assert found[0].abs().max() > 1e-5


@needs_onednn
@pytest.mark.parametrize("measure", ["loo-signed", "ig-signed"])
def test_trials_on_a_real_model_choose_a_way_and_change_no_result(measure, monkeypatch, folder):
    classifier = strong_classifier("bert")
    batch = example_batch(classifier, pairs=True, masked=True)
    explain = IMPORTANCE_MEASURES[measure].explain
    expected = explain(classifier, batch, batch.labels, 0)
    assert not folder.exists()  # so little is not measured
    monkeypatch.setattr(choice, "SHARE", 1e9)
    monkeypatch.setattr(choice, "STAGES", (choice.Stage(32), choice.Stage(64, (1024, 16, 64))))
    assert explain(classifier, batch, batch.labels, 0).sub(expected).abs().max() < 1e-5
    assert explain(classifier, batch, batch.labels, 0).sub(expected).abs().max() < 1e-5
    (file,) = folder.iterdir()
    (kept,) = json.loads(file.read_text())["ways"].values()
    assert kept["stage"] == 2
    assert kept["tokens"] in (1024, 16, 64)
    assert not any("forward" in vars(module) for module in classifier.model.modules())


@needs_onednn
def test_trials_cost_at_most_their_share_and_find_the_fastest_way(folder):
    model, tried, cost = linear_model(), [], 0.0
    seconds = seconds_by({"onednn": 2.0, "torch": 1.0}, {2048: 0.9, 4096: 0.8, 8192: 0.95}, tried)
    chosen = Choice(model)
    for number in range(400):
        chosen.count(FORWARD, 20_000, seconds)
        # at the speed of the fastest layers
        cost = sum((WARM_UP + tokens) * (2 if way.linear_layers == "onednn" else 1) for way, tokens in tried)
        assert cost <= SHARE * number * 20_000
    assert cost > 0
    assert chosen.way(FORWARD) == Way("torch", 4096, len(STAGES))
    assert chosen.way(GRADIENT) == DEFAULT  # its own passes have not been counted
    assert {tokens for _, tokens in tried} == {stage.sample for stage in STAGES}
    again = Choice(model)
    again.count(FORWARD, 10**9, lambda *_: pytest.fail("what was measured before is not measured again"))
    assert again.way(FORWARD) == chosen.way(FORWARD)
    assert len(list(folder.iterdir())) == 1


@needs_onednn
def test_short_work_is_not_measured_and_more_tokens_are_tried_only_where_more_have_helped():
    chosen, tried = Choice(linear_model()), []
    seconds = seconds_by({"onednn": 1.0, "torch": 1.3}, {4096: 0.1}, tried)
    chosen.count(FORWARD, int(STAGES[0].cost / SHARE) - 1, seconds)
    chosen.count(FORWARD, 10**4, seconds)
    assert not tried
    chosen.count(FORWARD, 10**7, seconds)
    chosen.count(FORWARD, 500, seconds)  # too little to try in it
    chosen.count(FORWARD, 10**5, seconds)
    assert {way.tokens for way, _ in tried} == {512, 1024, 2048}
    assert chosen.way(FORWARD).tokens == 1024


@needs_onednn
def test_long_work_is_settled_before_it_begins_and_short_work_is_not_measured(folder):
    model, tried = linear_model(), []
    seconds = seconds_by({"onednn": 2.0, "torch": 1.0}, {}, tried)
    enough = int(STAGES[0].cost / SHARE)
    assert Choice(model).settle(TRAINING, enough - 1, seconds) == DEFAULT.linear_layers
    assert not tried
    assert Choice(model).settle(TRAINING, enough, seconds) == "torch"
    assert tried
    again = Choice(model)
    assert again.settle(TRAINING, enough, lambda *_: pytest.fail("measured again")) == "torch"
    assert again.way(FORWARD) == DEFAULT  # which has its own trials


@needs_onednn
def test_a_way_must_be_clearly_faster_to_replace_the_one_before():
    ways = [Way("onednn", 1024), Way("torch", 1024), Way("torch", 512)]
    assert next(iter(choice.fastest(ways, dict(zip(ways, (1.0, 0.99, 1.1), strict=True)).__getitem__))) == ways[0]
    assert next(iter(choice.fastest(ways, dict(zip(ways, (1.0, 0.99, 0.9), strict=True)).__getitem__))) == ways[2]


@needs_onednn
def test_what_is_asked_for_is_neither_measured_nor_kept(folder):
    chosen, tried = Choice(linear_model(), PassOptions("torch", 2048)), []
    seconds = seconds_by({"onednn": 0.1, "torch": 1.0}, {}, tried)
    for _ in range(2):
        chosen.count(FORWARD, 10**9, seconds)
    assert not tried
    assert (chosen.way(FORWARD).linear_layers, chosen.way(FORWARD).tokens) == ("torch", 2048)
    half = Choice(linear_model(), PassOptions("torch"))
    for _ in range(2):
        half.count(FORWARD, 10**9, seconds)
    assert {way.linear_layers for way, _ in tried} == {"torch"}
    assert not folder.exists()


@needs_onednn
def test_the_choice_is_of_a_shape_and_a_number_of_threads(folder):
    seconds = seconds_by({"onednn": 2.0, "torch": 1.0}, {}, [])
    chosen = Choice(linear_model())
    for _ in range(2):
        chosen.count(FORWARD, 10**9, seconds)
    assert Choice(linear_model()).way(FORWARD).linear_layers == "torch"
    assert Choice(torch.nn.Sequential(torch.nn.Linear(4, 2))).way(FORWARD) == DEFAULT
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert chosen.way(FORWARD) == DEFAULT
    finally:
        torch.set_num_threads(threads)


@needs_onednn
@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[]", "null", '{"ways": 3}', '{"ways": {"forward": 1}}', '{"ways": {"forward": {"tokens": 5}}}',
        '{"ways": {"forward": {"linear_layers": "fast", "tokens": 1024, "stage": 4}}}',
        '{"ways": {"forward": {"linear_layers": "torch", "tokens": 1e30, "stage": 4}}}',
        '{"ways": {"forward": {"linear_layers": "torch", "tokens": 1024, "stage": "x"}}}',
        '{"ways": {"forward": {"linear_layers": ["torch"], "tokens": 1024, "stage": 1}}}',
        '{"ways": {"forward": {"linear_layers": "torch", "tokens": 1024, "stage": 1, "more": 2}}}',
    ],
)  # fmt: skip
def test_a_damaged_cache_is_ignored_and_written_anew(content):
    model = linear_model()
    file = choice.cache_file(model)
    file.parent.mkdir(parents=True)
    file.write_text(content)
    chosen = Choice(model)
    assert chosen.way(FORWARD) == DEFAULT
    for _ in range(2):
        chosen.count(FORWARD, 10**9, seconds_by({"onednn": 2.0, "torch": 1.0}, {}, []))
    assert Choice(model).way(FORWARD).linear_layers == "torch"


@needs_onednn
def test_a_cache_that_cannot_be_written_costs_nothing_but_the_next_measurement(folder):
    folder.parent.mkdir()
    folder.write_text("a file in the place of the folder")
    chosen = Choice(linear_model())
    for _ in range(2):
        chosen.count(FORWARD, 10**9, seconds_by({"onednn": 2.0, "torch": 1.0}, {}, []))
    assert chosen.way(FORWARD).linear_layers == "torch"


def test_options_that_cannot_be_are_refused():
    with pytest.raises(InputError, match="Did you mean 'onednn'"):
        PassOptions("onedn")
    with pytest.raises(InputError, match="at once"):
        PassOptions(tokens=0)


def test_options_of_the_process_are_those_of_its_classifiers_and_of_processes_that_it_starts(monkeypatch):
    given = []
    monkeypatch.setattr(engines, "ProcessPoolExecutor", lambda *_, initargs, **__: given.extend(initargs))
    before = pass_options()
    try:
        use_pass_options(PassOptions("torch", 64))
        assert strong_classifier("bert").tokens_per_pass == 64
        engines._new_process(0)
        assert given[1] == PassOptions("torch", 64)
    finally:
        use_pass_options(before)


def test_neither_an_import_nor_a_pass_changes_the_environment():
    code = (
        "import os; before = dict(os.environ); import torch; theirs = dict(os.environ);"
        "import faithmeter.models.classifier; from faithmeter.models.fast.fused_linear import available, fused_linears;"
        "available(); changed = {k for k in os.environ if os.environ[k] != theirs.get(k)}; print(sorted(changed))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ))
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


@needs_onednn
def test_weights_that_stand_still_are_laid_out_once_and_forgotten_at_the_end(monkeypatch):
    laid_out, original = [], fused_linear._laid_out
    monkeypatch.setattr(fused_linear, "_laid_out", lambda weight: laid_out.append(1) or original(weight))
    monkeypatch.setattr(fused_linear, "WORTH", 0)
    monkeypatch.setattr(fused_linear, "LARGE", 0)
    classifier = strong_classifier("bert")
    batch = example_batch(classifier)
    explain = IMPORTANCE_MEASURES["x-grad-signed"].explain
    expected = explain(classifier, batch, batch.labels, 0)
    once = len(laid_out)
    with classifier.weights_stand_still():
        for _ in range(3):
            torch.testing.assert_close(explain(classifier, batch, batch.labels, 0), expected, atol=1e-6, rtol=1e-5)
        assert len(laid_out) == 2 * once
    with torch.no_grad():
        classifier.model.classifier.weight.mul_(2)
        classifier.model.classifier.bias.mul_(2)
    doubled = explain(classifier, batch, batch.labels, 0)
    torch.testing.assert_close(doubled, 2 * expected, atol=1e-5, rtol=1e-4)
    assert len(laid_out) == 3 * once
