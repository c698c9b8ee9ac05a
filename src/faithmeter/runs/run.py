"""Run: one directory holds how a model was made, the model, and everything measured on it. The path is the handle.

RUN/config.json       data, model, training: what later commands need to find the same texts
RUN/environment.json  versions and machine
RUN/model/            transformers model and tokenizer (safetensors)
RUN/history.jsonl     one line per epoch
RUN/results.jsonl     one line per number
RUN/checkpoints/      only while a training is unfinished
RUN/in_distribution/  the fitted in-distribution test
RUN/measurements/     every masked prediction, one file per batch
RUN/observations.parquet  the faithfulness of each explanation
RUN/attacks.parquet   attacked test texts, one per line
RUN/audit/            results of other judges per explanation, one folder per judge
RUN/texts/            data that was in memory
RUN/select/           explanations of every text, and predictions of models that read only rationales
RUN/operators/        measurements with tokens removed in other ways, one folder per operator
RUN/unigrams.safetensors  how often each token is in the training texts, where an operator draws from them
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from faithmeter.data.splits import DataSpec, load_splits
from faithmeter.data.units import TOKEN
from faithmeter.errors import InputError, first_line, require_choice
from faithmeter.files import new_folder, read_json, read_jsonl, require_whole, write_json, write_jsonl
from faithmeter.importance.table import IMPORTANCE_MEASURES
from faithmeter.in_distribution.masf import MaSF
from faithmeter.masking import MASK
from faithmeter.models.classifier import load_classifier
from faithmeter.models.operators import OPERATORS, Unigrams
from faithmeter.problems import problem_of
from faithmeter.runs.directory import FORMAT, HALF_WRITTEN, refuse_existing, require_run, settings_of
from faithmeter.runs.results import (
    CLAIMED,
    MASKED,
    OTHERWISE,
    PLAIN,
    TRAINED_ON_MASKS,
    UNKNOWN,
    Result,
    accepted,
    find,
    measures,
    most_faithful,
    operator_of,
    rejected,
)
from faithmeter.training.config import TrainingConfig
from faithmeter.training.strategy import STRATEGIES

if TYPE_CHECKING:
    import pandas

    from faithmeter.data.batch import Encoded
    from faithmeter.data.splits import Splits
    from faithmeter.models.classifier import Classifier
    from faithmeter.problems import Problem
    from faithmeter.progress import Reporter
    from faithmeter.runs.results import Row

# Kept for whoever reads the results, and never compared: a release must not lock what is stored. One that changes what
# is stored, or how it is computed, raises a format number.
VERSION = "faithmeter"

# what results were made with before a setting was kept: a new setting has its default for old runs here
BEFORE: Mapping[str, Any] = {"by": TOKEN, "chunk": None, "until_certain": False, "dtype": "float32", "format": 1}
MEASURE_AGAIN = "`faithmeter measure`, asked as before, writes it again from what it has measured."
BESIDE_WEIGHTS = ("*.json", "*.txt", "*.model")  # config and tokenizer, as transformers names their files
ATTACK_AGAIN = "`faithmeter attack`, asked as before, attacks the texts again."
ATTACK_SETTINGS = b"faithmeter"  # their key in the metadata of the file of attacked texts
HELD: dict[str | None, Classifier] = {}  # models that cannot be stored, by the `objects` of their run
DEFAULT_MEASURE = "loo-signed"  # the best cheap measure of the paper, where nothing was measured yet


@dataclass(frozen=True)
class RunConfig:
    """The settings of a run, and the properties of its data.

    `training` is None for a model that came trained; `masked_before` then says whether on masked text too, and
    `reference` names the run whose domain it was trained on, where these texts are of another. `objects` is a hash of
    the objects in memory that it was made of, and None of any other. `prompt` is how a language model is asked, which
    is not trained at all.
    """

    data: DataSpec
    model: str
    training: TrainingConfig | None
    labels: tuple[str, ...]
    metric: str
    fingerprint: str
    max_length: int
    masked_before: bool = False
    vectors: str | None = None
    reference: str | None = None
    objects: str | None = None
    prompt: dict[str, Any] | None = None

    @property
    def subject(self) -> str:
        """The model and the task, in words."""
        return subject_of(self.model, self.data)

    @property
    def problem(self) -> Problem:
        """What the model answers: one of several classes, several labels at once, or a number."""
        return problem_of(self.metric)

    @property
    def how(self) -> str:
        """How the model was trained, in words."""
        if self.reference is not None:
            return "out of domain"
        if self.prompt is not None:
            return "prompted"
        return "trained elsewhere" if self.training is None else self.training.how

    @property
    def knows_masks(self) -> bool:
        """Whether the model was trained on masked text."""
        return self.masked_before if self.training is None else STRATEGIES[self.training.strategy].every > 0

    @property
    def seed(self) -> int:
        """The seed of what is drawn for the model."""
        return 0 if self.training is None else self.training.seed


class Run:
    """A run directory. `Run.create` makes one, `Run(path)` opens one.

    `Run(path, operator)` is the same run where tokens are removed in another way than the model's own, which is the one
    it was trained with, or the mask token. Its results and measurements are others; the model and its data are not.
    """

    def __init__(self, path: str | Path, operator: str | None = None) -> None:
        self.path, self._operator = Path(path), operator
        require_run(self.path)
        if operator is not None:
            require_choice("operator", operator, OPERATORS)

    @cached_property
    def own_operator(self) -> str:
        """How tokens were removed in the training of the model; by the mask token where none were."""
        training = self._home.config.training
        return MASK if training is None else training.operator

    @property
    def operator(self) -> str:
        """How tokens are removed here."""
        return self._operator or self.own_operator

    def by(self, operator: str) -> Run:
        """Return the run where tokens are removed in the way of that name."""
        return type(self)(self.path, operator)

    @property
    def _folder(self) -> Path:
        """Where what was measured with this operator is kept."""
        return self.path if self.operator == self.own_operator else self.path / "operators" / self.operator

    @property
    def measured_operators(self) -> list[str]:
        """The operators that measures were measured with: the run's own first, others in the order of the table."""
        found = {operator_of(row) for row in self._stored_results if row["kind"] == "acu"}
        return sorted(found, key=lambda name: (name != self.own_operator, list(OPERATORS).index(name)))

    @property
    def _home(self) -> Run:
        """The run that trained the model, if it is still there; of a run on another domain that is another."""
        home = self.config.reference
        return Run(home) if home is not None and (Path(home) / "config.json").is_file() else self

    @classmethod
    def create(cls, path: str | Path, config: RunConfig) -> Run:
        """Make a new run directory; an existing one is refused, never overwritten."""
        path = Path(path)
        begin(path)
        write_json(path / "config.json", {"format": FORMAT, **asdict(config)})
        return cls(path)

    @cached_property
    def config(self) -> RunConfig:
        """How the run was made, which never changes."""
        stored = settings_of(self.path)
        training = stored.pop("training")
        return RunConfig(
            data=DataSpec.read(stored.pop("data")),
            training=training and TrainingConfig.read(training),
            labels=tuple(stored.pop("labels")),
            **stored,
        )

    @property
    def model_folder(self) -> Path:
        """The transformers model; there once training is done."""
        return self.path / "model"

    @property
    def checkpoints(self) -> Path:
        """Where an unfinished training keeps its state."""
        return self.path / "checkpoints"

    @property
    def in_distribution_folder(self) -> Path:
        """The fitted in-distribution test; there once `check` is done."""
        return self.path / "in_distribution"

    @property
    def measurements(self) -> Path:
        """What `measure` keeps of each batch, so that it can resume."""
        return self._folder / "measurements"

    @property
    def observations(self) -> Path:
        """The faithfulness of each explanation; there once `measure` is done."""
        return self._folder / "observations.parquet"

    @property
    def attacks(self) -> Path:
        """The attacked test texts; there once `attack` is done."""
        return self.path / "attacks.parquet"

    @property
    def attack_settings(self) -> dict[str, Any]:
        """What the run's texts were attacked with; empty where they were not."""
        if not self.attacks.exists():
            return {}
        import pyarrow.parquet  # here: to explain a text takes none of it

        return json.loads(
            pyarrow.parquet.read_schema(require_whole(self.attacks, ATTACK_AGAIN)).metadata[ATTACK_SETTINGS]
        )

    @property
    def judgements(self) -> Path:
        """What `audit` keeps of each batch, one folder per judge."""
        return self.path / "audit"

    @property
    def judgement_settings(self) -> dict[str, dict[str, Any]]:
        """What each judge worked with; empty where none did."""
        files = sorted(self.judgements.glob("*/settings.json"))
        return {file.parent.name: self._settings(file) for file in files}

    @property
    def selections(self) -> Path:
        """What `select` keeps: explanations of every text, and what second models answer."""
        return self.path / "select"

    @property
    def selection_settings(self) -> dict[str, Any]:
        """What second models were trained with; empty where there are none."""
        return self._settings(self.selections / "settings.json")

    @property
    def weights(self) -> str:
        """A hash of the model's weights, so that results of other weights are never mixed with these."""
        return _digest(_state(self.model_folder.glob("*.safetensors")), with_names=False)  # a large model has several

    @property
    def tokenizer_and_config(self) -> str:
        """A hash of the model's other files, on which an answer depends as much as on the weights."""
        files = (file for pattern in BESIDE_WEIGHTS for file in self.model_folder.glob(pattern))
        return _digest(_state(files), with_names=True)

    @property
    def checked(self) -> bool:
        """Whether the run has a finished in-distribution test."""
        return self.in_distribution_folder.is_dir() and any(
            row["kind"].startswith("check_") for row in self._stored_results
        )

    def in_distribution_test(self) -> MaSF | None:
        """Load the fitted in-distribution test; None where the run was not checked.

        Texts whose tokens are removed in a way that was not learnt are compared with untouched ones: against their own
        kind they would pass by construction. The paper's form cannot do that.
        """
        masf = MaSF.load(self.in_distribution_folder) if self.checked else None
        if masf is None or self.operator == self.own_operator:
            return masf
        return None if masf.form == "paper" else masf.against_unmasked()

    @property
    def check_settings(self) -> dict[str, Any]:
        """How the in-distribution test was fitted, of whatever format it is; empty where the run was not checked."""
        if not self.checked:
            return {}
        stored = read_json(self.in_distribution_folder / "masf.json", "`faithmeter check` fits the test again.")
        return {name: stored[name] for name in ("form", "rows")}

    @property
    def measurement_settings(self) -> dict[str, Any]:
        """What the run was measured with; empty where it was not."""
        stored = self._settings(self.measurements / "settings.json")
        return {**BEFORE, **stored} if stored else {}

    @staticmethod
    def _settings(file: Path) -> dict[str, Any]:
        if not file.exists():
            require_settings(file.parent)
            return {}
        return read_json(file, f"Restore it from a copy; or remove {file.parent}, and what is in it is computed again.")

    def store_measurement_settings(self, settings: dict[str, Any]) -> None:
        """Keep what the run is measured with."""
        self.measurements.mkdir(parents=True, exist_ok=True)
        write_json(self.measurements / "settings.json", settings)

    @property
    def trained(self) -> bool:
        """Whether the training is finished."""
        return self.model_folder.is_dir()

    def data(self, reporter: Reporter | None = None) -> Splits:
        """Load the run's data again, and refuse when it is no longer the same."""
        config = self.config
        splits = load_splits(config.data, labels_known=True, reporter=reporter).in_order_of(config.labels)
        if splits is None or splits.fingerprint != config.fingerprint:
            raise InputError(
                f"The data of {self.path} has changed since the run was made, so new results would not fit the old "
                "ones. Restore the files, or make a new run."
            )
        return splits

    @property
    def held(self) -> Classifier | None:
        """The model of a run that is only in memory, because it cannot be stored."""
        return HELD.get(self.config.objects)

    def classifier(self) -> Classifier:
        """Load the trained model, onto the device that `chosen_device` names; one that is held in memory as it is.

        It removes tokens as the run does.
        """
        if self.held is not None:
            self.held.remove_by(self.operator, self._counted(self.held))
            return self.held
        if not self.trained:
            raise InputError(f"The training of {self.path} is unfinished: `faithmeter train {self.path} --resume`.")
        config = self.config
        require_whole(
            self.model_folder,
            f"Restore it from a copy, or remove {self.model_folder} and "
            + (
                f"copy {config.model} there."
                if config.training is None
                else f"train again, from the start and to the same weights: `faithmeter train {self.path} --resume`."
            ),
        )
        classifier = load_classifier(
            str(self.model_folder), config.labels, problem=config.problem.name, max_length=config.max_length
        )
        classifier.both_texts = config.data.both_texts
        classifier.model.to(chosen_device())
        classifier.remove_by(self.operator, self._counted(classifier))
        return classifier

    def unigrams(self, train: Encoded) -> Unigrams | None:
        """Count the tokens of the training texts and keep that, where the run's operator draws from them."""
        if not OPERATORS[self.operator].counts:
            return None
        counted = Unigrams.of(train, self.config.seed)
        counted.save(self.path / "unigrams.safetensors")
        return counted

    def _counted(self, classifier: Classifier) -> Unigrams | None:
        """Return the counts, which are kept already or are made now."""
        file = self.path / "unigrams.safetensors"
        if not OPERATORS[self.operator].counts:
            return None
        if file.exists():
            return Unigrams.load(require_whole(file, f"Remove {file}: it is made again."), self.config.seed)
        train = self.data().train
        contexts = train["context"] if "context" in train.column_names else None
        return self.unigrams(classifier.encode(train["text"], contexts))

    def finish_training(self, classifier: Classifier, history: Iterable[dict[str, Any]]) -> None:
        """Store the trained model and the epochs' history, then remove the checkpoints."""
        write_jsonl(self.path / "history.jsonl", history)
        self.store_model(classifier)
        shutil.rmtree(self.checkpoints, ignore_errors=True)

    def store_model(self, classifier: Classifier) -> None:
        """Store the model that everything later is measured on."""
        with new_folder(self.model_folder, sum_all=True) as folder:
            if self.held is None:
                classifier.save(folder)

    @property
    def history(self) -> list[dict[str, Any]]:
        """One row per epoch."""
        return read_jsonl(
            self.path / "history.jsonl", "Restore it from a copy, or remove it: only the report misses it."
        )

    @property
    def results(self) -> list[Row]:
        """Every result row, of this operator, and what is known of the model by construction, which the config says."""
        stored = [row for row in self._stored_results if operator_of(row) == self.operator]
        known = Result(kind=TRAINED_ON_MASKS, value=float(self.masks == MASKED), metric="share", n=0, detail=self.masks)
        return [*stored, known.as_row()] if stored else []

    @property
    def masks(self) -> str:
        """Whether the model was trained on masked texts, and who says so: MASKED, PLAIN, CLAIMED or UNKNOWN.

        A run on another domain has its model from a run that may have trained it, if it is still there. Where tokens
        are removed in another way than in its training, it is OTHERWISE.
        """
        trained, own = self._home, self.operator == self.own_operator
        if trained.config.training is None:
            return CLAIMED if trained.config.masked_before and own else UNKNOWN
        if not (trained.trained and trained.history):  # the record of the training is not complete
            return UNKNOWN
        if not trained.config.knows_masks:
            return PLAIN
        return MASKED if own else OTHERWISE

    @property
    def _stored_results(self) -> list[Row]:
        return read_jsonl(
            self.path / "results.jsonl",
            f"Restore it from a copy; or remove it, and repeat what filled it: `faithmeter train {self.path} --resume`"
            ", then check, measure, audit ... as before. What they computed is kept, and only summed up again.",
        )

    def frame(self) -> pandas.DataFrame:
        """Return every result row, of every operator, as a table of pandas."""
        import pandas

        others = [row for row in self._stored_results if operator_of(row) != self.operator]
        return pandas.DataFrame([*self.results, *others])

    def ranking(self) -> pandas.DataFrame:
        """Return the importance measures, the one to use first and then by ACU, as a table of pandas."""
        import pandas

        rows = self.results
        found = []
        for name in measures(rows):
            line: dict[str, object] = {"measure": name}
            for kind in ("acu", "racu"):
                row = find(rows, kind, name)
                line |= {kind: row["value"], f"{kind}_low": row["low"], f"{kind}_high": row["high"]}
            found.append({**line, "rejected": rejected(rows, name)})
        return pandas.DataFrame(found)

    @property
    def measure_to_use(self) -> str:
        """The most faithful measure that has a name here and was not rejected; of rejected ones only if all are."""
        rows = self.results
        named = [name for name in accepted(rows) if name in IMPORTANCE_MEASURES]
        return most_faithful(rows, named) or most_faithful(rows, IMPORTANCE_MEASURES) or DEFAULT_MEASURE

    def store_results(self, kinds: Iterable[str], results: Iterable[Result]) -> None:
        """Replace the result rows of these kinds, of this operator."""
        replaced = set(kinds)
        kept = [row for row in self._stored_results if row["kind"] not in replaced or operator_of(row) != self.operator]
        new = (replace(result, operator=self.operator).as_row() for result in results)
        write_jsonl(self.path / "results.jsonl", [*kept, *new])


# A run or its directory; and, where a study is called as `faithmeter.STUDY`, objects in memory, of which
# `studies.in_memory` makes one: (model, tokenizer, data) or (pipeline, data).
RunLike = str | Path | Run | tuple[Any, ...]


def opened(run: RunLike) -> Run:
    """Return the run that a study was given."""
    if isinstance(run, Run):
        return run
    if isinstance(run, str | Path):
        return Run(run)
    raise InputError(
        f"{type(run).__name__} is no run: give a run or its directory, (model, tokenizer, data), or (pipeline, data)."
    )


def require_settings(folder: Path) -> None:
    """Refuse results that have lost their settings: what they were made with would be guessed."""
    if any(file.suffix in (".parquet", ".safetensors") for file in folder.rglob("*")):
        raise InputError(
            f"{folder} holds results without their settings.json: they may be of another target, seed or model. "
            f"Restore it from a copy, or remove {folder} first: what is in it is then computed again."
        )


def chosen_device() -> torch.device:
    """Return where models of runs compute: as FAITHMETER_DEVICE says, else the GPU if torch has one, else the CPU."""
    named = os.environ.get("FAITHMETER_DEVICE")
    if not named:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(named)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(
            f"FAITHMETER_DEVICE is {named!r}, which torch cannot compute on: {first_line(error)} "
            "Name one that it has, such as cpu or cuda:0, or unset it."
        ) from error
    return device


def subject_of(model: str, data: DataSpec) -> str:
    """Return a model and a task, in words."""
    folder = Path(model)
    name = folder.parent.name if folder.name == "model" else folder.name  # RUN/model says nothing
    return f"{name} on {data.resolved().name}"


def begin(path: Path) -> None:
    """Write what comes before the config.json of a run or an experiment, in place of what a killed process left of it.

    The caller holds the lock of a folder that others may be beginning, too.
    """
    refuse_existing(path)
    path.mkdir(parents=True, exist_ok=True)
    for file in path.iterdir():
        if HALF_WRITTEN.fullmatch(file.name):
            file.unlink()
    write_json(path / "environment.json", environment())


def environment() -> dict[str, Any]:
    """Return the versions and the machine that a run was made with."""
    packages = ("faithmeter", "torch", "transformers", "tokenizers", "datasets", "accelerate", "numpy", "scikit-learn")
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: metadata.version(name) for name in packages},
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
    }


def _state(files: Iterable[Path]) -> tuple[tuple[Path, int, int, int], ...]:
    """Return what changes when a file does, of each: its inode, as files are replaced, its size and its stamp."""
    every = ((file, file.stat()) for file in sorted(files))
    return tuple((file, now.st_ino, now.st_size, now.st_mtime_ns) for file, now in every)


@lru_cache(maxsize=64)  # each piece of a measurement asks; a base-size model has half a gigabyte
def _digest(files: tuple[tuple[Path, int, int, int], ...], *, with_names: bool) -> str:
    digest = hashlib.sha256()
    for file, *_ in files:
        digest.update((file.name.encode() + b"\0" if with_names else b"") + file.read_bytes())
    return digest.hexdigest()[:16]
