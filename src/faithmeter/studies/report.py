"""Report: everything that was measured on one run or several, as a page or as files."""

import dataclasses
import json
from collections import defaultdict
from collections.abc import Sequence
from importlib import metadata
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet

from faithmeter.data.splits import DataSpec
from faithmeter.data.units import CHUNKED, TOKEN
from faithmeter.errors import InputError, nearest
from faithmeter.explaining.explanation import PREDICTED, ExplainOptions, explain_text
from faithmeter.files import require_whole, write_bytes
from faithmeter.importance.table import IMPORTANCE_MEASURES
from faithmeter.progress import Reporter, Silent
from faithmeter.reports import sentences
from faithmeter.reports.content import Subject, sections, training_sections
from faithmeter.reports.figures import as_bytes
from faithmeter.reports.formats import FORMATS, Table, as_csv, as_latex
from faithmeter.reports.page import render_markdown, render_page
from faithmeter.reports.parts import Example, Section
from faithmeter.reports.roar import Retrained, areas_table, leaks, retrained_sections, verdict
from faithmeter.runs.repetitions import asked_of, but_the_seed, seed_of
from faithmeter.runs.results import Rows, measures, most_faithful
from faithmeter.runs.run import MEASURE_AGAIN, Run, is_roar
from faithmeter.studies.commands import command_of_experiment, commands_of
from faithmeter.studies.faithfulness_rows import pool
from faithmeter.studies.judgement_rows import drift_points
from faithmeter.studies.roar.experiment import RoarRun

MEASURES_SHOWN = 4
LONGEST_BEAM = 40  # tokens of an example; beam search takes minutes on more


def report(
    paths: Sequence[str | Path],
    out: str | Path = "report",
    *,
    formats: Sequence[str] = ("html",),
    examples: bool = True,
    reporter: Reporter | None = None,
) -> list[Path]:
    """Write a report into the folder `out`, and return the files: on runs, on ROAR experiments, or on both.

    Runs that differ only in the seed are pooled. An experiment is shown with the runs of the same task.
    """
    for name in formats:
        if name not in FORMATS:
            raise InputError(f"There is no format {name!r}.{nearest(name, FORMATS)} Choose from {', '.join(FORMATS)}.")
    distinct = list({Path(path).resolve(): Path(path) for path in paths}.values())
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
        commands=[line for run in runs for line in commands_of(run)],
        validation_rows=None if masf is None else masf.rows,
        examples=_examples(first, rows) if examples else (),
        about=_about(first),
        points=drift_points(first),  # a map is of one model
    )


def _about(run: Run) -> list[str]:
    """Return what is explained and what is masked, in sentences."""
    settings = run.measurement_settings
    target, by = settings.get("target"), settings.get("by", TOKEN)
    explained = {
        "gold": "Explained is the true class of each text.",
        "predicted": "Explained is the class that the model predicts.",
    }
    said = [explained[target]] if target in explained else []
    if by != TOKEN:
        of = f" of at most {settings['chunk']} tokens" if by == CHUNKED else ""
        said.append(f"Masked and explained are whole {by}s{of}.")
    if settings.get("until_certain"):
        ended = settings["asked"].get("ended", "texts that are not all measured yet")
        said.append(
            f"Measured in rounds until it was certain which measures may be best, on {ended}. A measure that surely is "
            "not best has fewer texts, on which its own tests find less."
        )
    if run.config.data.resolved().context is not None:
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
    environment = json.loads((run.path / "environment.json").read_text(encoding="utf-8"))
    listed = {
        **_data_settings(config.data),
        **{name: value for name, value in vars(config).items() if name not in ("data", "training", "fingerprint")},
        **{name: value for name, value in vars(config.training).items() if name != "seed"},
        **environment["packages"],
        "machine": f"{environment['platform']}, {environment['device']}, {environment['cores']} cores",
    }
    return Retrained(
        title=f"{config.subject}, retrained",
        metric=config.metric,
        steps=config.steps,
        protocols=config.protocols,
        rows=run.results,
        settings=[(name.replace("_", " "), str(value)) for name, value in listed.items()],
        commands=[command_of_experiment(run)],
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
    environment = json.loads((runs[0].path / "environment.json").read_text(encoding="utf-8"))
    training = {} if config.training is None else vars(config.training)
    found: dict[str, Any] = {
        "runs": ", ".join(str(run.path) for run in runs),
        "model": config.model,
        "classes": ", ".join(config.labels),
        "seeds": ", ".join(str(seed_of(run)) for run in runs),
        "metric": config.metric,
        **_data_settings(config.data),
        **{name: value for name, value in training.items() if name != "seed"},
        **_ended(runs),
        "seconds of training": ", ".join(f"{sum(row['seconds'] for row in run.history):.0f}" for run in runs),
        **environment["packages"],
        "machine": f"{environment['platform']}, {environment['device']}, {environment['cores']} cores",
    }
    return [(name.replace("_", " "), str(value)) for name, value in found.items()]


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
    table = pyarrow.parquet.read_table(file, filters=[("measure", "=", best)])
    order = table["row"].to_numpy()[np.argsort(-table["acu"].to_numpy(), kind="stable")].tolist()
    places = {order[-1]: "Least faithful.", order[len(order) // 2]: "Median.", order[0]: "Most faithful."}
    test, classifier, labels = run.data().test, run.classifier(), run.config.labels
    masf = run.in_distribution_test()
    found = []
    for row, reason in reversed(places.items()):
        text, context, gold = test[row]["text"], test[row].get("context"), labels[test[row]["label"]]
        short = classifier.encode([text], None if context is None else [context]).lengths[0] <= LONGEST_BEAM
        chosen = [name for name in measures(rows) if name in IMPORTANCE_MEASURES and (name != "beam" or short)]
        explanations = explain_text(
            classifier,
            text,
            context,
            ExplainOptions(
                target=gold if settings["target"] == "gold" else PREDICTED,  # the class the measurement was about
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
        measured = {one["measure"]: one["acu"] for one in areas}
        explanations = [dataclasses.replace(one, acu=measured.get(one.measure, one.acu)) for one in explanations]
        if explanations:
            found.append(Example(reason, gold, explanations))
    return found


def write_report(out: Path, title: str, content: Sequence[Section], formats: Sequence[str]) -> list[Path]:
    """Write the files of each format."""
    contents: dict[str, bytes] = {}
    tables = [table for section in content for table in section.tables]
    drawn = [figure for section in content for figure in section.figures]
    for name in formats:
        if name == "html":
            contents["report.html"] = render_page(title, content, metadata.version("faithmeter")).encode()
        elif name == "markdown":
            contents["report.md"] = render_markdown(title, content).encode()
            contents |= {f"{figure.name}.svg": as_bytes(figure.figure, "svg") for figure in drawn}
        elif name == "latex":
            contents |= {f"{table.name}.tex": as_latex(table).encode() for table in tables}
        elif name == "csv":
            contents |= {f"{table.name}.csv": as_csv(table).encode() for table in tables}
        else:
            contents |= {f"{figure.name}.{name}": as_bytes(figure.figure, name) for figure in drawn}
    out.mkdir(parents=True, exist_ok=True)
    for name, content_of_file in contents.items():
        write_bytes(out / name, content_of_file)
    return [out / name for name in contents]
