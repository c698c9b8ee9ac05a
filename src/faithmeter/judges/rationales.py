"""Human rationales: the words that people marked as the reason for a label, as tokens of a model.

A rationale comes in a column beside the text, in one of four forms, and always counts words, which spaces part:
- `flags`: 0 or 1 for each word; or the text again, its marked words between *asterisks*;
- `words`: the numbers of the marked words, the first is 0: a list, or "2,5,6" in a csv (e-SNLI);
- `spans`: [start, end) pairs of word numbers (ERASER);
- `annotators`: a list of flags from each annotator, of which the majority counts (HateXplain).

Three steps: `marks_of` says which columns hold the rationales, `load_splits(spec, keep=marks.columns)` keeps them
beside the texts, and `rationales_of` reads them; then `rationale_tokens` finds their tokens. Judged by `ground_truth`,
that is plausibility: how well an explanation agrees with people, which is not how well it agrees with the model.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import datasets
import numpy as np

from faithmeter.data.batch import CONTEXT, TEXT
from faithmeter.data.tables import Row, read_rows
from faithmeter.data.tasks import Task
from faithmeter.errors import InputError
from faithmeter.masking import Mask
from faithmeter.models.classifier import Classifier

PAIR = ("_premise", "_hypothesis")  # what the names of ERASER's documents of e-SNLI end in
FORMS = ("flags", "words", "spans", "annotators")
Spans = Sequence[tuple[int, int]]  # [start, end) characters of one text


@dataclass(frozen=True)
class Marks:
    """The columns that hold rationales, one for each annotator, and their form; None: as the cells look.

    `context_columns` hold those of the second text of a pair, which count where both texts are masked.
    """

    columns: tuple[str, ...]
    form: str | None = None
    context_columns: tuple[str, ...] = ()


TASK_MARKS: Mapping[str, Marks] = MappingProxyType(
    {
        "eraser-movies": Marks(("rationales",), "spans"),
        "hatexplain": Marks(("rationales",), "annotators"),
        # of the premise, which is the text here, nothing is marked where the label is neutral
        "esnli": Marks(
            tuple(f"Sentence1_Highlighted_{annotator}" for annotator in (1, 2, 3)),
            "words",
            tuple(f"Sentence2_Highlighted_{annotator}" for annotator in (1, 2, 3)),
        ),
    }
)


def marks_of(task: Task, column: str | None = None) -> Marks:
    """Return where a task's rationales are: in the column named, or where this task is known to have them.

    Two columns, with a comma, are those of the text and of its context.
    """
    if column is not None:
        first, *second = column.split(",")
        return Marks((first,), context_columns=tuple(second))
    if task.name not in TASK_MARKS:
        raise InputError(
            f"{task.name} has no known human rationales ({', '.join(TASK_MARKS)} have): "
            "name the column of your file that holds them with --rationales COLUMN."
        )
    return TASK_MARKS[task.name]


def rationales_of(split: datasets.Dataset, marks: Marks, part: str = "text") -> list[Spans]:
    """Return the characters of each text that are in its rationale; a word counts if most annotators marked it.

    `part` is `text` or `context`.
    """
    columns = marks.columns if part == "text" else marks.context_columns
    words = [[match.span() for match in re.finditer(r"\S+", text)] for text in split[part]]
    votes = np.zeros((len(words), max(map(len, words), default=0)), dtype=np.int64)
    voters = np.zeros(len(words), dtype=np.int64)
    found = [column for column in columns if column in split.column_names]
    if not found:
        raise InputError(f"There is no column {columns[0]!r} with rationales; name it with --rationales COLUMN.")
    for column in found:
        cells = [_parsed(cell) for cell in split[column]]
        form = marks.form or _form([cell for cell in cells if cell is not None], column)
        for row, cell in enumerate(cells):
            for marked in (
                [] if cell is None else _marked_words(cell, form, len(words[row]), f"{column}, row {row + 1}")
            ):
                votes[row, list(marked)] += 1
                voters[row] += 1
    if not votes.any() and not marks.context_columns:  # or it may all be in the other text
        raise InputError(f"No word of any text is marked in {', '.join(found)}: is that the column of the rationales?")
    return [
        [span for span, count in zip(spans, votes[row], strict=False) if 2 * count > voters[row]]
        for row, spans in enumerate(words)
    ]


def rationale_tokens(
    classifier: Classifier,
    texts: Sequence[str],
    contexts: Sequence[str] | None,
    rationales: Sequence[Spans],
    of_contexts: Sequence[Spans] | None = None,
) -> Mask:
    """Return which tokens of the texts overlap a span of their rationale, flat, as `classifier.encode` lays them out.

    Special tokens, what was cut off a text that is too long, and tokens of the context are in no rationale, but for
    those that overlap a span `of_contexts`.
    """
    beside = [[]] * len(texts) if of_contexts is None else of_contexts
    found: list[Mask] = []
    for start in range(0, len(texts), 1000):  # as `encode` does: encodings are large
        pairs = None if contexts is None else contexts[start : start + 1000]
        encodings = classifier.encodings(texts[start : start + 1000], pairs)
        for row, encoding in enumerate(encodings, start=start):
            tokens = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
            overlaps = np.zeros(len(tokens), dtype=np.bool_)
            for part, spans in ((TEXT, rationales[row]), (CONTEXT, beside[row])):
                own = np.array([sequence == part for sequence in encoding.sequence_ids], dtype=np.bool_)
                for begin, end in spans:
                    overlaps |= own & (np.maximum(tokens[:, 0], begin) < np.minimum(tokens[:, 1], end))
            found.append(overlaps)
    return np.concatenate(found) if found else np.zeros(0, dtype=np.bool_)


def eraser_rows(file: Path, docs: Path | None = None) -> list[Row]:
    """Read a file of ERASER as it is published: `evidences` in a jsonl, and the documents in the folder `docs` beside.

    The rows have the columns `id`, `text`, `query`, `label` and `rationales`, and can be stored as a file of one's own.
    A row of two documents, as of e-SNLI, is a pair: the premise is the text, the hypothesis is its `context`, and the
    evidence in that is in `context_rationales`.
    """
    folder = docs or file.parent / "docs"
    return [_eraser_row(row, folder, f"{file}, row {number}") for number, row in enumerate(read_rows(file), start=1)]


def _eraser_row(row: Row, folder: Path, where: str) -> Row:
    evidences = [evidence for group in row["evidences"] for evidence in group]
    names = _documents(row, {evidence["docid"] for evidence in evidences}, folder)
    if len(names) > 2:
        raise InputError(f"{where}: its evidence is in {len(names)} documents; a text must be one, or a pair of two.")
    found: Row = {"id": row["annotation_id"], "query": row.get("query") or "", "label": row["classification"]}
    for name, text, marks in zip(names, ("text", "context"), ("rationales", "context_rationales"), strict=False):
        path = folder / name
        if not path.is_file():
            raise InputError(
                f"{where}: there is no document {path}. ERASER's documents are expected in a folder `docs` next to it."
            )
        found[text] = " ".join(path.read_text(encoding="utf-8").split())  # tokens are counted as spaces part them
        found[marks] = sorted([one["start_token"], one["end_token"]] for one in evidences if one["docid"] == name)
    return found


def _documents(row: Row, evidence: set[str], folder: Path) -> list[str]:
    """Return the documents of a row, the premise of a pair first; evidence may be in one of them only."""
    names = sorted(evidence | set(row.get("docids") or ()))
    known = [f"{row['annotation_id']}{part}" for part in PAIR]
    if not names or set(names) <= set(known):
        there = [name for name in known if (folder / name).is_file()]
        names = there or names or [row["annotation_id"]]
    return sorted(names, key=lambda name: name.endswith(PAIR[1]))


# ---------------------------------------------------------------------------------------------------- cells


def _parsed(cell: Any) -> list[Any] | None:  # noqa: ANN401 (a cell of any file)
    """Return a cell as a list of numbers or of lists of numbers; None if it is missing."""
    if cell is None or isinstance(cell, list):
        return cell and [_number(value) for value in cell]
    text = str(cell).strip()
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = None
    if isinstance(value, int):
        return [value]
    if isinstance(value, list) or value == {}:  # e-SNLI writes {} for none
        return [_number(one) for one in value]
    parts = re.split(r"[\s,;]+", text)
    if all(part.isdigit() for part in parts):
        return [int(part) for part in parts]
    # the text again: unless it was marked, nothing in it is
    return [int(len(word) > 2 and word[0] == word[-1] == "*") for word in text.split()]


def _number(value: Any) -> Any:  # noqa: ANN401 (of any file)
    """Return a number that is written as text as a number, in lists too; anything else as it is."""
    if isinstance(value, list):
        return [_number(one) for one in value]
    return int(value) if isinstance(value, str) and value.strip().isdigit() else value


def _form(cells: Sequence[list[Any]], column: str) -> str:
    """Return the form of a column from its values: whatever is 0 or 1 everywhere is flags."""
    inner = [value for cell in cells for value in cell]
    nested = any(isinstance(value, list) for value in inner)
    if nested and not all(isinstance(value, list) for value in inner):
        raise InputError(f"The column {column!r} mixes numbers and lists: a rationale is one or the other.")
    binary = all(value in (0, 1) for value in (_flat(inner) if nested else inner))
    if nested:
        return "annotators" if binary else "spans"
    return "flags" if binary else "words"


def _flat(lists: Iterable[Iterable[Any]]) -> list[Any]:
    return [value for values in lists for value in values]


def _marked_words(cell: list[Any], form: str, words: int, where: str) -> list[set[int]]:
    """Return the numbers of the words that were marked, for each annotator in the cell."""
    if form == "annotators":
        return _flat([_marked_words(flags, "flags", words, where) for flags in cell])
    try:
        numbers = {
            "flags": lambda: [number for number, flag in enumerate(cell) if flag],
            "words": lambda: [int(number) for number in cell],
            "spans": lambda: _flat([range(int(start), int(end)) for start, end in cell]),
        }[form]()
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: {str(cell)[:40]} is not a rationale of the form {form!r}.") from error
    if (form == "flags" and cell and len(cell) != words) or not all(0 <= number < words for number in numbers):
        raise InputError(
            f"{where}: the rationale {str(cell)[:40]} does not fit the text, which has {words} words. "
            "Words are separated by spaces and counted from 0."
        )
    return [set(numbers)]
