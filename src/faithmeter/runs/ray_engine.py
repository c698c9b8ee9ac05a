"""Ray as the place where pieces of work run: a cluster of machines that share a file system (extra `ray`).

Each place of the engine is an actor: a process that stays, so that the model which one piece loaded is there for the
next. Ray moves no results: every piece keeps its outcome in files that all machines see.
"""

import logging
import os
from collections.abc import Callable
from importlib import util
from types import TracebackType
from typing import Any, Self

from faithmeter.errors import InputError, first_line
from faithmeter.models.fast.options import PassOptions, pass_options
from faithmeter.runs.engines import LostWorkerError, quiet_and_on_one_thread


class RayCluster:
    """Actors of a Ray cluster, one a place: of the cluster at `address`, or of one that is started on this machine.

    `cpus` and `gpus` are what each asks for. `places` is how many there are; None means as many as the cluster has
    room for.
    """

    def __init__(
        self,
        work: Callable[[Any], None],
        places: int | None = None,
        *,
        address: str | None = None,
        cpus: float = 1,
        gpus: float = 0,
    ) -> None:
        if util.find_spec("ray") is None:
            raise InputError("Ray is not installed here: `pip install 'faithmeter[ray]'`, on every machine.")
        if cpus <= 0 and gpus <= 0:
            raise InputError("A job needs a core or part of a GPU: set --cpus or --gpus above 0.")
        self._work, self._address, self._cpus, self._gpus = work, address, cpus, gpus
        self._asked, self._started = places, False
        self._actors = dict[int, Any]()
        self._running = dict[Any, int]()
        self.places = places or 1

    def __enter__(self) -> Self:
        """Find the cluster, or start one."""
        import ray

        if not ray.is_initialized():
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster started here sends no telemetry
            try:
                ray.init(
                    self._address,
                    num_cpus=None if self._address or not self._asked else max(1, round(self._asked * self._cpus)),
                    include_dashboard=None if self._address else False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
            except Exception as error:  # a start that takes too long has no error class
                raise InputError(
                    f"There is no Ray cluster at {self._address}, or it did not answer ({first_line(error)}). `ray "
                    "start --head` begins one, and says its address."
                    if self._address
                    else f"Ray did not start on this machine ({first_line(error)}). Where it is too busy to answer in "
                    "time, try again, or use --engine processes. What is finished is kept."
                ) from error
            self._started = True
        room = self._room()
        self.places = min(self._asked or room, room)
        return self

    def _room(self) -> int:
        """Return how many actors the cluster has room for: one more would wait for ever."""
        import ray

        found = ray.cluster_resources()
        asked = {"CPU": self._cpus, "GPU": self._gpus}
        room = min(int(found.get(kind, 0) / each) for kind, each in asked.items() if each > 0)
        if room < 1:
            if not self._actors:  # nothing has begun, so nobody else will leave
                self.__exit__(None, None, None)
            raise InputError(
                f"A job asks for {self._cpus:g} cores and {self._gpus:g} GPUs, and the cluster has "
                f"{found.get('CPU', 0):g} and {found.get('GPU', 0):g}: ask for less, or add machines."
            )
        return room

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End the actors, whatever they are at; a cluster that was here before stays."""
        import ray

        for actor in self._actors.values():
            ray.kill(actor)
        self._actors, self._running = {}, {}
        if self._started:
            ray.shutdown()
            self._started = False

    def begin(self, place: int, piece: object) -> None:
        """Send a piece to the actor of a place."""
        if place not in self._actors:
            self._actors[place] = self._new_actor()
        self._running[self._actors[place].do.remote(self._work, piece)] = place

    def ended(self) -> list[tuple[int, Exception | None]]:
        """Wait for the next; an actor that died is forgotten, and the place gets another with its next piece."""
        import ray

        (done, *_), _ = ray.wait(list(self._running), num_returns=1)
        place = self._running.pop(done)
        try:
            refused = ray.get(done)
        except (ray.exceptions.RayActorError, ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError,
                ray.exceptions.OutOfMemoryError) as error:  # fmt: skip
            self._actors.pop(place)
            self.places = min(self.places, self._room())  # its whole machine may be gone
            return [(place, LostWorkerError(str(error)))]
        if place >= self.places:  # another needs the cores that this one holds
            ray.kill(self._actors.pop(place))
        return [(place, None if refused is None else InputError(refused))]

    def _new_actor(self) -> Any:  # noqa: ANN401 (a handle that Ray makes)
        import ray

        return ray.remote(_Worker).options(num_cpus=self._cpus, num_gpus=self._gpus).remote(pass_options())


class _Worker:
    """What runs on a machine of the cluster."""

    def __init__(self, passes: PassOptions) -> None:
        quiet_and_on_one_thread(passes)

    def do(self, work: Callable[[Any], None], piece: object) -> str | None:
        """Do a piece of work; return what was refused, in words."""
        try:
            work(piece)
        except InputError as error:
            return str(error)
        return None
