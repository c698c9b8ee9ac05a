"""Tasks: each is a row of data, never a subclass. Add one by adding a row to `TASKS` (docs/adding-a-task.md).

Columns, metrics, epochs and splits are those of Madsen et al. (2024), Table 2 and Table 3, of Madsen et al. (2022),
Table 3, and of the other papers named in each row by the short names of docs/bibliography.md.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from faithmeter.data import babi
from faithmeter.data.tables import Row
from faithmeter.errors import InputError, nearest
from faithmeter.problems import CLASSES


@dataclass(frozen=True)
class Hub:
    """Where a dataset is on the Hugging Face hub."""

    path: str
    config: str | None = None
    revision: str | None = None


@dataclass(frozen=True)
class Task:
    """A text-classification task.

    `text` is the column that is masked and explained, `context` the second sequence of a pair, which is never masked in
    a measurement. `labels` are the class names in the order of the label numbers; None means: as found in the training
    data. `splits` says which split of the source is used as which; one that is not named, or missing, is split off
    train. `renames` maps the column names of other copies of the same data to the names used here. `relabel` maps label
    numbers to others and drops the rows whose label is not in it. `both_texts` says that the context is masked and
    explained, too, which a run may ask for.

    `known_token` says that each text ends in the word that tells its label, which is a name of the label.

    `problem` says whether a text has one class, several labels or a number; of the latter two, `outputs` are the
    columns that hold them.
    """

    name: str
    text: str
    context: str | None
    label: str
    labels: tuple[str, ...] | None
    metric: str
    epochs: int
    papers: str
    hub: Hub | None = None
    folder: str | None = None
    splits: Mapping[str, str] = field(default_factory=lambda: {"train": "train", "test": "test"})
    renames: Mapping[str, str] = field(default_factory=dict)
    relabel: Mapping[int, int] | None = None
    generate: Callable[[str, int], list[Row]] | None = None
    package: str | None = None
    prepare: Callable[[list[Row], int], list[Row]] | None = None
    note: str = ""
    both_texts: bool = False
    known_token: bool = False
    problem: str = CLASSES
    outputs: tuple[str, ...] = ()

    @property
    def gold_columns(self) -> tuple[str, ...]:
        """The columns that hold what is to be predicted."""
        return self.outputs or (self.label,)

    @property
    def sources(self) -> str:
        """Where the data can come from, in words."""
        kinds = []
        if self.generate is not None:
            kinds.append("generated")
        if self.package is not None:
            kinds.append("package")
        if self.hub is not None:
            kinds.append("hub")
        kinds.append("files")
        return ", ".join(kinds)


def _babi(number: int) -> Task:
    def generate(split: str, seed: int) -> list[Row]:
        # stories of their own for each split: questions of one story share their statements, so a validation split
        # cut from train would look more familiar to the model than test does
        rows, stream = {"train": (8_000, 0), "validation": (2_000, 1), "test": (1_000, 2)}[split]
        return [dict(row) for row in babi.generate(number, rows, seed=3 * seed + stream)]

    return Task(
        name=f"babi-{number}",
        text="context",
        context="question",
        label="answer",
        labels=babi.PLACES,
        metric="micro-f1",
        epochs=20,
        papers="FMM, ROAR",
        folder=f"babi/qa{number}",
        generate=generate,
        note=f"question over {('one', 'two', 'three')[number - 1]} supporting fact{'s' if number > 1 else ''}",
    )


def append_known_token(rows: list[Row], seed: int) -> list[Row]:
    """Randomise the labels and append the word that tells the label: the true explanation is then known.

    Oxford thesis (2022), Sec. 3.2.1 (known-token ground truth); `rows` hold `sentence` and `label`.
    """
    labels = np.random.default_rng([seed, len(rows)]).integers(2, size=len(rows))
    return [
        {**row, "sentence": f"{row['sentence']} {SENTIMENT[label]}", "label": int(label)}
        for row, label in zip(rows, labels, strict=True)
    ]


GLUE, SUPER_GLUE = "nyu-mll/glue", "aps/super_glue"
PARQUET = "refs/convert/parquet"
TESTED_ON_VALIDATION = MappingProxyType({"train": "train", "test": "validation"})
OWN_VALIDATION = MappingProxyType({"train": "train", "validation": "validation", "test": "test"})
SENTIMENT = ("negative", "positive")
NLI = ("entailment", "neutral", "contradiction")
ENTAILMENT = ("entailment", "not_entailment")
RESTRICTED = "access is restricted: bring your own files"

_ROWS = (
    Task("boolq", "passage", "question", "label", ("no", "yes"), "accuracy", 15, "FMM",
         Hub(SUPER_GLUE, "boolq", PARQUET), "boolq", TESTED_ON_VALIDATION),
    Task("cb", "premise", "hypothesis", "label", ("entailment", "contradiction", "neutral"), "macro-f1", 50, "FMM",
         Hub(SUPER_GLUE, "cb", PARQUET), "cb", TESTED_ON_VALIDATION),
    Task("cola", "sentence", None, "label", ("unacceptable", "acceptable"), "matthews", 15, "FMM",
         Hub(GLUE, "cola"), "cola", TESTED_ON_VALIDATION),
    Task("imdb", "text", None, "label", SENTIMENT, "macro-f1", 10, "FMM, ROAR, REGEX",
         Hub("stanfordnlp/imdb"), "imdb", package="imdb"),
    Task("mnli", "premise", "hypothesis", "label", NLI, "accuracy", 10, "FMM, Thesis (MultiNLI)",
         Hub(GLUE, "mnli"), "mnli", {"train": "train", "test": "validation_matched"}),
    Task("mrpc", "sentence1", "sentence2", "label", ("no", "paraphrase"), "macro-f1", 20, "FMM",
         Hub(GLUE, "mrpc"), "mrpc", TESTED_ON_VALIDATION),
    Task("qnli", "sentence", "question", "label", ENTAILMENT, "accuracy", 20, "FMM",
         Hub(GLUE, "qnli"), "qnli", TESTED_ON_VALIDATION),
    Task("qqp", "question1", "question2", "label", ("different", "duplicate"), "macro-f1", 10, "FMM",
         Hub(GLUE, "qqp"), "qqp", TESTED_ON_VALIDATION),
    Task("rte", "sentence1", "sentence2", "label", ENTAILMENT, "accuracy", 30, "FMM",
         Hub(GLUE, "rte"), "rte", TESTED_ON_VALIDATION),
    Task("snli", "premise", "hypothesis", "label", NLI, "accuracy", 10, "FMM, ROAR",
         Hub("stanfordnlp/snli"), "snli", OWN_VALIDATION, note="rows without a gold label (-1) are left out"),
    Task("sst2", "sentence", None, "label", SENTIMENT, "accuracy", 10, "FMM",
         Hub(GLUE, "sst2"), "sst2", TESTED_ON_VALIDATION),
    _babi(1), _babi(2), _babi(3),
    Task("mimic-anemia", "text", None, "label", None, "macro-f1", 20, "FMM, ROAR", note=RESTRICTED),
    Task("mimic-diabetes", "text", None, "label", None, "macro-f1", 20, "FMM, ROAR", note=RESTRICTED),
    Task("sst", "text", None, "label", SENTIMENT, "macro-f1", 10, "ROAR, REGEX",
         Hub("SetFit/sst5"), "sst_trees", OWN_VALIDATION, {"tokens": "text"}, {0: 0, 1: 0, 3: 1, 4: 1},
         note="five grades made two; the neutral one is left out"),
    Task("esnli", "premise", "hypothesis", "label", NLI, "accuracy", 10, "Thesis",
         None, "esnli", OWN_VALIDATION, {"Sentence1": "premise", "Sentence2": "hypothesis", "gold_label": "label"},
         note="with human explanations"),
    Task("sst2-known-token", "sentence", None, "label", SENTIMENT, "accuracy", 10, "Thesis",
         Hub(GLUE, "sst2"), "sst2", TESTED_ON_VALIDATION, prepare=append_known_token, known_token=True,
         note="random labels, told by one appended word"),
    Task("yelp", "text", None, "label", SENTIMENT, "macro-f1", 10, "REGEX", Hub("fancyzhx/yelp_polarity"), "yelp"),
    Task("amazon-digital-music", "text", None, "label", None, "macro-f1", 10, "REGEX", folder="amazon_digital_music"),
    Task("amazon-pantry", "text", None, "label", None, "macro-f1", 10, "REGEX", folder="amazon_pantry"),
    Task("amazon-instruments", "text", None, "label", None, "macro-f1", 10, "REGEX", folder="amazon_instruments"),
    Task("toxic-comments", "comment_text", None, "toxic", ("not toxic", "toxic"), "macro-f1", 10, "Infidelity",
         folder="toxic_comments", note="the competition's own csv files"),
    Task("rotten-tomatoes", "text", None, "label", SENTIMENT, "accuracy", 10, "",
         Hub("cornell-movie-review-data/rotten_tomatoes"), "rotten_tomatoes", OWN_VALIDATION,
         package="rotten_tomatoes"),
    Task("ag-news", "text", None, "label", ("World", "Sports", "Business", "Sci/Tech"), "accuracy", 10, "",
         Hub("fancyzhx/ag_news"), "ag_news"),
    Task("davidson-hate", "text", None, "label", ("hate", "offensive", "neither"), "accuracy", 10, "",
         None, "davidson_hate", OWN_VALIDATION, {"tweet": "text", "class": "label"}, note="offensive language"),
    Task("tweeteval-hate", "text", None, "label", ("not", "hate"), "macro-f1", 10, "",
         Hub("cardiffnlp/tweet_eval", "hate"), "tweeteval/hate", OWN_VALIDATION, note="offensive language"),
    Task("tweeteval-offensive", "text", None, "label", ("not", "offensive"), "macro-f1", 10, "",
         Hub("cardiffnlp/tweet_eval", "offensive"), "tweeteval/offensive", OWN_VALIDATION, note="offensive language"),
    Task("eraser-movies", "text", None, "label", SENTIMENT, "accuracy", 10, "",
         None, "eraser_movies", OWN_VALIDATION, {"sentences": "text"}, note="with human rationales"),
    Task("hatexplain", "text", None, "label", ("hate", "normal", "offensive"), "macro-f1", 10, "",
         None, "hatexplain", OWN_VALIDATION, {"tokens": "text"}, note="with human rationales; offensive language"),
    Task("cad-imdb", "text", None, "label", SENTIMENT, "accuracy", 10, "",
         None, "cad_imdb", OWN_VALIDATION, note="reviews and their human counterfactuals"),
)  # fmt: skip

TASKS: Mapping[str, Task] = MappingProxyType({task.name: task for task in _ROWS})


def find_task(name: str) -> Task:
    """Return the task of that name, however its hyphens and capitals are written."""
    key = name.lower().replace("_", "-")
    for task in TASKS.values():
        if task.name == key or task.name.replace("-", "") == key.replace("-", ""):
            return task
    raise InputError(
        f"There is no task named {name!r}.{nearest(name, TASKS)} "
        "`faithmeter tasks` lists them; for a file of your own use --data FILE."
    )
