"""Linear layers by oneDNN where no gradient is asked for: bias and GELU are added while the product is still in cache.

torch's own path copies the bias into the output first and goes over it once more for GELU: a tenth of a small encoder's
time. The operator is the one that torch's compiler emits for the same layers; where it is not there, nothing changes.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear
from transformers.activations import GELUActivation

from faithmeter.last_layer import touched

# oneDNN keeps what it has compiled for 1,024 shapes, in a store of its own and in one of torch's. Texts have many
# lengths, so that grows by hundreds of megabytes; a pass needs a few shapes only. Read at the first pass.
for _store in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(_store, "16")


def _operator() -> Callable[..., Tensor] | None:
    if not torch.backends.mkldnn.is_available():
        return None
    found: Callable[..., Tensor] | None = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    return found


@contextmanager
def fused_linears(model: nn.Module) -> Iterator[None]:
    """Let a model's linear layers run fused inside, and put them back as they were."""
    operator = _operator()
    changed: list[nn.Module] = []
    try:
        if operator is not None:
            for module in model.modules():
                change = _fused(module, operator)
                # of the instance, and taken away again: the class and every other model of it stay as they are
                if change is not None and not touched(module):
                    module.forward = change
                    changed.append(module)
        yield
    finally:
        for module in changed:
            del module.forward


def _fused(module: Any, operator: Callable[..., Tensor]) -> Callable[[Tensor], Tensor] | None:  # noqa: ANN401
    """Return a faster forward of a linear layer, or of one with an exact GELU after it; None for other modules."""
    if type(module) is nn.Linear:
        return partial(_linear, module, operator, "none")
    dense = getattr(module, "dense", None)
    activation: Any = getattr(module, "intermediate_act_fn", None)
    exact = type(activation) is nn.GELU and activation.approximate == "none"
    exact |= type(activation) is GELUActivation and activation.act is gelu
    if type(dense) is nn.Linear and exact and len(list(module.children())) == 2 and not touched(dense):
        return partial(_linear, dense, operator, "gelu")
    return None


def _linear(layer: nn.Linear, operator: Callable[..., Tensor], after: str, states: Tensor) -> Tensor:
    """Return the layer's output, by the fused operator where it can be."""
    weight = layer.weight
    plain = states.device.type == "cpu" and states.dtype == weight.dtype == torch.float32 and states.is_contiguous()
    if plain and weight.is_contiguous() and not torch.is_grad_enabled():
        return operator(states, weight, layer.bias, after, [], "none")
    found = linear(states, weight, layer.bias)
    return gelu(found) if after == "gelu" else found
