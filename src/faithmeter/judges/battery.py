"""The battery: one table of judges. To add one, write a function of (bench, batch, measure) and give it a row here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from faithmeter.data.batch import Batch, Encoded
from faithmeter.importance import ImportanceMeasure
from faithmeter.in_distribution import MaSF
from faithmeter.judges import Columns
from faithmeter.judges.adversarial import INTEGRATED_POINTS, adversarial
from faithmeter.judges.drift import CLASS, Space, drift
from faithmeter.judges.erasure import erasure
from faithmeter.judges.fidelity import fidelity
from faithmeter.judges.ground_truth import ground_truth
from faithmeter.judges.randomisation import blocks, likeness, randomised, rank_correlation, untrained
from faithmeter.judges.rationales import in_batch
from faithmeter.masking import STEPS, Mask
from faithmeter.measuring.curves import held_by_the_most_important
from faithmeter.models.classifier import Classifier

SAME, EVERY = "same answer", "all texts"  # on which texts two models are compared


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
    space: Space | None = None
    other: Classifier | None = None
    known: dict[tuple[str, tuple[int, ...]], Tensor] = field(default_factory=dict)
    answers: dict[tuple[int, ...], Tensor] = field(default_factory=dict)
    fresh: dict[int, Classifier] = field(default_factory=dict)

    def predicted(self, batch: Batch) -> Tensor:
        """Return the class that the model gives each text as it is: the one that is explained."""
        which = tuple(batch.rows.tolist())
        if which not in self.answers:
            self.answers[which] = _answers_of(self.classifier, batch)
        return self.answers[which]

    def explained(self, batch: Batch, measure: ImportanceMeasure) -> Tensor:
        """Return the importance of each token for the predicted class."""
        which = measure.name, tuple(batch.rows.tolist())
        if which not in self.known:
            self.known[which] = measure.explain(self.classifier, batch, self.predicted(batch), self.seed)
        return self.known[which]

    def true_tokens(self, batch: Batch) -> Tensor:
        """Return which tokens of a batch matter, (rows, tokens)."""
        assert self.truth is not None
        return in_batch(self.test, self.truth, batch)


def _answers_of(classifier: Classifier, batch: Batch) -> Tensor:
    """Return the class that a model gives each text as it is."""
    rows, here = torch.arange(len(batch), device=classifier.device), batch.to(classifier.device)
    return classifier.logits_of_masks(here, rows, here.masked).argmax(dim=-1).cpu()


@dataclass(frozen=True)
class Judge:
    """A way to judge explanations.

    `judge(bench, batch, measure)` returns columns, one value a text; a name such as `cascading@layer 2` says after the
    @ which of several like numbers it is. `rows` is how many texts are judged unless somebody says otherwise; `fits`
    says of a measure whether it can be judged so. `scores` are the columns by which measures are ranked when judges are
    compared, and whether more is better: one for each thing it says, not for each way to say it. `passes(bench, n)` is
    about how many times a text goes through the model for a measure that explains it in n passes, to estimate the time.
    """

    name: str
    rows: int
    judge: Callable[[Bench, Batch, ImportanceMeasure], Columns]
    scores: Mapping[str, bool]
    fits: Callable[[ImportanceMeasure], bool] = lambda _: True
    passes: Callable[[Bench, float], float] = lambda _, explaining: explaining + 10


def _erased(bench: Bench, batch: Batch, measure: ImportanceMeasure) -> Columns:
    return erasure(bench.classifier, batch, bench.explained(batch, measure), masf=bench.masf)


def _flipped(bench: Bench, batch: Batch, measure: ImportanceMeasure) -> Columns:
    return fidelity(bench.classifier, batch, bench.explained(batch, measure), masf=bench.masf)


def _true(bench: Bench, batch: Batch, measure: ImportanceMeasure) -> Columns:
    return ground_truth(bench.explained(batch, measure), batch.maskable, bench.true_tokens(batch))


def _sparse(bench: Bench, batch: Batch, measure: ImportanceMeasure) -> Columns:
    held = held_by_the_most_important(bench.explained(batch, measure), batch.maskable).numpy()
    return {f"held@{10 * step} %": held[:, step] for step in range(1, STEPS)}


def _randomised(bench: Bench, batch: Batch, measure: ImportanceMeasure) -> Columns:
    targets, before = bench.predicted(batch), bench.explained(batch, measure)
    columns: Columns = {}
    for way in ("cascading", "independent"):
        for block, changed in randomised(bench.classifier, cascading=way == "cascading", seed=bench.seed):
            after = measure.explain(changed, batch, targets, bench.seed)
            columns[f"{way}@{block}"] = rank_correlation(before, after, batch.maskable)
    return columns


def _drifted(bench: Bench, batch: Batch, measure: ImportanceMeasure) -> Columns:
    assert bench.space is not None
    columns = drift(bench.classifier, batch, bench.explained(batch, measure), bench.space, masf=bench.masf)
    return {**columns, CLASS: bench.predicted(batch).double().numpy()}


def _untrained(bench: Bench, batch: Batch, measure: ImportanceMeasure) -> Columns:
    if bench.seed not in bench.fresh:
        bench.fresh[bench.seed] = untrained(bench.classifier, bench.seed)
    after = measure.explain(bench.fresh[bench.seed], batch, bench.predicted(batch), bench.seed)
    return likeness(bench.explained(batch, measure), after, batch.maskable)


def _other_seed(bench: Bench, batch: Batch, measure: ImportanceMeasure) -> Columns:
    """Compare with a model trained with another seed, on all texts and on those to which both give the same answer.

    Explained is the answer of the model that is judged: where the other gives another, explanations may well differ.
    """
    assert bench.other is not None
    targets = bench.predicted(batch)
    same = (_answers_of(bench.other, batch) == targets).double().numpy()
    after = measure.explain(bench.other, batch, targets, bench.seed)
    columns: Columns = {"same_answer": same}
    for name, values in likeness(bench.explained(batch, measure), after, batch.maskable).items():
        columns |= {f"{name}@{SAME}": np.where(same == 1, values, np.nan), f"{name}@{EVERY}": values}
    return columns


def _quick(one: ImportanceMeasure) -> bool:
    """Whether a measure explains by a few passes: what takes hundreds would take hours on several models.

    Random importance is of no model, and has nothing to change with it.
    """
    return one.family in ("gradient", "attention") or one.name in ("loo-signed", "loo-abs")


def _attacked(bench: Bench, batch: Batch, measure: ImportanceMeasure) -> Columns:
    columns: Columns = {}
    for way in ("unconstrained", "constrained"):
        found = adversarial(
            bench.classifier,
            batch,
            measure,
            constrained=way == "constrained",
            seed=bench.seed,
            steps=bench.adversary_steps,
        )
        columns |= {f"{name}@{way}": values for name, values in found.items()}
    return columns


_TABLE = (
    Judge("erasure", 200, _erased, {"comprehensiveness": True, "sufficiency": False}),
    Judge("fidelity", 200, _flipped, {"masked_until_flip": False}),
    # on a bench whose texts were attacked; what is explained and masked is the attacked text
    Judge("fidelity-attacked", 200, _flipped, {"masked_until_flip": False}),
    Judge("sparsity", 200, _sparse, {}, passes=lambda _, explaining: explaining),
    # a distance says nothing about a measure being good, so nobody is ranked by it
    Judge("drift", 200, _drifted, {}, passes=lambda _, explaining: explaining + STEPS + 1),
    Judge(
        "randomisation",
        50,
        _randomised,
        {"cascading": False, "independent": False},
        _quick,
        lambda bench, explaining: (2 * len(blocks(bench.classifier.model)) + 1) * explaining,
    ),
    # the first is said by layer randomisation already; the second is best for a measure that reads no model at all
    Judge("random-weights", 200, _untrained, {}, _quick, lambda _, explaining: 2 * explaining),
    Judge("other-seed", 200, _other_seed, {}, _quick, lambda _, explaining: 2 * explaining + 1),
    Judge(
        "adversarial",
        20,
        _attacked,
        {"rank_change": False},
        lambda one: one.differentiable,
        # two searches, and the gradient of a gradient at each of their steps; long ones follow fewer points
        lambda bench, explaining: 2 * bench.adversary_steps * 3 * min(explaining, 3 * INTEGRATED_POINTS),
    ),
    Judge("known-token", 200, _true, {"mean_rank": False}),
    Judge("plausibility", 200, _true, {"average_precision": True}),
)
JUDGES: Mapping[str, Judge] = MappingProxyType({judge.name: judge for judge in _TABLE})
