"""Where pieces of work run that depend on one another: in this process, or in several on this machine.

Written by hand because `concurrent.futures` knows no dependencies and gives up when one of its processes is killed.
Every piece keeps its own outcome on disk, so the outcome of all is the same however many processes there are.
"""

import multiprocessing
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TypeVar

import torch
import transformers

from faithmeter.errors import InputError
from faithmeter.progress import Reporter

Piece = TypeVar("Piece", bound=Hashable)
MOST_LOSSES = 3  # processes killed in a row, with nothing finished in between, before the work is given up


def work_through(
    pieces: Sequence[Piece],
    needs: Callable[[Piece], Piece | None],
    work: Callable[[Piece], None],
    *,
    workers: int,
    finished: Callable[[Piece], None],
    reporter: Reporter,
) -> None:
    """Do every piece once, after the one it needs (if that is among them); `work` must be picklable.

    A process that is killed costs the piece that it was at, which is begun again. `finished` is told of each piece.
    """
    if workers == 1:
        with one_thread():
            for piece in _ordered(pieces, needs):
                work(piece)
                finished(piece)
        return
    left, losses = list(_ordered(pieces, needs)), 0
    while left:
        before = len(left)
        try:
            _with_processes(left, needs, work, workers, finished)
        except BrokenProcessPool as error:
            losses = losses + 1 if len(left) == before else 1
            if losses >= MOST_LOSSES:
                raise InputError(
                    f"A working process was killed {losses} times in a row, perhaps because memory ran out. What is "
                    "finished is kept: go on with fewer --workers."
                ) from error
            reporter.warn("A working process was killed; what it was at is begun again.")


def _with_processes(
    left: list[Piece],
    needs: Callable[[Piece], Piece | None],
    work: Callable[[Piece], None],
    workers: int,
    finished: Callable[[Piece], None],
) -> None:
    """Work until nothing is left; what is done is taken out of `left`, so that another call can go on."""
    context = multiprocessing.get_context("spawn")  # a fork would copy the threads' locks of torch, and hang
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin_process)
    running: dict[Future[None], Piece] = {}
    try:
        while left:
            waiting = set(left)
            for piece in left:
                ready = needs(piece) not in waiting
                if ready and piece not in running.values() and len(running) < workers:
                    running[pool.submit(work, piece)] = piece
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                piece = running.pop(future)
                future.result()
                left.remove(piece)
                finished(piece)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _ordered(pieces: Sequence[Piece], needs: Callable[[Piece], Piece | None]) -> Iterator[Piece]:
    waiting = dict.fromkeys(pieces)
    while waiting:
        ready = [piece for piece in waiting if needs(piece) not in waiting]
        assert ready, "the pieces need one another in a circle"
        for piece in ready:
            del waiting[piece]
            yield piece


def _begin_process() -> None:
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: sums in another order would give other digits with one process than with several."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
