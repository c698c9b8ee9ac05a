"""Faults of a forward pass: memory runs out, or the logits are not finite."""

import math
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from faithmeter.data.batch import Batch
from faithmeter.errors import InputError

# messages without an error class: torch on the CPU, Apple's GPUs, mmap, libraries that allocate memory themselves
MEMORY_WORDS = (
    "can't allocate memory",
    "Cannot allocate memory",
    "out of memory",
    "ALLOC_FAILED",
    "could not create a memory object",  # oneDNN
    "could not create a primitive",
)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError | OSError) and any(words in str(error) for words in MEMORY_WORDS)


class MemoryLimit:
    """How many tokens, with padding, fit in memory at once: any number, until memory has run out.

    `warn` is called once when it did.
    """

    def __init__(self) -> None:
        self.tokens = math.inf
        self.warn: Callable[[str], object] = warnings.warn

    def through(self, batch: Batch, work: Callable[..., tuple[Tensor, ...]], *more: Tensor) -> tuple[Tensor, ...]:
        """Return the result of `work` for a batch, one line per row: at once, or in parts if memory runs out.

        `work` is given rows of the batch and the same rows of each of `more`, must look at each row by itself, and may
        be called again for rows that did not fit. The parts are padded as the whole is, so only rounding may differ.
        """
        found, start, width = list[tuple[Tensor, ...]](), 0, batch.input_ids.shape[1]
        while start < len(batch) or not found:
            count = max(1, int(min(len(batch) - start, self.tokens // width)))
            part = slice(start, start + count)
            try:
                found.append(work(batch.between(part), *(one[part] for one in more)))
                start += count
                continue
            except (MemoryError, RuntimeError) as error:
                if not out_of_memory(error):
                    raise
                if count == 1:
                    raise InputError(_too_long(batch, start)) from error
            # out of the handler, whose error would hold on to what filled the memory
            self._halve(count * width)
        return found[0] if len(found) == 1 else tuple(torch.cat(parts) for parts in zip(*found, strict=True))

    def _halve(self, tokens: int) -> None:
        told, self.tokens = self.tokens < math.inf, tokens // 2
        free_memory()
        if not told:
            self.warn(
                f"Memory ran out with {tokens} tokens at once: from here on half as many go through the model at a "
                "time, and fewer where that does not do. The results are the same, and take longer."
            )


def free_memory() -> None:
    """Give back what torch keeps of a GPU's memory for later."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _too_long(batch: Batch, index: int) -> str:
    row, tokens = int(batch.rows[index]), int(batch.attention_mask[index].sum())
    return (
        f"Memory does not do for one text: {name_of(batch, row)}, of {tokens} tokens. Use a machine or a GPU with more "
        "memory, end other programs, or make a run with a smaller --max-length. What is finished is kept."
    )


def finite(logits: Tensor, batch: Batch, rows: Tensor | None = None) -> Tensor:
    """Return the logits of a batch, or of its rows `rows`; refuse any that are no numbers, and name the text."""
    wrong = ~torch.isfinite(logits).all(dim=-1)
    if not bool(wrong.any()):
        return logits
    first = int(wrong.nonzero()[0])
    row = int(batch.rows[first if rows is None else int(rows[first])])
    raise InputError(
        f"The logits of {name_of(batch, row)} are {logits[first].tolist()}, which are not finite. Either the model's "
        "weights are invalid: train again with a lower --learning-rate, with --clip 1, or without mixed precision. Or "
        "it cannot read that text: look at it, and remove it from the data. Finished work is kept."
    )


def name_of(batch: Batch, row: int) -> str:
    """Return how to find a row of a batch, in words."""
    return f"row {row} of the {batch.split} split, counted from 0" if batch.split else f"text number {row}, from 0"
