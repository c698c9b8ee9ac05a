"""Shards: work that is split into pieces, one file per piece, so that interrupted work resumes at the next piece.

A file is complete or absent; a damaged one is set aside, reported, and made again. The content of a file does not
depend on interruptions, nor on which process made the other files.
"""

import io
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pyarrow
import pyarrow.parquet

from faithmeter.files import is_done, require_whole, write_bytes

TOKENS_AT_ONCE = 1024  # of original text: what is lost when a measurement is killed

Piece = TypeVar("Piece", bound=Sized)


@dataclass(frozen=True)
class Shards:
    """The files of one piece of work: `PREFIX00000.parquet` and so on, in a folder."""

    folder: Path
    suffix: str = ".parquet"
    prefix: str = ""

    def file(self, number: int) -> Path:
        """Return the file of a piece."""
        return self.folder / f"{self.prefix}{number:05d}{self.suffix}"

    def done(self, pieces: int, warn: Callable[[str], None]) -> list[bool]:
        """Return which of so many pieces are there and whole."""
        return [is_done(self.file(number), warn) for number in range(pieces)]

    def fill(
        self,
        pieces: Iterable[Piece],
        make: Callable[[int, Piece], bytes],
        *,
        advance: Callable[[int], None],
        warn: Callable[[str], None],
        share: tuple[int, int] = (0, 1),
    ) -> None:
        """Make the files that are not there, of `share` = (i, n) every n-th from the i-th on; pass over the others.

        `advance` is told how much each piece holds, whoever made it.
        """
        first, every = share
        for number, piece in enumerate(pieces):
            if number % every == first and not is_done(self.file(number), warn):
                self.folder.mkdir(parents=True, exist_ok=True)
                write_bytes(self.file(number), make(number, piece))
            advance(len(piece))


def as_parquet(table: pyarrow.Table) -> bytes:
    """Return a table as the bytes of a Parquet file."""
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(table, buffer)
    return buffer.getvalue()


def read_shards(folder: Path, remedy: str, columns: Sequence[str] | None = None) -> pyarrow.Table | None:
    """Return the tables of a folder as one; None where there are none. A damaged one is refused, with what to do."""
    files = sorted(require_whole(folder, remedy).glob("*.parquet"))
    if not files:
        return None
    return pyarrow.concat_tables([pyarrow.parquet.read_table(file, columns=columns) for file in files])
