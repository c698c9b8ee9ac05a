"""Plan: from a pilot on a few texts, how many texts and minutes it takes to tell which measures apart."""

from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import numpy as np

from faithmeter.data.batch import Encoded, Ints
from faithmeter.data.units import CHUNK, TOKEN
from faithmeter.errors import InputError
from faithmeter.importance.measure import ImportanceMeasure
from faithmeter.importance.table import IMPORTANCE_MEASURES, NOT_RETRAINED, distinct
from faithmeter.models.classifier import Classifier
from faithmeter.progress import Reporter, Silent
from faithmeter.runs.measurements import read_measurement
from faithmeter.runs.run import Run
from faithmeter.runs.texts import encode, in_units
from faithmeter.runs.timing import estimated_seconds, seconds_per_token
from faithmeter.statistics.stopping import texts_to_separate
from faithmeter.studies.measure import MeasureOptions, measure_pilot
from faithmeter.studies.until_certain import scores_on

PILOT_TEXTS = 30


@dataclass(frozen=True)
class Plan:
    """How many texts separate each measure from the one that is ahead in the pilot; infinite where it does not differ.

    `seconds_per_text` is about what a text takes with all these measures and five random draws, in one process.
    """

    ahead: str
    texts: dict[str, float]
    pilot_texts: int
    test_texts: int
    seconds_per_text: float


def plan(
    path: str | Path,
    measures: tuple[str, ...] | None = None,
    *,
    texts: int = PILOT_TEXTS,
    power: float = 0.8,
    reporter: Reporter | None = None,
) -> Plan:
    """Return how many texts tell measures apart with this power, planned from measurements of a run, or from a pilot.

    By default the measures that the run was measured with, or all that are neither expensive nor on request. The pilot
    is kept in the run, and resumes. Measurements of these measures are used in its place if they have as many texts in
    common.
    """
    if not 0 < power < 1:
        raise InputError(f"The power is a probability between 0 and 1, not {power}.")
    run, reporter = Run(path), reporter or Silent()
    classifier, split = run.classifier(), run.data().test
    chosen = distinct(measures or _usual(run), classifier)
    if measures is None:
        chosen = [one for one in chosen if one.name not in NOT_RETRAINED]
    names = [one.name for one in chosen]
    if len(names) < 2:
        raise InputError("A plan compares measures, so it takes two or more: name more with --measures.")
    if len(split) < 2:
        raise InputError(f"{path} has {len(split)} test text: a plan needs at least two, better thirty.")
    rows, by, chunk = _common_rows(run, names), TOKEN, CHUNK
    if len(rows) >= min(texts, len(split)):
        by, chunk = run.measurement_settings["by"], run.measurement_settings["chunk"] or CHUNK
    else:
        run = measure_pilot(path, MeasureOptions(tuple(names), rows=texts, without_check=True), reporter)
        rows = _common_rows(run, names)
    test = in_units(encode(classifier, split, "test", Silent()), classifier, split, by, chunk)
    scores = scores_on(run, test, names, rows)
    if len(scores) < 2:
        raise InputError(f"The {len(rows)} texts of the pilot are of one group: a plan needs texts of at least two.")
    ahead = int(scores.mean(axis=0).argmax())
    # where texts are of groups it is groups that are needed, each with as many texts as in the pilot
    needed = np.ceil(texts_to_separate(scores, power=power)[ahead] * (len(rows) / len(scores)))
    return Plan(
        ahead=names[ahead],
        texts={name: float(needed[k]) for k, name in enumerate(names) if k != ahead},
        pilot_texts=len(rows),
        test_texts=len(test),
        seconds_per_text=_seconds_per_text(classifier, test, chosen),
    )


def _usual(run: Run) -> tuple[str, ...] | None:
    """Return the measures that a run was measured with, but a user's functions, which have no name here."""
    asked = run.measurement_settings.get("asked", {"measures": (), "functions": ()})
    known = (name for name in asked["measures"] if name in IMPORTANCE_MEASURES and name not in asked["functions"])
    return tuple(known) or None


def _common_rows(run: Run, names: list[str]) -> Ints:
    """Return the texts on which all these measures are stored."""
    if not all(any((run.measurements / name).glob("*.parquet")) for name in names):
        return np.empty(0, dtype=np.int64)
    return reduce(np.intersect1d, (read_measurement(run, name, ["row"])["row"][:, 0] for name in names))


def _seconds_per_text(classifier: Classifier, test: Encoded, measures: list[ImportanceMeasure]) -> float:
    rows, pace = np.arange(len(test)), seconds_per_token(classifier, test)
    walks = [*measures, *[IMPORTANCE_MEASURES["random"]] * MeasureOptions.random_runs]
    return sum(estimated_seconds(one, test, rows, pace) or 0.0 for one in walks) / len(test)
