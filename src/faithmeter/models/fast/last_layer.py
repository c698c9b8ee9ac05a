"""The last encoder layer for the first position only: all that a head which reads the first token needs of it.

Queries, the attention's output and the feed-forward block are needed of one token only. And neither keys nor values are
needed of any: a score is ⟨q, K h⟩ = ⟨Kᵀq, h⟩, whose Kᵀq is one vector per head, and the attended value is V Σ p h, so
nearly all of the layer's products are saved. The result is the same but for rounding. A model that is not in
`READ_FIRST`, or that somebody has hooked into, is left alone.
"""

import math
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
    if not is_known(model):
        return None
    layers: Any = model.base_model.encoder.layer  # type: ignore[union-attr]
    return None if any(map(touched, layers[-1].modules())) else layers[-1]


def is_known(model: nn.Module) -> bool:
    """Whether a model is one of `READ_FIRST`, with layers, that is no decoder."""
    kind = type(model)
    if f"{kind.__module__}.{kind.__qualname__}" not in READ_FIRST:
        return False
    config: Any = model.config
    return not (config.is_decoder or config.num_hidden_layers < 1 or getattr(config, "rotary_value", False))


def touched(module: nn.Module) -> bool:
    """Whether a module has hooks or a changed forward method: then it is not replaced."""
    return "forward" in vars(module) or bool(module._forward_hooks) or bool(module._forward_pre_hooks)


def _first_position(
    layer: Layer, hidden: Tensor, mask: Tensor | None, rotate: Callable[[Tensor], Tensor] | None
) -> Tensor:
    """Return BERT's layer at position 0: (rows, 1, dimensions)."""
    attention, first = layer.attention.self, hidden[:, :1]

    def heads(states: Tensor) -> Tensor:
        return states.unflatten(-1, (attention.num_attention_heads, attention.attention_head_size)).transpose(1, 2)

    query = heads(attention.query(first))
    if rotate is None:
        context = _attended(attention, query[:, :, 0], hidden, mask)
    else:
        context = scaled_dot_product_attention(
            rotate(query),
            rotate(heads(attention.key(hidden))),
            heads(attention.value(hidden)),
            attn_mask=None if mask is None else mask[..., :1, :],
        ).transpose(1, 2)
    return layer.feed_forward_chunk(layer.attention.output(context.flatten(-2), first))


def _attended(attention: Layer, query: Tensor, hidden: Tensor, mask: Tensor | None) -> Tensor:
    """Return the values that one query per row attends to: (rows, 1, heads, size of a head).

    `query` is (rows, heads, size of a head). The bias of the keys adds the same to all scores of a query, which softmax
    does not see; the shares add up to 1, so that the bias of the values is added once.
    """
    count, size = query.shape[1:]
    keys, values = (one.weight.view(count, size, -1) for one in (attention.key, attention.value))
    # head by head, and then row by row
    over_states = torch.bmm(query.transpose(0, 1), keys).transpose(0, 1)
    scores = torch.bmm(over_states, hidden.transpose(1, 2)) / math.sqrt(size)
    if mask is not None:
        ours = mask[:, 0, :1]
        scores = scores.masked_fill(~ours, -torch.inf) if ours.dtype == torch.bool else scores + ours
    states = torch.bmm(scores.softmax(dim=-1), hidden).transpose(0, 1)
    attended = torch.bmm(states, values.transpose(1, 2)).transpose(0, 1)
    bias = attention.value.bias
    return (attended if bias is None else attended + bias.view(count, size))[:, None]


def _plain(layer: Layer, hidden: Tensor, mask: Tensor | None = None, *_: object, **__: object) -> Tensor:
    attention = layer.attention.self
    plain = all(type(one) is nn.Linear for one in (attention.key, attention.value))
    return _first_position(layer, hidden, mask, None if plain else lambda states: states)


def _rotary(
    layer: Layer, hidden: Tensor, mask: Tensor | None, positions: Tensor, *_: object, **__: object
) -> tuple[Tensor]:
    sine, cosine = (half.repeat_interleave(2, dim=-1) for half in positions.chunk(2, dim=-1))

    def rotate(states: Tensor) -> Tensor:
        length = states.shape[-2]
        turned = torch.stack((-states[..., 1::2], states[..., ::2]), dim=-1).flatten(-2)
        return states * cosine[..., :length, :] + turned * sine[..., :length, :]

    return (_first_position(layer, hidden, mask, rotate),)
