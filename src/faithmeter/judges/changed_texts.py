"""Texts with tokens put in or taken out by their ids: nothing is tokenised again, so the other tokens stay the same."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from faithmeter.data.batch import TEXT, Batch, Encoded, Ints


@dataclass(frozen=True)
class ChangedText:
    """The ids of a changed text, and of each the place that it had in the row, -1 where it is new."""

    ids: Ints
    origin: Ints


@dataclass(frozen=True)
class ChangedBatch:
    """Changed texts as a batch, with the dataset rows of the originals; `origin` as in `ChangedText`, padded by -1."""

    batch: Batch
    origin: Tensor

    def of_shared(self, before: Tensor, after: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return two explanations over the maskable tokens that both texts have: the old one, the new one, and where.

        All are (rows, tokens) of the changed batch.
        """
        shared = (self.origin >= 0) & self.batch.maskable
        return before.gather(1, self.origin.clamp_min(0)), after, shared


def ids_of(encoded: Encoded, row: int) -> Ints:
    """Return the ids of a row."""
    return encoded.ids[encoded.offsets[row] : encoded.offsets[row + 1]]


def text_places(encoded: Encoded, row: int) -> Ints:
    """Return where in a row its text is, without its context and special tokens."""
    return np.flatnonzero(encoded.sequence[encoded.offsets[row] : encoded.offsets[row + 1]] == TEXT)


def inserted(encoded: Encoded, row: int, places: Sequence[int] | Ints, new: Ints) -> ChangedText:
    """Return a row with each of the new ids before the token at its place (of the row as it is)."""
    ids = ids_of(encoded, row)
    return ChangedText(np.insert(ids, places, new), np.insert(np.arange(len(ids)), places, -1))


def changed_batch(encoded: Encoded, batch: Batch, texts: Sequence[ChangedText]) -> ChangedBatch:
    """Return the changed texts of a batch's rows; a new token belongs to the text."""
    sequences, types = [], []
    rows = batch.rows.cpu().tolist()
    for row, text in zip(rows, texts, strict=True):
        span = slice(encoded.offsets[row], encoded.offsets[row + 1])
        sequences.append(np.where(text.origin < 0, TEXT, encoded.sequence[span][text.origin]))
        if encoded.type_ids is not None:
            own = encoded.type_ids[span]
            of_text = own[encoded.sequence[span] == TEXT][:1].sum()
            types.append(np.where(text.origin < 0, of_text, own[text.origin]))
    lengths = np.array([len(text.ids) for text in texts])
    made = replace(
        encoded,
        ids=np.concatenate([text.ids for text in texts]),
        type_ids=np.concatenate(types) if types else None,
        sequence=np.concatenate(sequences).astype(np.int8),
        masked=np.zeros(int(lengths.sum()), dtype=np.bool_),
        offsets=np.concatenate(([0], np.cumsum(lengths))),
        labels=encoded.labels[rows],
        units=None,
        groups=None,
    ).batch(range(len(texts)))
    origin = torch.full(made.input_ids.shape, -1)
    for line, text in enumerate(texts):
        origin[line, : len(text.origin)] = torch.from_numpy(text.origin)
    return ChangedBatch(replace(made, rows=batch.rows), origin)
