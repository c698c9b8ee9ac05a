"""Measure until it is certain: texts come in rounds, and what is stored after each decides who is measured further."""

from collections.abc import Sequence

import numpy as np

from faithmeter.data.batch import Encoded, Ints
from faithmeter.measuring.contributions import areas_of
from faithmeter.runs.measurements import answer_columns, curve_of, read_measurement
from faithmeter.runs.run import Run
from faithmeter.statistics import Array
from faithmeter.statistics.intervals import pseudo_values
from faithmeter.statistics.stopping import Decision, Looks, decide, planned_looks

Pair = tuple[str, str]  # of measures, the first of which is surely better


def cut_at_looks(rows: Ints, texts: int) -> list[Ints]:
    """Return the first rows of a study of so many texts, cut where it looks, so that no batch lies on both sides."""
    return np.split(rows, [look for look in planned_looks(texts) if look < len(rows)])


def scores_on(run: Run, test: Encoded, names: Sequence[str], rows: Ints) -> Array:
    """Return (texts, measures): what each of these texts adds to the ACU of measures that were measured on all of them.

    The random baseline is left out, because it cancels in all differences. Texts of groups have one line per group, in
    the order in which the groups first appear.
    """
    curves = []
    for name in names:
        table = read_measurement(run, name, answer_columns(run))
        index = np.searchsorted(table["row"][:, 0], rows)
        curves.append(curve_of(table).at(index))
    return pseudo_values(areas_of(run.config.metric, test.labels[rows], curves, []), len(rows), test.sources()[rows])


class Rounds:
    """The looks of a study so far: what was seen at each of them, and what is decided.

    A decision depends on the stored answers, the looks and the order of the texts alone, so that an interrupted study
    comes to the same.
    """

    def __init__(self, names: Sequence[str], rows: Ints, seed: int) -> None:
        self.names, self.rows = list(names), rows
        self.looks = Looks(planned_looks(len(rows)), seed=seed)
        self.left = self.names
        self.ahead = set[Pair]()
        self._seen: list[Array] = []

    def look(self, run: Run, test: Encoded) -> Decision:
        """Return what is decided once all that are left are measured on the texts of the next look."""
        rows = self.rows[: self.looks.texts[len(self._seen)]]
        known = scores_on(run, test, self.left, rows)
        scores = np.zeros((len(known), len(self.names)))  # of a measure that was dropped they are not read
        scores[:, [self.names.index(name) for name in self.left]] = known
        self._seen.append(scores)
        decision = decide(self._seen, self.looks)
        self.left = [name for name, stays in zip(self.names, decision.may_be_best, strict=True) if stays]
        self.ahead = {(self.names[i], self.names[j]) for i, j in np.argwhere(decision.ahead)}
        return decision
