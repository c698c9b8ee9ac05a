"""Human rationales: the words that people marked as the reason for a label, as tokens of a model."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from faithmeter.batch import TEXT, Batch, Encoded
from faithmeter.classifier import Classifier
from faithmeter.masking import Mask

Spans = Sequence[tuple[int, int]]  # [start, end) characters of one text


def rationale_tokens(
    classifier: Classifier, texts: Sequence[str], contexts: Sequence[str] | None, rationales: Sequence[Spans]
) -> Mask:
    """Return which tokens of the texts overlap a span of their rationale, flat, as `classifier.encode` lays them out.

    Tokens of the context, special tokens, and what was cut off a text that is too long are in no rationale.
    """
    found: list[Mask] = []
    for start in range(0, len(texts), 1000):  # as `encode` does: encodings are large
        pairs = None if contexts is None else contexts[start : start + 1000]
        encodings = classifier.encodings(texts[start : start + 1000], pairs)
        for encoding, spans in zip(encodings, rationales[start : start + 1000], strict=True):
            of_text = np.array([sequence == TEXT for sequence in encoding.sequence_ids], dtype=np.bool_)
            tokens = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
            overlaps = np.zeros(len(tokens), dtype=np.bool_)
            for begin, end in spans:
                overlaps |= np.maximum(tokens[:, 0], begin) < np.minimum(tokens[:, 1], end)
            found.append(of_text & overlaps)
    return np.concatenate(found) if found else np.zeros(0, dtype=np.bool_)


def in_batch(encoded: Encoded, tokens: Mask, batch: Batch) -> Tensor:
    """Return flat booleans that are aligned with a split as a (rows, tokens) tensor aligned with a batch of it."""
    return replace(encoded, masked=tokens).batch(batch.rows.cpu().numpy()).masked.to(batch.maskable.device)
