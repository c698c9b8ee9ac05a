"""What the in-distribution test can find: texts that are surely not what the model was trained on.

That nothing was found means little where nothing could be. So the same fitted test is asked about texts that were
spoilt on purpose: random words in the places of masks, words out of order, texts of another domain.
"""

from dataclasses import dataclass, replace

import numpy as np
import scipy
import torch

from faithmeter.data.batch import Encoded
from faithmeter.in_distribution.masf import MaSF, masked_at_random
from faithmeter.in_distribution.verdict import dataset_verdict
from faithmeter.masking import STEPS, Purpose, random_stream
from faithmeter.models.classifier import Classifier
from faithmeter.progress import Advance
from faithmeter.statistics import LEVEL

SPOILT_STEP = STEPS // 2  # half of the places hold random words
WORDS, SHUFFLED, OTHER = "words", "shuffled", "other"


@dataclass(frozen=True)
class Power:
    """What the test makes of `texts` texts that were spoilt in one way: the `share` called out-of-distribution, its
    95 % `interval` over texts (Clopper and Pearson, 1934), and the p-value of all of them together.
    """

    spoilt: str
    texts: int
    share: float
    interval: tuple[float, float]
    p_value: float


def random_words(classifier: Classifier, encoded: Encoded, *, seed: int = 0) -> Encoded:
    """Return the split with a random word of the vocabulary in the place of every masked token."""
    known = np.arange(min(len(classifier.tokenizer), len(classifier.vocabulary())))
    words = np.setdiff1d(known, classifier.tokenizer.all_special_ids)
    ids = encoded.ids.copy()
    for row in range(len(encoded)):
        places = np.flatnonzero(encoded.masked[encoded.offsets[row] : encoded.offsets[row + 1]]) + encoded.offsets[row]
        ids[places] = random_stream(seed, Purpose.RANDOM_WORDS, row).choice(words, size=len(places))
    return replace(encoded, ids=ids, masked=np.zeros_like(encoded.masked))


def shuffled(encoded: Encoded, *, seed: int = 0) -> Encoded:
    """Return the split with the tokens of every text in random order; contexts and special tokens stay."""
    ids, maskable = encoded.ids.copy(), encoded.maskable
    for row in range(len(encoded)):
        places = np.flatnonzero(maskable[encoded.offsets[row] : encoded.offsets[row + 1]]) + encoded.offsets[row]
        ids[places] = random_stream(seed, Purpose.SHUFFLED, row).permutation(encoded.ids[places])
    return replace(encoded, ids=ids)


def power(
    classifier: Classifier,
    masf: MaSF,
    encoded: Encoded,
    *,
    seed: int,
    other: Encoded | None = None,
    progress: Advance | None = None,
) -> list[Power]:
    """Return what the test finds in texts with random words in half of their places, in shuffled texts, and in `other`.

    `encoded` are unmasked texts that the model is at home with, but that the test was not fitted on. It takes one pass
    of each text for each kind, of 11 for each that a check takes. `progress` is told the texts done.
    """
    halved = masked_at_random(encoded, SPOILT_STEP, (seed, Purpose.CHECK_MASKS))
    kinds = [(WORDS, random_words(classifier, halved, seed=seed), SPOILT_STEP)]
    kinds.append((SHUFFLED, shuffled(encoded, seed=seed), 0))
    if other is not None:
        kinds.append((OTHER, other, 0))
    return [_asked(classifier, masf, *kind, progress) for kind in kinds]


def _asked(
    classifier: Classifier, masf: MaSF, spoilt: str, encoded: Encoded, step: int, progress: Advance | None
) -> Power:
    p_values = torch.zeros(2, len(encoded), dtype=torch.float64)
    lengths = torch.from_numpy(encoded.lengths)
    for batch in encoded.batches(classifier.tokens_per_pass):
        features, rows = classifier.predict_with_features(batch)[1], batch.rows
        p_values[:, rows] = torch.stack(masf.p_values(features, lengths[rows], rows, step))
        if progress is not None:
            progress(len(batch))
    groups = torch.from_numpy(encoded.sources())
    test = dataset_verdict(masf, p_values[0], p_values[1], lengths, step, groups).anywhere
    outside = int((p_values[1] <= LEVEL).sum())
    exact = scipy.stats.binomtest(outside, len(encoded)).proportion_ci(method="exact")
    return Power(spoilt, len(encoded), test.share_below, (float(exact.low), float(exact.high)), test.dataset_p_value)
