"""Report: everything that was measured on one run or several, as a page or as files."""

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow.parquet

from faithmeter.data.splits import DataSpec
from faithmeter.data.units import CHUNKED, TOKEN
from faithmeter.errors import InputError, nearest
from faithmeter.explaining.explanation import explain_text
from faithmeter.explaining.options import PREDICTED, ExplainOptions
from faithmeter.files import read_json, require_whole
from faithmeter.importance.table import IMPORTANCE_MEASURES
from faithmeter.masking import MASK
from faithmeter.models.operators import OPERATORS
from faithmeter.problems import gold_in_words
from faithmeter.progress import Reporter, Silent
from faithmeter.reports import sentences
from faithmeter.reports.content import Subject, sections, training_sections
from faithmeter.reports.formats import FORMATS, write_report
from faithmeter.reports.parts import Example, Section, Table
from faithmeter.reports.roar import Retrained, areas_table, leaks, retrained_sections, verdict
from faithmeter.runs.commands import as_command, shown_command, shown_path
from faithmeter.runs.directory import is_roar
from faithmeter.runs.repetitions import MEASURED_WITH, asked_of, but_the_seed, seed_of
from faithmeter.runs.results import Rows, measures, most_faithful
from faithmeter.runs.run import MEASURE_AGAIN, Run, RunLike, opened
from faithmeter.studies.faithfulness_rows import pool
from faithmeter.studies.judgement_rows import drift_points
from faithmeter.studies.roar.experiment import RoarRun

NO_ENVIRONMENT = "Restore it from a copy, or copy that of another run which was made on the same machine to {}."
MEASURES_SHOWN = 4
LONGEST_BEAM = 40  # tokens of an example; beam search takes minutes on more
# the stored settings that are options of `audit` and of `attack`
AUDITED = ("rows", "seed", "place", "rationales", "adversary_steps", "attacks", "budget", "other")
ATTACKED = ("rows", "kinds", "budget", "seed")
NOT_ASKED = ("betas", "mask_context", "curriculum")  # settings of training without an option, or with a flag


def report(
    paths: RunLike | Sequence[str | Path | Run],
    out: str | Path = "report",
    *,
    formats: Sequence[str] = ("html",),
    examples: bool = True,
    reporter: Reporter | None = None,
) -> list[Path]:
    """Write a report into the folder `out`, and return the files: on runs, on ROAR experiments, or on both.

    Runs that differ only in the seed are pooled. An experiment is shown with the runs of the same task. One run, its
    path, or objects in memory need no list.
    """
    for name in formats:
        if name not in FORMATS:
            raise InputError(f"There is no format {name!r}.{nearest(name, FORMATS)} Choose from {', '.join(FORMATS)}.")
    named = [paths] if isinstance(paths, str | Path | Run) else paths
    directories = [Path(one) if isinstance(one, str | Path) else opened(one).path for one in named]
    distinct = list({path.resolve(): path for path in directories}.values())
    experiments = [RoarRun(path) for path in distinct if is_roar(path)]
    runs = [Run(path) for path in distinct if not is_roar(path)]
    unready = next((run for run in runs if not run.results), None)
    if unready is not None:
        raise InputError(f"{unready.path} has no results yet: finish its training first.")
    undone = next((run for run in experiments if run.unfinished or not run.results), None)
    if undone is not None:
        raise InputError(
            f"{undone.path} is unfinished, {undone.unfinished} pieces of work are left: "
            f"`faithmeter roar {undone.path}` resumes it."
        )
    reporter = reporter or Silent()
    groups = _repetitions(runs)
    with reporter.bar("Explaining examples", len(groups)) as advance:
        subjects = []
        for title, same in groups.items():
            subjects.append(_subject(title, same, examples))
            advance(1)
    content = sections(subjects)
    for number, experiment in enumerate(experiments):
        retrained = _retrained(experiment, [same[0] for same in groups.values()], [s.rows for s in subjects])
        own = retrained_sections(retrained, f"retrained-{number + 1}-" if len(experiments) > 1 else "")
        content += own if not subjects and len(experiments) == 1 else [Section(retrained.title, level=1), *own]
    explained = dict(pair for subject in subjects for pair in sentences.terms(subject.rows))
    content.append(Section("What the words mean", terms=[*explained.items(), *sentences.TERMS]))
    title = f"Which explanation to believe: {' / '.join([*groups, *(one.config.subject for one in experiments)])}"
    return write_report(Path(out), title, content, formats)


def compared(paths: Sequence[str | Path]) -> list[Section]:
    """Return a report's sections on ways of training, for runs of the same model and data."""
    groups = _repetitions([Run(path) for path in paths])
    return training_sections([_subject(title, same, examples=False) for title, same in groups.items()])


def _repetitions(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the runs by title: together where they differ in the seed alone, each in its own right otherwise."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        checked = run.measurement_settings.get("checked")
        groups[repr((but_the_seed(run), asked_of(run), checked))].append(run)
    titled: dict[str, list[Run]] = {}
    for same in groups.values():
        seeds = [seed_of(run) for run in same]
        if len(set(seeds)) < len(seeds):
            raise InputError(
                f"{' and '.join(str(run.path) for run in same)} are the same training with the same seed, which would "
                "look like two trainings that agree. Name each once."
            )
        title = f"{same[0].config.subject}, {same[0].config.how}"
        names = (title if number == 1 else f"{title} ({number})" for number in count(1))
        titled[next(name for name in names if name not in titled)] = same
    return titled


def _subject(title: str, runs: Sequence[Run], examples: bool) -> Subject:
    """Gather what is known of a model and task."""
    first, masf = runs[0], runs[0].in_distribution_test()
    rows = first.results if len(runs) == 1 else pool(runs)
    config = first.config
    return Subject(
        title=title,
        start=repr((config.model, config.data, config.fingerprint)),
        how=title.removeprefix(f"{config.subject}, "),
        metric=config.metric,
        rows=rows,
        histories=[run.history for run in runs],
        trainings={seed_of(run): run.results for run in runs},
        settings=_settings(runs),
        commands=[shown_command(line) for run in runs for line in commands_of(run)],
        validation_rows=None if masf is None else masf.rows,
        examples=_examples(first, rows) if examples else (),
        about=_about(first),
        points=drift_points(first),  # a map is of one model
        removals=_removals(runs),
    )


def _removals(runs: Sequence[Run]) -> dict[str, Rows]:
    """Return the rows of each operator that all runs were measured with; nothing where it is one alone."""
    common = [name for name in runs[0].measured_operators if all(name in run.measured_operators for run in runs)]
    if len(common) < 2:
        return {}
    views = {name: [run.by(name) for run in runs] for name in common}
    return {name: same[0].results if len(same) == 1 else pool(same) for name, same in views.items()}


def _about(run: Run) -> list[str]:
    """Return what is explained and what is masked, in sentences."""
    settings = run.measurement_settings
    target, by = settings.get("target"), settings.get("by", TOKEN)
    explained = run.config.problem.explained
    said = [explained[str(target)]] if target in explained else []
    if run.operator != MASK:
        said.append(f"Masked tokens are removed by {run.operator}. {OPERATORS[run.operator].does}")
    if by != TOKEN:
        of = f" of at most {settings['chunk']} tokens" if by == CHUNKED else ""
        said.append(f"Masked and explained are whole {by}s{of}.")
    if settings.get("until_certain"):
        ended = settings["asked"].get("ended", "texts that are not all measured yet")
        said.append(
            f"Measured in rounds until it was certain which measures may be best, on {ended}. A measure that surely is "
            "not best has fewer texts, on which its own tests find less."
        )
    if run.config.data.both_texts:
        said.append("Both texts of a pair are masked and explained.")
    elif run.config.data.resolved().context is not None:
        said.append("The context of each text is shown to the model and never masked.")
    return said


def _retrained(run: RoarRun, others: Sequence[Run] = (), rows: Sequence[Rows] = ()) -> Retrained:
    """Gather what is known of a ROAR experiment; a run on the same data that understands masks stands beside it."""
    config = run.config
    data = config.fingerprint.split("-")[0]  # before those of its model and vectors
    measured = (
        (other.config.subject, found)
        for other, found in zip(others, rows, strict=True)
        if other.config.fingerprint == data and other.config.knows_masks and measures(found)
    )
    beside, masked = next(measured, (None, None))
    listed = {
        **_data_settings(config.data),
        **{name: value for name, value in vars(config).items() if name not in ("data", "training", "fingerprint")},
        **{name: value for name, value in vars(config.training).items() if name != "seed"},
        **_environment(run.path),
    }
    return Retrained(
        title=f"{config.subject}, retrained",
        metric=config.metric,
        steps=config.steps,
        protocols=config.protocols,
        rows=run.results,
        settings=[(name.replace("_", " "), shown_path(str(value))) for name, value in listed.items()],
        commands=[shown_command(command_of_experiment(run))],
        masked=masked,
        beside=beside,
    )


def roar_verdict(run: RoarRun) -> tuple[Table, list[str]]:
    """Return what a ROAR experiment found: the areas, and what they say, in sentences."""
    subject = _retrained(run)
    return areas_table(subject), [*verdict(subject), *leaks(subject)]


def _data_settings(data: DataSpec) -> dict[str, Any]:
    """Return the settings of the data; a named task has its own columns and metric."""
    own = ("metric",) if data.task is None else ("metric", "text", "context", "label")
    renamed = {"seed": "seed of the data"}
    return {
        renamed.get(name, name): value
        for name, value in vars(data).items()
        if value is not None and value is not False and name not in own
    }


def _settings(runs: Sequence[Run]) -> list[tuple[str, str]]:
    config = runs[0].config
    training = {} if config.training is None else vars(config.training)
    found: dict[str, Any] = {
        "runs": ", ".join(shown_path(run.path) for run in runs),
        "model": config.model,
        config.problem.name: ", ".join(config.labels),
        "seeds": ", ".join(str(seed_of(run)) for run in runs),
        "metric": config.metric,
        **_data_settings(config.data),
        **{name: value for name, value in training.items() if name != "seed" and (name, value) != ("operator", MASK)},
        **_ended(runs),
        "seconds of training": ", ".join(f"{sum(row['seconds'] for row in run.history):.0f}" for run in runs),
        **_environment(runs[0].path),
    }
    return [(name.replace("_", " "), shown_path(str(value))) for name, value in found.items()]


def _environment(path: Path) -> dict[str, str]:
    """Return the versions of packages and the machine that a run or an experiment was made with."""
    found = read_json(path / "environment.json", NO_ENVIRONMENT.format(path))
    try:
        return {**found["packages"], "machine": f"{found['platform']}, {found['device']}, {found['cores']} cores"}
    except (TypeError, KeyError) as error:
        raise InputError(f"{path / 'environment.json'} is damaged. {NO_ENVIRONMENT.format(path)}") from error


def _ended(runs: Sequence[Run]) -> dict[str, str]:
    """Return how measuring until it was certain ended, of the runs that were measured so."""
    ended = [run.measurement_settings.get("asked", {}).get("ended") for run in runs]
    return {"measured until certain": "; ".join(each for each in ended if each)} if any(ended) else {}


def _examples(run: Run, rows: Rows) -> list[Example]:
    """Explain the test texts whose explanation by the best measure is the most, middling and least faithful."""
    best = most_faithful(rows, among=IMPORTANCE_MEASURES)
    file = require_whole(run.observations, MEASURE_AGAIN)
    settings = run.measurement_settings
    if best is None or not file.exists() or not settings:  # who removed the measurements cannot show how they were made
        return []
    table = pyarrow.parquet.read_table(file, filters=[("measure", "=", best)]).to_pylist()
    table.sort(key=lambda one: -one["acu"])
    order = [(one["row"], one.get("label")) for one in table]
    places = {order[-1]: "Least faithful.", order[len(order) // 2]: "Median.", order[0]: "Most faithful."}
    test, classifier, problem = run.data().test, run.classifier(), run.config.problem
    masf = run.in_distribution_test()
    found = []
    for (row, label), reason in reversed(places.items()):
        text, context = test[row]["text"], test[row].get("context")
        gold = gold_in_words(problem, run.config.labels, test[row]["label"])
        short = classifier.encode([text], None if context is None else [context]).lengths[0] <= LONGEST_BEAM
        chosen = [name for name in measures(rows) if name in IMPORTANCE_MEASURES and (name != "beam" or short)]
        explanations = explain_text(
            classifier,
            text,
            context,
            ExplainOptions(
                # what the measurement was about
                target=label or (gold if settings["target"] == "gold" else PREDICTED),
                seed=settings["seed"],
                by=settings["by"],
                chunk=settings["chunk"],
                random_runs=settings["asked"]["random_runs"],
                orders=0,  # the texts were picked by their areas, so that such a test of them would mean nothing
            ),
            measures=[IMPORTANCE_MEASURES[name] for name in chosen[:MEASURES_SHOWN]],
            masf=masf,
            row=row,
        )
        # the areas that the text was picked by: another batch rounds otherwise, which may turn the order of two tokens
        areas = pyarrow.parquet.read_table(file, filters=[("row", "=", row)]).to_pylist()
        measured = {one["measure"]: one["acu"] for one in areas if one.get("label") == label}
        explanations = [dataclasses.replace(one, acu=measured.get(one.measure, one.acu)) for one in explanations]
        if explanations:
            found.append(Example(reason, gold, explanations))
    return found


# ----------------------------------------------------------------- the commands that reproduce a run or an experiment


def commands_of(run: Run) -> list[str]:
    """Return the commands that lead to the run."""
    others = [line for name in run.measured_operators if name != run.operator for line in _by_operator(run.by(name))]
    return [*_made(run), *_measured(run), *others, *_audited(run), *_attacked(run), *_selected(run)]


def _made(run: Run) -> list[str]:
    """Return the commands that made the run and checked it."""
    config, checked = run.config, run.check_settings
    check = [as_command("check", run.path, options=checked)] if run.checked else []
    if config.reference is not None:
        return [as_command("transfer", config.reference, run.path, options=config.data.options), *check]
    length = {"max_length": config.max_length}
    if config.prompt is not None:
        asked = {"model": config.model, **config.prompt, **length}
        asked["template"] = asked["template"].replace("\n", "\\n")
        return [as_command("prompt", run.path, options={**config.data.options, **asked}), *check]
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
        "scores": list(asked.get("scores", {}).values()) or None,
    }
    named = (*known, *asked.get("scores", {}))
    own = [f"# measured from Python: {name}" for name in asked["measures"] if name not in named]
    return [as_command("measure", run.path, options=options), *own]


def _by_operator(run: Run) -> list[str]:
    """Return the commands that checked and measured the run with tokens removed in another way."""
    checked = any(row["kind"] == "check_p_value" for row in run.results)
    check = [as_command("check", run.path, options={"operator": run.operator})] if checked else []
    return [*check, *(f"{line} --operators {run.operator}" for line in _measured(run) if not line.startswith("#"))]


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
