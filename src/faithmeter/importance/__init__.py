"""Importance measures: functions that explain a batch, and the one table that names them.

To add one, write a function of (classifier, batch, targets, seed) and give it a row here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from torch import Tensor

from faithmeter.data.batch import Batch
from faithmeter.errors import InputError, nearest
from faithmeter.importance.at_embeddings import ExplainAt, absolute_at
from faithmeter.importance.attention import (
    attention,
    attention_at,
    attention_average,
    attention_average_at,
    attention_rollout,
    attention_rollout_at,
    scaled_attention,
    scaled_attention_at,
)
from faithmeter.importance.beam import WIDTH, beam
from faithmeter.importance.by_units import Explain, of_units
from faithmeter.importance.chance import random_importance
from faithmeter.importance.deep_lift import deep_lift, deep_lift_at
from faithmeter.importance.ensemble import ensemble
from faithmeter.importance.gradient import (
    STEPS,
    gradient_l1,
    gradient_l1_at,
    gradient_l2,
    gradient_l2_at,
    input_times_gradient,
    input_times_gradient_at,
    integrated_gradient,
    integrated_gradient_at,
)
from faithmeter.importance.occlusion import PASSES, leave_one_out, leave_one_out_sampled
from faithmeter.importance.search import evaluations, search
from faithmeter.importance.surrogate import SAMPLES, kernel_shap, lime
from faithmeter.models.bilstm import BiLSTMConfig
from faithmeter.models.classifier import Classifier


@dataclass(frozen=True)
class ImportanceMeasure:
    """An importance measure: a function with a name and its properties.

    `explain(classifier, batch, targets, seed)` returns the (rows, tokens) importance of each token for the logit of
    each row's target class, with the batch's masked tokens masked; 0 where a token is not maskable. Where the batch has
    units, every token of a unit has the importance of the unit: that of masking it whole, or what `of_units` makes of
    the importance of its tokens. `recursive` means that it is computed again on the masked input at every masking step;
    `differentiable` that it has a gradient with respect to the word embeddings: then `at` is the same measure at any
    embeddings. `passes(n)` is about the number of forward passes for a text of n unmasked units, to estimate the time;
    a backward pass counts as two. `absolute_of` names the measure whose absolute value this one is. `not_for` is the
    `model_type` of the models that it cannot explain. `on_request` measures are compared only if named; `expensive`
    ones take hundreds of passes, too many for all training texts.
    """

    name: str
    family: str
    signed: bool
    recursive: bool
    differentiable: bool
    explain: Explain
    passes: Callable[[int], float] | None = None
    absolute_of: str | None = None
    not_for: str | None = None
    at: ExplainAt | None = None
    on_request: bool = False
    expensive: bool = False

    def explains(self, model_type: str) -> bool:
        """Whether it can explain models of this type, as their `config.model_type` names it."""
        return self.not_for != model_type


def absolute(explain: Explain) -> Explain:
    """Return the measure that is the absolute value of another."""

    def explain_absolutely(classifier: Classifier, batch: Batch, targets: Tensor, seed: int) -> Tensor:
        return explain(classifier, batch, targets, seed).abs()

    return explain_absolutely


BILSTM_TYPE = BiLSTMConfig.model_type  # has one attention, so nothing to average or to roll out
_TABLE = (
    # name, family, signed, recursive, differentiable, explain, passes, absolute_of
    ImportanceMeasure("random", "random", False, False, False, random_importance, lambda _: 0),
    ImportanceMeasure("grad-l1", "gradient", False, True, True, of_units(gradient_l1), lambda _: 3, at=gradient_l1_at),
    ImportanceMeasure(
        "grad-l2", "gradient", False, True, True, of_units(gradient_l2, power=2), lambda _: 3, at=gradient_l2_at
    ),
    ImportanceMeasure(
        "x-grad-signed",
        "gradient",
        True,
        True,
        True,
        of_units(input_times_gradient),
        lambda _: 3,
        at=input_times_gradient_at,
    ),
    ImportanceMeasure(
        "x-grad-abs",
        "gradient",
        False,
        True,
        True,
        absolute(of_units(input_times_gradient)),
        lambda _: 3,
        "x-grad-signed",
        at=absolute_at(input_times_gradient_at),
    ),
    ImportanceMeasure(
        "ig-signed",
        "gradient",
        True,
        True,
        True,
        of_units(integrated_gradient),
        lambda _: 3 * STEPS,
        at=integrated_gradient_at,
    ),
    ImportanceMeasure(
        "ig-abs",
        "gradient",
        False,
        True,
        True,
        absolute(of_units(integrated_gradient)),
        lambda _: 3 * STEPS,
        "ig-signed",
        at=absolute_at(integrated_gradient_at),
    ),
    ImportanceMeasure("loo-signed", "occlusion", True, True, False, leave_one_out, lambda n: n + 1),
    ImportanceMeasure(
        "loo-abs", "occlusion", False, True, False, absolute(leave_one_out), lambda n: n + 1, "loo-signed"
    ),
    ImportanceMeasure(
        "loo-sampled",
        "occlusion",
        True,
        True,
        False,
        leave_one_out_sampled,
        lambda n: min(n + 1, PASSES),
        on_request=True,
    ),
    ImportanceMeasure(
        "beam", "occlusion", True, False, False, beam, lambda n: WIDTH * n * (n - 1) / 2 + 1, expensive=True
    ),
    ImportanceMeasure("search", "occlusion", True, False, False, search, evaluations, expensive=True),
    ImportanceMeasure("attention", "attention", False, True, True, of_units(attention), lambda _: 1, at=attention_at),
    ImportanceMeasure(
        "scaled-attention",
        "attention",
        True,
        True,
        True,
        of_units(scaled_attention),
        lambda _: 3,
        at=scaled_attention_at,
    ),
    ImportanceMeasure("lime", "surrogate", True, True, False, lime, lambda _: SAMPLES, expensive=True),
    ImportanceMeasure("kernel-shap", "surrogate", True, True, False, kernel_shap, lambda _: SAMPLES, expensive=True),
    ImportanceMeasure(
        "attention-average",
        "attention",
        False,
        True,
        True,
        of_units(attention_average),
        lambda _: 1,
        not_for=BILSTM_TYPE,
        at=attention_average_at,
    ),
    ImportanceMeasure(
        "attention-rollout",
        "attention",
        False,
        True,
        True,
        of_units(attention_rollout),
        lambda _: 1,
        not_for=BILSTM_TYPE,
        at=attention_rollout_at,
    ),
    ImportanceMeasure(
        "attention-rollout-residual",
        "attention",
        False,
        True,
        True,
        of_units(partial(attention_rollout, residual=True)),
        lambda _: 1,
        not_for=BILSTM_TYPE,
        at=partial(attention_rollout_at, residual=True),
    ),
    ImportanceMeasure("deep-lift", "gradient", True, True, True, of_units(deep_lift), lambda _: 5, at=deep_lift_at),
    ImportanceMeasure(
        "ensemble-top3",
        "ensemble",
        True,
        True,
        False,
        ensemble((lime, kernel_shap, of_units(integrated_gradient))),
        lambda _: 2 * SAMPLES + 3 * STEPS,
        on_request=True,
    ),
    ImportanceMeasure(
        "ensemble-all",
        "ensemble",
        True,
        True,
        False,
        ensemble(
            (
                of_units(gradient_l2, power=2),
                of_units(input_times_gradient),
                of_units(integrated_gradient),
                of_units(attention_average),
                of_units(attention_rollout),
                lime,
                kernel_shap,
            )
        ),
        lambda _: 2 * SAMPLES + 3 * STEPS + 8,
        not_for=BILSTM_TYPE,
        on_request=True,
    ),
    # last, so that the others keep their colours
    ImportanceMeasure(
        "ig-mask-signed",
        "gradient",
        True,
        True,
        True,
        of_units(partial(integrated_gradient, baseline="mask")),
        lambda _: 3 * STEPS,
        at=partial(integrated_gradient_at, baseline="mask"),
        on_request=True,
    ),
    ImportanceMeasure(
        "ig-mask-abs",
        "gradient",
        False,
        True,
        True,
        absolute(of_units(partial(integrated_gradient, baseline="mask"))),
        lambda _: 3 * STEPS,
        "ig-mask-signed",
        at=absolute_at(partial(integrated_gradient_at, baseline="mask")),
        on_request=True,
    ),
)
IMPORTANCE_MEASURES: Mapping[str, ImportanceMeasure] = MappingProxyType({row.name: row for row in _TABLE})
# Not compared unless named: of short texts loo-sampled is loo-signed, and ensembles explain all over again what their
# members do. From the mask token, integrated gradients are for models for which zero is no start (`completeness`).
ON_REQUEST = tuple(row.name for row in _TABLE if row.on_request)
# hundreds of forward passes per text: too many for the thousands of texts of a training split
EXPENSIVE = tuple(row.name for row in _TABLE if row.expensive)


def with_steps(measure: ImportanceMeasure, steps: int) -> ImportanceMeasure:
    """Return an integrated gradient with another number of steps; any other measure as it is."""
    starts = {"ig-signed": "zero", "ig-abs": "zero", "ig-mask-signed": "mask", "ig-mask-abs": "mask"}
    if measure.name not in starts:
        return measure
    start = starts[measure.name]
    explain = partial(integrated_gradient, steps=steps, baseline=start)
    at = partial(integrated_gradient_at, steps=steps, baseline=start)
    return replace(
        measure,
        explain=of_units(explain) if measure.signed else absolute(of_units(explain)),
        passes=lambda _: 3 * steps,
        at=at if measure.signed else absolute_at(at),
    )


def measures_of(model_type: str) -> list[str]:
    """Return the measures that can explain a model of this type, but for `random`, which explains nothing."""
    return [row.name for row in _TABLE if row.name != "random" and row.explains(model_type)]


def is_signed(name: str) -> bool:
    """Whether a measure tells tokens for a class from tokens against it; a user's own is taken to."""
    return name not in IMPORTANCE_MEASURES or IMPORTANCE_MEASURES[name].signed


def as_measure(measure: str | Explain | ImportanceMeasure) -> ImportanceMeasure:
    """Return the measure of that name, or a plain function of (classifier, batch, targets, seed) as a measure.

    A function is assumed to be signed and is computed again at each masking step. Its values for tokens that are not
    maskable are set to 0; for maskable ones they must be finite. With units, the importance of a unit is the sum over
    its tokens.
    """
    if isinstance(measure, ImportanceMeasure):
        return measure
    if isinstance(measure, str):
        if measure not in IMPORTANCE_MEASURES:
            raise InputError(f"There is no importance measure {measure!r}.{nearest(measure, IMPORTANCE_MEASURES)}")
        return IMPORTANCE_MEASURES[measure]
    name = getattr(measure, "__name__", type(measure).__name__)
    return ImportanceMeasure(name, "custom", True, True, False, of_units(_checked(name, measure)))


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
