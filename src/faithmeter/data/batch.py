"""Texts as token ids: `Encoded` holds a whole split without padding, `Batch` a few padded rows of it.

Ids are never overwritten: a token is masked by setting its boolean in `masked`.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from faithmeter.errors import InputError, is_text
from faithmeter.masking import Mask

Ints = np.ndarray[Any, np.dtype[np.int64]]
SPECIAL, TEXT, CONTEXT = -1, 0, 1  # the values of `Encoded.sequence`
Texts = str | Sequence[str]  # one text, or several


def listed(texts: Texts, contexts: Texts | None = None) -> tuple[Sequence[str], Sequence[str] | None]:
    """Return texts, and their contexts, as sequences: a string is one text, and not as many as it has letters."""
    several = [texts] if isinstance(texts, str) else texts
    if contexts is None:
        return several, None
    beside = [contexts] if isinstance(contexts, str) else contexts
    if len(beside) != len(several):
        raise InputError(f"There are {len(several)} texts and {len(beside)} contexts: give one for each text.")
    return several, beside


def require_texts(texts: Sequence[object], first: int = 0) -> None:
    """Refuse what is no text among texts, by its number; `first` is that of the first."""
    for number, text in enumerate(texts, start=first):
        if not isinstance(text, str):
            raise InputError(
                f"Text number {number}, from 0, is of the type {type(text).__name__} and no text: give a string, or "
                "leave it out."
            )
        if not is_text(text):
            raise InputError(
                f"Text number {number}, from 0, holds half of a character (a lone surrogate), which is no text: "
                "correct it, or leave it out."
            )


@dataclass(frozen=True)
class Batch:
    """Rows padded to the longest: (rows, tokens) tensors, and a label and a dataset row for each; `split` is theirs.

    `labels` are (rows,) class numbers, or (rows, outputs) numbers where a text has several labels or a number.
    `units` says which maskable tokens are masked and explained as a whole: they have one number, from 0 on; others -1.
    None if every token is its own unit.
    """

    input_ids: Tensor
    attention_mask: Tensor
    token_type_ids: Tensor | None
    maskable: Tensor
    masked: Tensor
    labels: Tensor
    rows: Tensor
    units: Tensor | None = None
    split: str = ""

    def __len__(self) -> int:
        return len(self.rows)

    def with_masked(self, masked: Tensor) -> "Batch":
        """Return the same rows with other tokens masked."""
        return replace(self, masked=masked)

    def masked_ids(self, mask_token_id: int) -> Tensor:
        """Return the ids with the mask token wherever a token is masked."""
        return self.input_ids.masked_fill(self.masked, mask_token_id)

    def take(self, index: Tensor) -> "Batch":
        """Return some of the rows, in the order given and as often as given, without the padding that none needs."""
        length = max(1, int(self.attention_mask[index].sum(dim=1).max())) if len(index) else 1
        taken = self._each(lambda value: value[index][:, :length] if value.ndim == 2 else value[index])
        return replace(taken, labels=self.labels[index])  # which may be two-dimensional, too

    def between(self, part: slice) -> "Batch":
        """Return neighbouring rows, padded as they are."""
        if part.start == 0 and part.stop >= len(self):
            return self
        return self._each(lambda value: value[part])

    @classmethod
    def stacked(cls, batches: "Sequence[Batch]") -> "Batch":
        """Return batches of the same width as one."""
        columns: dict[str, Any] = {
            name: torch.cat([getattr(batch, name) for batch in batches])
            for name, value in vars(batches[0]).items()
            if isinstance(value, Tensor)
        }
        return replace(batches[0], **columns)

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on another device."""
        return self._each(lambda value: value.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        changed: dict[str, Any] = {name: change(v) for name, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **changed)


@dataclass(frozen=True)
class Shown(Batch):
    """A batch as the model reads it: nothing is masked any more.

    `zeroed` are the tokens whose word embedding is zero, None where there are none. Where tokens were deleted, `places`
    says where each one stood among the `width` tokens before.
    """

    zeroed: Tensor | None = None
    places: Tensor | None = None
    width: int = 0

    def forth(self, values: Tensor) -> Tensor:
        """Return numbers of the tokens as given, (rows, tokens, ...), as those of the tokens that are read."""
        return values if self.places is None else values.take_along_dim(self._index(values), dim=1)

    def back(self, values: Tensor) -> Tensor:
        """Return numbers of the tokens that are read as those of the tokens as given: 0 for what was deleted."""
        if self.places is None:
            return values
        read = self.attention_mask.bool().view(*self.attention_mask.shape, *[1] * (values.ndim - 2))
        empty = values.new_zeros(len(self), self.width, *values.shape[2:])
        return empty.scatter(1, self._index(values).expand_as(values), values.masked_fill(~read, 0))

    def _index(self, values: Tensor) -> Tensor:
        assert self.places is not None
        return self.places.view(*self.places.shape, *[1] * (values.ndim - 2))


@dataclass(frozen=True)
class Encoded:
    """A tokenised split. The rows lie end to end; row i is `[offsets[i], offsets[i + 1])` of each flat array.

    `sequence` says of each token whether it belongs to the text (0), to the context (1), or is special (-1).
    `truncated` counts the rows that were too long for the model; `split` is the name of the split, where it has one.
    `units` is as in `Batch`, counted from 0 in each row. `groups` numbers what the rows belong to (an author, a story),
    where the data says so. `both_texts` says that the context is maskable like the text.
    """

    ids: Ints
    type_ids: Ints | None
    sequence: np.ndarray[Any, np.dtype[np.int8]]
    masked: Mask
    offsets: Ints
    labels: np.ndarray[Any, np.dtype[Any]]
    pad_token_id: int
    truncated: int = 0
    units: Ints | None = None
    split: str = ""
    groups: Ints | None = None
    both_texts: bool = False

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property  # used by every batch: without the cache, all batches together would cost rows × rows
    def lengths(self) -> Ints:
        """Tokens a row."""
        return np.diff(self.offsets)

    @property
    def outputs(self) -> int:
        """How many outputs of a model are explained for each text: one class, or every label, or the one number."""
        return int(self.labels.shape[1]) if self.labels.ndim == 2 else 1

    @property
    def maskable(self) -> Mask:
        """The tokens that importance measures rank and faithfulness metrics mask (flat)."""
        return self.sequence >= TEXT if self.both_texts else self.sequence == TEXT

    @property
    def maskable_counts(self) -> Ints:
        """How many maskable tokens each row has."""
        before = np.concatenate(([0], np.cumsum(self.maskable)))
        return np.diff(before[self.offsets])

    @property
    def unit_counts(self) -> Ints:
        """How many units each row has to mask: tokens, where nothing else is masked as a whole."""
        if self.units is None:
            return self.maskable_counts
        spans = itertools.pairwise(self.offsets.tolist())
        return np.array([self.units[start:end].max(initial=-1) + 1 for start, end in spans], dtype=np.int64)

    def sources(self) -> Ints:
        """Return for each row the number of its group: that of the data, or else of the story that it was made of.

        Several questions about one growing story are rows that are not independent: a row belongs to the story of the
        row before it if one of their texts begins with the other.
        """
        if self.groups is not None:
            return self.groups
        of_text, spans = self.sequence == TEXT, itertools.pairwise(self.offsets.tolist())
        texts = [self.ids[start:end][of_text[start:end]] for start, end in spans]
        new = np.ones(len(texts), dtype=np.int64)
        for row, (before, text) in enumerate(itertools.pairwise(texts), start=1):
            common = min(len(before), len(text))
            new[row] = common == 0 or not np.array_equal(before[:common], text[:common])
        return np.cumsum(new) - 1

    def masked_by(self, mask_of: Callable[[int, Mask], Mask], mask_context: bool = False) -> "Encoded":
        """Return the split with `mask_of(row, its maskable tokens)` masked in every row."""
        candidates = self.sequence >= TEXT if mask_context else self.maskable
        masked = np.zeros_like(self.masked)
        for row in range(len(self)):
            span = slice(self.offsets[row], self.offsets[row + 1])
            masked[span] = mask_of(row, candidates[span])
        return replace(self, masked=masked)

    def joined(self, more: "Encoded") -> "Encoded":
        """Return these rows and then those of another split, encoded by the same tokenizer."""
        types = None if self.type_ids is None or more.type_ids is None else (self.type_ids, more.type_ids)
        units = None if self.units is None or more.units is None else (self.units, more.units)
        groups = None
        if self.groups is not None and more.groups is not None:
            groups = self.groups, self.groups.max(initial=-1) + 1 + more.groups
        return Encoded(
            ids=np.concatenate((self.ids, more.ids)),
            type_ids=types and np.concatenate(types),
            sequence=np.concatenate((self.sequence, more.sequence)),
            masked=np.concatenate((self.masked, more.masked)),
            offsets=np.concatenate((self.offsets, self.offsets[-1] + more.offsets[1:])),
            labels=np.concatenate((self.labels, more.labels)),
            pad_token_id=self.pad_token_id,
            truncated=self.truncated + more.truncated,
            units=units and np.concatenate(units),
            split=self.split,
            groups=groups and np.concatenate(groups),
            both_texts=self.both_texts,
        )

    def in_batch(self, tokens: Mask, batch: Batch) -> Tensor:
        """Return flat booleans aligned with this split as a (rows, tokens) tensor aligned with a batch of it."""
        return replace(self, masked=tokens).batch(batch.rows.cpu().numpy()).masked.to(batch.maskable.device)

    def batch(self, rows: Sequence[int] | Ints) -> Batch:
        """Return the rows as a padded batch, in the order given."""
        rows = np.asarray(rows, dtype=np.int64)
        starts, lengths = self.offsets[rows], self.lengths[rows]
        within = np.arange(lengths.max(initial=1)) < lengths[:, None]
        source = np.concatenate([np.arange(s, s + n) for s, n in zip(starts, lengths, strict=True)])

        def padded(flat: np.ndarray[Any, Any], padding: int | bool) -> Tensor:
            table = np.full(within.shape, padding, dtype=flat.dtype)
            table[within] = flat[source]
            return torch.from_numpy(table)

        return Batch(
            input_ids=padded(self.ids, self.pad_token_id),
            attention_mask=torch.from_numpy(within.astype(np.int64)),
            token_type_ids=None if self.type_ids is None else padded(self.type_ids, 0),
            maskable=padded(self.sequence, SPECIAL) >= TEXT
            if self.both_texts
            else padded(self.sequence, SPECIAL) == TEXT,
            masked=padded(self.masked, False),
            labels=torch.from_numpy(self.labels[rows]),
            rows=torch.from_numpy(rows),
            units=None if self.units is None else padded(self.units, -1),
            split=self.split,
        )

    def batches(self, tokens: int, rows: Ints | None = None) -> Iterator[Batch]:
        """Yield every row (or those given) once, longest first, in batches of at most `tokens` tokens with padding.

        Rows of like length share a batch, so there is next to no padding; the longest come first, so that a batch
        that does not fit in memory is met at once and not after an hour. A longer row is a batch of its own.
        """
        chosen = np.arange(len(self)) if rows is None else np.sort(rows)
        order = chosen[np.argsort(-self.lengths[chosen], kind="stable")]
        start = 0
        while start < len(order):
            count = max(1, tokens // max(1, int(self.lengths[order[start]])))
            yield self.batch(order[start : start + count])
            start += count


ENOUGH = 128  # tokens of a pass: products of fewer rows are slower


def packed(lengths: Tensor, tokens: int, *, alike: bool = False) -> Iterator[Tensor]:
    """Yield the indices of `lengths` in groups of like length, longest first, of at most `tokens` tokens with padding.

    Where a group is half full before the length changes, it ends there: a half-full pass costs less than one that pads
    and must therefore mask its attention. Nor do rows join that would be padded by a third, once there is enough for a
    pass. A longer row is a group of its own. With `alike` a group ends wherever the length changes, so that nothing is
    padded.
    """
    order = torch.argsort(lengths, descending=True, stable=True)
    ordered = lengths[order].cpu().numpy()
    start = 0
    while start < len(ordered):
        longest = max(1, int(ordered[start]))
        end = min(len(ordered), start + max(1, tokens // longest))
        same = int(np.searchsorted(-ordered[start:end], -longest, side="right"))
        near = int(np.searchsorted(-ordered[start:end], -0.75 * longest, side="right"))
        if alike or 2 * same * longest >= tokens:
            end = start + same
        elif near * longest >= ENOUGH:
            end = start + near
        yield order[start:end]
        start = end
