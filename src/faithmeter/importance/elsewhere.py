"""Explanations from elsewhere: scores of SHAP, an LLM or a person in a file, judged as a measure among the others.

A file (csv, tsv, jsonl or parquet) has a column `row`, the number of a test text, and either

- `start`, `end`, `score`: a line per span of characters, `end` not included. A token has the sum of the spans that it
  overlaps. A line whose three cells are empty says that nothing is marked in the text. Where both texts of a pair are
  masked, a column `of` says whose characters they are: `text`, as without it, or `context`;
- or `scores`: a line per text with a list of one number per maskable token, or per token of the whole input with its
  special ones. An empty list says that nothing is marked.

Other columns are ignored. Such an explanation is made once, for the unmasked text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from faithmeter.data.tables import Row, read_rows
from faithmeter.errors import InputError
from faithmeter.importance.measure import ImportanceMeasure, TextUnits, units_in

if TYPE_CHECKING:
    import tokenizers
    from torch import Tensor

    from faithmeter.data.batch import Batch, Encoded, Ints
    from faithmeter.importance.measure import Floats
    from faithmeter.masking import Mask
    from faithmeter.models.classifier import Classifier

FAMILY = "elsewhere"
SPANS, LISTS = ("start", "end", "score"), "scores"
AT_ONCE = 1000  # texts that are tokenised together: encodings are large
NAMED = 5  # missing texts that an error names
OF = ("text", "context")  # the cells of the column `of`
Span = tuple[int, int, float, int]  # [start, end) characters, their score, and of which text of a pair
Said = list[Span] | list[float]  # of one text: its spans, or a number per token


@dataclass(frozen=True)
class GivenScores:
    """The scores of a file as numbers per token of a split: `values` is flat, as the split is; `rows` has the texts.

    `unplaced` spans lie on no maskable token: on spaces, or in what was cut off.
    """

    name: str
    file: Path
    test: Encoded
    values: Floats
    rows: frozenset[int]
    unplaced: int = 0

    def require(self, rows: Ints) -> None:
        """Refuse texts that the file says nothing about: left out, they would make the comparison unfair."""
        missing = sorted(set(rows.tolist()) - self.rows)
        if missing:
            shown = ", ".join(map(str, missing[:NAMED])) + (" …" if len(missing) > NAMED else "")
            raise InputError(
                f"{self.file} has no scores for {len(missing)} of the {len(rows)} texts that are judged (rows "
                f"{shown}). Add them: `faithmeter scores RUN --out FILE` writes all texts with their numbers. Where "
                "nothing is marked, give an empty list, or a line with empty start, end and score."
            )

    def explain(self, _: Classifier, batch: Batch, targets: Tensor, seed: int) -> Tensor:  # noqa: ARG002 (as all)
        """Return the scores of a batch of the split that they were read for; of other texts there are none."""
        rows = batch.rows.cpu().numpy()
        self.require(rows)
        if not torch.equal(self.test.batch(rows).input_ids, batch.input_ids.cpu()):
            raise InputError(f"{self.file} has scores of the test texts as they are; other texts cannot be explained.")
        found = torch.zeros(batch.maskable.shape)
        for place, row in enumerate(rows):
            own = self.values[self.test.offsets[row] : self.test.offsets[row + 1]]
            found[place, : len(own)] = torch.from_numpy(own)
        return found

    def as_measure(self) -> ImportanceMeasure:
        """Return the scores as a measure; it explains once, and nothing but these texts."""
        return ImportanceMeasure(
            self.name, FAMILY, self.explain, lambda _: 0, signed=True, recursive=False, given=True,
            meaning=f"Scores from {self.file.name}, made elsewhere.",
        )  # fmt: skip


def name_of(file: Path) -> str:
    """Return the name of a file's scores as a measure: the file's, up to its first dot."""
    name = file.name.split(".")[0]
    if not re.fullmatch(r"[\w-]+", name):
        raise InputError(f"{file}: a measure is named like its file, in letters, digits, - and _. Rename the file.")
    return name


def read_scores(
    file: str | Path, classifier: Classifier, texts: Sequence[str], contexts: Sequence[str] | None, test: Encoded
) -> GivenScores:
    """Read a file's scores of these texts, as the classifier has tokenised them; refuse what does not fit them."""
    file = Path(file)
    name, said = name_of(file), _said(file, len(texts))
    values, unplaced = np.zeros(len(test.ids), dtype=np.float32), 0
    maskable, rows = test.maskable, sorted(said)
    for row, encoding in _encodings(classifier, texts, contexts, rows):
        part = slice(int(test.offsets[row]), int(test.offsets[row + 1]))
        where = f"{file}, row {row}"
        if said[row] and isinstance(said[row][0], tuple):
            (units,) = units_in(test.batch([row]), torch.from_numpy(maskable[part])[None])
            lengths = [len(texts[row]), *([] if contexts is None or not test.both_texts else [len(contexts[row])])]
            own, lost = _of_spans(said[row], encoding, units, lengths, where)  # type: ignore[arg-type]
            values[part], unplaced = own, unplaced + lost
        elif said[row]:
            values[part] = _of_tokens(said[row], maskable[part], where)  # type: ignore[arg-type]
            if test.units is not None:
                values[part] = _summed(values[part], test.units[part])
    return GivenScores(name, file, test, values, frozenset(rows), unplaced)


def _encodings(
    classifier: Classifier, texts: Sequence[str], contexts: Sequence[str] | None, rows: Sequence[int]
) -> Iterator[tuple[int, tokenizers.Encoding]]:
    for start in range(0, len(rows), AT_ONCE):
        some = rows[start : start + AT_ONCE]
        pairs = None if contexts is None else [contexts[row] for row in some]
        yield from zip(some, classifier.encodings([texts[row] for row in some], pairs), strict=True)


def _of_spans(
    spans: Sequence[Span], encoding: tokenizers.Encoding, units: TextUnits, lengths: Sequence[int], where: str
) -> tuple[Floats, int]:
    """Return the sum of the spans that each unit overlaps, at its tokens, and how many spans overlap none.

    `lengths` are those of the texts of which something can be masked: one, or both of a pair.
    """
    offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
    parts = np.array([-1 if part is None else part for part in encoding.sequence_ids])
    totals, unplaced = np.zeros(units.count), 0
    for begin, end, score, part in spans:
        if part >= len(lengths):
            raise InputError(
                f"{where}: it has a score of the context, which is not masked here. Leave it out, or make a run in "
                "which both texts are masked (--both-texts)."
            )
        if not 0 <= begin < end <= lengths[part]:
            raise InputError(
                f"{where}: there are no characters {begin} to {end} in its {OF[part]}, which has {lengths[part]}. "
                "Characters are counted from 0, as Python counts them, and the end is not included."
            )
        over = (np.maximum(offsets[:, 0], begin) < np.minimum(offsets[:, 1], end)) & (units.unit >= 0)
        over &= parts == part
        totals[np.unique(units.unit[over])] += score
        unplaced += not over.any()
    return units.spread(totals).astype(np.float32), unplaced


def _of_tokens(scores: Sequence[float], maskable: Mask, where: str) -> Floats:
    """Return one number per token; those of tokens that are not maskable are ignored."""
    values = np.zeros(len(maskable), dtype=np.float32)
    if len(scores) == len(maskable):
        values[maskable] = np.array(scores)[maskable]
    elif len(scores) == maskable.sum():
        values[maskable] = scores
    else:
        raise InputError(
            f"{where}: {len(scores)} scores, where the text has {maskable.sum()} maskable tokens ({len(maskable)} with "
            "special tokens and context) as this model reads it. Give as many, or the characters of each score: start, "
            "end, score."
        )
    return values


def _summed(values: Floats, units: Ints) -> Floats:
    """Return at each token the sum over its unit."""
    inside = units >= 0
    totals = np.bincount(units[inside], weights=values[inside], minlength=1)
    return np.where(inside, totals[units.clip(min=0)], 0.0).astype(np.float32)


# ------------------------------------------------------------------------------------------------ reading the file


def _said(file: Path, texts: int) -> Mapping[int, Said]:
    """Return what a file says of each text that it names."""
    lines = read_rows(file)
    if not lines:
        raise InputError(f"{file} has no lines, so it explains nothing.")
    by_list = LISTS in lines[0]
    needed = ("row", LISTS) if by_list else ("row", *SPANS)
    lacking = next((column for column in needed if column not in lines[0]), None)
    if lacking is not None:
        raise InputError(
            f"{file} has no column {lacking!r}; it has {', '.join(map(repr, lines[0]))}. Scores are in the columns "
            "row, start, end and score, or row and scores."
        )
    found: dict[int, Any] = {}
    for number, line in enumerate(lines, start=1):
        row = _whole(line["row"], f"{file}, entry {number}: the row")
        if not 0 <= row < texts:
            raise InputError(
                f"{file}, entry {number}: there is no row {row}. The test split has {texts} texts, counted from 0; "
                '`Run("RUN").data().test` has them in this order.'
            )
        where = f"{file}, entry {number} (row {row})"
        if not by_list:
            _add_span(found.setdefault(row, []), line, where)
        elif row in found:
            raise InputError(f"{where}: this text has scores already. Give one line per text.")
        else:
            found[row] = [_finite(score, where) for score in _listed(line[LISTS], where)]
    return found


def _add_span(spans: list[Span], line: Row, where: str) -> None:
    cells = [line[column] for column in SPANS]
    if all(_empty(cell) for cell in cells):
        return
    begin, end = (_whole(cell, f"{where}: {name}") for cell, name in zip(cells[:2], SPANS, strict=False))
    said = line.get("of")
    if not _empty(said) and said not in OF:
        raise InputError(f"{where}: characters are of the {' or of the '.join(OF)}, not of {said!r}.")
    part = 0 if _empty(said) else OF.index(said)
    if any((begin, end, part) == (*span[:2], span[3]) for span in spans):
        raise InputError(f"{where}: the characters {begin} to {end} have a score already. Give each span once.")
    spans.append((begin, end, _finite(cells[2], where), part))


def _empty(cell: Any) -> bool:  # noqa: ANN401 (a cell of any file)
    return cell is None or cell != cell or (isinstance(cell, str) and not cell.strip())  # the second is NaN


def _whole(cell: Any, what: str) -> int:  # noqa: ANN401
    try:
        number = float(cell)
        if number == int(number):
            return int(number)
    except (TypeError, ValueError, OverflowError):
        pass
    raise InputError(f"{what} must be a whole number, not {cell!r}.")


def _finite(cell: Any, where: str) -> float:  # noqa: ANN401
    try:
        score = float(cell)
    except (TypeError, ValueError):
        score = math.nan
    if not math.isfinite(score):
        raise InputError(f"{where}: {cell!r} is no score. Every score is a finite number; 0 is that of no importance.")
    return score


def _listed(cell: Any, where: str) -> list[Any]:  # noqa: ANN401
    """Return a cell with a list; in a csv it is written as in JSON."""
    try:
        found = json.loads(cell) if isinstance(cell, str) else cell
    except json.JSONDecodeError:
        found = None
    if not isinstance(found, list):
        raise InputError(f"{where}: the scores must be a list of numbers such as [0.1, -0.2], not {str(cell)[:40]!r}.")
    return found
