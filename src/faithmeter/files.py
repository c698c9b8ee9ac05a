"""Atomic writing: a file or folder appears complete under its name, or not at all.

A result has its checksum in a hidden file next to it, which is checked when it is read. The checksum is removed before
the result changes and written after it, so a process killed in between leaves a result without a checksum. Such a file
is read unchecked: it is complete, and so are those of versions without checksums.
"""

import hashlib
import json
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from faithmeter.errors import InputError

# results: read by commands, never edited
SUMMED = (".parquet", ".safetensors", ".jsonl", "outcome.json", "masf.json", "settings.json")
LOCK = ".lock"  # the file by which processes know of one another


def cache_folder() -> Path:
    """Return the folder of a user for what can be made again: FAITHMETER_CACHE, or that of the operating system."""
    named, home = os.environ.get("FAITHMETER_CACHE"), Path.home()
    if named:
        return Path(named)
    usual = {"win32": home / "AppData" / "Local", "darwin": home / "Library" / "Caches"}.get(sys.platform)
    system = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME")
    return (Path(system) if system else usual or home / ".cache") / "faithmeter"


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file beside its place and move it there: a crash leaves the old file or the new one."""
    # a name of its own: threads have the same process id, and processes of two machines may have
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _sum_file(path).unlink(missing_ok=True)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if path.name.endswith(SUMMED):
        write_bytes(_sum_file(path), hashlib.sha256(content).hexdigest().encode())


def _sum_file(path: Path) -> Path:
    return path.with_name(f".{path.name}.sum")


def damaged(path: Path) -> Path | None:
    """Return the file that is not as it was written: `path`, or the first such one in it; None where all are whole.

    A checksum in a folder whose file is gone tells of it, because a file is never removed by itself. So is what became
    a folder where a file was written.
    """
    if not path.is_dir():
        return None if _is_whole(path) else path
    found = {file for file in path.rglob("*") if file.is_file()}
    summed = {file.with_name(file.name[1 : -len(".sum")]) for file in found if _is_sum(file)}
    return next((file for file in sorted(found | summed) if file in summed - found or not _is_whole(file)), None)


def _is_sum(file: Path) -> bool:
    return file.name.startswith(".") and file.name.endswith(".sum")


def _is_whole(file: Path) -> bool:
    """Whether a file matches its checksum; if the checksum changes meanwhile, the new content is checked."""
    while (said := _sum_of(file)) is not None and file.exists():
        with file.open("rb") as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
        if found == said:
            return True
        if said == _sum_of(file):
            return False
    return True


def _sum_of(file: Path) -> str | None:
    try:
        return _sum_file(file).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None


def sum_of(folder: Path) -> str | None:
    """Return one checksum of all the results in a folder, as they were written; None where they have none."""
    sums = [f"{file.name} {file.read_text(encoding='utf-8')}\n" for file in sorted(folder.glob(".*.sum"))]
    return hashlib.sha256("".join(sums).encode()).hexdigest()[:16] if sums else None


def is_done(path: Path, tell: Callable[[str], None]) -> bool:
    """Whether a result, a file or a folder, exists undamaged; a damaged one is set aside and reported."""
    if not path.exists():
        return False
    file = damaged(path)
    if file is None:
        return True
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    path.rename(aside)
    _sum_file(path).unlink(missing_ok=True)
    there = (aside / file.relative_to(path)).is_file()
    what = "damaged: it is not what was written. It" if there else "gone. What is left"
    tell(f"{file} is {what} is set aside as {aside.name}, and computed again.")
    return False


def require_whole(path: Path, remedy: str) -> Path:
    """Return the path of a result, a file or a folder; raise InputError with a remedy if it is damaged."""
    file = damaged(path)
    if file is not None:
        how = "damaged: its checksum does not match" if file.is_file() else "gone"
        raise InputError(f"{file} is {how}. {remedy}")
    return path


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write one JSON object, indented for people."""
    write_bytes(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object a line."""
    write_bytes(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())


def read_json(path: Path, remedy: str) -> Any:  # noqa: ANN401 (whatever was written)
    """Read one JSON object; raise InputError with a remedy if it is damaged."""
    try:
        return json.loads(require_whole(path, remedy).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"{path} is gone. {remedy}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged: it cannot be read as JSON. {remedy}") from error


def read_jsonl(path: Path, remedy: str) -> list[Any]:
    """Read one JSON object a line; a file that is not there has no lines, and a damaged one is refused."""
    if not path.exists():
        return []
    lines = require_whole(path, remedy).read_bytes().split(b"\n")
    try:
        return [json.loads(line) for line in lines if line]
    except ValueError as error:
        raise InputError(f"{path} is damaged: a line of it cannot be read as JSON. {remedy}") from error


def _umask() -> int:
    """Return which rights new files do not get. It can only be read by setting it, so it is set to itself."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


@contextmanager
def new_folder(path: Path, *, sum_all: bool = False) -> Iterator[Path]:
    """Yield a folder to fill, which takes the place of `path` only when all of it is written.

    Results in it get their checksums; `sum_all` means every file, as of a model, whose answers depend on each.
    """
    temporary = path.with_name(f".{path.name}.part")
    shutil.rmtree(temporary, ignore_errors=True)  # of a process that was killed while it wrote
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for file in [file for file in temporary.rglob("*") if file.is_file()]:
            file.chmod(0o666 & ~_umask())  # safetensors leaves its own for the owner alone
            with file.open("rb") as written:
                os.fsync(written.fileno())
                summed = file.name.endswith(SUMMED) or (sum_all and not file.name.startswith("."))
                if summed and not _sum_file(file).exists():  # written by another library
                    write_bytes(_sum_file(file), hashlib.file_digest(written, "sha256").hexdigest().encode())
        shutil.rmtree(path, ignore_errors=True)
        temporary.replace(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _opened(lock: Path) -> IO[bytes]:
    """Open the file of a lock without changing it; a link is refused, because it may lead to any file."""
    if lock.is_symlink():
        raise InputError(f"{lock} is a link, and the file of a lock never is: remove it.")
    return lock.open("ab")


@contextmanager
def only_one(folder: Path, *, together: bool = False) -> Iterator[None]:
    """Refuse to work in a folder in which another process is at work; the lock goes with the process that holds it.

    Processes that share a piece of work say so (`together`), and refuse only those that do not.
    """
    try:
        import fcntl
    except ImportError:  # a system without such locks
        yield
        return
    with _opened(folder / LOCK) as lock:
        try:
            fcntl.flock(lock, (fcntl.LOCK_SH if together else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as error:
            raise InputError(
                f"Another process is working in {folder}: wait until it is done, or stop it first."
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
    with _opened(folder / ".at-work") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield


def wait_until_nobody_is_at_work(folder: Path) -> None:
    """Wait for processes whose master was killed: they end soon, and until then they may still write."""
    try:
        import fcntl
    except ImportError:
        return
    with _opened(folder / ".at-work") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
