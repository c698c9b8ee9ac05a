"""A training's state on disk, as safetensors and JSON: written whole after every epoch, read back bit for bit.

Written by hand because `accelerate.save_state` pickles the optimiser. No random state is stored: the loop draws
everything from (seed, epoch, row).
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from faithmeter.errors import InputError
from faithmeter.files import damaged, new_folder, read_json, write_bytes, write_json
from faithmeter.training.curriculum import Position


@dataclass
class State:
    """The progress of a training: epochs done, optimiser steps in the decaying part, and one history row per epoch.

    `linear_layers` are those that it began with; others would end in other last digits.
    """

    epoch: int = 0
    step: int = 0
    position: Position = field(default_factory=Position)
    best_epoch: int | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    linear_layers: str | None = None


def save(folder: Path, state: State, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write the checkpoint of this epoch; keep it and the best epoch's, remove the others."""
    with new_folder(folder / f"epoch-{state.epoch:04d}") as target:
        write_bytes(target / "model.safetensors", safetensors.torch.save(_unshared(model)))
        write_bytes(target / "optimizer.safetensors", safetensors.torch.save(_optimizer_tensors(optimizer)))
        write_json(
            target / "state.json",
            {
                "epoch": state.epoch,
                "step": state.step,
                "stage": state.position.stage,
                "stage_epochs": state.position.epochs,
                "best_epoch": state.best_epoch,
                "history": state.history,
                "linear_layers": state.linear_layers,
            },
        )
    for epoch, old in _epochs(folder).items():
        if epoch not in (state.epoch, state.best_epoch):
            shutil.rmtree(old, ignore_errors=True)


def load_latest(
    folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, tell: Callable[[str], None]
) -> State | None:
    """Put model and optimiser back as the last whole checkpoint has them; None where there is none.

    One that is damaged, or whose best epoch is, is told of and passed over: the training goes on from one before it, or
    from the start, to the same weights.
    """
    epochs = _epochs(folder)
    for epoch in sorted(epochs, reverse=True):
        source = epochs[epoch]
        stored = _whole_state(source, tell)
        best = None if stored is None or stored["best_epoch"] in (None, epoch) else epochs.get(stored["best_epoch"])
        if stored is not None and (best is None or _whole_state(best, tell) is not None):
            break
    else:
        return None
    load_weights(folder, stored["epoch"], model)
    tensors = safetensors.torch.load_file(source / "optimizer.safetensors")
    states: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        index, key = name.split(".", 1)
        states.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})
    return State(
        epoch=stored["epoch"],
        step=stored["step"],
        position=Position(stored["stage"], stored["stage_epochs"]),
        best_epoch=stored["best_epoch"],
        history=stored["history"],
        linear_layers=stored.get("linear_layers", "torch"),  # which all trainings had before this was stored
    )


def _whole_state(source: Path, tell: Callable[[str], None]) -> dict[str, Any] | None:
    """Return the state of a checkpoint; None for one that is damaged."""
    remedy = "The epochs from there on are trained again."
    try:
        file = damaged(source)
        if file is None:
            return read_json(source / "state.json", remedy)
        tell(f"{file} is damaged: it is not what was written. {remedy}")
    except InputError as error:
        tell(str(error))
    return None


def load_weights(folder: Path, epoch: int, model: torch.nn.Module) -> None:
    """Put the weights of an epoch's checkpoint into the model."""
    tensors = safetensors.torch.load_file(folder / f"epoch-{epoch:04d}" / "model.safetensors")
    # strict=False: of weights that share memory only one was stored, and none that are not trained
    unexpected = model.load_state_dict(tensors, strict=False).unexpected_keys
    if unexpected:
        raise ValueError(f"the checkpoint of epoch {epoch} is of another model: it has {unexpected[0]}")


def _epochs(folder: Path) -> dict[int, Path]:
    return {int(path.name.removeprefix("epoch-")): path for path in folder.glob("epoch-*")}


def _unshared(model: torch.nn.Module) -> dict[str, Tensor]:
    """Return what training can change, each tensor once: the frozen base of an adapter stays where it came from."""
    seen: set[int] = set()
    frozen = {name for name, one in model.named_parameters(remove_duplicate=False) if not one.requires_grad}
    tensors = {}
    for name, tensor in model.state_dict().items():
        if name not in frozen and tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            tensors[name] = tensor.contiguous()
    return tensors


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{index}.{key}": value.contiguous()
        for index, state in optimizer.state_dict()["state"].items()
        for key, value in state.items()
    }
