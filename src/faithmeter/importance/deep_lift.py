"""DeepLIFT with the Rescale rule (Shrikumar et al., 2017), from the zero embedding, as integrated gradients are.

The logit's change from the baseline to the text is distributed over the tokens by a backward pass in which each
activation function propagates (f(u) − f(u⁰)) / (u − u⁰) instead of its slope f′(u); u⁰ is its input when every
embedding is the baseline. Activation functions are those of `ACTIVATIONS` and the modules of
`transformers.activations`: GELU, ReLU, SiLU, tanh, sigmoid and similar ones. Everything else (linear layers, the
products and softmax of attention, layer norms, the gates inside an LSTM) propagates its gradient at the text, so the
shares add up to the change of the logit exactly only if activations are the only non-linear part.

Own code, because captum replaces the gradients of modules only: it does not see the tanh that RoBERTa's head calls as a
function, and its result cannot be differentiated once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from faithmeter.importance.measure import of_the_text
from faithmeter.models.temporary import explaining, twice_differentiable
from faithmeter.progress import yield_to_cancellation

if TYPE_CHECKING:
    from faithmeter.data.batch import Batch
    from faithmeter.models.classifier import Classifier

Activation = Callable[[Tensor], Tensor]
ACTIVATIONS = {
    functional.gelu, functional.silu, functional.mish, functional.elu, functional.selu, functional.celu,
    functional.softplus, functional.leaky_relu, functional.relu6, functional.hardtanh, functional.hardswish,
    functional.relu, torch.relu, torch.Tensor.relu, torch.tanh, torch.Tensor.tanh, torch.sigmoid, torch.Tensor.sigmoid,
}  # fmt: skip
# Below this distance the quotient is mostly rounding; the slope halfway is as good to seven digits.
NEAR = 1e-3


def deep_lift(classifier: Classifier, batch: Batch, targets: Tensor, _seed: int) -> Tensor:
    """Return Σ_d multiplier · (e − b) of each token, b = 0: Sec. 3.5.2 of Shrikumar et al. (2017), the Rescale rule."""
    return of_the_text(deep_lift_at, classifier, batch, targets)


def deep_lift_at(classifier: Classifier, batch: Batch, embeddings: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits and `deep_lift` at these embeddings."""
    with explaining(classifier.model):
        logits = torch.zeros(len(batch), classifier.model.config.num_labels, device=classifier.device)
        importance = torch.zeros(batch.maskable.shape, device=classifier.device)
        for rows in classifier.packed(classifier.lengths(batch)):
            part = batch.take(rows)
            length = part.input_ids.shape[1]
            point = embeddings[rows, :length]
            look = partial(_multipliers, classifier)
            logits[rows], multipliers = classifier.memory.through(part, look, point, targets[rows])
            importance[rows, :length] = (point * multipliers).sum(dim=-1).float()
    return logits, importance.masked_fill(~batch.maskable, 0.0)


def _multipliers(classifier: Classifier, batch: Batch, embeddings: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits, and what a backward pass by the Rescale rule gives at the embeddings."""
    yield_to_cancellation()
    twice = embeddings.requires_grad
    rescale = _Rescale(twice)
    with activations_as_a_whole(classifier.model, rescale.activation):
        with rescale, torch.no_grad():
            classifier.logits_from(batch, torch.zeros_like(embeddings))
        rescale.recording = False
        with torch.enable_grad():
            point = embeddings if twice else embeddings.detach().clone().requires_grad_()
            with rescale, twice_differentiable() if twice else nullcontext():
                logits = classifier.logits_from(batch, point)
            wanted = logits.gather(1, targets[:, None]).sum()
            rescale.sharing = True
            (multipliers,) = torch.autograd.grad(wanted, point, create_graph=twice)
            rescale.sharing = False
    return logits if twice else logits.detach(), multipliers


class _Rescale(TorchFunctionMode):
    """Watches every activation function that is called inside: first at the baseline, then at the text.

    The same calls come in the same order. `sharing` is set while shares go backwards by the Rescale rule; at any other
    time the gradients are the true ones, so that the shares themselves can be differentiated.
    """

    def __init__(self, twice: bool) -> None:
        super().__init__()
        self.twice = twice
        self.recording, self.sharing, self.inside = True, False, False
        self.baseline: list[tuple[Tensor, Tensor]] = []
        self.calls = 0

    def __torch_function__(
        self,
        function: Callable[..., Tensor],
        types: object,
        arguments: tuple[Any, ...] = (),
        named: dict[str, Any] | None = None,
    ) -> Tensor:
        """Do as the function does; an activation function goes backwards by the Rescale rule."""
        named = named or {}
        if self.inside or function not in ACTIVATIONS:
            return function(*arguments, **named)
        named = {**named, "inplace": False} if "inplace" in named else named  # its input is still needed
        first, *others = arguments or (named.pop("input"),)
        return self.activation(lambda inputs: function(inputs, *others, **named), first)

    def activation(self, function: Activation, inputs: Tensor) -> Tensor:
        """Return f(u): remembered at the baseline, with another way backwards at the text."""
        self.inside = True  # an activation may be made of others, and is rescaled as a whole
        try:
            if self.recording:
                outputs = function(inputs)
                self.baseline.append((inputs, outputs))
                return outputs
            start = self.baseline[self.calls]
            self.calls += 1
            with torch.set_grad_enabled(self.twice):
                outputs = function(inputs)
                multiplier = _rise(function, inputs, outputs, *start)
            return _Shared.apply(inputs, outputs, multiplier, self)
        finally:
            self.inside = False


class _Shared(torch.autograd.Function):
    """Returns the outputs; backwards, by the multiplier while shares are taken, and else as the function itself."""

    @staticmethod
    def forward(context: Any, _inputs: Tensor, outputs: Tensor, multiplier: Tensor, rescale: _Rescale) -> Tensor:  # noqa: ANN401
        """Return the outputs."""
        context.save_for_backward(multiplier)
        context.rescale = rescale
        return outputs.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:  # noqa: ANN401
        """Return the gradients of inputs and outputs."""
        if not context.rescale.sharing:
            return None, gradient, None, None
        (multiplier,) = context.saved_tensors
        return gradient * multiplier, None, None, None


def _rise(
    function: Activation, inputs: Tensor, outputs: Tensor, baseline_inputs: Tensor, baseline_outputs: Tensor
) -> Tensor:
    """Return (f(u) − f(u⁰)) / (u − u⁰), and the slope halfway where both are next to equal."""
    change = inputs - baseline_inputs
    near = change.abs() < NEAR
    rise = (outputs - baseline_outputs) / change.masked_fill(near, 1.0)
    if not near.any():
        return rise
    twice = change.requires_grad
    with torch.enable_grad():
        middle = baseline_inputs + change / 2
        middle = middle if twice else middle.detach().requires_grad_()
        (slope,) = torch.autograd.grad(function(middle).sum(), middle, create_graph=twice)
    return torch.where(near, slope, rise)


@contextmanager
def activations_as_a_whole(model: nn.Module, as_one: Callable[[Activation, Tensor], Tensor]) -> Iterator[None]:
    """Let modules that are activation functions of their own making be seen as one: some are built of products."""
    changed: list[nn.Module] = []
    try:
        for module in model.modules():
            if type(module).__module__ == "transformers.activations" and "forward" not in vars(module):
                # of the instance, and taken away again: the class and every other model of it stay as they are
                module.forward = partial(as_one, module.forward)
                changed.append(module)
        yield
    finally:
        for module in changed:
            del module.forward
