"""Temporary changes to a model, which are undone after a piece of work."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import transformers
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from faithmeter.models.fast.last_layer import first_position_only

LISTENING = "_output_capturing_hooks_installed"  # where transformers notes that it does


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Put the model in eval mode, and each of its modules back in the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def exchanged_embeddings(
    model: transformers.PreTrainedModel, embeddings: Tensor | None, zeroed: Tensor | None = None
) -> Iterator[None]:
    """Let the model's word lookup return `embeddings`, where they are given, or else 0 for the `zeroed` tokens."""
    # XLNet looks its words up with the tokens first and the rows second
    given, zero = (
        one.transpose(0, 1) if one is not None and model.config.model_type == "xlnet" else one
        for one in (embeddings, zeroed)
    )

    def exchanged(_: object, __: object, found: Tensor) -> Tensor:
        if given is not None:
            return given
        return found if zero is None else found.masked_fill(zero[..., None], 0)

    if given is None and zero is None:
        yield
        return
    exchange = model.get_input_embeddings().register_forward_hook(exchanged)
    try:
        yield
    finally:
        exchange.remove()


@contextmanager
def eager_attention(model: transformers.PreTrainedModel) -> Iterator[None]:
    """Let the model compute attention in the plain way, which writes the attention down; then as it did before."""
    before = model.config._attn_implementation
    if before != "eager":
        model.set_attn_implementation("eager")
    try:
        with heard_for_once(model):
            yield
    finally:
        if before != "eager":
            model.set_attn_implementation(before)


@contextmanager
def heard_for_once(model: transformers.PreTrainedModel) -> Iterator[None]:
    """Let transformers listen to the layers to gather their states or attention, and no longer.

    It would go on listening, and a layer that somebody listens to is not computed for the first position only.
    """
    heard = {module: set(module._forward_hooks) for module in model.modules()}
    listening = [module for module in heard if getattr(module, LISTENING, False)]
    try:
        yield
    finally:
        for module, hooks in heard.items():
            for hook in set(module._forward_hooks) - hooks:
                del module._forward_hooks[hook]
            if module not in listening and hasattr(module, LISTENING):
                delattr(module, LISTENING)


@contextmanager
def frozen(model: torch.nn.Module) -> Iterator[None]:
    """Put the model in eval mode, its parameters without gradients, and leave it as it was."""
    learnt = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with evaluating(model):
        try:
            for parameter in learnt:
                parameter.requires_grad_(False)
            yield
        finally:
            for parameter in learnt:
                parameter.requires_grad_(True)


@contextmanager
def explaining(model: torch.nn.Module) -> Iterator[None]:
    """Put the model in eval mode for input gradients and occlusion, and leave it as it was.

    Its parameters need no gradient meanwhile, or those of all weights would be computed and thrown away; and its last
    layer is computed for the first position only where the head reads nothing else. Gradients can be taken inside even
    where the caller is in inference mode.
    """
    with frozen(model), first_position_only(model), torch.inference_mode(False):
        yield


@contextmanager
def twice_differentiable() -> Iterator[None]:
    """Let a forward pass be computed such that its gradient has a gradient.

    The fused kernels of attention and of recurrent layers have none; the plain ones of torch, which are made of
    ordinary products, give the same numbers. Nothing of the model is changed.
    """
    with sdpa_kernel(SDPBackend.MATH), torch.backends.cudnn.flags(enabled=False):
        yield
