"""Repetitions: which runs are the same training with another seed, so that they can be pooled."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from faithmeter.errors import InputError
from faithmeter.runs.run import BEFORE, VERSION, Run, RunConfig

# settings that may differ between seeds or releases without making results incomparable
OF_ONE_RUN = ("weights", "tokenizer_and_config", VERSION, "other", "other_weights")
MEASURED_WITH = ("target", "rows", "beam_rows", "seed", "by", "chunk", "until_certain", "dtype")


def at_home(run: Run) -> RunConfig:
    """Return how the model of a run was made: of one on another domain, that is written where it was trained."""
    home = run.config.reference
    return Run(home).config if home is not None and (Path(home) / "config.json").is_file() else run.config


def seed_of(run: Run) -> int:
    """Return the seed that a run's model was trained with."""
    return at_home(run).seed


def but_the_seed(run: Run) -> RunConfig:
    """Return how a run was made, but for what differs from one seed to the next."""
    config, home = run.config, at_home(run)
    training = None if home.training is None else dataclasses.replace(home.training, seed=0)
    if config.reference is None:
        return dataclasses.replace(config, training=training)
    # its model and its home are folders of one seed's own
    return dataclasses.replace(config, training=training, model=home.model, reference=repr(home.data))


def asked_of(run: Run) -> dict[str, dict[str, Any]]:
    """Return what a run was measured, judged, selected and attacked with, but for what differs between seeds."""
    measured = run.measurement_settings
    asked = {"measurement": {name: measured.get(name) for name in MEASURED_WITH} if measured else {}}
    # each training has weights of its own, and the in-distribution test that was fitted to them the run's seed
    asked |= {
        judge: {name: str(value).removesuffix(f", seed {seed_of(run)}") for name, value in {**BEFORE, **found}.items()}
        | dict.fromkeys(OF_ONE_RUN)
        for judge, found in run.judgement_settings.items()
    }
    for name, found in {"select": run.selection_settings, "attack": run.attack_settings}.items():
        asked[name] = {**BEFORE, **found} | dict.fromkeys(OF_ONE_RUN) if found else {}
    return asked


def require_repetitions(runs: Sequence[Run]) -> None:
    """Refuse to take runs together that are not the same training, measured in the same way, with another seed."""
    first, *others = runs
    for other in others:
        if first.path.resolve() == other.path.resolve():
            raise InputError("A run is named twice, which would look like two trainings that agree: name each once.")
        ours, theirs = _must_agree(first), _must_agree(other)
        # what was done with one of them alone has nothing to be pooled with
        differing = [name for name in ours if name in theirs and ours[name] != theirs[name]]
        if differing:
            told = [f"{name} ({ours[name]}; {theirs[name]})" for name in differing]
            raise InputError(
                f"{first.path} and {other.path} differ in more than the training seed, so they cannot be pooled: in "
                f"{', '.join(told)}. `faithmeter report` compares such runs."
            )


def _must_agree(run: Run) -> dict[str, object]:
    """Return by name all that is the same for every seed.

    The rows themselves must be the same, wherever their files are: in a suite, and by the options of `train`, a seed is
    of the training, while that of the data belongs to the task, so all seeds are tested on the same rows. Over other
    rows a mean would lay the difference between texts to the trainings. A model may be another folder for each seed, as
    one that came trained is, or one that training goes on from; but another name is another model.
    """
    config, home = run.config, at_home(run)
    found: dict[str, object] = {
        "metric": config.metric,
        "classes": ", ".join(config.labels),
        "fingerprint of the data": config.fingerprint,
        "fingerprint of the data of the training": home.fingerprint,
        "longest text": config.max_length,
        "way of training": config.how,
        "knowledge of masks": config.knows_masks,
    }
    if not Path(home.model).is_absolute():
        found["model"] = home.model
    if home.training is not None:
        idle = ("seed", "tracker", *home.training.idle)
        found |= {name.replace("_", " "): value for name, value in vars(home.training).items() if name not in idle}
    for what, settings in asked_of(run).items():
        found |= {f"{name} of the {what}": value for name, value in settings.items()}
    return found
