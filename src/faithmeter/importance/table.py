"""The table of importance measures. To add one, write a function of (classifier, batch, targets, seed) and its row.

Each recursive measure also exists as `NAME-once`: explained once, for the unmasked text, as explanations from elsewhere
are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from faithmeter.errors import InputError, require_measure
from faithmeter.importance.attention import (
    attention,
    attention_at,
    attention_average,
    attention_average_at,
    attention_relevance,
    attention_relevance_at,
    attention_rollout,
    attention_rollout_at,
    scaled_attention,
    scaled_attention_at,
)
from faithmeter.importance.beam import WIDTH, beam
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
from faithmeter.importance.lrp import attention_lrp
from faithmeter.importance.measure import (
    ImportanceMeasure,
    absolute,
    absolute_at,
    explained_once,
    of_function,
    of_units,
)
from faithmeter.importance.occlusion import PASSES, leave_one_out, leave_one_out_sampled
from faithmeter.importance.points import (
    POINTS,
    gradient_shap,
    sequential_integrated_gradient,
    smooth_gradient,
    smooth_input_times_gradient,
)
from faithmeter.importance.search import evaluations, search
from faithmeter.importance.shapley import PAIRS, banzhaf, owen_passes, partition_shap, shapley_sampled
from faithmeter.importance.surrogate import kernel_shap, lime, samples_for
from faithmeter.models.bilstm import BiLSTMConfig

if TYPE_CHECKING:
    from faithmeter.importance.measure import Explain
    from faithmeter.models.classifier import Classifier


BASELINES = {"zero": "the zero embedding", "mask": "the mask token's embedding"}
BILSTM_TYPE = BiLSTMConfig.model_type  # has one attention, so nothing to average or to roll out


def integrated(
    name: str, *, signed: bool, baseline: str = "zero", steps: int = STEPS, on_request: bool = False
) -> ImportanceMeasure:
    """Return the row of an integrated gradient with so many steps from a baseline."""
    explain = of_units(partial(integrated_gradient, steps=steps, baseline=baseline))
    at = partial(integrated_gradient_at, steps=steps, baseline=baseline)
    return ImportanceMeasure(
        name,
        "gradient",
        explain if signed else absolute(explain),
        lambda _: 3 * steps,
        signed=signed,
        at=at if signed else absolute_at(at),
        absolute_of=None if signed else name.replace("-abs", "-signed"),
        meaning=f"Integrated gradients: gradients along a line from {BASELINES[baseline]} to the token's.",
        from_zero=baseline == "zero",
        on_request=on_request,
        stepped=lambda other: integrated(name, signed=signed, baseline=baseline, steps=other, on_request=on_request),
    )


def sequential(name: str, *, on_request: bool, expensive: bool, steps: int = STEPS) -> ImportanceMeasure:
    """Return the row of sequential integrated gradients with so many steps."""
    return ImportanceMeasure(
        name,
        "gradient",
        partial(sequential_integrated_gradient, steps=steps),
        lambda n: 3 * steps * n,
        signed=True,
        meaning="Integrated gradients of each token by itself, from the mask token's embedding, the others in place.",
        on_request=on_request,
        expensive=expensive,
        stepped=lambda other: sequential(name, steps=other, on_request=on_request, expensive=expensive),
    )


_TABLE = (
    ImportanceMeasure("random", "random", random_importance, lambda _: 0, signed=False, recursive=False),
    ImportanceMeasure(
        "grad-l1",
        "gradient",
        of_units(gradient_l1),
        lambda _: 3,
        signed=False,
        at=gradient_l1_at,
        meaning="L1 norm of the gradient of the class's score with respect to the token.",
    ),
    ImportanceMeasure(
        "grad-l2",
        "gradient",
        of_units(gradient_l2, power=2),
        lambda _: 3,
        signed=False,
        at=gradient_l2_at,
        meaning="L2 norm of the gradient of the class's score with respect to the token.",
    ),
    ImportanceMeasure(
        "x-grad-signed",
        "gradient",
        of_units(input_times_gradient),
        lambda _: 3,
        signed=True,
        at=input_times_gradient_at,
        meaning="Gradient of the class's score times the token's embedding.",
        from_zero=True,
    ),
    ImportanceMeasure(
        "x-grad-abs",
        "gradient",
        absolute(of_units(input_times_gradient)),
        lambda _: 3,
        signed=False,
        at=absolute_at(input_times_gradient_at),
        absolute_of="x-grad-signed",
        from_zero=True,
    ),
    integrated("ig-signed", signed=True),
    integrated("ig-abs", signed=False),
    ImportanceMeasure(
        "loo-signed",
        "occlusion",
        leave_one_out,
        lambda n: n + 1,
        signed=True,
        meaning="Leave-one-out: decrease of the class's score when only this token is masked.",
    ),
    ImportanceMeasure(
        "loo-abs",
        "occlusion",
        absolute(leave_one_out),
        lambda n: n + 1,
        signed=False,
        absolute_of="loo-signed",
    ),
    # of short texts it is loo-signed
    ImportanceMeasure(
        "loo-sampled",
        "occlusion",
        leave_one_out_sampled,
        lambda n: min(n + 1, PASSES),
        signed=True,
        on_request=True,
        meaning="Leave-one-out: decrease of the class's score when only this token is masked.",
    ),
    ImportanceMeasure(
        "beam",
        "occlusion",
        beam,
        lambda n: WIDTH * n * (n - 1) / 2 + 1,
        signed=True,
        recursive=False,
        expensive=True,
        meaning="Beam search for the order of masking that lowers the class's score soonest; an order, no amounts.",
        order_only=True,
    ),
    ImportanceMeasure(
        "search",
        "occlusion",
        search,
        evaluations,
        signed=True,
        recursive=False,
        expensive=True,
        meaning="The same with a surrogate of the score: hardly worse and several times as fast.",
        order_only=True,
    ),
    ImportanceMeasure(
        "attention",
        "attention",
        of_units(attention),
        lambda _: 1,
        signed=False,
        at=attention_at,
        meaning="Attention of the last layer to the token.",
    ),
    ImportanceMeasure(
        "scaled-attention",
        "attention",
        of_units(scaled_attention),
        lambda _: 3,
        signed=True,
        at=scaled_attention_at,
        by_gradient=True,
        meaning="Attention times the gradient of the class's score with respect to it.",
    ),
    ImportanceMeasure(
        "lime",
        "surrogate",
        lime,
        samples_for,
        signed=True,
        expensive=True,
        meaning="A linear model fitted to many random maskings of the text (LIME).",
    ),
    ImportanceMeasure(
        "kernel-shap",
        "surrogate",
        kernel_shap,
        samples_for,
        signed=True,
        expensive=True,
        meaning="Shapley values, estimated from many random maskings (KernelSHAP).",
    ),
    ImportanceMeasure(
        "attention-average",
        "attention",
        of_units(attention_average),
        lambda _: 1,
        signed=False,
        at=attention_average_at,
        not_for=BILSTM_TYPE,
        meaning="Attention to the token, averaged over all layers.",
    ),
    ImportanceMeasure(
        "attention-rollout",
        "attention",
        of_units(attention_rollout),
        lambda _: 1,
        signed=False,
        at=attention_rollout_at,
        not_for=BILSTM_TYPE,
        meaning="Product of the attentions of all layers (attention rollout).",
    ),
    ImportanceMeasure(
        "attention-rollout-residual",
        "attention",
        of_units(partial(attention_rollout, residual=True)),
        lambda _: 1,
        signed=False,
        at=partial(attention_rollout_at, residual=True),
        not_for=BILSTM_TYPE,
        meaning="Attention rollout with residual connections.",
    ),
    ImportanceMeasure(
        "deep-lift",
        "gradient",
        of_units(deep_lift),
        lambda _: 5,
        signed=True,
        at=deep_lift_at,
        meaning="Differences from the zero embedding, propagated back through the model (DeepLIFT).",
        from_zero=True,
    ),
    # ensembles compute again what their members do
    ImportanceMeasure(
        "ensemble-top3",
        "ensemble",
        ensemble((lime, kernel_shap, of_units(integrated_gradient))),
        lambda n: 2 * samples_for(n) + 3 * STEPS,
        signed=True,
        on_request=True,
        by_gradient=True,
        meaning="The mean of LIME, KernelSHAP and integrated gradients.",
        from_zero=True,
    ),
    ImportanceMeasure(
        "ensemble-all",
        "ensemble",
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
        lambda n: 2 * samples_for(n) + 3 * STEPS + 8,
        signed=True,
        not_for=BILSTM_TYPE,
        on_request=True,
        by_gradient=True,
        meaning="The mean of seven measures.",
        from_zero=True,
    ),
    # For models for which zero is no start (`completeness`). Last, so that the others keep their colours.
    integrated("ig-mask-signed", signed=True, baseline="mask", on_request=True),
    integrated("ig-mask-abs", signed=False, baseline="mask", on_request=True),
    ImportanceMeasure(
        "smooth-grad",
        "gradient",
        of_units(smooth_gradient, power=2),
        lambda _: 3 * POINTS,
        signed=False,
        on_request=True,
        expensive=True,
        meaning="L2 norm of the gradient, averaged over noisy copies of the text (SmoothGrad).",
    ),
    ImportanceMeasure(
        "smooth-x-grad",
        "gradient",
        of_units(smooth_input_times_gradient),
        lambda _: 3 * POINTS,
        signed=True,
        on_request=True,
        expensive=True,
        meaning="The token's embedding times the gradient averaged over noisy copies of the text.",
        from_zero=True,
    ),
    ImportanceMeasure(
        "gradient-shap",
        "gradient",
        of_units(gradient_shap),
        lambda _: 3 * POINTS,
        signed=True,
        on_request=True,
        expensive=True,
        meaning="Gradients at random points between the text and noisy mask embeddings (GradientSHAP).",
    ),
    sequential("sequential-ig", on_request=True, expensive=True),
    ImportanceMeasure(
        "shapley-sampled",
        "surrogate",
        shapley_sampled,
        lambda n: 2 * PAIRS * max(0, n - 1) + 2,
        signed=True,
        on_request=True,
        expensive=True,
        meaning="Shapley values, from adding tokens in random orders and their reverses.",
    ),
    ImportanceMeasure(
        "banzhaf",
        "surrogate",
        banzhaf,
        lambda n: samples_for(n) + 2,
        signed=True,
        on_request=True,
        expensive=True,
        meaning="Banzhaf values: mean score of random maskings with the token, less that of those without it.",
    ),
    ImportanceMeasure(
        "partition-shap",
        "surrogate",
        partition_shap,
        owen_passes,
        signed=True,
        on_request=True,
        expensive=True,
        meaning="Owen values: Shapley values of halves of the text, of their halves, down to the tokens.",
    ),
    ImportanceMeasure(
        "chefer",
        "attention",
        of_units(attention_relevance),
        lambda _: 3,
        signed=False,
        at=attention_relevance_at,
        not_for=BILSTM_TYPE,
        on_request=True,
        by_gradient=True,
        meaning="Positive part of attention times its gradient, propagated through all layers (Chefer et al.).",
    ),
    ImportanceMeasure(
        "attn-lrp",
        "gradient",
        of_units(attention_lrp),
        lambda _: 3,
        signed=True,
        not_for=BILSTM_TYPE,
        on_request=True,
        meaning="Relevance propagated from the class's score back to the token, layer by layer (AttnLRP).",
    ),
)


class _Measures(Mapping[str, ImportanceMeasure]):
    """The rows of the table by name; `NAME-once`, of each that is recursive, is found too, and not listed."""

    def __init__(self, table: Sequence[ImportanceMeasure]) -> None:
        self._rows = {row.name: row for row in table}
        self._once = {once.name: once for once in (explained_once(row) for row in table if row.recursive)}

    def __getitem__(self, name: str) -> ImportanceMeasure:
        return self._rows[name] if name in self._rows else self._once[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


IMPORTANCE_MEASURES: Mapping[str, ImportanceMeasure] = _Measures(_TABLE)
ON_REQUEST = tuple(row.name for row in _TABLE if row.on_request)
EXPENSIVE = tuple(row.name for row in _TABLE if row.expensive)
ORDER_ONLY = tuple(row.name for row in _TABLE if row.order_only)
NOT_RETRAINED = (*EXPENSIVE, *ON_REQUEST)  # not for all texts of a training, unless they are named


def measures_of(model_type: str) -> list[str]:
    """Return the measures that can explain a model of this type, except `random`, which explains nothing."""
    return [row.name for row in _TABLE if row.name != "random" and row.explains(model_type)]


def explaining(classifier: Classifier) -> list[str]:
    """Return the measures that can explain a model: all of its type, or those that need no gradients if it has none."""
    names = measures_of(classifier.model.config.model_type)
    return [name for name in names if classifier.gradients or not IMPORTANCE_MEASURES[name].needs_gradients]


def require_gradients(measures: Sequence[ImportanceMeasure], classifier: Classifier) -> None:
    """Refuse measures that need gradients for a model that has none."""
    unfit = next((one.name for one in measures if one.needs_gradients and not classifier.gradients), None)
    if unfit is not None:
        able = [name for name in explaining(classifier) if name not in ON_REQUEST]
        raise InputError(
            f"{unfit} needs gradients, which a quantised model does not have. Name measures that only ask the model: "
            f"{', '.join(able)}."
        )


def is_signed(name: str) -> bool:
    """Whether a measure tells tokens for a class from tokens against it; a user's own is taken to."""
    return name not in IMPORTANCE_MEASURES or IMPORTANCE_MEASURES[name].signed


def as_measure(measure: str | Explain | ImportanceMeasure) -> ImportanceMeasure:
    """Return the measure of that name, or a function as a measure (`of_function`)."""
    if isinstance(measure, ImportanceMeasure):
        return measure
    if not isinstance(measure, str):
        return of_function(measure)
    if measure not in IMPORTANCE_MEASURES:  # which knows more names than it lists
        require_measure(measure, IMPORTANCE_MEASURES)
    return IMPORTANCE_MEASURES[measure]


def distinct(
    chosen: Sequence[str | Explain | ImportanceMeasure] | None, classifier: Classifier
) -> list[ImportanceMeasure]:
    """Return the measures to compare: those named, or all that can explain the model but those `ON_REQUEST`.

    `random` is not one of them: it is the baseline, and always there.
    """
    model_type = classifier.model.config.model_type
    if chosen is None:
        chosen = [name for name in explaining(classifier) if name not in ON_REQUEST]
    measures = [one for one in map(as_measure, chosen) if one.name != "random"]
    unfit = next((one.name for one in measures if not one.explains(model_type)), None)
    if unfit is not None:
        raise InputError(f"{unfit} cannot explain a {model_type} model: leave out this measure.")
    require_gradients(measures, classifier)
    names = [one.name for one in measures]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"Two importance measures are named {twice!r}: give each a different name.")
    if not measures:
        raise InputError("There is nothing to compare with random masking: name an importance measure.")
    return measures
