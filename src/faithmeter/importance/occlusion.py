"""Importance from masking one token, or one unit, at a time and predicting again."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from faithmeter.batch import Batch
from faithmeter.classifier import Classifier
from faithmeter.masking import Mask
from faithmeter.units import Floats, open_units


def leave_one_out(classifier: Classifier, batch: Batch, targets: Tensor, _seed: int) -> Tensor:
    """Return logit(x) − logit(x with unit t masked) (FMM App. E.2); 0 for a token that is masked already."""
    home, batch, targets = batch.input_ids.device, batch.to(classifier.device), targets.to(classifier.device)
    units = open_units(batch)
    sets = [one.tokens_of(np.eye(one.count, dtype=np.bool_)) for one in units]
    drops = drops_of_sets(classifier, batch, targets, sets)
    importance = np.stack([one.spread(drop) for one, drop in zip(units, drops, strict=True)])
    return torch.from_numpy(importance.astype(np.float32)).to(home)


def drops_of_sets(classifier: Classifier, batch: Batch, targets: Tensor, sets: Sequence[Mask]) -> list[Floats]:
    """Return logit(x) − logit(x with a set masked too) for each of a text's sets of tokens, of every text."""
    rows = torch.arange(len(batch)).repeat_interleave(torch.tensor([len(own) for own in sets])).to(batch.masked.device)
    masked = torch.from_numpy(np.concatenate(sets)).to(batch.masked.device) | batch.masked[rows]
    # the texts as they are come first, in the same packing as their variants
    every = torch.cat((torch.arange(len(batch), device=rows.device), rows))
    logits = classifier.logits_of_masks(batch, every, torch.cat((batch.masked, masked)))
    target = logits.gather(1, targets[every, None]).squeeze(1)
    drops = (target[rows] - target[len(batch) :]).cpu().numpy()
    return np.split(drops, np.cumsum([len(own) for own in sets])[:-1])
