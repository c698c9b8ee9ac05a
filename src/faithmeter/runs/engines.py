"""Engines that run dependent pieces of work: in this process, in several on this machine, or elsewhere.

An engine has places where one piece is done at a time (`Engine`); `go_through` gives each place its next piece. The
scheduler is written by hand because `concurrent.futures` knows no dependencies and gives up when one of its processes
is killed. Every piece keeps its own outcome on disk, so the outcome of all is the same whatever the engine.
"""

import multiprocessing
import os
import threading
import time
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Protocol, Self, TypeVar

import torch
import transformers

from faithmeter.errors import InputError
from faithmeter.models.fast.options import PassOptions, pass_options, use_pass_options
from faithmeter.progress import Reporter

Piece = TypeVar("Piece", bound=Hashable)
P_contra = TypeVar("P_contra", contravariant=True)
DEVICE = "FAITHMETER_DEVICE"  # the variable that names the device of a process, see `runs.run.chosen_device`
MOST_LOSSES = 3  # times that a piece of work may cost its process before it is given up


class LostWorkerError(Exception):
    """The process that was at a piece of work is gone: killed, out of memory, or its machine is down."""


class Engine(Protocol[P_contra]):
    """Places that do one piece of work at a time each. A place whose process is lost gets a new one by itself."""

    places: int

    def __enter__(self) -> Self:
        """Make ready."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Leave no process behind, whatever it was at."""

    def begin(self, place: int, piece: P_contra) -> None:
        """Begin a piece of work at a place that has none."""

    def ended(self) -> list[tuple[int, Exception | None]]:
        """Wait until some piece is at its end; return where, and what went wrong, if anything."""


def go_through(
    engine: Engine[Piece],
    pieces: Sequence[Piece],
    needs: Callable[[Piece], Collection[Piece]],
    *,
    finished: Callable[[Piece], None],
    reporter: Reporter,
    failed: Callable[[Piece, InputError], None] | None = None,
    home: Callable[[Piece], Hashable] = lambda piece: None,  # noqa: ARG005
) -> None:
    """Do every piece once, after all those it needs; what it needs and is not among the pieces is taken to be done.

    Of the pieces that can be done the first is taken, but for one with the same `home` as the piece before, for which
    a place may still have the model loaded. A lost worker costs the piece that it was at, which is begun again, and no
    other. `finished` is told of each piece. Where somebody wants to be told what is refused (`failed`), the work goes
    on with all that does not need it; any other error ends it.
    """
    order, losses = {piece: number for number, piece in enumerate(pieces)}, Counter[Piece]()
    unmet = {piece: {need for need in needs(piece) if need in order} for piece in pieces}
    followers = defaultdict[Piece, list[Piece]](list)
    for piece, needed in unmet.items():
        for need in needed:
            followers[need].append(piece)
    ready = [piece for piece in pieces if not unmet[piece]]
    at, last = dict[int, Piece](), dict[int, Hashable]()
    with engine:
        while ready or at:
            for place in sorted(set(range(engine.places)) - at.keys())[: len(ready)]:
                piece = next((one for one in ready if place in last and home(one) == last[place]), ready[0])
                ready.remove(piece)
                at[place], last[place] = piece, home(piece)
                engine.begin(place, piece)
            for place, error in engine.ended():
                piece = at.pop(place)
                if error is None:
                    for follower in followers[piece]:
                        unmet[follower].remove(piece)
                        if not unmet[follower]:
                            insort(ready, follower, key=order.__getitem__)
                    finished(piece)
                    continue
                if failed is not None and isinstance(error, InputError):
                    failed(piece, error)
                    continue
                if not isinstance(error, LostWorkerError):
                    raise error
                losses[piece] += 1
                if losses[piece] == MOST_LOSSES:
                    raise InputError(
                        f"A worker process was killed {MOST_LOSSES} times at the same piece of work, perhaps "
                        "because memory ran out. Finished work is kept: resume with fewer --workers."
                    ) from error
                reporter.warn("A worker process was killed; its piece of work is started again.")
                insort(ready, piece, key=order.__getitem__)


class ThisProcess:
    """One place: here, one piece after the other."""

    places = 1

    def __init__(self, work: Callable[[Piece], None]) -> None:
        self._work, self._begun, self._held = work, list[object](), ExitStack()

    def __enter__(self) -> Self:
        """Compute on one thread from now on."""
        self._held.enter_context(one_thread())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Give the threads back."""
        self._held.close()

    def begin(self, _place: int, piece: object) -> None:
        """Note what to do next."""
        self._begun.append(piece)

    def ended(self) -> list[tuple[int, Exception | None]]:
        """Do it."""
        try:
            self._work(self._begun.pop())  # type: ignore[arg-type]
        except Exception as error:
            return [(0, error)]
        return [(0, None)]


class Processes:
    """Processes of this machine, one a place, each on one core; `work` must be picklable."""

    def __init__(self, work: Callable[[Piece], None], places: int) -> None:
        self.places, self._work = places, work
        self._pools = dict[int, ProcessPoolExecutor]()
        self._running = dict[Future[None], int]()

    def __enter__(self) -> Self:
        """A process is started when there is work for it."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End the processes; one that is at work when something went wrong is stopped, and its piece is not done."""
        if error is not None:
            for pool in self._pools.values():
                for process in (pool._processes or {}).values():
                    process.terminate()
        for pool in self._pools.values():
            pool.shutdown(cancel_futures=True)

    def begin(self, place: int, piece: object) -> None:
        """Send a piece to the process of a place."""
        if place not in self._pools:
            self._pools[place] = _new_process(place)
        try:
            future = self._pools[place].submit(self._work, piece)  # type: ignore[arg-type]
        except BrokenProcessPool:  # it was killed while it had nothing to do
            self._pools[place].shutdown()
            self._pools[place] = _new_process(place)
            future = self._pools[place].submit(self._work, piece)  # type: ignore[arg-type]
        self._running[future] = place

    def ended(self) -> list[tuple[int, Exception | None]]:
        """Wait for the next; a process that died is forgotten, and the place gets another with its next piece."""
        done, _ = wait(self._running, return_when=FIRST_COMPLETED)
        found = list[tuple[int, Exception | None]]()
        for future in done:
            place, error = self._running.pop(future), future.exception()
            if isinstance(error, BrokenProcessPool):
                self._pools.pop(place).shutdown()
                error = LostWorkerError(str(error))
            if error is not None and not isinstance(error, Exception):
                raise error
            found.append((place, error))
        return sorted(found, key=lambda one: one[0])


def work_through(
    pieces: Sequence[Piece],
    needs: Callable[[Piece], Piece | None],
    work: Callable[[Piece], None],
    *,
    workers: int,
    finished: Callable[[Piece], None],
    reporter: Reporter,
) -> None:
    """Do every piece once, after the one it needs, in this process or in several; `work` must be picklable."""

    def needed(piece: Piece) -> tuple[Piece, ...]:
        need = needs(piece)
        return () if need is None else (need,)

    engine: Engine[Piece] = ThisProcess(work) if workers == 1 else Processes(work, workers)
    go_through(engine, pieces, needed, finished=finished, reporter=reporter)


def _new_process(place: int) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")  # a fork would copy the threads' locks of torch, and hang
    arguments = os.getpid(), pass_options(), gpu_of(place)
    return ProcessPoolExecutor(1, mp_context=context, initializer=_begin_process, initargs=arguments)


def _begin_process(parent: int, passes: PassOptions, gpu: str | None) -> None:
    quiet_and_on_one_thread(passes)
    if gpu is not None:
        os.environ[DEVICE] = gpu
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()


def quiet_and_on_one_thread(passes: PassOptions) -> None:
    """Make a working process ready: one thread, and no bars and warnings among the lines of the one that started it.

    `passes` are the options of that one.
    """
    use_pass_options(passes)
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def _leave_with(parent: int) -> None:
    """End this process when the one that started it is gone: killed, it cannot tell its children."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def workers_here() -> int:
    """Return how many processes are of use on this machine: one per core, or one where a GPU does the work."""
    return 1 if torch.cuda.is_available() else cores()


def gpus() -> int:
    """Return how many GPUs there are to share work among; 1 where `FAITHMETER_DEVICE` names one."""
    return 1 if os.environ.get(DEVICE) else torch.cuda.device_count()


def gpu_of(place: int) -> str | None:
    """Return the GPU of a process: each has the next of several, in turn. None where there are not several."""
    several = gpus()
    return f"cuda:{place % several}" if several > 1 else None


def cores() -> int:
    """Return how many cores this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: sums in another order would give other digits with one process than with several."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
