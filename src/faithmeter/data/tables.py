"""Reading tables of rows from csv, tsv, jsonl (each also gzipped) and parquet files.

Written by hand instead of calling `datasets.load_dataset`: that turns the texts "NA" and "null" into nothing, and hides
the line of a fault under three layers of errors.
"""

import csv
import gzip
import io
import json
import sys
import zlib
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, cast

from faithmeter.errors import InputError, first_line
from faithmeter.progress import Advance

Row = dict[str, Any]
SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".csv.gz", ".tsv.gz", ".jsonl.gz", ".parquet")
ROWS_BETWEEN_REPORTS = 10_000


def read_rows(path: Path, columns: Collection[str] | None = None, progress: Advance | None = None) -> list[Row]:
    """Read a csv, tsv, jsonl (each also gzipped) or parquet file; an error names the file and line.

    Of a large file only rows of the `columns` that are needed stay in memory; the first row has all of them, so that
    they can be named. `progress` is told the bytes that are read.
    """
    kind = require_table(path)
    if kind == "parquet":
        return _read_parquet(path, columns)
    try:
        with path.open("rb") as file, _decompressed(file, path) as raw:
            # not str.splitlines: a text may hold other line separators of Unicode
            lines = io.TextIOWrapper(raw, "utf-8-sig", newline="")
            rows = _read_jsonl(lines) if kind in ("jsonl", "json") else _read_csv(lines, kind)
            return list(_only(rows, columns, file, progress))
    except UnicodeDecodeError as error:
        raise _not_text(path) from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path} is not a complete gzip file ({error}): fetch it again.") from error
    except _BadLineError as error:
        raise InputError(f"{path}, {error}") from error


def _decompressed(file: IO[bytes], path: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.GzipFile(fileobj=file)) if path.suffix == ".gz" else file


def _only(
    rows: Iterable[Row], columns: Collection[str] | None, file: IO[bytes], progress: Advance | None
) -> Iterator[Row]:
    """Yield rows with no more than the columns, but for the first; report how far the file is read."""
    before = 0
    for number, row in enumerate(rows):
        if number % ROWS_BETWEEN_REPORTS == 0 and progress is not None:
            progress(file.tell() - before)
            before = file.tell()
        yield row if columns is None or number == 0 else {name: row[name] for name in columns if name in row}


def require_table(path: Path) -> str:
    """Return which kind of table a file is, by its name; refuse one that is not there or of another kind."""
    if not path.is_file():
        raise InputError(f"There is no file {path}.")
    kind = path.name.removesuffix(".gz").rsplit(".", 1)[-1].lower()
    if kind not in ("csv", "tsv", "jsonl", "json", "parquet"):
        raise InputError(f"{path}: files of this kind cannot be read. Use one of {', '.join(SUFFIXES)}.")
    return kind


def columns_of(path: Path) -> list[str] | None:
    """Return the names of a table's columns by a look at its first row; None where that does not tell.

    It is quick for a file of any size. What is wrong with its content is for `read_rows` to say.
    """
    kind = require_table(path)
    if kind == "parquet":  # whose names only its library can read
        return None
    try:
        with (
            path.open("rb") as file,
            _decompressed(file, path) as raw,
            io.TextIOWrapper(raw, "utf-8-sig", errors="replace", newline="") as lines,
        ):
            row = next(iter(_read_jsonl(lines) if kind in ("jsonl", "json") else _read_csv(lines, kind)), None)
    except (OSError, EOFError, zlib.error, _BadLineError):
        return None
    return None if row is None else list(row)


class _BadLineError(Exception):
    pass


def texts_of(path: Path, column: str = "text") -> list[str]:
    """Return the texts of a table's column; the file is refused where it has none."""
    rows = read_rows(path)
    if not rows or column not in rows[0]:
        raise InputError(f"{path} has no column {column!r} with texts: rename the column, or choose another file.")
    return [str(row[column]) for row in rows]


def lines_of(path: Path) -> list[str]:
    """Return the lines of a file of plain text."""
    if not path.is_file():
        raise InputError(f"There is no file {path}.")
    return list(io.StringIO(_decoded(path.read_bytes(), path), newline=None))


def _read_parquet(path: Path, columns: Collection[str] | None) -> list[Row]:
    """Read a parquet file; a column of bytes is text if all of it is UTF-8, and is left as it is otherwise."""
    import pyarrow.parquet  # here: a text or a csv file needs none of it

    try:
        names = pyarrow.parquet.read_schema(path).names
        wanted = [name for name in names if columns is None or name in columns]
        table = pyarrow.parquet.read_table(path, columns=wanted)
        rows: list[Row] = table.to_pylist()
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} is not a complete parquet file: {first_line(error)}. Write or fetch it again."
        ) from error
    if rows:
        rows[0] = dict.fromkeys(names) | rows[0]
    for column in (field.name for field in table.schema if "binary" in str(field.type)):
        try:
            texts = [_text_of(row[column]) for row in rows]
        except UnicodeDecodeError:
            continue  # such as a picture; who needs the column refuses it (`holds_bytes`)
        for row, text in zip(rows, texts, strict=True):
            row[column] = text
    return rows


def _text_of(value: Any) -> Any:  # noqa: ANN401 (a cell of any type)
    if isinstance(value, list):
        return [_text_of(one) for one in value]
    return value.decode() if isinstance(value, bytes) else value


def holds_bytes(value: Any) -> bool:  # noqa: ANN401
    """Whether a cell, or an entry of the list in it, is bytes that are not text."""
    return any(isinstance(one, bytes) for one in (value if isinstance(value, list) else (value,)))


def _not_text(path: Path) -> InputError:
    """Return the error for a file that is not UTF-8, which names the line; None of it needs to be in memory before."""
    with path.open("rb") as file, _decompressed(file, path) as raw:
        try:
            _decoded(raw.read(), path)
        except InputError as error:
            return error
    return InputError(f"{path} is not UTF-8: save it as UTF-8.")


def _decoded(content: bytes, path: Path) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path}, line {line}: byte 0x{content[error.start]:02x} is not UTF-8. "
            "Save the file as UTF-8, for example with `iconv -f latin1 -t utf-8`."
        ) from error


def _read_csv(lines: Iterable[str], kind: str) -> Iterator[Row]:
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader(lines, delimiter="\t" if kind == "tsv" else ",", strict=True)
    try:
        header = next(reader, None)
        if header is None:
            return
        twice = next((name for name in header if name and header.count(name) > 1), None)
        if twice is not None:
            raise _BadLineError(f"line 1: two columns are named {twice!r}. Give each a different name.")
        for values in reader:
            if not values:
                continue
            if len(values) != len(header):
                raise _BadLineError(
                    f"line {reader.line_num}: {len(values)} fields where the header has {len(header)}. "
                    "Quote texts that contain the separator."
                )
            yield dict(zip(header, values, strict=True))
    except csv.Error as error:
        raise _BadLineError(f"line {reader.line_num}: {error}.") from error


def _read_jsonl(lines: Iterable[str]) -> Iterator[Row]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:  # as of a number of 5,000 digits
            raise _BadLineError(f"line {number}: not JSON ({error}). One object per line is expected.") from error
        if not isinstance(row, dict):
            raise _BadLineError(f"line {number}: one JSON object per line is expected.")
        yield row
