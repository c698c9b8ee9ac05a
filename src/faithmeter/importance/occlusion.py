"""Importance from masking one token at a time and predicting again."""

import torch
from torch import Tensor

from faithmeter.batch import Batch
from faithmeter.classifier import Classifier


def leave_one_out(classifier: Classifier, batch: Batch, targets: Tensor, _seed: int) -> Tensor:
    """Return logit(x) − logit(x with token t masked) (FMM App. E.2); 0 for a token that is masked already."""
    home, batch, targets = batch.input_ids.device, batch.to(classifier.device), targets.to(classifier.device)
    rows, positions = (batch.maskable & ~batch.masked).nonzero(as_tuple=True)
    masked = batch.masked[rows]
    masked[torch.arange(len(rows), device=rows.device), positions] = True
    # the texts as they are come first, in the same packing as their variants
    every = torch.cat((torch.arange(len(batch), device=rows.device), rows))
    logits = classifier.logits_of_masks(batch, every, torch.cat((batch.masked, masked)))
    target = logits.gather(1, targets[every, None]).squeeze(1)
    importance = torch.zeros(batch.maskable.shape, device=rows.device)
    importance[rows, positions] = target[rows] - target[len(batch) :]
    return importance.to(home)
