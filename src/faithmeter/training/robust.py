"""Losses that are added to cross-entropy to make a model, and so its explanations, more robust (Li et al., 2023).

Input-gradient regularisation, virtual adversarial training and explanation-guided training. Own code, because no
maintained package has them for texts: they work on word embeddings, and two of them differentiate an explanation by
the weights. Each speaks of the model as it is used, so without dropout, and of the batch as it is shown, so of its
masked rows too. A loss is a number for each row, which depends on no other row; the random direction from which VAT
starts is drawn for the batch.
"""

import torch
from torch import Tensor, nn

from faithmeter.data.batch import Batch
from faithmeter.models.classifier import Classifier
from faithmeter.models.heads import attention_of_what_is_read
from faithmeter.models.temporary import evaluating, twice_differentiable
from faithmeter.training.config import GUIDED, IGR, VAT, TrainingConfig

FIRST_STEP = 0.1  # of the radius: how far the power step of VAT looks, where KL is still a parabola
SMALLEST = 1e-6  # a share whose logarithm is taken
# Of the logit: dealt out evenly among the tokens before attributions become shares. Where an attribution changes its
# sign, and in a model that has learnt nothing yet, a share's slope has no end otherwise, and drowns what labels teach.
EVEN = 1.0
VANISHING = 1e-12  # a sum that is divided by, of whatever scale


def weighted_losses(classifier: Classifier, batch: Batch, config: TrainingConfig) -> dict[str, Tensor]:
    """Return the losses that a training adds, by name: (rows,), times their weights.

    What several of them need is computed once: the pass whose gradient has a gradient gives VAT its prediction too.
    """
    losses, logits = {}, None
    with evaluating(classifier.model), torch.enable_grad():
        embeddings = _lookup(classifier, batch)
        if GUIDED in config.robust:
            logits, losses[GUIDED] = guided_loss(classifier, batch, embeddings, config.guided_share)
        elif IGR in config.robust:
            logits = _logits(classifier, batch, embeddings)
        if logits is not None and IGR in config.robust:
            losses[IGR] = input_gradient_loss(logits, batch.labels, embeddings)
        if VAT in config.robust:
            losses[VAT] = virtual_adversarial_loss(classifier, batch, embeddings, config.vat_radius, logits)
    weights = {IGR: config.igr_weight, VAT: config.vat_weight, GUIDED: config.guided_weight}
    return {name: weights[name] * losses[name] for name in config.robust if name in losses}


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


def guided_loss(classifier: Classifier, batch: Batch, embeddings: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Return the logits, and KL(attention ‖ attribution) of the text plus that of the text without its noise.

    The noise is the `share` of the tokens with the least attribution; it is masked, and which tokens it is has no
    gradient. Attention and attribution both have one: each may move towards the other. Attribution is that of the
    class predicted for the text, as Li et al. have it: |⟨d logit / d e_t, e_t⟩|. Both are over the tokens that are
    maskable and not masked, and add up to 1.
    """
    logits, attribution, divergence = _divergence(classifier, batch, embeddings)
    explained = logits.detach().argmax(dim=-1)
    rankable = batch.maskable & ~batch.masked
    ranks = attribution.detach().masked_fill(~rankable, torch.inf).argsort(dim=1, stable=True).argsort(dim=1)
    # the least one at the least; of two tokens or more one is always left
    noise = (share * rankable.sum(dim=1)).floor().clamp_min(1)[:, None]
    without = batch.with_masked(batch.masked | (rankable & (ranks < noise)))
    return logits, divergence + _divergence(classifier, without, _lookup(classifier, without), explained)[2]


def _divergence(
    classifier: Classifier, batch: Batch, embeddings: Tensor, explained: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the logits, the attribution of each token, and KL(attention ‖ attribution) of each row.

    The class that is explained is the predicted one, unless another is named.
    A row in which fewer than two tokens can be ranked has nothing to compare: 0.
    """
    shown = classifier.shown(batch)
    with twice_differentiable():
        logits, layers = classifier.logits_and_attentions(shown, shown.forth(embeddings))
    classes = logits.detach().argmax(dim=-1) if explained is None else explained
    (gradients,) = torch.autograd.grad(logits.gather(1, classes[:, None]).sum(), embeddings, create_graph=True)
    attribution = (gradients * embeddings).sum(dim=-1).abs()
    rankable = batch.maskable & ~batch.masked
    attention = _shares(shown.back(attention_of_what_is_read(classifier.model, shown, layers[-1])), rankable)
    attributed = _shares(attribution + EVEN / rankable.sum(dim=1, keepdim=True).clamp_min(1), rankable)
    logarithms = [one.clamp_min(SMALLEST).log() for one in (attention, attributed)]
    divergence = (attention * (logarithms[0] - logarithms[1])).sum(dim=1)
    return logits, attribution, divergence.masked_fill(rankable.sum(dim=1) < 2, 0.0)


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
