"""Importance from masking one token, or one unit, at a time and predicting again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from faithmeter.importance.measure import open_units
from faithmeter.masking import Mask, Purpose, random_stream

if TYPE_CHECKING:
    from faithmeter.data.batch import Batch
    from faithmeter.importance.measure import Floats
    from faithmeter.models.classifier import Classifier

PASSES = 64  # of a sampled leave-one-out, the text itself among them


def leave_one_out(classifier: Classifier, batch: Batch, targets: Tensor, _seed: int) -> Tensor:
    """Return logit(x) − logit(x with unit t masked) (Madsen et al., 2024, App. E.2); 0 if it is masked already."""
    home, batch, targets = batch.input_ids.device, batch.to(classifier.device), targets.to(classifier.device)
    units = open_units(batch)
    sets = [one.tokens_of(np.eye(one.count, dtype=np.bool_)) for one in units]
    drops = drops_of_sets(classifier, batch, targets, sets)
    importance = np.stack([one.spread(drop) for one, drop in zip(units, drops, strict=True)])
    return torch.from_numpy(importance.astype(np.float32)).to(home)


def leave_one_out_sampled(
    classifier: Classifier,
    batch: Batch,
    targets: Tensor,
    seed: int,
    *,
    passes: int = PASSES,
    draw: Callable[[int, int, np.random.Generator], Mask] | None = None,
    estimate: Callable[[Mask, Floats], Floats] | None = None,
) -> Tensor:
    """Return leave-one-out from at most `passes` forward passes per text of any length; exact if they suffice.

    Else every unit is masked once, in a group with its neighbours, and has an even share of what the group costs; the
    shares add up to the costs of the groups. Where the first group ends is drawn from the seed and the dataset row.
    Groups of random units were tried in its place (`draw`), masked once or, with a ridge regression (`estimate`), four
    times. They rank units much less as the exact leave-one-out does, because neighbours matter together and strangers
    are noise to each other; in ACU none was clearly ahead. `benchmarks/long_texts.py --estimators` compares them.
    """
    home, batch, targets = batch.input_ids.device, batch.to(classifier.device), targets.to(classifier.device)
    units, groups = open_units(batch), list[Mask]()
    for one, row in zip(units, batch.rows.tolist(), strict=True):
        if one.count < passes:
            groups.append(np.eye(one.count, dtype=np.bool_))
        else:
            random = random_stream(seed, Purpose.MASKED_GROUPS, row)
            groups.append((draw or neighbours)(one.count, passes - 1, random))
    sets = [one.tokens_of(own) for one, own in zip(units, groups, strict=True)]
    drops = drops_of_sets(classifier, batch, targets, sets)
    found = [
        one.spread((estimate or even_parts)(own, drop)) for one, own, drop in zip(units, groups, drops, strict=True)
    ]
    return torch.from_numpy(np.stack(found).astype(np.float32)).to(home)


def neighbours(units: int, groups: int, random: np.random.Generator) -> Mask:
    """Return at most so many groups of neighbours, as rows, that hold each of the units once.

    All are of like size but for the first and the last, which are cut where the draw says.
    """
    size = units / max(1, groups - 1)
    cut = random.random() * size if groups > 1 else 0.0
    group = np.floor((np.arange(units) + cut) / size)
    return np.unique(group)[:, None] == group


def even_parts(groups: Mask, drops: Floats) -> Floats:
    """Return each unit's even share of what masking its group costs; the mean where it is in several."""
    shares = drops / groups.sum(axis=1)
    return (shares @ groups) / groups.sum(axis=0)


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
