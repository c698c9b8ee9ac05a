"""The last encoder layer for the first position only: all that a head which reads the first token needs of it.

Keys and values are needed of every token, but queries, the attention's output and the feed-forward block of one only:
ten twelfths of the layer's products are saved. The result is the same number for number but for rounding. A model
that is not in `READ_FIRST`, or that somebody has hooked into, is left alone.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

Layer = Any  # a layer of transformers, whose parts are known by name only
# classifiers whose head reads the last hidden state at position 0 and nowhere else, and whose layers are BERT's
READ_FIRST = {
    f"transformers.models.{folder}.modeling_{folder}.{name}ForSequenceClassification"
    for folder, name in (
        ("bert", "Bert"),
        ("roberta", "Roberta"),
        ("xlm_roberta", "XLMRoberta"),
        ("camembert", "Camembert"),
        ("electra", "Electra"),
        ("roformer", "RoFormer"),
    )
}


@contextmanager
def first_position_only(model: nn.Module) -> Iterator[None]:
    """Let the last layer compute the first position only, where that changes no logit; else change nothing."""
    layer = _last_layer(model)
    if layer is None:
        yield
        return
    # of the instance, and taken away again: the class and every other model of it stay as they are
    layer.forward = partial(_rotary if "RoFormer" in type(layer).__name__ else _plain, layer)
    try:
        yield
    finally:
        del layer.forward


def _last_layer(model: nn.Module) -> Layer | None:
    kind = type(model)
    if f"{kind.__module__}.{kind.__qualname__}" not in READ_FIRST:
        return None
    config: Any = model.config
    layers: Any = model.base_model.encoder.layer  # type: ignore[union-attr]
    if config.is_decoder or config.num_hidden_layers < 1 or getattr(config, "rotary_value", False):
        return None
    return None if any(map(touched, layers[-1].modules())) else layers[-1]


def touched(module: nn.Module) -> bool:
    """Whether a module has hooks or a changed forward method: then it is not replaced."""
    return "forward" in vars(module) or bool(module._forward_hooks) or bool(module._forward_pre_hooks)


def _first_position(layer: Layer, hidden: Tensor, mask: Tensor | None, rotate: Callable[[Tensor], Tensor]) -> Tensor:
    """Return BERT's layer at position 0: (rows, 1, dimensions)."""
    attention, first = layer.attention.self, hidden[:, :1]

    def heads(states: Tensor) -> Tensor:
        return states.unflatten(-1, (attention.num_attention_heads, attention.attention_head_size)).transpose(1, 2)

    context = scaled_dot_product_attention(
        rotate(heads(attention.query(first))),
        rotate(heads(attention.key(hidden))),
        heads(attention.value(hidden)),
        attn_mask=None if mask is None else mask[..., :1, :],
    )
    attended = layer.attention.output(context.transpose(1, 2).flatten(-2), first)
    return layer.feed_forward_chunk(attended)


def _plain(layer: Layer, hidden: Tensor, mask: Tensor | None = None, *_: object, **__: object) -> Tensor:
    return _first_position(layer, hidden, mask, lambda states: states)


def _rotary(
    layer: Layer, hidden: Tensor, mask: Tensor | None, positions: Tensor, *_: object, **__: object
) -> tuple[Tensor]:
    sine, cosine = (half.repeat_interleave(2, dim=-1) for half in positions.chunk(2, dim=-1))

    def rotate(states: Tensor) -> Tensor:
        length = states.shape[-2]
        turned = torch.stack((-states[..., 1::2], states[..., ::2]), dim=-1).flatten(-2)
        return states * cosine[..., :length, :] + turned * sine[..., :length, :]

    return (_first_position(layer, hidden, mask, rotate),)
