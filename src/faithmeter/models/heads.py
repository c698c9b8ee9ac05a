"""Where a classifier's head reads: the first token, the last one, or the mean of all.

An encoder such as BERT reads its first token, a decoder its last, since only that one has seen the whole text, and
ours on T5 the mean. Attention as importance is the attention of what is read, so it must know.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
import transformers
from torch import Tensor
from transformers.modeling_layers import GenericForSequenceClassification

from faithmeter.models.bilstm import BiLSTMForSequenceClassification
from faithmeter.models.t5 import T5MeanConfig

if TYPE_CHECKING:
    from faithmeter.data.batch import Batch

FIRST, LAST, MEAN, END = "first", "last", "mean", "end"
# decoders whose classifiers are written out in transformers; the newer ones share one head, which is known by its class
DECODERS = {
    "biogpt", "bloom", "ctrl", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "modernbert-decoder",
    "mpt", "openai-gpt", "opt", "prompted", "zamba", "zamba2",
}  # fmt: skip


def where_read(model: transformers.PreTrainedModel) -> str:
    """Return which position of a text the model's head reads: `first`, `mean`, or the last one.

    `last` is a decoder's: the last that is not the padding token. `end` is XLNet's: the last of all.
    """
    config = model.config
    if config.model_type == "xlnet":
        return {"last": END, "mean": MEAN}.get(config.summary_type, FIRST)
    if config.model_type in DECODERS or isinstance(model, GenericForSequenceClassification):
        return LAST
    if config.model_type == T5MeanConfig.model_type or getattr(config, "classifier_pooling", None) == MEAN:
        return MEAN
    return FIRST


def read_weights(model: transformers.PreTrainedModel, batch: Batch) -> Tensor:
    """Return the (rows, tokens) share that each position has in what the head reads; each row adds up to 1.

    A decoder's head looks for the last id that is not the padding id, whatever the attention mask says, so a text that
    ends in that very token is read before it: as transformers does it, so here.
    """
    where, attended = where_read(model), batch.attention_mask.float()
    if where == MEAN:
        return attended / attended.sum(dim=1, keepdim=True).clamp_min(1)
    positions = torch.arange(attended.shape[1], device=attended.device)
    if where == FIRST:
        return (positions == 0).float().expand_as(attended)
    if where == END:
        return (positions == batch.attention_mask.sum(dim=1, keepdim=True) - 1).float()
    kept = batch.input_ids != model.config.get_text_config().pad_token_id
    return (positions == (positions * kept).argmax(dim=1, keepdim=True)).float()


def attention_of_what_is_read(model: transformers.PreTrainedModel, batch: Batch, layer: Tensor) -> Tensor:
    """Return (rows, tokens) of a (rows, heads, queries, tokens) layer: the queries that the head reads, heads averaged.

    BiLSTM-attention has one query, which is what it reads.
    """
    weights = read_weights(model, batch)[:, : layer.shape[2], None]
    return (layer.mean(dim=1) * weights).sum(dim=1)


@contextmanager
def heard_by_head(model: transformers.PreTrainedModel, batch: Batch) -> Iterator[list[Tensor]]:
    """Yield a list to which a pass of that batch through the model adds the (rows, dimensions) vectors the head reads.

    It is the last hidden state, as the body hands it on, where the head reads it; of BiLSTM-attention, what its last
    linear layer is given, which holds the context too where there is one.
    """
    heard: list[Tensor] = []
    weights = read_weights(model, batch)

    def read(states: Tensor) -> None:
        # a body may hand on fewer positions than there are (`first_position_only`), or more (whole attention windows)
        share = weights[:, : states.shape[1], None]
        heard.append((share * states[:, : weights.shape[1]].float()).sum(dim=1))

    if isinstance(model, BiLSTMForSequenceClassification):
        listener = model.decoder.register_forward_pre_hook(lambda _, given: heard.append(given[0].float()))
    else:
        listener = model.base_model.register_forward_hook(lambda _, __, output: read(output[0]))
    try:
        yield heard
    finally:
        listener.remove()
