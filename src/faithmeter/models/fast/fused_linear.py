"""Linear layers by oneDNN: on some processors faster than torch's own, see `choice`.

torch copies the bias into the output first and goes over it once more for GELU; oneDNN adds both while the product is
still in cache. Where weights stand still, they are laid out for the product once, and not at every call; that takes as
much memory again as they do, twice as much for gradients, and is given back at the end. Weights that are trained are
multiplied as they are. The operators are those that torch's compiler emits for the same layers; where they are not
there, nothing changes.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear
from transformers.activations import GELUActivation

from faithmeter.models.fast.last_layer import touched

# oneDNN keeps what it has compiled for 1,024 shapes, in a store of its own and in one of torch's. Texts have many
# lengths, so that grows by hundreds of megabytes; a pass needs a few shapes only.
STORES, SHAPES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"), "16"
# tokens through a layer from which on laying out its weights takes less time than it saves: of passes of 256 tokens or
# more it saves 4 %, of those of one sentence a quarter
WORTH = 4096
LARGE = 256 * 256  # numbers in a weight from which on a gradient by way of Python takes less time than it saves


@cache
def available() -> bool:
    """Whether this build of torch has the operators; asked once."""
    names = ("_linear_pointwise", "_reorder_linear_weight")
    found = torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in names)
    if found:
        _limit_stores()
    return found


def _limit_stores() -> None:
    """Let the stores of shapes be small; they read their size from the environment once, which is then as it was."""
    mine = [name for name in STORES if name not in os.environ]
    os.environ.update(dict.fromkeys(mine, SHAPES))
    try:
        _product(torch.zeros(1, 1), torch.zeros(1, 1), None, "none")
    finally:
        for name in mine:
            os.environ.pop(name, None)


@contextmanager
def fused_linears(model: nn.Module, kept: "Kept | None" = None) -> Iterator[None]:
    """Let a model's linear layers run fused inside, and put them back as they were.

    Weights must not change inside. A layer whose weights ask for a gradient is computed by torch, as is one that
    somebody listens to. What is laid out is `kept` for the next time, where it is given; then weights must not change
    in between either.
    """

    def forward(module: nn.Module) -> "Fused | None":
        change = _fused(module)
        if change is not None and kept is not None:
            change = kept.setdefault(module, change)
            change.tokens = WORTH  # from the first pass on, so that no answer depends on what came before
        return change

    with _exchanged(model, forward):
        yield


@contextmanager
def trained_linears(model: nn.Module) -> Iterator[None]:
    """Let a model's large linear layers run by oneDNN inside, weights and their gradients included.

    Weights may change between passes. One that somebody listens to is computed by torch.
    """
    with _exchanged(model, lambda module: Trained(module) if type(module) is nn.Linear else None):
        yield


@contextmanager
def _exchanged(model: nn.Module, forward: Callable[[nn.Module], "Forward | None"]) -> Iterator[None]:
    """Exchange the forward method of the modules that have another."""
    changed: list[nn.Module] = []
    try:
        if available():
            for module in model.modules():
                change = forward(module)
                # of the instance, and taken away again: the class and every other model of it stay as they are
                if change is not None and not touched(module):
                    module.forward = change
                    changed.append(module)
        yield
    finally:
        for module in changed:
            del module.forward


def _fused(module: Any) -> "Fused | None":  # noqa: ANN401
    """Return a faster forward of a linear layer, or of one with an exact GELU after it; None for other modules."""
    if type(module) is nn.Linear:
        return Fused(module, "none")
    dense = getattr(module, "dense", None)
    activation: Any = getattr(module, "intermediate_act_fn", None)
    exact = type(activation) is nn.GELU and activation.approximate == "none"
    exact |= type(activation) is GELUActivation and activation.act is gelu
    if type(dense) is nn.Linear and exact and len(list(module.children())) == 2 and not touched(dense):
        return Fused(dense, "gelu")
    return None


class Fused:
    """The forward of one linear layer, and of the GELU `after` it."""

    def __init__(self, layer: nn.Linear, after: str) -> None:
        self.layer, self.after = layer, after
        self.tokens = 0
        self.there: Tensor | None = None
        self.back: Tensor | None = None

    def __call__(self, states: Tensor) -> Tensor:
        """Return the layer's output, by the fused operator where it can be."""
        weight, bias = self.layer.weight, self.layer.bias
        plain = states.device.type == "cpu" and states.dtype == weight.dtype == torch.float32 and states.is_contiguous()
        learnt = torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in (weight, bias))
        differentiated = torch.is_grad_enabled() and states.requires_grad
        if not plain or learnt or not weight.is_contiguous() or (differentiated and weight.numel() < LARGE):
            return self._after(linear(states, weight, bias))
        self.tokens += states.numel() // states.shape[-1]
        if self.tokens >= WORTH and self.there is None:
            self.there = _laid_out(weight)
        if not differentiated:
            return _product(states, weight if self.there is None else self.there, bias, self.after)
        if self.there is None:
            return self._after(_transposed(states, weight, bias))
        if self.back is None:
            self.back = _laid_out(weight.T.contiguous())
        return self._after(_Product.apply(states, self.there, self.back, bias))

    def _after(self, found: Tensor) -> Tensor:
        return gelu(found) if self.after == "gelu" else found


class Trained:
    """The forward of one linear layer whose weights may ask for gradients, and may be others at the next call."""

    def __init__(self, layer: nn.Linear) -> None:
        self.layer = layer

    def __call__(self, states: Tensor) -> Tensor:
        """Return the layer's output, by oneDNN where the layer is large and computes in 32 bits."""
        weight, bias = self.layer.weight, self.layer.bias
        plain = states.device.type == "cpu" and states.dtype == weight.dtype == torch.float32
        if not plain or weight.numel() < LARGE or torch.is_autocast_enabled("cpu"):
            return linear(states, weight, bias)
        return _transposed(states, weight, bias)


Kept = dict[nn.Module, Fused]  # layers whose weights stand still, with what is laid out of them
Forward = Fused | Trained


class _Product(torch.autograd.Function):
    """x Wᵀ + b, whose way back is the same product by the other layout: so it can be differentiated any times."""

    @staticmethod
    def forward(context: Any, states: Tensor, there: Tensor, back: Tensor, bias: Tensor | None) -> Tensor:  # noqa: ANN401
        """Return the product."""
        context.there, context.back = there, back
        return _product(states, there, bias, "none")

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:  # noqa: ANN401
        """Return the gradient of the states."""
        return _Product.apply(gradient.contiguous(), context.back, context.there, None), None, None, None


class _Transposed(torch.autograd.Function):
    """A Bᵀ + b, whose way back is two more such products: so it can be differentiated any times by each of them."""

    @staticmethod
    def forward(context: Any, a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:  # noqa: ANN401
        """Return the product of (rows, inner) and (columns, inner)."""
        context.save_for_backward(a, b)
        return _product(a, b, bias, "none")

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # noqa: ANN401
        """Return the gradients of what asks for one."""
        a, b = context.saved_tensors
        of_a, of_b, of_bias = context.needs_input_grad
        return (
            _Transposed.apply(gradient, b.T, None) if of_a else None,
            _Transposed.apply(gradient.T, a.T, None) if of_b else None,
            gradient.sum(dim=0) if of_bias else None,
        )


def _transposed(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    flat: Tensor = _Transposed.apply(states.flatten(0, -2), weight, bias)
    return flat.unflatten(0, states.shape[:-1])


def _laid_out(weight: Tensor) -> Tensor:
    with torch.inference_mode(False), torch.no_grad():  # a layout is of use to later gradients too
        return torch.ops.mkldnn._reorder_linear_weight(weight.detach())


def _product(states: Tensor, weight: Tensor, bias: Tensor | None, after: str) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(states, weight, bias, after, [], "none")
    return found
