"""Losses that are added to cross-entropy to make a model, and so its explanations, more robust (Li et al., 2023).

Input-gradient regularisation, virtual adversarial training and explanation-guided training. Own code, because no
maintained package has them for texts: they work on word embeddings, and one of them differentiates an input gradient
by the weights. Each speaks of the model as it is used, so without dropout, and of the batch as it is shown, so of its
masked rows too. A loss is a number for each row, which depends on no other row; the random direction from which VAT
starts is drawn for the batch.
"""

from collections.abc import Collection

import torch
from torch import Tensor, nn

from faithmeter.data.batch import Batch
from faithmeter.models.classifier import Classifier
from faithmeter.models.heads import attention_of_what_is_read
from faithmeter.models.temporary import evaluating, twice_differentiable
from faithmeter.training.config import ATTRIBUTIONS, GUIDED, IGR, VAT, TrainingConfig

FIRST_STEP = 0.1  # of the radius: how far the power step of VAT looks, where KL is still a parabola
SMALLEST = 1e-6  # a share whose logarithm is taken
# Of the sum of a text's attributions: dealt out evenly among its tokens before they become shares, so that a token
# without attribution is no infinite distance away. Of the text's own sum, or the target is flat where that is small.
FLOOR = 0.1
VANISHING = 1e-12  # a sum that is divided by, of whatever scale


def weighted_losses(
    classifier: Classifier, batch: Batch, config: TrainingConfig, kinds: Collection[str] | None = None
) -> dict[str, Tensor]:
    """Return the losses that a training adds, by name: (rows,), times their weights; `kinds` are those of this epoch.

    What several of them need is computed once: the pass whose gradient has a gradient gives VAT its prediction too.
    """
    losses, logits = dict[str, Tensor](), None
    kinds = config.robust if kinds is None else kinds
    with evaluating(classifier.model), torch.enable_grad():
        embeddings = _lookup(classifier, batch)
        if GUIDED in kinds:
            steps = ATTRIBUTIONS[config.guided_attribution]
            logits, distance, change = guided_loss(classifier, batch, embeddings, config.guided_share, steps)
            losses[GUIDED] = config.guided_weight * distance + config.guided_consistency * change
        elif IGR in kinds:
            logits = _logits(classifier, batch, embeddings)
        if logits is not None and IGR in kinds:
            losses[IGR] = config.igr_weight * input_gradient_loss(logits, batch.labels, embeddings)
        if VAT in kinds:
            change = virtual_adversarial_loss(classifier, batch, embeddings, config.vat_radius, logits)
            losses[VAT] = config.vat_weight * change
    return {name: losses[name] for name in kinds if name in losses}


def input_gradient_loss(logits: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
    """Return ‖d cross-entropy / d embeddings‖² of each row, differentiable; `logits` must be so twice."""
    loss = nn.functional.cross_entropy(logits, labels, reduction="sum")
    (gradients,) = torch.autograd.grad(loss, embeddings, create_graph=True)
    return gradients.square().sum(dim=(1, 2))


def virtual_adversarial_loss(
    classifier: Classifier, batch: Batch, embeddings: Tensor, radius: float, logits: Tensor | None = None
) -> Tensor:
    """Return KL(p(e) ‖ p(e + r)) of each row: how far a small change r may push the prediction (Miyato et al., 2017).

    r is as long as `radius` times the row's embeddings, and points where KL grows fastest: one power step from a random
    direction. It and p(e) are constants to the gradient. `logits` are those at the embeddings, where they are known.
    """
    attended = batch.attention_mask[..., None].to(embeddings.dtype)
    length = radius * (embeddings.detach() * attended).flatten(1).norm(dim=1)[:, None, None]
    if logits is None:
        with torch.no_grad():
            logits = classifier.logits_from(batch, embeddings)
    expected = logits.detach().log_softmax(dim=-1)

    def divergence(change: Tensor, at: Tensor) -> Tensor:
        found = classifier.logits_from(batch, at + change).log_softmax(dim=-1)
        return (expected.exp() * (expected - found)).sum(dim=-1)

    start = FIRST_STEP * length * _unit(torch.randn_like(embeddings) * attended)
    start.requires_grad_()
    (steepest,) = torch.autograd.grad(divergence(start, embeddings.detach()).sum(), start)
    return divergence(length * _unit(steepest * attended), embeddings)


def guided_loss(
    classifier: Classifier, batch: Batch, embeddings: Tensor, share: float, steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the logits and, of each row, two distances: of attention from attribution, and of attention from itself.

    The first is KL(attention ‖ attribution) of the text plus that of the text without its noise: the `share` of the
    tokens with the least attribution, which is masked. The second is KL(attention without noise ‖ attention), over the
    tokens that are left (Li et al., 2023: attention is to stay where it was). Only attention learns; attribution is a
    constant target, of the class predicted for the text. All are over tokens that are maskable and not masked, and add
    up to 1.
    """
    logits, attention, attribution = _attention_and_attribution(classifier, batch, embeddings, steps)
    rankable = batch.maskable & ~batch.masked
    ranks = attribution.masked_fill(~rankable, torch.inf).argsort(dim=1, stable=True).argsort(dim=1)
    # the least one at the least; of two tokens or more one is always left
    noise = (share * rankable.sum(dim=1)).floor().clamp_min(1)[:, None]
    without = batch.with_masked(batch.masked | (rankable & (ranks < noise)))
    left, explained = without.maskable & ~without.masked, logits.detach().argmax(dim=-1)
    _, after, target = _attention_and_attribution(classifier, without, _lookup(classifier, without), steps, explained)
    distance = _from_target(attention, attribution, rankable) + _from_target(after, target, left)
    return logits, distance, _divergence(_shares(after, left), _shares(attention, left))


def _attention_and_attribution(
    classifier: Classifier, batch: Batch, embeddings: Tensor, steps: int, explained: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the logits, and the attention and the attribution of each token; the last has no gradient.

    The class that is explained is the predicted one, unless another is named.
    """
    shown = classifier.shown(batch)
    with twice_differentiable():
        logits, layers = classifier.logits_and_attentions(shown, shown.forth(embeddings))
    classes = logits.detach().argmax(dim=-1) if explained is None else explained
    attention = shown.back(attention_of_what_is_read(classifier.model, shown, layers[-1]))
    return logits, attention, _attribution(classifier, batch, embeddings, logits, classes, steps)


def _attribution(
    classifier: Classifier, batch: Batch, embeddings: Tensor, logits: Tensor, classes: Tensor, steps: int
) -> Tensor:
    """Return |⟨e_t, mean over i = 1..k of d logit / d e_t at (i/k) e⟩|, integrated gradients from zero.

    Sundararajan et al. (2017), a right Riemann sum; of one step it is input times gradient. `importance` has both, in
    passes that are chosen at run time; here they must be the same in a training that is resumed.
    """
    end = embeddings.detach()
    (gradients,) = torch.autograd.grad(logits.gather(1, classes[:, None]).sum(), embeddings, retain_graph=True)
    for step in range(1, steps):
        point = (step / steps * end).requires_grad_()
        logit = classifier.logits_from(batch, point).gather(1, classes[:, None]).sum()
        gradients = gradients + torch.autograd.grad(logit, point)[0]
    return (end * gradients / steps).sum(dim=-1).abs()


def _from_target(attention: Tensor, attribution: Tensor, rankable: Tensor) -> Tensor:
    """Return KL(attention ‖ attribution) of each row; 0 where there are no two tokens to rank, or no attribution."""
    total = attribution.masked_fill(~rankable, 0.0).sum(dim=1, keepdim=True)
    count = rankable.sum(dim=1, keepdim=True)
    target = _shares(attribution + FLOOR * total / count.clamp_min(1), rankable)
    nothing = (count < 2) | (total < VANISHING)
    return _divergence(_shares(attention, rankable), target).masked_fill(nothing[:, 0], 0.0)


def _divergence(first: Tensor, second: Tensor) -> Tensor:
    """Return KL(first ‖ second) of each row."""
    return (first * (first.clamp_min(SMALLEST).log() - second.clamp_min(SMALLEST).log())).sum(dim=1)


def _shares(values: Tensor, which: Tensor) -> Tensor:
    """Return the values over their sum, of those that count."""
    kept = values.masked_fill(~which, 0.0)
    return kept / kept.sum(dim=1, keepdim=True).clamp_min(VANISHING)


def _logits(classifier: Classifier, batch: Batch, embeddings: Tensor) -> Tensor:
    with twice_differentiable():
        return classifier.logits_from(batch, embeddings)


def _lookup(classifier: Classifier, batch: Batch) -> Tensor:
    """Return the word embeddings of the batch as the weights give them, so that they learn from what is made of them.

    Also where the embeddings are not trained: the losses differentiate by them.
    """
    found = classifier.looked_up(batch)
    return found if found.requires_grad else found.detach().requires_grad_()


def _unit(change: Tensor) -> Tensor:
    """Return each row scaled to the length 1; 0 where it is 0."""
    return change / change.flatten(1).norm(dim=1).clamp_min(torch.finfo(change.dtype).tiny)[:, None, None]
