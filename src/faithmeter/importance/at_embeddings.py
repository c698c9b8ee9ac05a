"""Importance as a function of the word embeddings, so that a formula is written once and evaluated at any point.

Evaluated at the embeddings of a text it explains that text; evaluated at embeddings that require a gradient, it can be
differentiated with respect to them, which a search for adversarial explanations needs.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from faithmeter.data.batch import Batch
from faithmeter.models.classifier import Classifier

# (classifier, batch, embeddings, targets), all on the classifier's device -> logits and (rows, tokens) importance at
# those embeddings, 0 where a token is not maskable; differentiable by the embeddings where they require a gradient
ExplainAt = Callable[[Classifier, Batch, Tensor, Tensor], tuple[Tensor, Tensor]]


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
