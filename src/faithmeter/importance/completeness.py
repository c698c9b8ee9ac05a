"""Do attributions from the zero embedding add up (completeness)? If not, a warning recommends another baseline.

Integrated gradients share out the change of the logit from the baseline to the text (completeness: Sundararajan et al.,
2017, Prop. 1). If a norm directly follows the word embeddings, the model does not depend on the length of an embedding:
its gradient is orthogonal to it, so input times gradient and DeepLIFT are almost zero, and all change happens in a jump
at zero, which no number of steps resolves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from faithmeter.importance.gradient import STEPS, baseline_embedding, integrated_gradient
from faithmeter.models.temporary import evaluating

if TYPE_CHECKING:
    from faithmeter.data.batch import Batch
    from faithmeter.importance.measure import ImportanceMeasure
    from faithmeter.models.classifier import Classifier

TEXTS = 4  # on which the gap is measured: 60 passes each
# With 20 steps and random weights, drawn several times: where positions or types are added before the norm the gap is
# .01 to .04 (BERT, RoBERTa, ELECTRA, ALBERT, GPT-2, RoFormer; BiLSTM-attention), of DistilBERT up to .20; of DeBERTa
# without positions 1, ModernBERT .85 to 1.05, T5 .39 to 1.29, Llama .39 to 1.07. From the mask token's embedding all
# have .01 to .12.
LARGE_GAP = 0.25


def relative_gap(shared_out: Tensor, change: Tensor) -> float:
    """Return Σ |shared out − change| / Σ |change| over texts: 0 where all is accounted for, 1 where nothing is."""
    missed, whole = (float(values.double().abs().sum()) for values in (shared_out - change, change))
    return missed / whole if whole else float("inf") if missed else 0.0


def completeness_gap(
    classifier: Classifier, batch: Batch, targets: Tensor, *, steps: int = STEPS, baseline: str = "zero"
) -> float:
    """Return the relative gap between integrated gradients of all tokens, special ones too, and the logit's change."""
    here, targets = batch.to(classifier.device), targets.to(classifier.device)
    everything = replace(here, maskable=here.attention_mask.bool())
    shared_out = integrated_gradient(classifier, everything, targets, 0, steps=steps, baseline=baseline).sum(dim=1)
    end = classifier.embed(here)
    start = baseline_embedding(classifier, baseline).expand_as(end)
    with evaluating(classifier.model), torch.no_grad():
        change = classifier.logits_from(here, end) - classifier.logits_from(here, start)
    return relative_gap(shared_out, change.gather(1, targets[:, None])[:, 0])


def zero_baseline_caution(classifier: Classifier, batch: Batch, measures: Iterable[ImportanceMeasure]) -> str | None:
    """Return a warning if some of the measures start from zero, which is no baseline for this model.

    The gap is that of the texts of the batch, for the class that is predicted.
    """
    asked = [measure.name for measure in measures if measure.from_zero]
    if not asked or not len(batch):
        return None
    targets = classifier.predict_with_features(batch)[0].argmax(dim=-1)
    gap = completeness_gap(classifier, batch, targets)
    if gap <= LARGE_GAP:
        return None
    other = completeness_gap(classifier, batch, targets, baseline="mask")
    return (
        f"{', '.join(asked)}: these start from the zero embedding, which is no start for this model, as where a norm "
        f"follows its word embeddings. Integrated gradients from there miss {100 * gap:.0f} % of the change that they "
        f"share out (on {len(batch)} texts). ig-mask-signed and ig-mask-abs start from the mask token's embedding and "
        f"miss {100 * other:.0f} %: name them with --measures, or --measure."
    )
