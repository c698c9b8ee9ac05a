"""Writing that is never half done: a file or folder appears whole, under its name, or not at all."""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from faithmeter.errors import InputError


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file beside its place and move it there: a crash leaves the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write one JSON object, indented for people."""
    write_bytes(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object a line."""
    write_bytes(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Read one JSON object a line; a file that is not there has no lines."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a folder to fill, which takes the place of `path` only when all of it is written."""
    temporary = path.with_name(f".{path.name}.part")
    shutil.rmtree(temporary, ignore_errors=True)  # of a process that was killed while it wrote
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                with file.open("rb") as written:
                    os.fsync(written.fileno())
        shutil.rmtree(path, ignore_errors=True)
        temporary.replace(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Refuse to work in a folder in which another process is at work; the lock goes with the process that holds it."""
    try:
        import fcntl
    except ImportError:  # a system without such locks
        yield
        return
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InputError(
                f"Another process is at work in {folder}: wait until it is done, or stop it first."
            ) from error
        yield


@contextmanager
def at_work(folder: Path) -> Iterator[None]:
    """Let others know that this process works in a folder, beside the one that `only_one` lets in and has sent it."""
    try:
        import fcntl
    except ImportError:  # a system without such locks
        yield
        return
    with (folder / ".at-work").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield


def wait_until_nobody_is_at_work(folder: Path) -> None:
    """Wait for processes whose master was killed: they end soon, and until then they may still write."""
    try:
        import fcntl
    except ImportError:
        return
    with (folder / ".at-work").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
