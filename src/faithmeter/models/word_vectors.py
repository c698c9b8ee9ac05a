"""Word vectors from a text file: GloVe's (`word 0.1 0.2 ...`) and fastText's (the same after a line `words size`)."""

import functools
import gzip
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from faithmeter.errors import InputError


@functools.lru_cache(maxsize=1)  # retraining begins with the same ones over and over
def word_vectors(path: Path, words: frozenset[str]) -> dict[str, Tensor]:
    """Return the vectors of those of the words that the file has; the file is read once and never held whole.

    A word may hold spaces, as some of GloVe's do: the numbers are counted from the end of a line. Of a word that
    occurs twice the first counts.
    """
    if not path.is_file():
        raise InputError(f"There is no file {path} with word vectors.")
    found: dict[str, Tensor] = {}
    size: int | None = None
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8", errors="replace") as lines:
            for number, line in enumerate(lines, start=1):
                fields = line.replace("\t", " ").rstrip().split(" ")
                if number == 1:
                    header = len(fields) == 2
                    size = int(fields[1]) if header else len(fields) - 1
                    if header:
                        continue
                assert size is not None
                word = " ".join(fields[:-size])
                if word in words and word not in found:
                    values = np.array(fields[-size:], dtype=np.float32)
                    if not np.isfinite(values).all():
                        raise ValueError("a number that is not finite")
                    found[word] = torch.from_numpy(values)
                if len(fields) <= size:
                    raise ValueError(f"{len(fields)} fields, and a word and {size} numbers are expected")
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} is not a file of word vectors: line {number if size else 1}: {error}") from error
    if not found:
        raise InputError(f"{path} has none of the words of the training texts. Is it for another language?")
    return found
