"""The input of a judge."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from faithmeter.data.batch import Batch, Encoded
from faithmeter.importance import ImportanceMeasure
from faithmeter.in_distribution import MaSF
from faithmeter.judges.rationales import in_batch
from faithmeter.masking import Mask
from faithmeter.models.classifier import Classifier

if TYPE_CHECKING:
    from faithmeter.judges.drift import Space  # whose row needs the bench


@dataclass(frozen=True)
class Bench:
    """What a judge works on: a model, texts, and where it is known the (flat) tokens that matter in them.

    `space` is where the original texts lie, for who asks how far a masked one goes; `other` a model trained with
    another seed. `known` are explanations that one judge has asked for and another may ask for again, `answers` the
    classes that all of them are about, `fresh` the untrained model of each seed.
    """

    classifier: Classifier
    test: Encoded
    masf: MaSF | None
    seed: int
    truth: Mask | None = None
    adversary_steps: int = 500
    space: "Space | None" = None
    other: Classifier | None = None
    known: dict[tuple[str, tuple[int, ...]], Tensor] = field(default_factory=dict)
    answers: dict[tuple[int, ...], Tensor] = field(default_factory=dict)
    fresh: dict[int, Classifier] = field(default_factory=dict)

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

    def true_tokens(self, batch: Batch) -> Tensor:
        """Return the tokens of a batch that are known to be important, (rows, tokens)."""
        assert self.truth is not None
        return in_batch(self.test, self.truth, batch)


def answers_of(classifier: Classifier, batch: Batch) -> Tensor:
    """Return the predicted class of each unmasked text."""
    rows, here = torch.arange(len(batch), device=classifier.device), batch.to(classifier.device)
    return classifier.logits_of_masks(here, rows, here.masked).argmax(dim=-1).cpu()
