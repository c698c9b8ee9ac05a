"""Test texts as a study reads them: tokenised, cut into units, explained elsewhere; and what is odd about them told."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

import datasets
import numpy as np

from faithmeter.data.batch import Encoded, Ints
from faithmeter.data.units import with_units
from faithmeter.errors import InputError
from faithmeter.importance.elsewhere import read_scores
from faithmeter.importance.measure import ImportanceMeasure
from faithmeter.importance.table import IMPORTANCE_MEASURES
from faithmeter.models.classifier import MAX_LENGTH, Classifier
from faithmeter.progress import Reporter


def encode(classifier: Classifier, split: datasets.Dataset, part: str, reporter: Reporter) -> Encoded:
    """Tokenise a split, and report truncated and unmaskable texts, and later a lack of memory."""
    contexts = split["context"] if "context" in split.column_names else None
    groups = numbered_groups(split["group"]) if "group" in split.column_names else None
    with reporter.bar(f"Tokenising {part} texts", len(split)) as advance:
        encoded = classifier.encode(split["text"], contexts, split["label"], progress=advance)
    encoded = dataclasses.replace(encoded, split=part, groups=groups)
    classifier.memory.warn = reporter.warn
    say_what_is_odd(encoded, part, classifier, reporter)
    return encoded


def numbered_groups(names: Iterable[str]) -> Ints:
    """Return the number of each row's group, from 0 on; a row without a name is a group of its own."""
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(name or place, len(numbers)) for place, name in enumerate(names)], dtype=int)


def say_what_is_odd(encoded: Encoded, part: str, classifier: Classifier, reporter: Reporter) -> None:
    """Report how many texts of a split are truncated, and how many have no maskable token."""
    if encoded.truncated:
        wider = (
            f" This model can read {classifier.limit}: make its run with --max-length {classifier.limit} (in Python, "
            f"max_length) to have more of them read; {MAX_LENGTH} is the default."
        )
        reporter.note(
            f"{encoded.truncated} of {len(encoded)} {part} texts were truncated to {classifier.max_length} tokens."
            f"{wider if classifier.limit > classifier.max_length else ''}"
        )
    unmaskable = int((encoded.maskable_counts == 0).sum())  # an empty text, or one of special tokens only
    if unmaskable:
        reporter.note(f"{unmaskable} of {len(encoded)} {part} texts have no maskable token; they stay unmasked.")


def in_units(encoded: Encoded, classifier: Classifier, split: datasets.Dataset, by: str, chunk: int) -> Encoded:
    """Return a split, as it was encoded, with the units that are masked as a whole."""
    contexts = split["context"] if "context" in split.column_names else None
    return with_units(encoded, classifier, split["text"], contexts, by=by, chunk=chunk)


def given_measures(
    files: Sequence[str | Path],
    classifier: Classifier,
    split: datasets.Dataset,
    encoded: Encoded,
    rows: Ints | None,
    reporter: Reporter,
) -> list[ImportanceMeasure]:
    """Return explanations from elsewhere, a file each, as measures; refuse what does not explain these rows."""
    contexts = split["context"] if "context" in split.column_names else None
    found = []
    for file in files:
        given = read_scores(file, classifier, split["text"], contexts, encoded)
        if given.name in IMPORTANCE_MEASURES:
            raise InputError(f"{file}: {given.name} is the name of a measure here. Rename the file.")
        if rows is not None:
            given.require(rows)
        if given.unplaced:
            reporter.note(
                f"{given.unplaced} spans of {file} lie on no token that can be masked (spaces, or what was cut off)."
            )
        found.append(given.as_measure())
    return found
