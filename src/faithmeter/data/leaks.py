"""Leaks: rows that tell a model the answer, or a text of the test split before it is asked.

What is found is a warning and no error: a reviewer may really write "positive", and two authors the same short text.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence

from faithmeter.data.outputs import names_told
from faithmeter.data.tables import Row

LOOKED_AT = 2000  # training rows that are searched for their label: enough to tell a share of half from one of a third
MANY = 0.5  # share of rows that hold their own label, and no other, from which on the label seems to be in the input
FEW = 0.01  # share of test texts that were seen, from which on it is a warning and no note


def label_in_input(rows: Sequence[Row]) -> Iterable[str]:
    """Yield a warning for the text and for the context, if many hold their own label and hardly one another's.

    Labels of the rows are still names, or numbers.
    """
    looked_at = rows[:: max(1, len(rows) // LOOKED_AT)]
    names = {name for row in looked_at for name in _names(row)}
    # as whole words, whatever the case; where one label is the beginning of another, the longer one counts
    either = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True) if name)
    anywhere = re.compile(rf"(?<!\w)(?:{either})(?!\w)") if either else None
    for column in (name for name in ("text", "context") if anywhere is not None and name in rows[0]):
        own = other = 0
        for row in looked_at:
            held = set(anywhere.findall(row[column].casefold())) if anywhere is not None else set()
            own += held == _names(row) != set()
            other += bool(held) and held.isdisjoint(_names(row))
        if own >= max(2, MANY * len(looked_at)) and own >= 10 * other:
            yield (
                f"The label is in the {column} of {own} of {len(looked_at)} training rows, and in {other} another one: "
                "a model that reads it learns nothing else, and its explanations point there. Is it the right column, "
                f"and does the {column} hold what is to be predicted?"
            )


def _names(row: Row) -> set[str]:
    """Return the labels of a row, or its number, as a text would have them."""
    label = row["label"]
    numbers = () if isinstance(label, str) else (one for one in label if isinstance(one, float))
    return {name.strip().casefold() for name in names_told(label)} | {f"{one:g}" for one in numbers}


def seen_in_training(tables: Mapping[str, Sequence[Row]]) -> tuple[str | None, bool]:
    """Return a sentence if test texts are also in train or validation, and whether they are enough to warn of."""
    tested = [_key(row) for row in tables["test"]]
    known = set(tested)
    seen = {key for part in ("train", "validation") for row in tables[part] if (key := _key(row)) in known}
    both = sum(key in seen for key in tested)
    if not both:
        return None, False
    return (
        f"{both} of {len(tested)} test texts are also in train or validation (but for case and spaces), so the "
        "performance on the test split may be partly memory. Remove them from one of the two."
    ), both >= FEW * len(tested)


def _key(row: Row) -> bytes:
    said = "\0".join(" ".join(row[name].casefold().split()) for name in ("text", "context") if name in row)
    return hashlib.blake2b(said.encode("utf-8", "surrogatepass"), digest_size=12).digest()
