"""The embeddings and the first layer's queries, keys and values, computed once for many maskings of the same texts.

They look at each position by itself, so a position has two of each: those of its token and those of what is read where
it is removed. Maskings choose between the two. That saves the lookup, a normalisation and a quarter of the first
layer's products, and changes nothing but rounding. A model that is not in `READ_FIRST`, or that somebody has hooked
into, is left alone.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from faithmeter.data.batch import Batch, Shown
from faithmeter.models.fast.fused_linear import Fused
from faithmeter.models.fast.last_layer import is_known
from faithmeter.models.temporary import exchanged_embeddings

OFTEN = 8  # maskings per text from which on they are worth it
MOST_TOKENS = 4096  # of the texts, with padding: what is kept has four times as many numbers as two states of them


class FirstLayer:
    """What the embeddings and the first layer's projections give for texts as they are, and wholly removed."""

    def __init__(self, model: Any, batch: Batch, removed: Shown) -> None:  # noqa: ANN401 (a model of transformers)
        body: Any = model.base_model
        attention = body.encoder.layer[0].attention.self
        self.modules = (body.embeddings, attention.query, attention.key, attention.value)
        self.width = batch.input_ids.shape[1]
        states = []
        for ids, zeroed in ((batch.input_ids, None), (removed.input_ids, removed.zeroed)):
            with exchanged_embeddings(model, None, zeroed):
                hidden = body.embeddings(input_ids=ids, token_type_ids=batch.token_type_ids)
            states.append(torch.cat((hidden, *(one(hidden) for one in self.modules[1:])), dim=-1))
        self.table = torch.stack(states).flatten(0, 2)  # (2 × texts × tokens, 4 × dimensions)
        self.half = len(self.table) // 2
        self.chosen: tuple[Tensor, ...] = ()

    def choose(self, rows: Tensor, masked: Tensor) -> None:
        """Let the next pass be of these rows of the batch, with these tokens masked: (rows, tokens), perhaps fewer."""
        positions = torch.arange(masked.shape[1], device=masked.device)
        places = rows[:, None] * self.width + positions + self.half * masked
        found = self.table.index_select(0, places.flatten()).unflatten(0, masked.shape)
        self.chosen = found.chunk(4, dim=-1)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the modules return what was chosen."""
        with ExitStack() as undo:
            for number, module in enumerate(self.modules):
                before = vars(module).get("forward")
                undo.callback(_put_back, module, before)
                module.forward = lambda *_, number=number, **__: self.chosen[number]
            yield


def _put_back(module: nn.Module, forward: object) -> None:
    if forward is None:
        del module.forward
    else:
        module.forward = forward  # type: ignore[assignment]


@contextmanager
def shared_first_layer(
    model: nn.Module, batch: Batch, removed: Shown | None, maskings: int
) -> Iterator[FirstLayer | None]:
    """Compute a batch's first layer once for so many maskings of its texts, where that is exact and worth it.

    `removed` is what the model reads where every token is removed, None where tokens do not keep their places. Before
    every pass inside, `choose` says which of them it is. None where nothing is shared.
    """
    worth = maskings >= OFTEN * len(batch) and batch.input_ids.numel() <= MOST_TOKENS
    if not worth or removed is None or not _is_positionwise(model, batch, removed):
        yield None
        return
    layer = FirstLayer(model, batch, removed)
    with layer.in_place():
        yield layer


def _is_positionwise(model: nn.Module, batch: Batch, removed: Shown) -> bool:
    """Whether the model is one whose embeddings go to the first layer as they are, and no token becomes padding."""
    if not is_known(model):
        return False
    body: Any = model.base_model
    attention = body.encoder.layer[0].attention.self
    own = (attention.query, attention.key, attention.value)
    listened = any(
        one._forward_hooks or one._forward_pre_hooks or not isinstance(vars(one).get("forward", Fused), type | Fused)
        for module in (body.embeddings, *own)
        for one in module.modules()
    )
    plain = all(type(one) is nn.Linear for one in own) and not hasattr(body, "embeddings_project")
    padding = (removed.input_ids == model.config.pad_token_id) & batch.attention_mask.bool()  # type: ignore[union-attr]
    return plain and not listened and not bool(padding.any())
