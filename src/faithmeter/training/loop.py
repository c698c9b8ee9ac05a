"""The training loop of masked fine-tuning, on accelerate: many GPUs, mixed precision and trackers come with it.

An own loop rather than `transformers.Trainer`, because every draw must come from (seed, epoch, row) for a killed
training to end in the same weights, and because the mini-batch is one thing however many processes share it.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import accelerate
import numpy as np
import torch
from accelerate.state import AcceleratorState
from torch import Tensor, nn

from faithmeter.data.batch import Encoded, Ints
from faithmeter.errors import InputError
from faithmeter.masking import Purpose, random_stream
from faithmeter.models.classifier import Classifier
from faithmeter.models.fast.choice import TRAINED_LAYERS, Way, is_available, timed
from faithmeter.models.fast.options import AUTO, TRAINING
from faithmeter.models.memory import free_memory, out_of_memory
from faithmeter.performance import Gold, majority_p_value, majority_performance, performance
from faithmeter.progress import Reporter, Silent
from faithmeter.statistics import LEVEL
from faithmeter.training import checkpoint
from faithmeter.training.config import ADVERSARIAL, ROBUST, TrainingConfig
from faithmeter.training.curriculum import LEARNT, STAGES, Position, mini_batches, stage_rows
from faithmeter.training.robust import weighted_losses
from faithmeter.training.strategy import mask_for_training, masked_copy, masked_positions

# the rows that are attacked in an epoch, by their numbers -> their attacked copies, against the model as it is
Attack = Callable[[Ints, int], Encoded]
Group = list[tuple[Ints, Ints]]  # the batches of an optimiser step: their rows, and the rows' positions in the epoch


@dataclass(frozen=True)
class Outcome:
    """What a training leads to: the weights of `best_epoch` are in the classifier."""

    history: list[dict[str, object]]
    best_epoch: int
    warnings: tuple[str, ...]


def learning_rate_factor(step: int, steps: int, warmup: float) -> float:
    """Return the share of the learning rate at an optimiser step: linear warm-up, then linear decay to 0.

    Counted in real optimiser steps, of which there are `steps`; the first is step 0.
    """
    rising = round(warmup * steps)
    if step < rising:
        return (step + 1) / (rising + 1)
    return (steps - step) / max(1, steps - rising)


def fine_tune(
    classifier: Classifier,
    train: Encoded,
    validation: Encoded,
    config: TrainingConfig,
    *,
    metric: str,
    checkpoints: Path,
    reporter: Reporter | None = None,
    attack: Attack | None = None,
) -> Outcome:
    """Train the classifier in place, for all epochs, and leave it with the weights of the first best epoch.

    Where `config.robust` names `adversarial`, `attack(rows, epoch)` must return attacked copies of training rows.
    Resumes from the last checkpoint in `checkpoints`, if there is one, to the same weights (bit for bit on a CPU) as an
    uninterrupted training.
    """
    if ADVERSARIAL in config.robust and attack is None:
        raise ValueError("adversarial training needs an attack, which works on texts and not on tokens")
    if config.guided_formerly:
        raise InputError(
            "This explanation-guided training has the loss of an earlier version, which flattened attention and is not "
            "computed any more: train again, into another directory."
        )
    return _Training(classifier, train, validation, config, metric, checkpoints, reporter or Silent(), attack).run()


class _Training:
    def __init__(
        self,
        classifier: Classifier,
        train: Encoded,
        validation: Encoded,
        config: TrainingConfig,
        metric: str,
        checkpoints: Path,
        reporter: Reporter,
        attack: Attack | None,
    ) -> None:
        self.classifier, self.train, self.config, self.metric = classifier, train, config, metric
        self.checkpoints, self.reporter, self.attack = checkpoints, reporter, attack
        self.validation = validation
        self.validation_masked = masked_copy(validation, mask_context=config.mask_context, seed=config.seed)
        self.accelerator = _accelerator(config, checkpoints)
        kind = {"adamw": torch.optim.AdamW, "amsgrad": torch.optim.Adam}[config.optimizer]
        optimizer = kind(
            _parameter_groups(classifier.model, config.weight_decay),
            lr=config.learning_rate,
            betas=config.betas,
            amsgrad=config.optimizer == "amsgrad",
            fused=True,
        )
        self.state = checkpoint.State(position=Position(stage=0) if config.curriculum else Position())
        stored = checkpoint.load_latest(checkpoints, classifier.model, optimizer, reporter.warn)
        if stored is not None:
            self.state = stored
            reporter.note(f"Resuming after epoch {stored.epoch}.")
        self.model, self.optimizer = self.accelerator.prepare(classifier.model, optimizer)
        self.plain_optimizer = optimizer
        # as many rows are attacked in every epoch as in any other, so that the steps can be counted beforehand
        self.attacked = round(config.adversarial_share * len(train)) if ADVERSARIAL in config.robust else 0
        if ADVERSARIAL in config.robust and not self.attacked:
            raise InputError(
                f"A share of {config.adversarial_share} of {len(train)} training texts is none: adversarial training "
                "needs a larger --adversarial-share, or more texts."
            )
        self.rows_at_once = config.batch_size
        group = config.batch_size * config.accumulate
        later = -(-(len(train) + self.attacked) // group)
        self.steps = -(-len(train) // group) + (config.epochs - 1) * later

    def run(self) -> Outcome:
        if self.config.tracker is not None:
            self.accelerator.init_trackers("faithmeter", config=_flat(asdict(self.config)))
        while self.state.position.stage < len(STAGES) or self.state.position.epochs < self.config.epochs:
            self._epoch()
        self.accelerator.end_training()
        # mixed precision wraps the model's forward: give it back as it was
        self.accelerator.unwrap_model(self.model, keep_fp32_wrapper=False)
        assert self.state.best_epoch is not None
        checkpoint.load_weights(self.checkpoints, self.state.best_epoch, self.classifier.model)
        return Outcome(self.state.history, self.state.best_epoch, tuple(self._warnings()))

    def _epoch(self) -> None:
        state, config = self.state, self.config
        started = time.perf_counter()
        epoch, position = state.epoch + 1, state.position
        shown = self._with_attacked(epoch)
        random = random_stream(config.seed, Purpose.TRAIN_ORDER, epoch)
        lengths = shown.lengths
        rows = np.arange(len(shown)) if position.finished else stage_rows(lengths, position.stage, random)
        batches = mini_batches(rows, lengths, config.batch_size, random)
        # dropout: the same numbers in this epoch whether or not the epochs before it ran in this process
        torch.manual_seed(int(random_stream(config.seed, Purpose.DROPOUT, epoch).integers(2**62)))
        title = f"Epoch {position.epochs + 1}/{config.epochs}" if position.finished else f"Stage {position.stage + 1}"
        loss, accuracy, added = self._pass(shown, batches, epoch, title)
        state.epoch, state.position = epoch, position.after(accuracy)
        row: dict[str, object] = {
            "epoch": epoch,
            "stage": position.stage + 1 if not position.finished else "all",
            "step": state.step,
            "train_loss": loss,
            "train_accuracy_unmasked": None if np.isnan(accuracy) else accuracy,
            **{f"train_{name}": value for name, value in added.items()},
        }
        if position.finished:
            row |= self._validate()
            best = next((r["selection"] for r in state.history if r["epoch"] == state.best_epoch), -np.inf)
            # an epoch before guidance is not what was asked for, however well it does
            if position.epochs >= config.first_stage and row["selection"] > best:  # type: ignore[operator]
                state.best_epoch = epoch
        row["seconds"] = round(time.perf_counter() - started, 3)
        state.history.append(row)
        if self.accelerator.is_main_process:
            checkpoint.save(self.checkpoints, state, self.classifier.model, self.plain_optimizer)
        self.accelerator.wait_for_everyone()
        if config.tracker is not None:
            self.accelerator.log({k: v for k, v in row.items() if isinstance(v, int | float)}, step=epoch)
        self.reporter.note(_epoch_line(title, row))

    def _with_attacked(self, epoch: int) -> Encoded:
        """Return the rows of an epoch: the training rows and, from the second ordinary epoch on, attacked copies."""
        if not (self.attacked and self.state.position.finished and self.state.position.epochs):
            return self.train
        assert self.attack is not None
        random = random_stream(self.config.seed, Purpose.ATTACKED_ROWS, epoch)
        return self.train.joined(self.attack(np.sort(random.permutation(len(self.train))[: self.attacked]), epoch))

    def _pass(
        self, shown: Encoded, batches: list[Ints], epoch: int, title: str
    ) -> tuple[float, float, dict[str, float]]:
        """Show every batch once; return means: the loss, the accuracy on the unmasked rows (nan without any), and what
        robust training adds to the loss.
        """
        config, position = self.config, self.state.position
        kinds = config.added_losses(position.epochs) if position.finished else []
        # loss, right, unmasked, and each loss that is added
        totals = torch.zeros(3 + len(kinds), device=self.accelerator.device, dtype=torch.float64)
        self.model.train()
        layers = TRAINED_LAYERS[self._linear_layers()](self.classifier.model)
        with self.reporter.bar(title, len(batches)) as advance, layers:
            for group in _groups(batches, config.accumulate):
                self._set_learning_rate()
                totals += self._add_gradients(shown, group, epoch, kinds)
                if config.clip > 0:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), config.clip)
                self.optimizer.step()
                self.optimizer.zero_grad()
                if self.state.position.finished:
                    self.state.step += 1
                advance(len(group))
        loss, right, unmasked, *added = self.accelerator.reduce(totals, "sum").tolist()
        count = sum(len(rows) for rows in batches)
        loss /= count
        if not np.isfinite(loss + sum(added)):
            raise InputError(
                f"The loss is {loss} in epoch {epoch}: training diverged. Lower --learning-rate, or pass --clip 1."
            )
        accuracy = right / unmasked if unmasked else float("nan")
        return loss, accuracy, {kind: value / count for kind, value in zip(kinds, added, strict=True)}

    def _linear_layers(self) -> str:
        """Return the linear layers to train with: those asked for, those it began with, or those that trials choose."""
        if self.accelerator.device.type != "cpu":
            return "torch"
        choice, state = self.classifier.choice, self.state
        if choice.options.linear_layers != AUTO:
            return choice.options.linear_layers
        if state.linear_layers is None or not is_available(state.linear_layers):
            planned = int(self.train.lengths.sum()) * self.config.epochs
            state.linear_layers = choice.settle(TRAINING, planned, self._seconds_of_a_pass)
        return state.linear_layers

    def _seconds_of_a_pass(self, way: Way, tokens: int) -> float:
        """Return the seconds per token of a pass and its way back; neither weights nor random numbers change."""
        lengths = self.train.lengths
        middle = np.argsort(lengths, kind="stable")[len(lengths) // 2 :]
        rows = middle[: max(1, tokens // int(lengths[middle[0]]))]
        batch = self.train.batch(rows)
        learnt = [one for one in self.classifier.model.parameters() if one.requires_grad]

        def work() -> None:
            logits = self.classifier.logits(batch)
            loss = self.classifier.problem.loss(logits, batch.labels, "sum")
            torch.autograd.grad(loss, learnt, allow_unused=True)

        with torch.random.fork_rng(devices=()), TRAINED_LAYERS[way.linear_layers](self.classifier.model):
            work()
            return timed(work) / int(lengths[rows].sum())

    def _add_gradients(self, shown: Encoded, group: Group, epoch: int, kinds: list[str]) -> Tensor:
        """Add up the gradients of an optimiser step, and return its sums: the loss, right, unmasked, and what is added.

        Where memory runs out, the step begins again, from the same draws, and half as many rows go through at a time:
        the gradient is a sum over rows, so that only dropout falls on other places.
        """
        while True:
            draws = torch.random.get_rng_state(), torch.cuda.get_rng_state_all()
            try:
                return self._add_gradients_of(_cut(group, self.rows_at_once), shown, epoch, kinds)
            except (MemoryError, RuntimeError) as error:
                if not out_of_memory(error):
                    raise
                if self.rows_at_once == 1 or self.accelerator.num_processes > 1:
                    raise InputError(
                        "Memory ran out in training. Lower --batch-size (and raise --accumulate by as much), or "
                        "--max-length, or use a machine with more memory. Finished work is kept."
                    ) from error
            # out of the handler, whose error would hold on to what filled the memory
            if self.rows_at_once == self.config.batch_size:
                self.reporter.warn(
                    f"Memory ran out with {self.rows_at_once} texts per pass: passes are halved from here on, as "
                    "often as needed. The optimiser steps keep their size."
                )
            self.rows_at_once = (self.rows_at_once + 1) // 2
            self.optimizer.zero_grad()
            free_memory()
            torch.random.set_rng_state(draws[0])
            torch.cuda.set_rng_state_all(draws[1])

    def _add_gradients_of(self, group: Group, shown: Encoded, epoch: int, kinds: list[str]) -> Tensor:
        config, process, processes = self.config, self.accelerator.process_index, self.accelerator.num_processes
        strategy = config.strategy if self.state.position.finished else "plain"
        group_rows = sum(len(rows) for rows, _ in group)
        totals = torch.zeros(3 + len(kinds), device=self.accelerator.device, dtype=torch.float64)
        for index, (rows, positions) in enumerate(group):
            mine = np.arange(len(rows))[process::processes]
            weight = float(len(mine) > 0)
            mine = mine if weight else np.zeros(1, dtype=np.int64)  # every process must take part
            batch = mask_for_training(
                shown, shown.batch(rows[mine]), positions[mine], strategy=strategy,
                mask_context=config.mask_context, seed=config.seed, epoch=epoch,
            ).to(self.accelerator.device)  # fmt: skip
            last = index == len(group) - 1
            with nullcontext() if last else self.accelerator.no_sync(self.model):
                logits = self.classifier.logits(batch, model=self.model)
                losses = self.classifier.problem.loss(logits, batch.labels, "sum")[None]
                if kinds:
                    found = weighted_losses(self.classifier, batch, config, kinds)
                    losses = torch.cat([losses, torch.stack([found[kind].sum() for kind in kinds])])
                # gradients are averaged over processes; this makes it the mean over the rows of the step
                self.accelerator.backward(losses.sum() * weight * processes / group_rows)
            as_given = torch.from_numpy(~masked_positions(strategy, positions[mine])).to(logits.device)
            totals += weight * _tally(losses, self._right(logits, batch.labels), as_given)
        return totals

    def _right(self, logits: Tensor, gold: Tensor) -> Tensor | None:
        right = self.classifier.problem.right
        return None if right is None else right(logits, gold)

    def _set_learning_rate(self) -> None:
        steps, position = self.steps, self.state.position
        if not position.finished:
            factor = 1.0
        elif self.config.curriculum:
            factor = learning_rate_factor(self.state.step, steps, 0.0)  # it is warm already
        else:
            factor = learning_rate_factor(self.state.step, steps, self.config.warmup)
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.learning_rate * factor

    def _validate(self) -> dict[str, object]:
        config, gold = self.config, self.validation.labels
        found = {"unmasked": self._predictions(self.validation)}
        if (config.strategy, config.validation) != ("plain", "unmasked"):  # where masks play no part, they cost nothing
            found["masked"] = self._predictions(self.validation_masked)
        chosen = [found[name] for name in (found if config.validation == "both" else [config.validation])]
        return {
            **{f"validation_{name}": performance(self.metric, gold, one) for name, one in found.items()},
            "selection": performance(self.metric, np.concatenate([gold] * len(chosen)), np.concatenate(chosen)),
            "majority_p_value": majority_p_value(self.metric, self.train.labels, gold, found["unmasked"]),
        }

    def _predictions(self, encoded: Encoded) -> Gold:
        share = (self.accelerator.process_index, self.accelerator.num_processes)
        logits = self.accelerator.reduce(self.classifier.predict(encoded, share=share), "sum")
        return self.classifier.problem.answers(logits).cpu().numpy()

    def _warnings(self) -> Iterator[str]:
        best = next(row for row in self.state.history if row["epoch"] == self.state.best_epoch)
        majority = majority_performance(self.metric, self.train.labels, self.validation.labels)
        reached, said = best["validation_unmasked"], f"{self.metric}, {len(self.validation)} validation texts, unmasked"
        blindly = self.classifier.problem.blindly
        advice = "Try another seed, a learning rate ten times larger or smaller, or more epochs."
        if reached <= majority:
            yield (
                f"The model did not converge: {reached:.3f} ({said}) is no better than {blindly} "
                f"({majority:.3f}). Its explanations would explain nothing. {advice}"
            )
        # a training that an older version began has no p-value of its epochs
        elif best.get("majority_p_value", 0.0) > LEVEL:
            yield (
                f"The model was not shown to converge: {reached:.3f} ({said}) may be reached by chance, without "
                f"reading (p = {best['majority_p_value']:.2f}; {blindly}: {majority:.3f}). Its explanations may "
                f"explain nothing. {advice}"
            )
        last = [row for row in self.state.history if row["stage"] != "all"]
        for stage in range(1, len(STAGES) + 1):
            accuracies = [row["train_accuracy_unmasked"] for row in last if row["stage"] == stage]
            if accuracies and (accuracies[-1] is None or accuracies[-1] < LEARNT):
                yield f"Stage {stage} of the curriculum was given up before it was learnt; try another seed."
                return


def _accelerator(config: TrainingConfig, folder: Path) -> accelerate.Accelerator:
    if config.tracker is not None and config.tracker not in _trackers():
        raise InputError(
            f"The tracker {config.tracker!r} is not installed or not known to accelerate. "
            f"Installed: {', '.join(_trackers()) or 'none'}."
        )
    # accelerate remembers the precision of the first training in a process and refuses another
    AcceleratorState._reset_state()
    try:
        return accelerate.Accelerator(
            mixed_precision=config.mixed_precision, log_with=config.tracker, project_dir=folder.parent
        )
    except ValueError as error:
        raise InputError(f"Mixed precision {config.mixed_precision!r} cannot be used here: {error}") from error


def _trackers() -> list[str]:
    return [str(tracker.value) for tracker in accelerate.tracking.get_available_trackers()]


def _parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Return the trained parameters in two groups: weight decay is not for biases and norms, which are vectors."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]


def _groups(batches: list[Ints], size: int) -> Iterator[Group]:
    """Yield the batches of each optimiser step, with their rows' positions in the epoch."""
    starts = np.cumsum([0, *map(len, batches)])
    placed = [(rows, start + np.arange(len(rows))) for rows, start in zip(batches, starts, strict=False)]
    for first in range(0, len(placed), size):
        yield placed[first : first + size]


def _cut(group: Group, rows_at_once: int) -> Group:
    """Return the same rows in batches of at most so many."""
    return [
        (rows[start : start + rows_at_once], positions[start : start + rows_at_once])
        for rows, positions in group
        for start in range(0, len(rows), rows_at_once)
    ]


def _tally(losses: Tensor, right: Tensor | None, unmasked: Tensor) -> Tensor:
    """Return the loss, how many unmasked rows are answered right, of how many, and what is added to the loss.

    Where no answer is right or wrong, it is right on none of none.
    """
    loss, added = losses.detach().double().tensor_split([1])
    counts = (
        torch.zeros_like(loss).repeat(2) if right is None else torch.stack([(right & unmasked).sum(), unmasked.sum()])
    )
    return torch.cat([loss, counts.double(), added])


def _flat(config: dict[str, object]) -> dict[str, object]:
    return {key: value if isinstance(value, int | float | str | bool) else str(value) for key, value in config.items()}


def _epoch_line(title: str, row: dict[str, object]) -> str:
    line = f"{title}: loss {row['train_loss']:.4f}"
    if row["train_accuracy_unmasked"] is not None:
        line += f", training accuracy {row['train_accuracy_unmasked']:.3f}"
    for kind in ROBUST:
        line += f", {kind} {row[f'train_{kind}']:.4f}" if f"train_{kind}" in row else ""
    if "selection" in row:
        line += f", validation {row['validation_unmasked']:.3f} unmasked"
        line += f", {row['validation_masked']:.3f} masked" if "validation_masked" in row else ""
    return f"{line} ({row['seconds']:.0f} s)"
