"""AttnLRP: layer-wise relevance propagation through transformers (Achtibat et al., 2024).

The relevance of the logit is propagated back to the word embeddings, where it is the gradient times the embedding, the
gradient being that of these rules:

- linear layers and sums keep their gradient, which is the ε rule with ε = 0; a bias keeps its part of the relevance
- an activation function passes on f(x) / x instead of its slope (the identity rule)
- a norm is a linear map: what it divides by is taken to be constant (the identity rule)
- each factor of a product gets half: gates, queries times keys, attention times values
- a softmax keeps its gradient (a Taylor expansion, whose constant keeps its part of the relevance)

Own code, because the authors' package exchanges the code of a few architectures. Here the operations themselves are
watched, as for DeepLIFT, in the plain implementation of attention: a product is one of two tensors that both depend on
the embeddings.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from faithmeter.importance.deep_lift import ACTIVATIONS, Activation, activations_as_a_whole
from faithmeter.importance.measure import of_the_text
from faithmeter.models.temporary import eager_attention, frozen
from faithmeter.progress import yield_to_cancellation

if TYPE_CHECKING:
    from faithmeter.data.batch import Batch
    from faithmeter.models.classifier import Classifier

LAYER_NORMS = {functional.layer_norm, torch.layer_norm}
RMS_NORMS = {functional.rms_norm, torch.rms_norm}
ROOTS = {torch.rsqrt, torch.Tensor.rsqrt}  # what the norms that are written out divide by
PRODUCTS = {
    torch.mul, torch.Tensor.mul, torch.Tensor.__mul__, torch.Tensor.__rmul__, torch.matmul, torch.Tensor.matmul,
    torch.Tensor.__matmul__, torch.bmm, torch.Tensor.bmm, torch.einsum, torch.functional.einsum,
}  # fmt: skip
NEAR = 1e-6  # below which an input is taken to be that far from 0, so that it divides


def attention_lrp(classifier: Classifier, batch: Batch, targets: Tensor, _seed: int) -> Tensor:
    """Return the relevance Σ_d e · g of each token, g the gradient by the rules above (Achtibat et al., 2024)."""
    return of_the_text(_attention_lrp_at, classifier, batch, targets)


def _attention_lrp_at(
    classifier: Classifier, batch: Batch, embeddings: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    with frozen(classifier.model), eager_attention(classifier.model), torch.inference_mode(False):
        logits = torch.zeros(len(batch), classifier.model.config.num_labels, device=classifier.device)
        importance = torch.zeros(batch.maskable.shape, device=classifier.device)
        for rows in classifier.packed(batch.attention_mask.sum(dim=1)):
            part = batch.take(rows)
            length = part.input_ids.shape[1]
            point = embeddings[rows, :length]
            look = partial(_relevance, classifier)
            logits[rows], relevance = classifier.memory.through(part, look, point, targets[rows])
            importance[rows, :length] = relevance.sum(dim=-1).float()
    return logits, importance.masked_fill(~batch.maskable, 0.0)


def _relevance(classifier: Classifier, batch: Batch, embeddings: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits, which no rule changes, and the relevance of each number in the embeddings."""
    yield_to_cancellation()
    rules = Rules()
    with torch.enable_grad(), activations_as_a_whole(classifier.model, rules.activation):
        point = embeddings.detach().clone().requires_grad_()
        with rules:
            logits = classifier.logits_from(batch, point)
        (gradients,) = torch.autograd.grad(logits.gather(1, targets[:, None]).sum(), point)
    return logits.detach(), embeddings * gradients


class Rules(TorchFunctionMode):
    """Lets every operation inside do as it does, and go backwards by the rules of AttnLRP."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = False

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: object,
        arguments: tuple[Any, ...] = (),
        named: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 (whatever the function returns)
        """Do as the function does."""
        named = named or {}
        if self.inside:
            return function(*arguments, **named)
        if function in ACTIVATIONS:
            named = {**named, "inplace": False} if "inplace" in named else named  # its input is still needed
            first, *others = arguments or (named.pop("input"),)
            return self.activation(lambda inputs: function(inputs, *others, **named), first)
        if function in LAYER_NORMS:
            return _layer_norm(*arguments, **named)
        if function in RMS_NORMS:
            return _rms_norm(*arguments, **named)
        if function in ROOTS:
            return function(*arguments, **named).detach()
        if function in PRODUCTS and sum(_depends(one) for one in arguments) == 2:
            arguments = tuple(_half(one) if _depends(one) else one for one in arguments)
        return function(*arguments, **named)

    def activation(self, function: Activation, inputs: Tensor) -> Tensor:
        """Return f(x), as x times the constant f(x) / x."""
        self.inside = True  # an activation may be made of others, and is one
        try:
            with torch.no_grad():
                outputs = function(inputs)
                away = torch.where(inputs.abs() < NEAR, torch.where(inputs < 0, -NEAR, NEAR), inputs)
                rise = outputs / away
            # the sum is the output itself, whatever rounding does to the product
            passed = inputs * rise
            return outputs + (passed - passed.detach())
        finally:
            self.inside = False


def _depends(one: object) -> bool:
    return isinstance(one, Tensor) and one.requires_grad


def _half(factor: Tensor) -> Tensor:
    """Return the same numbers, half of whose gradient goes back."""
    return factor / 2 + factor.detach() / 2


def _layer_norm(
    inputs: Tensor,
    shape: tuple[int, ...],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    _fast: bool = True,  # an argument of torch.layer_norm, which chooses a library
) -> Tensor:
    over = tuple(range(-len(shape), 0))
    centred = inputs - inputs.mean(dim=over, keepdim=True)
    scaled = centred * torch.rsqrt(centred.detach().square().mean(dim=over, keepdim=True) + eps)
    weighted = scaled if weight is None else scaled * weight
    return weighted if bias is None else weighted + bias


def _rms_norm(inputs: Tensor, shape: tuple[int, ...], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    over = tuple(range(-len(shape), 0))
    eps = torch.finfo(inputs.dtype).eps if eps is None else eps
    scaled = inputs * torch.rsqrt(inputs.detach().square().mean(dim=over, keepdim=True) + eps)
    return scaled if weight is None else scaled * weight
