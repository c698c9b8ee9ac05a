"""The known-token problem: a task whose explanation is known, made of any task (Oxford thesis, 2022, Sec. 3.1).

The labels are drawn at random, so that nothing in the texts tells them, and a word that does is put into each text. A
model that solves it can only have read that word, and an explanation of it should say so. Where that is the run's own
task (`sst2-known-token`), the run's own model is judged, by the word that is in its texts.
"""

import dataclasses
import re
from collections.abc import Sequence

import datasets

from faithmeter.data.splits import SPLITS, Splits
from faithmeter.data.tasks import SENTIMENT
from faithmeter.errors import InputError
from faithmeter.judges.judge import By, Judge, Need, Remark, SectionData, ShownColumn, against_truth
from faithmeter.judges.rationales import rationale_tokens
from faithmeter.masking import Mask, Purpose, random_stream
from faithmeter.models.classifier import Classifier

PLACES = ("end", "anywhere")
SOLVED = 0.99  # share of texts in which a model must read the word for that to be what decides
START, END = "known_start", "known_end"  # columns: the characters [start, end) of the telling word


def known_token_splits(splits: Splits, *, place: str, seed: int, words: Sequence[str] | None = None) -> Splits:
    """Return the splits with random labels and, in each text, the word that tells its label.

    The word is put at the end of the text, or with `place="anywhere"` before, after or between its words, each place as
    likely. `words` are one for each class, and the classes' new names; by default "negative" and "positive" for two
    classes, else the old names made one word each. The labels of every C rows on end are a random order of the C
    classes, so they are balanced; they come from the seed, the split and the row.
    """
    if place not in PLACES:
        raise InputError(f"There is no place {place!r} for the known token: choose from {', '.join(PLACES)}.")
    telling = _telling_words(splits.labels, words)
    made = {
        part: _with_known_token(getattr(splits, part), number, telling, place, seed)
        for number, part in enumerate(SPLITS)
    }
    where = "at its end" if place == "end" else "somewhere in it"
    note = f"The labels are random; each text has the word that tells its label {where}: {', '.join(telling)}."
    notes = (*splits.notes, note, *_ambiguous(splits, telling))
    return dataclasses.replace(splits, labels=telling, notes=notes, **made)


def with_own_token(split: datasets.Dataset, labels: Sequence[str]) -> datasets.Dataset:
    """Return a split of a task whose texts end in the name of their label, and where in each text that word is."""
    texts, words = list(split["text"]), [labels[label] for label in split["label"]]
    ends = [len(text.rstrip()) for text in texts]
    starts = [end - len(word) for end, word in zip(ends, words, strict=True)]
    for text, word, start, end in zip(texts, words, starts, ends, strict=True):
        if start < 0 or text[start:end] != word:
            raise InputError(f"A text does not end in the word {word!r} that tells its label: it is not this task's.")
    return split.add_column(START, starts).add_column(END, ends)


def truth_of(classifier: Classifier, split: datasets.Dataset) -> Mask:
    """Return which tokens of a split of `known_token_splits` are the telling word's, flat, aligned with `Encoded`.

    All pieces of the word count. A text that was cut so that the word is gone has none.
    """
    contexts = list(split["context"]) if "context" in split.column_names else None
    spans = [[span] for span in zip(split[START], split[END], strict=True)]
    return rationale_tokens(classifier, list(split["text"]), contexts, spans)


def _telling_words(labels: Sequence[str], words: Sequence[str] | None) -> tuple[str, ...]:
    if words is None:
        words = SENTIMENT if len(labels) == 2 else [re.sub(r"[\W_]+", "", label) for label in labels]
        if "" in words or len({word.casefold() for word in words}) < len(words):  # such as -1, 0 and 1
            words = [f"class{number}" for number in range(len(labels))]
    chosen = ", ".join(map(repr, words))
    if len(words) != len(labels):
        raise InputError(
            f"There are {len(labels)} classes and {len(words)} known tokens ({chosen}): give one per class."
        )
    if any(len(word.split()) != 1 for word in words):
        raise InputError(f"A known token is empty or more than one word ({chosen}): give one word per class.")
    # a tokenizer may know no capitals
    if len({word.casefold() for word in words}) < len(words):
        raise InputError(f"Two known tokens are equal ({chosen}): give each class a different word.")
    return tuple(word.strip() for word in words)


def _with_known_token(
    split: datasets.Dataset, number: int, words: Sequence[str], place: str, seed: int
) -> datasets.Dataset:
    """Return one split, the `number`-th, with new labels and texts, and where in each text its telling word is."""
    labels = [_label(seed, number, row, len(words)) for row in range(len(split))]
    columns: dict[str, Sequence[object]] = {name: list(split[name]) for name in split.column_names}
    texts, starts, ends = [], [], []
    for row, (text, label) in enumerate(zip(split["text"], labels, strict=True)):
        new, start = _inserted(text, words[label], place, seed, number, row)
        texts.append(new)
        starts.append(start)
        ends.append(start + len(words[label]))
    columns |= {"text": texts, "label": labels, START: starts, END: ends}
    return datasets.Dataset.from_dict(columns)


def _label(seed: int, split: int, row: int, classes: int) -> int:
    order = random_stream(seed, Purpose.KNOWN_TOKEN, split, 0, row // classes).permutation(classes)
    return int(order[row % classes])


def _inserted(text: str, word: str, place: str, seed: int, split: int, row: int) -> tuple[str, int]:
    """Return the text with the word in it, and where the word starts."""
    begins = [match.start() for match in re.finditer(r"\S+", text)]
    before = len(begins)  # the word goes before this one
    if place == "anywhere":
        before = int(random_stream(seed, Purpose.KNOWN_TOKEN, split, 1, row).integers(len(begins) + 1))
    if before < len(begins):
        start = begins[before]
        return f"{text[:start]}{word} {text[start:]}", start
    head = f"{text.rstrip()} " if begins else ""
    return head + word, len(head)


def _ambiguous(splits: Splits, words: Sequence[str]) -> list[str]:
    """Return how many test texts already contained a known token, which makes them ambiguous."""
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, words))})\b", re.IGNORECASE)
    count = sum(pattern.search(text) is not None for text in splits.test["text"])
    return [f"{count} of {len(splits.test)} test texts already contained one of these words."] if count else []


KNOWN_TOKEN = Judge(
    "known-token",
    200,
    against_truth,
    {"mean_rank": False},
    SectionData(
        "A known token",
        By.KNOWN_TRUTH,
        (
            "A model was trained on texts with random labels and one added word that reveals the label, so the "
            "important token is known: the run's own model if that is its task, else another of its kind. Found: the "
            "share of texts in which that word is ranked first. Mean rank: its rank, as a share of all tokens.",
            "It shows whether a measure finds one word that decides alone. It cannot show how well a measure explains "
            "a model that uses many words, as that of any other task does.",
            "{accuracy}",
        ),
        (
            ShownColumn("overlap", "found as the most important"),
            ShownColumn("mean_rank", "mean rank (lower is better)", more_is_better=False),
            ShownColumn("average_precision", "average precision"),
        ),
        table="Finding a token that is known to decide",
        caption="How often the known token is ranked first, and its mean rank; dashed: random.",
        remarks=(
            Remark(
                "accuracy",
                "That model reads the word in {value:.1f} % of the test texts.",
                least=SOLVED,
                caution="It does not read the word everywhere, so other tokens may decide: the numbers are uncertain.",
            ),
        ),
    ),
    needs=Need.KNOWN_TOKEN,
    needs_classes=True,
    settings=("place",),
)
