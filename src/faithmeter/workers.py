"""Where pieces of work run that depend on one another: in this process, or in several on this machine.

Written by hand because `concurrent.futures` knows no dependencies and gives up when one of its processes is killed.
Every piece keeps its own outcome on disk, so the outcome of all is the same however many processes there are.
"""

import multiprocessing
import os
import threading
import time
from collections import Counter
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
MOST_LOSSES = 3  # times that a piece of work may cost its process before it is given up


def work_through(
    pieces: Sequence[Piece],
    needs: Callable[[Piece], Piece | None],
    work: Callable[[Piece], None],
    *,
    workers: int,
    finished: Callable[[Piece], None],
    reporter: Reporter,
) -> None:
    """Do every piece once, after the one it needs, which stands before it; `work` must be picklable.

    Of the pieces that can be done the first is taken. Each worker is a process of its own, so that one that is killed
    costs the piece that it was at, which is begun again, and no other. `finished` is told of each piece.
    """
    if workers == 1:
        with one_thread():
            for piece in pieces:
                work(piece)
                finished(piece)
        return
    left, losses = list(pieces), Counter[Piece]()
    slots = {number: _new_process() for number in range(workers)}
    running: dict[Future[None], tuple[Piece, int]] = {}
    try:
        while left:
            begun, waiting = {piece for piece, _ in running.values()}, set(left)
            ready = (piece for piece in left if piece not in begun and needs(piece) not in waiting)
            free = slots.keys() - {slot for _, slot in running.values()}
            for slot, piece in zip(sorted(free), ready, strict=False):
                running[slots[slot].submit(work, piece)] = piece, slot
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                piece, slot = running.pop(future)
                try:
                    future.result()
                except BrokenProcessPool as error:
                    losses[piece] += 1
                    slots[slot].shutdown()
                    slots[slot] = _new_process()
                    if losses[piece] == MOST_LOSSES:
                        raise InputError(
                            f"A working process was killed {MOST_LOSSES} times at the same piece of work, perhaps "
                            "because memory ran out. What is finished is kept: go on with fewer --workers."
                        ) from error
                    reporter.warn("A working process was killed; what it was at is begun again.")
                    continue
                left.remove(piece)
                finished(piece)
    finally:
        for pool in slots.values():
            pool.shutdown(cancel_futures=True)


def _new_process() -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")  # a fork would copy the threads' locks of torch, and hang
    return ProcessPoolExecutor(1, mp_context=context, initializer=_begin_process, initargs=(os.getpid(),))


def _begin_process(parent: int) -> None:
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()


def _leave_with(parent: int) -> None:
    """End this process when the one that started it is gone: killed, it cannot tell its children."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: sums in another order would give other digits with one process than with several."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
