"""The queue of explanations: many clients at once, which take turns of one forward pass.

One thread per explanation, and a turn that rotates between passes: a beam search of minutes delays a quick request by
only one pass. Work that no client polls any more, or that was cancelled, ends at its next pass.
"""

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from faithmeter.errors import InputError
from faithmeter.progress import pausing

AT_MOST = 64  # explanations at once; further requests are rejected
KEPT_SECONDS = 300.0  # how long an answer is kept for its client
PATIENCE_SECONDS = 30.0  # how long work continues without being polled


class CancelledError(Exception):
    """The work is no longer wanted."""


class Turns:
    """A lock that is granted in the order of requests."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._next = self._served = 0

    def take(self) -> None:
        """Wait for the turn."""
        with self._condition:
            mine, self._next = self._next, self._next + 1
            self._condition.wait_for(lambda: self._served == mine)

    def give(self) -> None:
        """Pass the turn on."""
        with self._condition:
            self._served += 1
            self._condition.notify_all()


@dataclass
class Job:
    """A piece of work and how far it is: `running`, `done`, `failed` or `cancelled`."""

    number: str
    state: str = "running"
    passes: int = 0
    answer: Any = None
    problem: str | None = None
    asked: float = field(default_factory=time.monotonic)
    unwanted: threading.Event = field(default_factory=threading.Event)


class JobQueue:
    """Takes work and keeps its answers for a while."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._lock, self._turns = threading.Lock(), Turns()

    def submit(self, work: Callable[[], Any]) -> Job:
        """Begin a piece of work; refuse where too many people wait."""
        with self._lock:
            self._forget()
            if sum(job.state == "running" for job in self._jobs.values()) >= AT_MOST:
                raise InputError("Too many explanations are being computed. Try again in a moment.")
            job = Job(secrets.token_urlsafe(16))
            self._jobs[job.number] = job
        threading.Thread(target=self._do, args=(job, work), daemon=True).start()
        return job

    def find(self, number: str) -> Job | None:
        """Return a piece of work by its number, and note that it was polled."""
        with self._lock:
            job = self._jobs.get(number)
            if job is not None:
                job.asked = time.monotonic()
            return job

    def cancel(self, number: str) -> None:
        """Stop a piece of work at its next pass."""
        job = self.find(number)
        if job is not None:
            job.unwanted.set()

    def _forget(self) -> None:
        old = time.monotonic() - KEPT_SECONDS
        for number in [n for n, job in self._jobs.items() if job.state != "running" and job.asked < old]:
            del self._jobs[number]

    def _do(self, job: Job, work: Callable[[], Any]) -> None:
        def pause() -> None:
            job.passes += 1
            self._turns.give()
            self._turns.take()
            if job.unwanted.is_set() or time.monotonic() - job.asked > PATIENCE_SECONDS:
                raise CancelledError

        self._turns.take()
        try:
            with pausing(pause):
                job.answer = work()
            job.state = "done"
        except CancelledError:
            job.state = "cancelled"
        except InputError as error:
            job.state, job.problem = "failed", str(error)
        except Exception as error:  # the other threads must continue
            job.state, job.problem = "failed", f"{type(error).__name__}: the explanation could not be computed."
        finally:
            self._turns.give()
