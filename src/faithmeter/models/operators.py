"""Removal operators: what a model reads in the place of a token that was taken away.

Which tokens are removed is in `Batch.masked`; an operator turns such a batch into one of which nothing is masked, the
batch that the model reads (`Shown`). A new operator is a function and a row of the table.

There is no operator that fills gaps by the checkpoint's own language-model head: a classifier is loaded without it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.numpy import load_file, save
from torch import Tensor

from faithmeter.data.batch import Batch, Encoded, Ints, Shown
from faithmeter.errors import InputError
from faithmeter.files import write_bytes
from faithmeter.masking import MASK, Purpose, random_stream
from faithmeter.models.heads import LAST, where_read
from faithmeter.models.padding import ROUNDING, probe_texts
from faithmeter.models.temporary import evaluating

if TYPE_CHECKING:
    from faithmeter.models.classifier import Classifier


def _shown(batch: Batch, **changed: Any) -> Shown:  # noqa: ANN401 (fields of a batch)
    same = {field.name: getattr(batch, field.name) for field in fields(Batch)}
    return Shown(**{**same, "masked": torch.zeros_like(batch.masked), "width": batch.masked.shape[1], **changed})


def _mask(classifier: Classifier, batch: Batch) -> Shown:
    return _shown(batch, input_ids=batch.masked_ids(classifier.mask_token_id))


def _delete(classifier: Classifier, batch: Batch) -> Shown:
    if not bool(batch.masked.any()):
        return _shown(batch)
    kept = batch.attention_mask.bool() & ~batch.masked
    lengths = kept.sum(dim=1)
    places = (~kept).long().argsort(dim=1, stable=True)[:, : max(1, int(lengths.max()))]
    read = torch.arange(places.shape[1], device=places.device) < lengths[:, None]

    def closed_up(values: Tensor, padding: int) -> Tensor:
        return values.gather(1, places).masked_fill(~read, padding)

    return _shown(
        batch,
        input_ids=closed_up(batch.input_ids, classifier.pad_token_id),
        attention_mask=read.to(batch.attention_mask.dtype),
        token_type_ids=None if batch.token_type_ids is None else closed_up(batch.token_type_ids, 0),
        maskable=closed_up(batch.maskable, False),
        masked=torch.zeros_like(read),
        units=None if batch.units is None else closed_up(batch.units, -1),
        places=places,
    )


def _pad(_: Classifier, batch: Batch) -> Shown:
    # the id stays: some models count their positions by ids, and would close the gap at a padding id
    return _shown(batch, attention_mask=batch.attention_mask.masked_fill(batch.masked, 0))


def _unk(classifier: Classifier, batch: Batch) -> Shown:
    return _shown(batch, input_ids=batch.masked_ids(int(classifier.tokenizer.unk_token_id)))


def _zero(_: Classifier, batch: Batch) -> Shown:
    return _shown(batch, zeroed=batch.masked)


def _unigram(classifier: Classifier, batch: Batch) -> Shown:
    assert classifier.unigrams is not None
    drawn = classifier.unigrams.drawn(batch.rows, batch.input_ids.shape[1])
    return _shown(batch, input_ids=torch.where(batch.masked, drawn.to(batch.input_ids.device), batch.input_ids))


def _lacks_special(classifier: Classifier) -> str | None:
    probe = classifier.encode(probe_texts(classifier.tokenizer))
    special = probe.lengths - probe.maskable_counts
    return None if special.min() > 0 else "nothing is left of a text without its words, not even a special token"


def _lacks_attention(classifier: Classifier) -> str | None:
    if where_read(classifier.model) == LAST:
        return "its head reads the last token, which may be one that is not attended to"
    return _lacks_special(classifier) if classifier.pads else "padding changes its predictions"


def _lacks_unknown(classifier: Classifier) -> str | None:
    unknown = classifier.tokenizer.unk_token_id
    if unknown is None:
        return "its tokenizer has no unknown token"
    return "its unknown token is its padding token" if unknown == classifier.pad_token_id else None


def _lacks_unigrams(classifier: Classifier) -> str | None:
    return "it was not told how often each token is in the training texts" if classifier.unigrams is None else None


@dataclass(frozen=True)
class Operator:
    """A way to remove tokens: what it `does`, which models it `fits`, and how it shows a batch to the model.

    `lacks` says why it does not fit a model, or None. `closes_up` is true where texts become shorter, and `counts`
    where the frequencies of the training texts are needed (`Unigrams`).
    """

    name: str
    does: str
    fits: str
    show: Callable[[Classifier, Batch], Shown]
    lacks: Callable[[Classifier], str | None] = lambda _: None
    closes_up: bool = False
    counts: bool = False


_TABLE = (
    Operator(MASK, "The mask token stands in the token's place.", "Every model.", _mask),
    Operator(
        "delete",
        "The text is read without the token, and what follows moves up.",
        "Models whose texts have a special token, which stays.",
        _delete,
        _lacks_special,
        closes_up=True,
    ),
    Operator(
        "pad",
        "The token is not attended to, as padding is not; the others keep their positions.",
        "Encoders that read nothing of a token that is not attended to.",
        _pad,
        _lacks_attention,
    ),
    Operator(
        "unk",
        "The tokenizer's unknown token stands in the token's place.",
        "Models whose tokenizer has an unknown token that is not its padding token.",
        _unk,
        _lacks_unknown,
    ),
    Operator("zero", "The token's word embedding is zero.", "Models that read a token by its embedding alone.", _zero),
    Operator(
        "unigram",
        "A token drawn from those of the training texts, by their frequency, stands in the token's place.",
        "Models of a run, whose training texts are known.",
        _unigram,
        _lacks_unigrams,
        counts=True,
    ),
)
OPERATORS: Mapping[str, Operator] = MappingProxyType({row.name: row for row in _TABLE})


def require_fits(classifier: Classifier, operator: Operator) -> None:
    """Refuse an operator that does not fit a model; `classifier` removes by it already.

    What was removed must not be read any more. So where other tokens are removed from the same places, the answer must
    be the same, which is tested: a model may look at what it does not attend to, or read ids besides embeddings.
    """
    lacks = operator.lacks(classifier)
    if lacks is None and operator.name != MASK and _still_read(classifier):
        lacks = "it still reads tokens that are removed so"
    if lacks is not None:
        raise InputError(
            f"The operator {operator.name} does not fit this model: {lacks}. {operator.does} It fits: "
            f"{operator.fits[0].lower()}{operator.fits[1:]}"
        )


def _still_read(classifier: Classifier) -> bool:
    texts = probe_texts(classifier.tokenizer)
    encoded = classifier.encode(texts, texts if classifier.both_texts else None)
    ids = torch.from_numpy(np.unique(encoded.ids[encoded.maskable]))
    batch = encoded.batch(range(len(encoded)))
    every_second = batch.maskable & (batch.maskable.cumsum(dim=1) % 2 == 0)
    answers = []
    with evaluating(classifier.model), torch.no_grad():
        for place in (0, -1):
            parts = [
                replace(batch, input_ids=batch.input_ids.masked_fill(removed, int(ids[place])), masked=removed)
                for removed in (batch.maskable, every_second)
            ]
            answers.append(torch.cat([classifier.logits(part.to(classifier.device)) for part in parts]))
    noise = ROUNDING.get(next(classifier.model.parameters()).dtype, ROUNDING[torch.bfloat16])
    return float((answers[0] - answers[1]).abs().max()) > noise * float(answers[0].abs().max())


# ------------------------------------------------------------------------------------------------ tokens of training


@dataclass(frozen=True)
class Unigrams:
    """How often each token is in the training texts, and the seed of what is drawn from them."""

    ids: Ints
    counts: Ints
    seed: int = 0

    @classmethod
    def of(cls, encoded: Encoded, seed: int = 0) -> Unigrams:
        """Count the maskable tokens of a split."""
        ids, counts = np.unique(encoded.ids[encoded.maskable], return_counts=True)
        return cls(ids.astype(np.int64), counts.astype(np.int64), seed)

    def drawn(self, rows: Tensor, width: int) -> Tensor:
        """Return (rows, width) tokens: that of a dataset row and a position is always the same."""
        ends = np.cumsum(self.counts) / self.counts.sum()
        numbers = np.stack([_uniform(self.seed, int(row), width) for row in rows.tolist()])
        return torch.from_numpy(self.ids[np.searchsorted(ends, numbers, side="right").clip(max=len(ends) - 1)])

    def save(self, file: Path) -> None:
        """Store the counts."""
        write_bytes(file, save({"ids": self.ids, "counts": self.counts}))

    @classmethod
    def load(cls, file: Path, seed: int) -> Unigrams:
        """Read stored counts."""
        return cls(**load_file(file), seed=seed)


@functools.lru_cache(maxsize=4096)  # many maskings of a text ask for the same
def _uniform(seed: int, row: int, width: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    # a longer row of numbers begins with those of a shorter one
    return random_stream(seed, Purpose.UNIGRAMS, row).random(width)
