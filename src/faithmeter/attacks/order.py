"""In which order the words of a text are attacked: the most important first, by one of two measures.

`masking` masks every word in turn, which takes as many forward passes as there are words, as attacks in the literature
do. `gradient` takes one forward and one backward pass: for training, which attacks again in every epoch.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from faithmeter.data.batch import Batch
from faithmeter.models.classifier import Classifier
from faithmeter.models.temporary import explaining

DIGITS = 5  # of log-odds that are compared: the rest is rounding, which depends on the batch
TokensOfWords = Mapping[int, Sequence[int]]  # the positions of each word's tokens
# (classifier, batch, tokens of the words of each row, class of each row) -> an importance for each word of each row
Order = Callable[[Classifier, Batch, Sequence[TokensOfWords], Tensor], list[dict[int, float]]]


def by_masking(
    classifier: Classifier, batch: Batch, tokens: Sequence[TokensOfWords], classes: Tensor
) -> list[dict[int, float]]:
    """Return how far the log-odds of the class fall when a word is masked: up to a constant a text, their negative."""
    each = [(row, word) for row, of_words in enumerate(tokens) for word in of_words]
    found: list[dict[int, float]] = [{} for _ in tokens]
    if each:
        rows = torch.tensor([row for row, _ in each])
        masked = batch.masked[rows]
        for number, (row, word) in enumerate(each):
            masked[number, list(tokens[row][word])] = True
        here = classifier.device
        logits = classifier.logits_of_masks(batch.to(here), rows.to(here), masked.to(here)).cpu()
        for (row, word), left in zip(each, log_odds(logits, classes[rows]).tolist(), strict=True):
            found[row][word] = -left
    return found


def by_gradient(
    classifier: Classifier, batch: Batch, tokens: Sequence[TokensOfWords], classes: Tensor
) -> list[dict[int, float]]:
    """Return |d logit / d embedding|_2, the largest of a word's tokens."""
    lengths, here = batch.attention_mask.sum(dim=1), classifier.device
    found: list[dict[int, float]] = [{} for _ in tokens]
    with explaining(classifier.model):
        for index in classifier.packed(lengths):
            part = batch.take(index).to(here)
            gradients = classifier.logits_and_gradients(part, classifier.embed(part), classes[index].to(here))[1]
            sizes = gradients.float().norm(dim=-1).cpu()
            for row, of_tokens in zip(index.tolist(), sizes, strict=True):
                of_words = {word: float(of_tokens[list(where)].max()) for word, where in tokens[row].items()}
                largest = max(of_words.values(), default=0.0) or 1.0  # ranks are rounded, and gradients have any scale
                found[row] = {word: size / largest for word, size in of_words.items()}
    return found


def log_odds(logits: Tensor, classes: Tensor) -> Tensor:
    """Return log(p / (1 − p)) of a class a row: it falls where its probability does, and does not saturate at 1."""
    others = logits.double().scatter(1, classes[:, None], -torch.inf).logsumexp(dim=-1)
    return logits.double().gather(1, classes[:, None])[:, 0] - others


def most_important_first(importance: Mapping[int, float]) -> list[int]:
    """Return words by their importance; of equal ones the first in the text."""
    words = sorted(importance)
    values = np.round([importance[word] for word in words], DIGITS)
    return [words[place] for place in np.argsort(-values, kind="stable").tolist()]


ORDERS: Mapping[str, Order] = MappingProxyType({"masking": by_masking, "gradient": by_gradient})
