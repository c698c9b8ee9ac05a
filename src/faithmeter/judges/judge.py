"""What every judge is made of: the bench it works on, and the row that says what it does, needs and shows.

A judge gives one number or several for every explanation: named columns, one value per text, nan where a text cannot be
judged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from faithmeter.judges.ranking import ground_truth

if TYPE_CHECKING:
    from faithmeter.data.batch import Batch, Encoded
    from faithmeter.importance.measure import ImportanceMeasure
    from faithmeter.in_distribution.masf import MaSF
    from faithmeter.judges.drift import Space  # whose row needs the bench
    from faithmeter.judges.ranking import Columns
    from faithmeter.masking import Mask
    from faithmeter.models.classifier import Classifier

Made = TypeVar("Made")


@dataclass(frozen=True)
class Bench:
    """What a judge works on: a model, texts, and where it is known the (flat) tokens that matter in them.

    `space` is where the original texts lie, for who asks how far a masked one goes; `other` a model trained with
    another seed. `known` are explanations that one judge has asked for and another may ask for again, `answers` the
    classes that all of them are about, `fresh` the untrained model of each seed, `made` what else a judge makes of
    texts alone, once for all measures.
    """

    classifier: Classifier
    test: Encoded
    masf: MaSF | None
    seed: int
    truth: Mask | None = None
    adversary_steps: int = 500
    space: Space | None = None
    other: Classifier | None = None
    known: dict[tuple[str, tuple[int, ...]], Tensor] = field(default_factory=dict)
    answers: dict[tuple[int, ...], Tensor] = field(default_factory=dict)
    fresh: dict[int, Classifier] = field(default_factory=dict)
    made: dict[tuple[str, tuple[int, ...]], Any] = field(default_factory=dict)

    def predicted(self, batch: Batch) -> Tensor:
        """Return the predicted class of each unmasked text, which is explained."""
        which = tuple(batch.rows.tolist())
        if which not in self.answers:
            self.answers[which] = answers_of(self.classifier, batch)
        return self.answers[which]

    def explained(self, batch: Batch, measure: ImportanceMeasure) -> Tensor:
        """Return the importance of each token for the predicted class."""
        which = measure.name, tuple(batch.rows.tolist())
        if which not in self.known:
            self.known[which] = measure.explain(self.classifier, batch, self.predicted(batch), self.seed)
        return self.known[which]

    def once(self, judge: str, batch: Batch, make: Callable[[], Made]) -> Made:
        """Return what a judge makes of the texts of a batch, made when it is first asked for."""
        which = judge, tuple(batch.rows.tolist())
        if which not in self.made:
            self.made[which] = make()
        found: Made = self.made[which]
        return found

    def true_tokens(self, batch: Batch) -> Tensor:
        """Return the tokens of a batch that are known to be important, (rows, tokens)."""
        assert self.truth is not None
        return self.test.in_batch(self.truth, batch)


def answers_of(classifier: Classifier, batch: Batch) -> Tensor:
    """Return the predicted class of each unmasked text; of several labels the most probable, of a number 0."""
    rows, here = torch.arange(len(batch), device=classifier.device), batch.to(classifier.device)
    return classifier.logits_of_masks(here, rows, here.masked).argmax(dim=-1).cpu()


class Need(Enum):
    """What a judge needs besides the run's model and test texts; the audit prepares it."""

    RATIONALES = "rationales"  # tokens that people marked, as the bench's `truth`
    SECOND_RUN = "second run"  # a model trained with another seed, as its `other`
    ATTACKED_TEXTS = "attacked texts"  # in place of the run's
    SPACE = "space"  # where the original texts lie
    KNOWN_TOKEN = "known token"  # a model trained to read one known word, and texts with that word in them


class By(IntEnum):
    """What explanations are judged by; the sections of a report stand in this order, then in that of the table."""

    MASKED_TEXTS = 1
    KNOWN_TRUTH = 2
    CHANGES = 3  # of the model or its input
    FORM = 4  # of the explanation alone


@dataclass(frozen=True)
class ShownColumn:
    """A column to show: its name, its title for readers, and the detail that tells it from others of its name.

    `more_is_better` says which measure comes first where a table is ordered by it. `judge` is the judge whose column
    it is where that is another one; `optional` columns are left out where nobody has a number.
    """

    column: str
    title: str
    detail: str | None = None
    more_is_better: bool = True
    judge: str | None = None
    optional: bool = False


@dataclass(frozen=True)
class Remark:
    """A sentence about one number of the whole audit; `{value}` in it is that number in per cent.

    `caution` is said where the number lies below `least`.
    """

    column: str
    words: str
    least: float = 0.0
    caution: str = ""


@dataclass(frozen=True)
class MeasureCaution:
    """A sentence about the measures whose number in a column surely lies above a limit; `{measures}` names them.

    `judge` is the judge whose column it is where that is another one.
    """

    column: str
    above: float
    words: str
    judge: str | None = None


@dataclass(frozen=True)
class SectionData:
    """A judge's section of a report. Judges that share one are shown together.

    `words` are paragraphs: what the judge does and shows, and what it cannot show. `shown` are the columns of its
    table, which is ordered by the first; the first two are drawn. `outside` are columns with the share of masked texts
    that are out-of-distribution, and the caution where that is surely more than chance gives, with the `{share}` in per
    cent, the `{measure}`, the `{detail}` and what `{chance}` gives. `suspects` are cautions about single measures.
    `remarks` stand where their column is named in the
    words, as in `{accuracy}`; a paragraph of nothing else is left out with its number. `layout` names another way to
    draw it, of `reports.audit.LAYOUTS`; `short` is the name of its files where that is not the judge's.
    """

    title: str
    by: By
    words: tuple[str, ...]
    shown: tuple[ShownColumn, ...]
    table: str
    caption: str
    outside: tuple[tuple[str, str], ...] = ()
    remarks: tuple[Remark, ...] = ()
    suspects: tuple[MeasureCaution, ...] = ()
    layout: str = "ranked"
    short: str | None = None


@dataclass(frozen=True)
class Judge:
    """A way to judge explanations.

    `judge(bench, batch, measure)` returns columns, one value a text; a name such as `cascading@layer 2` says after the
    @ which of several like numbers it is. `rows` is how many texts are judged unless somebody says otherwise; `fits`
    says of a measure whether it can be judged so. `scores` are the columns by which measures are ranked when judges are
    compared, and whether more is better: one for each thing it says, not for each way to say it. `passes(bench, n)` is
    about how many times a text goes through the model for a measure that explains it in n passes, to estimate the time.

    `settings` are the options of an audit that change what it says, so that judgements of other ones do not mix with
    it. `tests_masked` where it asks the in-distribution test, `on_request` where it judges only if it is named,
    `shares_explanations` where all it asks for are explanations of the model as it is, which others have asked for.
    `scored_by_size` where a score's sign does not count, `curves` where its columns are curves to draw.
    `needs_classes` where it asks whether a prediction changes, or for the probability of one class among others: a
    model that gives several labels at once, or a number, cannot be judged so.
    """

    name: str
    rows: int
    judge: Callable[[Bench, Batch, ImportanceMeasure], Columns]
    scores: Mapping[str, bool]
    section: SectionData
    fits: Callable[[ImportanceMeasure], bool] = lambda _: True
    passes: Callable[[Bench, float], float] = lambda _, explaining: explaining + 10
    needs: Need | None = None
    settings: tuple[str, ...] = ()
    tests_masked: bool = False
    on_request: bool = False
    shares_explanations: bool = False
    scored_by_size: bool = False
    curves: bool = False
    needs_classes: bool = False

    def can_judge(self, measure: ImportanceMeasure) -> bool:
        """Whether it can judge a measure; one whose explanations are given has none of other texts or models."""
        return self.fits(measure) and (self.shares_explanations or not measure.given)


def few_passes(measure: ImportanceMeasure) -> bool:
    """Whether a measure explains by a few passes: what takes hundreds would take hours on several models.

    Random importance is of no model, and has nothing to change with it.
    """
    return measure.family in ("gradient", "attention") or (
        measure.family == "occlusion" and not measure.expensive and not measure.on_request
    )


def against_truth(bench: Bench, batch: Batch, measure: ImportanceMeasure) -> Columns:
    """Judge a measure by the tokens of its bench that are known to matter."""
    return ground_truth(bench.explained(batch, measure), batch.maskable, bench.true_tokens(batch))
