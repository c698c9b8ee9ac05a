"""RoarRun: the directory of a retraining experiment: its settings, every training, the results.

ROAR/config.json       data, model, training, measures, seeds
ROAR/environment.json  versions and machine
ROAR/seed-S/...        one folder per training (`Node.folder`): outcome.json, masks, and the model while
                       the next step needs it
ROAR/results.jsonl     one line per number
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from faithmeter.data.batch import Encoded
from faithmeter.data.splits import DataSpec
from faithmeter.errors import InputError
from faithmeter.files import read_json, read_jsonl, write_bytes, write_json, write_jsonl
from faithmeter.measuring.retraining import Importance, Node, graph
from faithmeter.runs.directory import is_roar, read_config
from faithmeter.runs.results import Result, Row
from faithmeter.runs.run import begin, subject_of
from faithmeter.training.config import TrainingConfig

FORMAT = 1
SPLITS = ("train", "validation", "test")
GO_ON = "`faithmeter roar {}` sums up again what is whole, and computes again what is not."
MAY_GROW = ("measures", "protocols", "seeds")  # an experiment can be given more of these


@dataclass(frozen=True)
class RoarConfig:
    """The settings of an experiment, and the fingerprint of its data."""

    data: DataSpec
    model: str
    training: TrainingConfig
    labels: tuple[str, ...]
    metric: str
    fingerprint: str
    max_length: int
    vectors: str | None
    measures: tuple[str, ...]
    protocols: tuple[str, ...]
    seeds: tuple[int, ...]
    steps: str
    target: str
    ig_steps: int

    @property
    def subject(self) -> str:
        """The model and the task, in words."""
        return subject_of(self.model, self.data)

    def nodes(self) -> list[Node]:
        """Return all the work."""
        return graph(self.seeds, self.measures, self.protocols, self.steps)


class RoarRun:
    """An experiment's directory. `RoarRun.create` makes or extends one, `RoarRun(path)` opens one."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not is_roar(self.path):
            what = "holds something else" if self.path.exists() else "is not there yet"
            raise InputError(
                f"{path} is not a ROAR experiment: it {what}. To create one, name the data with --task or --data."
            )

    @classmethod
    def create(cls, path: str | Path, config: RoarConfig) -> "RoarRun":
        """Create an experiment, or resume one with the same settings; measures, seeds and protocols may be added."""
        path = Path(path)
        if is_roar(path):
            found = cls(path).config
            grown: dict[str, Any] = {
                name: tuple(dict.fromkeys(getattr(found, name) + getattr(config, name))) for name in MAY_GROW
            }
            if replace(found, **grown) != replace(config, **grown):
                differing = [
                    name for name in vars(found) if name not in MAY_GROW and vars(found)[name] != vars(config)[name]
                ]
                words = " and ".join({"fingerprint": "content of data, model or vectors"}.get(n, n) for n in differing)
                raise InputError(
                    f"{path} is an experiment with another {words}, which cannot be compared with this one. Choose "
                    "another folder."
                )
            config = replace(config, **grown)
        else:
            begin(path)
        write_json(path / "config.json", {"format": FORMAT, "kind": "roar", **asdict(config)})
        return cls(path)

    @property
    def config(self) -> RoarConfig:
        """How the experiment was made."""
        stored = read_config(self.path)
        del stored["kind"]
        if stored.pop("format") != FORMAT:
            raise InputError(f"{self.path} was made by another version of faithmeter and cannot be read.")
        training = stored.pop("training")
        lists: dict[str, Any] = {name: tuple(stored.pop(name)) for name in ("labels", *MAY_GROW)}
        return RoarConfig(
            data=DataSpec.read(stored.pop("data")),
            training=TrainingConfig.read(training),
            **lists,
            **stored,
        )

    def folder(self, node: Node) -> Path:
        """Return where a piece of work keeps its outcome."""
        return self.path / node.folder

    def is_done(self, node: Node) -> bool:
        """Whether a piece of work is finished."""
        return (self.folder(node) / "outcome.json").is_file()

    def outcome(self, node: Node) -> dict[str, Any]:
        """Return what came of a piece of work."""
        return read_json(self.folder(node) / "outcome.json", GO_ON.format(self.path))

    @property
    def unfinished(self) -> int:
        """How many pieces of work are left to do."""
        return sum(not self.is_done(node) for node in self.config.nodes())

    @property
    def results(self) -> list[Row]:
        """Every result row."""
        return read_jsonl(self.path / "results.jsonl", GO_ON.format(self.path))

    def store_results(self, results: list[Result]) -> None:
        """Replace the result rows."""
        write_jsonl(self.path / "results.jsonl", (result.as_row() for result in results))


def save_masks(folder: Path, splits: dict[str, Encoded]) -> None:
    """Keep which tokens are masked, eight to a byte."""
    packed = {name: np.packbits(encoded.masked) for name, encoded in splits.items()}
    write_bytes(folder / "masks.safetensors", safetensors.numpy.save(packed))


def load_masks(folder: Path, splits: dict[str, Encoded]) -> dict[str, Encoded]:
    """Return the splits as they were masked."""
    packed = safetensors.numpy.load_file(folder / "masks.safetensors")
    return {
        name: replace(encoded, masked=np.unpackbits(packed[name], count=len(encoded.ids)).astype(np.bool_))
        for name, encoded in splits.items()
    }


def save_importance(folder: Path, importance: dict[str, Importance]) -> None:
    """Keep the importance of every token of every split."""
    write_bytes(folder / "importance.safetensors", safetensors.numpy.save(importance))


def load_importance(folder: Path) -> dict[str, Importance]:
    """Return the importance of every token of every split."""
    return safetensors.numpy.load_file(folder / "importance.safetensors")
