"""Linear layers by oneDNN where their weights stand still: on some processors faster than torch's own, see `choice`.

torch copies the bias into the output first and goes over it once more for GELU; oneDNN adds both while the product is
still in cache. And the weights are laid out for the product once, and not at every call; that takes as much memory
again as they do, twice as much for gradients, and is given back at the end. The operators are those that torch's
compiler emits for the same layers; where they are not there, nothing changes.
"""

import os
from collections.abc import Iterator
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
WORTH = 256  # tokens through a layer from which on laying out its weights takes less time than it saves
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
    changed: list[nn.Module] = []
    try:
        if available():
            for module in model.modules():
                change = _fused(module)
                # of the instance, and taken away again: the class and every other model of it stay as they are
                if change is not None and not touched(module):
                    if kept is not None:
                        change = kept.setdefault(module, change)
                        change.tokens = WORTH  # from the first pass on, so that no answer depends on what came before
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
            return self._after(linear(states, weight, bias))
        if self.back is None:
            self.back = _laid_out(weight.T.contiguous())
        return self._after(_Product.apply(states, self.there, self.back, bias))

    def _after(self, found: Tensor) -> Tensor:
        return gelu(found) if self.after == "gelu" else found


Kept = dict[nn.Module, Fused]  # layers whose weights stand still, with what is laid out of them


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


def _laid_out(weight: Tensor) -> Tensor:
    with torch.inference_mode(False), torch.no_grad():  # a layout is of use to later gradients too
        return torch.ops.mkldnn._reorder_linear_weight(weight.detach())


def _product(states: Tensor, weight: Tensor, bias: Tensor | None, after: str) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(states, weight, bias, after, [], "none")
    return found
