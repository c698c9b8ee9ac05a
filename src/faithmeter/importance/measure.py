"""An importance measure: a function that explains a batch, with its properties; and what such functions share.

A formula of the word embeddings is written once and evaluated at any point (`ExplainAt`): at the embeddings of a text
it explains that text; at embeddings that require a gradient it can be differentiated with respect to them, which a
search for adversarial explanations needs. `of_units` turns a measure of tokens into one of units.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from faithmeter.errors import InputError

if TYPE_CHECKING:
    from faithmeter.data.batch import Batch, Ints
    from faithmeter.masking import Mask
    from faithmeter.models.classifier import Classifier

ONCE = "-once"  # ends the name of a measure that is explained once, though it could be again on masked texts
Floats = np.ndarray[Any, np.dtype[Any]]
Explain = Callable[["Classifier", "Batch", Tensor, int], Tensor]
# (classifier, batch, embeddings, targets), all on the classifier's device -> logits and (texts, tokens) importance at
# those embeddings, 0 where a token is not maskable; differentiable by the embeddings where they require a gradient
ExplainAt = Callable[["Classifier", "Batch", Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class ImportanceMeasure:
    """An importance measure: a function with a name and its properties.

    `explain(classifier, batch, targets, seed)` returns the (texts, tokens) importance of each token for the logit of
    each text's target class, with the batch's masked tokens masked; 0 where a token is not maskable. Where the batch
    has units, every token of a unit has the importance of the unit: that of masking it whole, or what `of_units` makes
    of the importance of its tokens. `passes(n)` is about how many times a text of n unmasked units goes through the
    model, to estimate the time; a backward pass counts as two. `recursive` says that it is computed again on the masked
    input at every masking step. `at` is the same measure at any embeddings, where it has a gradient by them.
    `absolute_of` names the measure whose absolute value this one is, `not_for` the `model_type` of the models that it
    cannot explain, `meaning` says in a sentence what it is. `on_request`: compared only if it is named. `expensive`:
    hundreds of passes, too many for all texts of a training. `order_only`: its numbers are ranks. `from_zero`: it
    compares with an embedding of zeros, which is no start for some models (`completeness`). `stepped` returns it with
    another number of integration steps, where it has steps. `given`: its explanations are of certain texts and were
    made before, so it explains no other texts and no other model. `by_gradient`: it needs gradients, though it is of
    another family than those.
    """

    name: str
    family: str
    explain: Explain
    passes: Callable[[int], float] | None = None
    _: KW_ONLY
    signed: bool
    recursive: bool = True
    at: ExplainAt | None = None
    absolute_of: str | None = None
    not_for: str | None = None
    meaning: str = ""
    on_request: bool = False
    expensive: bool = False
    order_only: bool = False
    from_zero: bool = False
    stepped: Callable[[int], ImportanceMeasure] | None = None
    given: bool = False
    by_gradient: bool = False

    @property
    def differentiable(self) -> bool:
        """Whether it has a gradient by the word embeddings."""
        return self.at is not None

    @property
    def needs_gradients(self) -> bool:
        """Whether it needs more of a model than its answers and attentions: those of a quantised one are all it has."""
        return self.by_gradient or self.family == "gradient"

    def explains(self, model_type: str) -> bool:
        """Whether it can explain models of this type, as their `config.model_type` names it."""
        return self.not_for != model_type


def with_steps(measure: ImportanceMeasure, steps: int) -> ImportanceMeasure:
    """Return a measure with another number of integration steps; one without steps as it is."""
    return measure if measure.stepped is None else measure.stepped(steps)


def explained_once(measure: ImportanceMeasure) -> ImportanceMeasure:
    """Return a measure that is not computed again on masked texts, as an explanation from elsewhere cannot be."""
    stepped = measure.stepped
    return replace(
        measure,
        name=measure.name + ONCE,
        recursive=False,
        absolute_of=measure.absolute_of and measure.absolute_of + ONCE,
        meaning=measure.meaning and f"{measure.meaning} Explained once, and not again at each step.",
        on_request=True,
        stepped=stepped and (lambda steps: explained_once(stepped(steps))),
    )


def of_function(explain: Explain) -> ImportanceMeasure:
    """Return a plain function of (classifier, batch, targets, seed) as a measure.

    A function is assumed to be signed and is computed again at each masking step. Its values for tokens that are not
    maskable are set to 0; for maskable ones they must be finite. With units, the importance of a unit is the sum over
    its tokens.
    """
    name = getattr(explain, "__name__", type(explain).__name__)
    return ImportanceMeasure(name, "custom", of_units(_checked(name, explain)), signed=True)


def _checked(name: str, explain: Explain) -> Explain:
    def explain_and_check(classifier: Classifier, batch: Batch, targets: Tensor, seed: int) -> Tensor:
        importance = explain(classifier, batch, targets, seed)
        if importance.shape != batch.maskable.shape:
            raise InputError(
                f"The importance measure {name} must return one number per token, {tuple(batch.maskable.shape)}; "
                f"it returned {tuple(importance.shape)}."
            )
        maskable = batch.maskable.to(importance.device)
        importance = importance.detach().float().masked_fill(~maskable, 0.0)
        if not importance.isfinite().all():
            raise InputError(f"The importance measure {name} returned a number that is not finite.")
        return importance

    return explain_and_check


def absolute(explain: Explain) -> Explain:
    """Return the measure that is the absolute value of another."""

    def explain_absolutely(classifier: Classifier, batch: Batch, targets: Tensor, seed: int) -> Tensor:
        return explain(classifier, batch, targets, seed).abs()

    return explain_absolutely


def of_the_text(explain_at: ExplainAt, classifier: Classifier, batch: Batch, targets: Tensor) -> Tensor:
    """Return the importance at the embeddings of the text itself, where the batch is."""
    here, targets = batch.to(classifier.device), targets.to(classifier.device)
    with torch.inference_mode(False):  # or they could not be differentiated by
        embeddings = classifier.embed(here)
    return explain_at(classifier, here, embeddings, targets)[1].detach().to(batch.maskable.device)


def absolute_at(explain_at: ExplainAt) -> ExplainAt:
    """Return the absolute value of a measure at any embeddings."""

    def explain_absolutely(
        classifier: Classifier, batch: Batch, embeddings: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        logits, importance = explain_at(classifier, batch, embeddings, targets)
        return logits, importance.abs()

    return explain_absolutely


# ------------------------------------------------------------------------------------------------------------- units


@dataclass(frozen=True)
class TextUnits:
    """Units of one text: `unit` is the number of each token's, counted from 0, and -1 where it is of none."""

    unit: Ints
    count: int

    def tokens_of(self, sets: Mask) -> Mask:
        """Return sets of units, (sets, units), as sets of tokens."""
        none = np.zeros((len(sets), 1), dtype=np.bool_)
        return np.concatenate((sets, none), axis=1)[:, self.unit]  # the last column is that of -1

    def spread(self, values: Floats) -> Floats:
        """Return numbers per unit as numbers per token; 0 for tokens without a unit."""
        return np.append(values, 0.0)[self.unit]


def units_in(batch: Batch, tokens: Tensor) -> list[TextUnits]:
    """Return the units that these of a batch's tokens make up, of each text."""
    chosen = tokens.cpu().numpy()
    ids = (
        np.broadcast_to(np.arange(chosen.shape[1]), chosen.shape) if batch.units is None else batch.units.cpu().numpy()
    )
    found = []
    for mine, within in zip(ids, chosen, strict=True):
        present, number = np.unique(mine[within], return_inverse=True)
        unit = np.full(len(mine), -1, dtype=np.int64)
        unit[within] = number
        found.append(TextUnits(unit, len(present)))
    return found


def open_units(batch: Batch) -> list[TextUnits]:
    """Return the units of each text that are left to mask."""
    return units_in(batch, batch.maskable & ~batch.masked)


def of_units(explain: Explain, power: int = 1) -> Explain:
    """Return a measure of tokens as one of units: (Σ importance^power)^(1/power) of a unit's tokens.

    The sum suits what adds up (input times gradient, integrated gradients, DeepLIFT, shares of attention) and is the L1
    norm of the block of one-hot inputs that a unit is; power 2 gives its L2 norm. Tokens stay as they are.
    """

    def explain_units(classifier: Classifier, batch: Batch, targets: Tensor, seed: int) -> Tensor:
        importance = explain(classifier, batch, targets, seed)
        if batch.units is None:
            return importance
        powered = importance if power == 1 else importance**power
        added = _totals(batch, powered.masked_fill(~batch.maskable.to(importance.device), 0.0))
        return added if power == 1 else added ** (1 / power)

    return explain_units


def even_shares(batch: Batch, importance: Tensor) -> Tensor:
    """Return importance with that of each unit divided among its tokens, so that sums over tokens are over units."""
    if batch.units is None:
        return importance
    sizes = _totals(batch, batch.maskable.to(importance.device, importance.dtype))
    return importance / sizes.clamp(min=1)


def _totals(batch: Batch, values: Tensor) -> Tensor:
    """Return at each maskable token the sum over its unit."""
    assert batch.units is not None
    units = batch.units.to(values.device).clamp(min=0)
    totals = torch.zeros_like(values).scatter_add_(1, units, values)
    return totals.gather(1, units).masked_fill(~batch.maskable.to(values.device), 0.0)


def drops_at(
    classifier: Classifier,
    batch: Batch,
    targets: Tensor,
    original: Tensor,
    units: Sequence[TextUnits],
    asked: Mapping[int, Mask],
) -> dict[int, Floats]:
    """Return the drop of the logit at every set of units that the search of a row requests, in packed passes for all.

    `original` are the logits that nothing more is masked in.
    """
    counts = [len(sets) for sets in asked.values()]
    every = np.concatenate([units[row].tokens_of(sets) for row, sets in asked.items()])
    rows = torch.tensor(list(asked)).repeat_interleave(torch.tensor(counts)).to(targets.device)
    masked = torch.from_numpy(every).to(targets.device) | batch.masked[rows]
    logits = classifier.logits_of_masks(batch, rows, masked)
    found = (original[rows] - logits.gather(1, targets[rows, None]).squeeze(1)).cpu().numpy()
    return dict(zip(asked, np.split(found, np.cumsum(counts)[:-1]), strict=True))


def along(units: TextUnits, order: Sequence[int]) -> Floats:
    """Return n … 1 along an order of units, at their tokens."""
    values = np.zeros(units.count)
    values[list(order)] = np.arange(len(order), 0, -1)
    return units.spread(values).astype(np.float32)
