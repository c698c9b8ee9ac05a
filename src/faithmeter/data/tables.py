"""Reading tables of rows from csv, tsv, jsonl (each also gzipped) and parquet files.

Written by hand instead of calling `datasets.load_dataset`: that turns the texts "NA" and "null" into nothing, and hides
the line of a fault under three layers of errors.
"""

import csv
import gzip
import io
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from faithmeter.errors import InputError, first_line

Row = dict[str, Any]
SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".csv.gz", ".tsv.gz", ".jsonl.gz", ".parquet")


def read_rows(path: Path) -> list[Row]:
    """Read a csv, tsv, jsonl (each also gzipped) or parquet file; an error names the file and line."""
    kind = require_table(path)
    try:
        if kind == "parquet":
            return _read_parquet(path)
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as raw:
            # not str.splitlines: a text may hold other line separators of Unicode
            lines = io.StringIO(_decoded(raw.read(), path), newline="")
        return list(_read_jsonl(lines) if kind in ("jsonl", "json") else _read_csv(lines, kind))
    except (gzip.BadGzipFile, EOFError) as error:
        raise InputError(f"{path} is not a complete gzip file ({error}): fetch it again.") from error
    except _BadLineError as error:
        raise InputError(f"{path}, {error}") from error


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
            gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as raw,
            io.TextIOWrapper(raw, "utf-8-sig", errors="replace", newline="") as lines,
        ):
            row = next(iter(_read_jsonl(lines) if kind in ("jsonl", "json") else _read_csv(lines, kind)), None)
    except (OSError, EOFError, _BadLineError):
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


def _read_parquet(path: Path) -> list[Row]:
    """Read a parquet file; a column of bytes is text if all of it is UTF-8, and is left as it is otherwise."""
    import pyarrow.parquet  # here: a text or a csv file needs none of it

    try:
        table = pyarrow.parquet.read_table(path)
    except pyarrow.ArrowInvalid as error:
        raise InputError(f"{path} is not a complete parquet file: {first_line(error)}") from error
    rows: list[Row] = table.to_pylist()
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
        except json.JSONDecodeError as error:
            raise _BadLineError(f"line {number}: not JSON ({error}). One object per line is expected.") from error
        if not isinstance(row, dict):
            raise _BadLineError(f"line {number}: one JSON object per line is expected.")
        yield row
