"""The commands that reproduce a run or an experiment, from its stored settings."""

from collections.abc import Mapping
from typing import Any

from faithmeter.data.units import TOKEN
from faithmeter.importance.table import IMPORTANCE_MEASURES
from faithmeter.runs.commands import as_command
from faithmeter.runs.repetitions import MEASURED_WITH
from faithmeter.runs.run import Run
from faithmeter.studies.roar.experiment import RoarRun

AUDITED = ("rows", "seed", "place", "rationales", "adversary_steps", "attacks", "budget", "other")
ATTACKED = ("rows", "kinds", "budget", "seed")
NOT_ASKED = ("betas", "mask_context", "curriculum")  # settings of training without an option, or with a flag


def commands_of(run: Run) -> list[str]:
    """Return the commands that lead to the run."""
    return [*_made(run), *_measured(run), *_audited(run), *_attacked(run), *_selected(run)]


def _made(run: Run) -> list[str]:
    """Return the commands that made the run and checked it."""
    config, checked = run.config, run.check_settings
    check = [as_command("check", run.path, options=checked)] if run.checked else []
    if config.reference is not None:
        return [as_command("transfer", config.reference, run.path, options=config.data.options), *check]
    length = {"max_length": config.max_length}
    if config.training is None:
        adopted = {"run": run.path, **length, "masked_before": config.masked_before}
        return [as_command("check", config.model, options={**config.data.options, **adopted, **checked})]
    training, left_out = config.training, {*NOT_ASKED, *config.training.idle}
    taught = {name: value for name, value in vars(training).items() if name not in left_out}
    flags = {"mask_context": training.mask_context, _curriculum(training.curriculum): True}
    asked = {"model": config.model, **taught, **flags, **length, "vectors": config.vectors}
    return [as_command("train", run.path, options={**config.data.options, **asked}), *check]


def _curriculum(shown: bool) -> str:
    return "curriculum" if shown else "no_curriculum"


def _measured(run: Run) -> list[str]:
    """Return the command that measured the run; a function of the user's own has no name that a command knows."""
    settings = run.measurement_settings
    if not settings:
        return []
    asked = settings["asked"]
    known = [name for name in asked["measures"] if name in IMPORTANCE_MEASURES]
    units = ("by", "chunk") if settings["by"] == TOKEN else ()
    options = {
        "measures": known,
        **{name: settings[name] for name in MEASURED_WITH if name not in units},
        "random_runs": asked["random_runs"],
        "without_check": asked["without_check"],
    }
    own = [f"# measured from Python: {name}" for name in asked["measures"] if name not in known]
    return [as_command("measure", run.path, options=options), *own]


def _audited(run: Run) -> list[str]:
    """Return the audit commands of the run, one per judge, because their options may differ."""
    commands = []
    for judge, settings in run.judgement_settings.items():
        folders = {folder.name for folder in (run.judgements / judge).iterdir()}
        known = [name for name in IMPORTANCE_MEASURES if name in folders and name != "random"]
        options = {"judges": judge, "measures": known, **_some(settings, AUDITED)}
        commands.append(as_command("audit", run.path, options=options))
    return commands


def _attacked(run: Run) -> list[str]:
    """Return the command that attacked the run's texts."""
    asked = _some(run.attack_settings, ATTACKED)
    return [as_command("attack", run.path, options=asked)] if asked else []


def _selected(run: Run) -> list[str]:
    """Return the commands that trained second models on rationales, one for each length."""
    found: dict[str, list[set[str]]] = {}
    for file in run.selections.glob("*/*/seed-*/answers.parquet"):
        measure, cut, seed = file.parts[-4:-1]
        kind, length = cut.split("-", 1)
        names = found.setdefault(length, [set(), set(), set()])
        for known, name in zip(names, (measure, kind, seed.removeprefix("seed-")), strict=True):
            known.add(name)
    asked = _some(run.selection_settings, ("rows", "epochs"))
    return [
        as_command(
            "select",
            run.path,
            options={
                "measures": sorted(measures),
                "rationales": sorted(kinds),
                "length": length,
                "seeds": sorted(seeds),
                **asked,
            },
        )
        for length, (measures, kinds, seeds) in sorted(found.items())
    ]


def command_of_experiment(run: RoarRun) -> str:
    """Return the command that leads to an experiment of retraining."""
    config = run.config
    experiment = ("measures", "protocols", "seeds", "steps", "target", "ig_steps", "max_length", "vectors")
    options = {
        **config.data.options,
        "model": config.model,
        **_some(vars(config), experiment),
        **_some(vars(config.training), ("epochs", "learning_rate", "batch_size")),
    }
    return as_command("roar", run.path, options=options)


def _some(settings: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: settings[name] for name in names if settings.get(name) is not None}
