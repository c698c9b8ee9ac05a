from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import WORDS, random_classifier, sentiment_rows

from faithmeter.errors import InputError
from faithmeter.masking import Purpose, random_stream
from faithmeter.models.fast import fused_linear
from faithmeter.models.fast.choice import TRAINED_LAYERS, Choice
from faithmeter.models.fast.fused_linear import available
from faithmeter.models.fast.options import PassOptions
from faithmeter.models.from_scratch import small_classifier
from faithmeter.progress import Silent
from faithmeter.training import loop
from faithmeter.training.checkpoint import load_weights
from faithmeter.training.config import TrainingConfig
from faithmeter.training.curriculum import mini_batches
from faithmeter.training.loop import _parameter_groups, fine_tune, learning_rate_factor
from faithmeter.training.robust import weighted_losses

CONFIG = TrainingConfig(epochs=4, learning_rate=2e-3, batch_size=8, validation="both", seed=3)


def splits(classifier, count=96, flip=False):
    rows = sentiment_rows(count)
    labels = [int(row["label"] == "positive") ^ int(flip and i % 4 < 2) for i, row in enumerate(rows)]
    encoded = classifier.encode([row["text"] for row in rows], labels=labels)
    rest = sentiment_rows(40, seed=1)
    return encoded, classifier.encode([r["text"] for r in rest], labels=[int(r["label"] == "positive") for r in rest])


def run(classifier, folder, config=CONFIG, reporter=None, data=None):
    train, validation = data or splits(classifier)
    return fine_tune(classifier, train, validation, config, metric="accuracy", checkpoints=folder, reporter=reporter)


def toy():
    return small_classifier([" ".join(WORDS)], ("negative", "positive"), seed=0)


def weights(classifier):
    return {name: value.clone() for name, value in classifier.model.state_dict().items()}


def same(first, second):
    return all(torch.equal(value, second[name]) for name, value in first.items())


def test_the_learning_rate_warms_up_and_decays_in_optimiser_steps():
    # 100 steps, 6 % warm-up: 6 rising steps, 1/7 .. 6/7, the peak at step 6, then down by 1/94 a step
    factors = [learning_rate_factor(step, 100, 0.06) for step in range(100)]
    assert factors[:7] == pytest.approx([1 / 7, 2 / 7, 3 / 7, 4 / 7, 5 / 7, 6 / 7, 1])
    assert factors[7] == pytest.approx(93 / 94)
    assert factors[99] == pytest.approx(1 / 94)


def test_without_warm_up_the_first_step_has_the_whole_rate():
    assert learning_rate_factor(0, 10, 0.0) == 1
    assert learning_rate_factor(0, 1, 0.06) == 1


def test_the_schedule_counts_steps_and_not_examples(tmp_path, monkeypatch):
    seen = []
    step = torch.optim.AdamW.step

    def spy(self, *args, **kwargs):
        seen.append(self.param_groups[0]["lr"])
        return step(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.AdamW, "step", spy)
    run(toy(), tmp_path, replace(CONFIG, epochs=2, accumulate=3))
    # 96 rows, batches of 8, 3 of them a step: 4 steps an epoch, 8 in all; 6 % of 8 rounds to 0 rising steps
    assert seen == pytest.approx([2e-3 * (8 - i) / 8 for i in range(8)])


def test_weight_decay_is_not_for_biases_and_norms():
    model = random_classifier("bert").model
    decayed, free = _parameter_groups(model, 0.01)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.01, 0.0)
    assert all("bias" in names[id(p)] or "LayerNorm" in names[id(p)] for p in free["params"])
    assert not any("bias" in names[id(p)] or "LayerNorm" in names[id(p)] for p in decayed["params"])
    assert len(decayed["params"]) + len(free["params"]) == len(names)


def test_accumulated_batches_equal_one_larger_batch(tmp_path, monkeypatch):
    gradients = []
    step = torch.optim.AdamW.step

    def spy(self, *args, **kwargs):
        gradients.append([p.grad.clone() for group in self.param_groups for p in group["params"]])
        return step(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.AdamW, "step", spy)
    for size, accumulate in ((16, 1), (4, 4), (5, 4)):  # the last group is uneven: 5 + 5 + 5 + 1
        classifier = toy()
        config = replace(CONFIG, epochs=1, strategy="plain", batch_size=size, accumulate=accumulate)
        run(classifier, tmp_path / f"{size}", config, data=splits(classifier, 16))
    assert len(gradients) == 3
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("strategy", ["plain", "masked", "only-masking"])
def test_every_strategy_learns_the_toy_task(tmp_path, strategy):
    classifier = toy()
    outcome = run(classifier, tmp_path, replace(CONFIG, strategy=strategy, validation="unmasked", epochs=8))
    best = max(row["validation_unmasked"] for row in outcome.history)
    assert best >= 0.95
    assert not outcome.warnings


def test_the_first_best_epoch_is_kept(tmp_path):
    classifier = toy()
    outcome = run(classifier, tmp_path, replace(CONFIG, epochs=8))
    selection = [row["selection"] for row in outcome.history]
    assert outcome.best_epoch == 1 + int(np.argmax(selection))
    trained = weights(classifier)
    load_weights(tmp_path, outcome.best_epoch, classifier.model)
    assert same(trained, weights(classifier))


def test_of_equally_good_epochs_the_first_is_kept(tmp_path, monkeypatch):
    selections = iter([0.5, 0.9, 0.9, 0.4])

    def validate(self):
        value = next(selections)
        return {"validation_unmasked": value, "validation_masked": value, "selection": value}

    monkeypatch.setattr("faithmeter.training.loop._Training._validate", validate)
    assert run(toy(), tmp_path).best_epoch == 2


def test_validation_counts_both_copies_when_asked(tmp_path):
    outcome = run(toy(), tmp_path)
    for row in outcome.history:
        assert row["selection"] == pytest.approx((row["validation_unmasked"] + row["validation_masked"]) / 2)


class StopAt(Silent):
    """Breaks off like a crash: in the middle of an epoch, or after one."""

    def __init__(self, batches: int) -> None:
        self.left = batches

    @contextmanager
    def bar(self, title, total):
        yield self.advance

    def advance(self, done):
        self.left -= done
        if self.left <= 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize(
    "make", [toy, lambda: random_classifier("bert", classes=2)], ids=["small", "bert-with-dropout"]
)
@pytest.mark.parametrize("batches", [5, 12, 31])
def test_an_interrupted_training_ends_in_the_same_weights(tmp_path, make, batches):
    whole = make()
    expected = run(whole, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):  # 12 batches an epoch: in epoch 1, at its end, in epoch 3
        run(make(), tmp_path / "broken", reporter=StopAt(batches))
    resumed = make()
    outcome = run(resumed, tmp_path / "broken")
    assert same(weights(whole), weights(resumed))

    def untimed(rows):
        return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]

    assert untimed(outcome.history) == untimed(expected.history)


@pytest.mark.skipif(not available(), reason="this build of torch has no oneDNN")
@pytest.mark.parametrize("layers", ["torch", "onednn"])
def test_a_training_keeps_the_linear_layers_it_began_with_and_trials_leave_no_trace(tmp_path, monkeypatch, layers):
    monkeypatch.setenv("FAITHMETER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fused_linear, "LARGE", 0)  # or weights as small as these would be left to torch
    config, used = replace(CONFIG, epochs=2), []
    monkeypatch.setattr(loop, "TRAINED_LAYERS", {name: _noted(name, used) for name in TRAINED_LAYERS})

    def bert(asked="auto"):
        made = random_classifier("bert", classes=2)
        made.choice = Choice(made.model, PassOptions(asked))
        return made

    forced = bert(layers)
    run(forced, tmp_path / "forced", config)
    assert set(used) == {layers}
    monkeypatch.setattr("faithmeter.models.fast.choice.SHARE", 1e9)  # so that even this is measured
    other = {"torch": "onednn", "onednn": "torch"}[layers]
    monkeypatch.setattr(loop, "timed", lambda work: (work(), float(used[-1] == other))[1])
    with pytest.raises(KeyboardInterrupt):
        run(bert(), tmp_path / "broken", config, reporter=StopAt(20))
    assert other in used  # it was tried
    monkeypatch.setenv("FAITHMETER_CACHE", str(tmp_path / "another machine"))
    monkeypatch.setattr(loop, "timed", lambda work: pytest.fail("measured again"))
    used.clear()
    resumed = bert()
    run(resumed, tmp_path / "broken", config)
    assert set(used) == {layers}
    assert same(weights(forced), weights(resumed))


def _noted(name, used):
    @contextmanager
    def layers(model):
        used.append(name)
        with TRAINED_LAYERS[name](model):
            yield

    return layers


def test_an_interrupted_curriculum_ends_in_the_same_weights(tmp_path, monkeypatch):
    monkeypatch.setattr("faithmeter.training.curriculum.ROWS_PER_EPOCH", 64)
    config = replace(CONFIG, curriculum=True, epochs=2)
    whole = toy()
    run(whole, tmp_path / "whole", config)
    with pytest.raises(KeyboardInterrupt):
        run(toy(), tmp_path / "broken", config, reporter=StopAt(20))
    resumed = toy()
    outcome = run(resumed, tmp_path / "broken", config)
    assert same(weights(whole), weights(resumed))
    assert outcome.history[0]["stage"] == 1


def test_another_seed_gives_another_model(tmp_path):
    first, second = toy(), toy()
    run(first, tmp_path / "a")
    run(second, tmp_path / "b", replace(CONFIG, seed=4))
    assert not same(weights(first), weights(second))


def test_checkpoints_are_only_the_last_and_the_best(tmp_path):
    outcome = run(toy(), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {f"epoch-{e:04d}" for e in (outcome.best_epoch, 4)}
    assert not list(tmp_path.rglob("*.bin")) + list(tmp_path.rglob("*.pt")) + list(tmp_path.rglob("*.pkl"))


def test_a_model_that_learns_nothing_is_reported_in_plain_words(tmp_path):
    classifier = toy()
    outcome = run(classifier, tmp_path, data=splits(classifier, flip=True))  # labels have nothing to do with the text
    assert "converge" in outcome.warnings[0]


def test_a_model_that_is_right_on_few_texts_of_an_uneven_task_is_not_said_to_have_learnt_nothing(tmp_path):
    classifier = toy()
    rows = sentiment_rows(120, seed=1)
    few = [row for row in rows if row["label"] == "negative"][:53] + [r for r in rows if r["label"] == "positive"][:7]
    uneven = classifier.encode([row["text"] for row in few], labels=[int(row["label"] == "positive") for row in few])
    outcome = run(classifier, tmp_path, replace(CONFIG, epochs=8), data=(splits(classifier)[0], uneven))
    assert outcome.history[outcome.best_epoch - 1]["validation_unmasked"] >= 59 / 60
    assert outcome.warnings == ()


def test_a_loss_that_is_not_a_number_stops_with_advice(tmp_path):
    with pytest.raises(InputError, match=r"loss is (nan|inf).*--learning-rate"):
        run(toy(), tmp_path, replace(CONFIG, learning_rate=1e30))


@pytest.mark.parametrize(
    "change",
    [{"strategy": "half"}, {"validation": "none"}, {"epochs": 0}, {"batch_size": 0}, {"learning_rate": 0.0}],
)
def test_settings_that_make_no_sense_are_refused(change):
    with pytest.raises(InputError):
        replace(CONFIG, **change)


def test_an_unknown_tracker_is_refused(tmp_path):
    with pytest.raises(InputError, match="tracker 'nosuch' is not installed"):
        run(toy(), tmp_path, replace(CONFIG, tracker="nosuch"))


def test_mixed_precision_trains_and_gives_the_model_back_as_it_was(tmp_path):
    classifier = toy()
    forward = classifier.model.forward
    outcome = run(classifier, tmp_path, replace(CONFIG, mixed_precision="bf16", epochs=8))
    assert max(row["validation_unmasked"] for row in outcome.history) >= 0.95
    assert classifier.model.forward == forward
    assert all(parameter.dtype == torch.float32 for parameter in classifier.model.parameters())
    run(toy(), tmp_path / "again", replace(CONFIG, epochs=1))  # another precision in the same process


ROBUST = replace(CONFIG, robust=("igr", "vat", "explanation-guided", "adversarial"), epochs=3)


def attack_of(classifier, train):
    """Attacked copies that depend on the weights, as those of a real attack do."""

    def attack(rows, _epoch):
        first = int(classifier.predict(train)[0].argmax())
        texts = ["bad film" if first else "good film" for _ in rows]
        return classifier.encode(texts, labels=[int(train.labels[row]) for row in rows])

    return attack


def robust_run(classifier, folder, reporter=None):
    train, validation = splits(classifier)
    attack = attack_of(classifier, train)
    settings = {"metric": "accuracy", "checkpoints": folder, "reporter": reporter, "attack": attack}
    return fine_tune(classifier, train, validation, ROBUST, **settings)


def test_robust_losses_are_in_the_history_and_change_what_is_learnt(tmp_path):
    plain, robust = toy(), toy()
    run(plain, tmp_path / "plain", replace(CONFIG, epochs=3))
    outcome = robust_run(robust, tmp_path / "robust")
    for row in outcome.history:
        assert all(row[f"train_{name}"] > 0 for name in ("igr", "vat", "explanation-guided"))
    # 96 rows in batches of 8, and from the second epoch on 10 more
    assert [row["step"] for row in outcome.history] == [12, 12 + 14, 12 + 14 + 14]
    assert not same(weights(plain), weights(robust))


def test_guidance_waits_for_the_first_stage_and_the_best_epoch_is_one_with_it(tmp_path):
    classifier = toy()
    config = replace(CONFIG, epochs=4, robust=("igr", "explanation-guided"), guided_after=2)
    outcome = run(classifier, tmp_path, config)
    assert ["train_explanation-guided" in row for row in outcome.history] == [False, False, True, True]
    assert all("train_igr" in row for row in outcome.history)
    selection = [row["selection"] for row in outcome.history]
    assert outcome.best_epoch == 3 + int(np.argmax(selection[2:]))


def test_the_former_guided_loss_is_not_gone_on_with(tmp_path):
    config = replace(CONFIG, robust=("explanation-guided",), guided_attribution="former")
    with pytest.raises(InputError, match="train again"):
        run(toy(), tmp_path, config)


@pytest.mark.parametrize("name", ["igr", "vat", "explanation-guided"])
def test_each_loss_has_its_part_in_the_step(tmp_path, monkeypatch, name):
    """One step of plain gradient descent: the weights move by the gradient of cross-entropy plus the weighted loss."""
    monkeypatch.setattr("faithmeter.training.loop._parameter_groups", lambda model, _: list(model.parameters()))
    monkeypatch.setattr(torch.optim, "AdamW", lambda groups, lr, **_: torch.optim.SGD(groups, lr=lr))
    weights_of = {"igr_weight": 0.5, "vat_weight": 0.5, "guided_weight": 0.5}
    config = replace(CONFIG, strategy="plain", robust=(name,), epochs=1, warmup=0.0, batch_size=96, **weights_of)
    trained, by_hand = toy(), toy()
    drawn = torch.randn(96, 6, 64, generator=torch.Generator().manual_seed(0))  # of VAT, the same in both
    monkeypatch.setattr(torch, "randn_like", lambda like: drawn[: len(like), : like.shape[1]])
    run(trained, tmp_path, config)
    train, _ = splits(by_hand)
    batch = train.batch(next(iter(mini_batches(np.arange(96), train.lengths, 96, order(config)))))
    loss = torch.nn.functional.cross_entropy(by_hand.logits(batch), batch.labels)
    loss = loss + weighted_losses(by_hand, batch, config)[name].mean()
    loss.backward()
    for (label, after), before in zip(trained.model.named_parameters(), by_hand.model.parameters(), strict=True):
        expected = before if before.grad is None else before - CONFIG.learning_rate * before.grad
        torch.testing.assert_close(after, expected, msg=label)
    # and without it they would have moved elsewhere
    alone = toy()
    torch.nn.functional.cross_entropy(alone.logits(batch), batch.labels).backward()
    assert any(
        not torch.allclose(one.grad, other.grad, rtol=1e-3, atol=1e-7)
        for one, other in zip(alone.model.parameters(), by_hand.model.parameters(), strict=True)
        if one.grad is not None and other.grad is not None
    )


def test_robust_losses_begin_after_the_curriculum(tmp_path, monkeypatch):
    monkeypatch.setattr("faithmeter.training.curriculum.ROWS_PER_EPOCH", 64)
    config = replace(CONFIG, curriculum=True, epochs=1, robust=("igr",))
    history = run(toy(), tmp_path, config).history
    assert [("train_igr" in row) for row in history] == [row["stage"] == "all" for row in history]
    assert len(history) > 1


def test_a_share_that_is_no_row_is_refused(tmp_path):
    classifier = toy()
    train, validation = splits(classifier)
    settings = {"metric": "accuracy", "checkpoints": tmp_path, "attack": attack_of(classifier, train)}
    with pytest.raises(InputError, match="is none"):
        fine_tune(classifier, train, validation, replace(ROBUST, adversarial_share=0.001), **settings)


def order(config):
    return random_stream(config.seed, Purpose.TRAIN_ORDER, 1)


def test_a_killed_robust_training_ends_with_the_same_weights(tmp_path):
    whole, killed = toy(), toy()
    robust_run(whole, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        robust_run(killed, tmp_path / "killed", reporter=StopAt(20))
    again = toy()
    robust_run(again, tmp_path / "killed")
    assert same(weights(whole), weights(again))


def test_adversarial_training_without_an_attack_is_refused(tmp_path):
    with pytest.raises(ValueError, match="needs an attack"):
        run(toy(), tmp_path, ROBUST)
