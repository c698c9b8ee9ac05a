"""How passes are computed: with which linear layers, and how many tokens at once. Chosen by measuring, on this machine.

Which library multiplies matrices faster differs between processors that have the same name: by a fifth for oneDNN's
loss on one, by more than twice for its gain on another. So trials decide, with the shapes of the model, the lengths of
its texts and the number of threads at hand. They run in stages, each only when the tokens that have passed make all
trials so far at most `SHARE` of the work; short work has none, and takes `DEFAULT`. What was found is kept in the
user's cache folder for the next process. Results differ in their last digits only, whatever is chosen.
"""

import hashlib
import json
import logging
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from faithmeter import __version__
from faithmeter.errors import InputError
from faithmeter.files import cache_folder, write_json
from faithmeter.models.fast.fused_linear import Kept, available, fused_linears, trained_linears
from faithmeter.models.fast.options import AUTO, FORWARD, GRADIENT, TRAINING, PassOptions, pass_options

log = logging.getLogger(__name__)

SHARE = 0.02  # of all tokens that pass, for trials at most
ROUNDS = 2  # of trials, in turn
WARM_UP = 256  # tokens that pass before a trial: then weights are laid out, which is done once for many passes
SLOWNESS = 2  # how many times as long the slower linear layers may take: what their trials are taken to cost
FAR_BEHIND = 1.5  # times the best: not tried again
CLEARLY = 0.02  # what is measured must be better by so much to be preferred to what comes first


@contextmanager
def _as_they_are(_model: nn.Module, _kept: Kept | None = None) -> Iterator[None]:
    yield


LINEAR_LAYERS: Mapping[str, Callable[[nn.Module, Kept | None], AbstractContextManager[None]]] = {
    "onednn": fused_linears,
    "torch": _as_they_are,
}


TRAINED_LAYERS: Mapping[str, Callable[[nn.Module], AbstractContextManager[None]]] = {
    "onednn": trained_linears,
    "torch": _as_they_are,
}


@dataclass(frozen=True)
class Way:
    """A way to compute passes; `stage` counts the stages of trials that have led to it."""

    linear_layers: str
    tokens: int
    stage: int = 0


# where oneDNN loses, it loses a fifth; where it wins, it is twice as fast
DEFAULT = Way("onednn", 1024)
Seconds = Callable[[Way, int], float]  # per token, of passes of about so many tokens in this way


@dataclass(frozen=True)
class Stage:
    """Trials that are made together, each of a `sample` of the tokens that are about to pass.

    They compare linear layers, or numbers of `tokens` at once: where now there are `only_at`, if that is given.
    """

    sample: int
    tokens: tuple[int, ...] = ()
    only_at: int | None = None

    @property
    def cost(self) -> int:
        """How many tokens its trials cost at most: as many as pass in the same time in the better way."""
        return ROUNDS * (len(self.tokens) or 1 + SLOWNESS) * (WARM_UP + self.sample)

    def ways(self, now: Way) -> list[Way]:
        """Return what is compared, the way now first, which ties go to; nothing where nothing is left to compare."""
        if not self.tokens:
            others = [name for name in LINEAR_LAYERS if name != now.linear_layers and is_available(name)]
            return [replace(now, linear_layers=name) for name in (now.linear_layers, *others)]
        if self.only_at not in (None, now.tokens):
            return []
        return [now, *(replace(now, tokens=tokens) for tokens in self.tokens if tokens != now.tokens)]


# more tokens at once are tried only where more have helped before
STAGES = (
    Stage(1024),
    Stage(4096, (1024, 512, 2048)),
    Stage(8192, (2048, 4096), only_at=2048),
    Stage(16384, (4096, 8192), only_at=4096),
)


class Choice:
    """The way in which one model's passes are computed, for each kind of work, and how it is found.

    What the options name is never measured. The trials of a kind are made for each number of threads.
    """

    def __init__(self, model: nn.Module, options: PassOptions | None = None) -> None:
        self.options = options or pass_options()
        if not is_available(self.options.linear_layers):
            raise InputError(
                f"This build of torch has no {self.options.linear_layers} linear layers: leave the choice open, or "
                "take those of torch."
            )
        self.passed: Counter[str] = Counter()
        self.spent: Counter[str] = Counter()  # what trials have cost, of these tokens
        self._model = model
        self._ways = dict[int, dict[str, Way]]()
        self._told = set[tuple[str, int]]()

    def way(self, kind: str) -> Way:
        """Return the way for a kind of work, with this many threads."""
        threads = torch.get_num_threads()
        if threads not in self._ways:
            self._ways[threads] = read_ways(cache_file(self._model))
        found = self._ways[threads].get(kind, DEFAULT)
        way = replace(
            found,
            linear_layers=self._asked(found.linear_layers),
            tokens=found.tokens if self.options.tokens is None else self.options.tokens,
        )
        if (kind, threads) not in self._told:
            self._told.add((kind, threads))
            why = "as measured before" if found.stage else "until there is enough work to measure"
            asked = ", as asked for" if self.options != PassOptions() else ""
            log.info("%s passes on %d threads: %s (%s%s).", kind, threads, in_words(way), why, asked)
        return way

    def _asked(self, chosen: str) -> str:
        if self.options.linear_layers != AUTO:
            return self.options.linear_layers
        return chosen if is_available(chosen) else "torch"

    def count(self, kind: str, tokens: int, seconds: Seconds) -> None:
        """Count tokens that are about to pass; before them, make the trials that those that have passed pay for."""
        for stage in STAGES[self.way(kind).stage :]:
            if self.spent[kind] + stage.cost > SHARE * self.passed[kind] or tokens < stage.sample:
                break
            self._try(kind, stage, seconds)
        self.passed[kind] += tokens

    def settle(self, kind: str, planned: int, seconds: Seconds) -> str:
        """Return the linear layers for work of so many tokens, chosen before it begins and kept to its end.

        They are compared where the trials are at most `SHARE` of that work.
        """
        if self.way(kind).stage == 0 and STAGES[0].cost <= SHARE * planned:
            self._try(kind, STAGES[0], seconds)
        return self.way(kind).linear_layers

    def _try(self, kind: str, stage: Stage, seconds: Seconds) -> None:
        """Make the trials of one stage, and keep what they have shown."""
        now = self.way(kind)
        is_open = self.options.tokens is None if stage.tokens else self.options.linear_layers == AUTO
        ways = stage.ways(now) if is_open else []
        best = now
        if len(ways) > 1:
            self.spent[kind] += stage.cost
            times = fastest(ways, lambda way: seconds(way, stage.sample))
            best = next(iter(times))
            told = ", ".join(f"{in_words(way)}: {1e6 * each:.1f} µs" for way, each in times.items())
            log.info("%s passes on %d threads, per token: %s.", kind, torch.get_num_threads(), told)
        ways_now = self._ways[torch.get_num_threads()]
        ways_now[kind] = replace(best, stage=now.stage + 1)
        if self.options == PassOptions():  # nothing that was asked for is kept as if it had been measured
            store_ways(cache_file(self._model), self._model, ways_now)


def fastest(ways: Sequence[Way], seconds: Callable[[Way], float]) -> dict[Way, float]:
    """Return the seconds per token of each way, the one to take first.

    Ways take turns, so that all are disturbed alike. The first stays unless another is clearly faster, and one that is
    far behind is not tried again.
    """
    best = dict.fromkeys(ways, float("inf"))
    left = list(ways)
    for _ in range(ROUNDS):
        for way in left:
            best[way] = min(best[way], seconds(way))
        left = [way for way in left if best[way] <= FAR_BEHIND * min(best.values())]
    winner = min(best, key=best.__getitem__)
    if best[winner] > (1 - CLEARLY) * best[ways[0]]:
        winner = ways[0]
    return {winner: best[winner], **best}


def timed(work: Callable[[], object]) -> float:
    """Return the seconds of a piece of work: of the processor where one thread does it, so that others do not count."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    started = clock()
    work()
    return clock() - started


def is_available(linear_layers: str) -> bool:
    """Whether these linear layers are there."""
    return linear_layers != "onednn" or available()


def in_words(way: Way) -> str:
    """Return a way in words."""
    return f"{way.linear_layers}, {way.tokens} tokens at once"


# ---------------------------------------------------------------------------------------------- what is kept of it


def cache_file(model: nn.Module) -> Path:
    """Return the file of what was found for a model of this shape, on this processor, with this many threads."""
    key = json.dumps(_circumstances(model), sort_keys=True)
    return cache_folder() / "passes" / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"


def _circumstances(model: nn.Module) -> dict[str, Any]:
    layers = Counter(f"{one.in_features}×{one.out_features}" for one in model.modules() if isinstance(one, nn.Linear))
    return {
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "faithmeter": __version__,
        "model": type(model).__name__,
        "linear_layers": dict(sorted(layers.items())),
        "precision": str(next((one.dtype for one in model.parameters()), None)),
    }


@cache
def processor() -> dict[str, str]:
    """Return what tells one kind of processor from another; a virtual one of the same name may lack instructions."""
    wanted = ("vendor_id", "model name", "cpu family", "model", "stepping", "flags", "Features")
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n", 1)[0].splitlines()
    except OSError:
        return {"model name": platform.processor(), "machine": platform.machine()}
    pairs = [tuple(part.strip() for part in line.split(":", 1)) for line in lines if ":" in line]
    return {pair[0]: pair[1] for pair in pairs if pair[0] in wanted} | {"machine": platform.machine()}


def read_ways(file: Path) -> dict[str, Way]:
    """Return what a file says of each kind of work; nothing where there is no such file, or it is damaged."""
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))["ways"]
        found = {kind: Way(**stored[kind]) for kind in (FORWARD, GRADIENT, TRAINING) if kind in stored}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {kind: way for kind, way in found.items() if _is_sound(way)}


def _is_sound(way: Way) -> bool:
    sizes = (DEFAULT.tokens, *(tokens for stage in STAGES for tokens in stage.tokens))
    stages = tuple(range(len(STAGES) + 1))
    return way.tokens in sizes and way.stage in stages and way.linear_layers in tuple(LINEAR_LAYERS)


def store_ways(file: Path, model: nn.Module, ways: Mapping[str, Way]) -> None:
    """Keep what was found; where nothing can be written, the next process measures again."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {"of": _circumstances(model), "ways": {kind: asdict(way) for kind, way in ways.items()}})
    except OSError as error:
        log.info("What was measured cannot be kept in %s: %s.", file, error)
