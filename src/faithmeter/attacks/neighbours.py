"""The words nearest to a word in a model's own embedding matrix.

The candidates are those words that the tokenizer keeps whole, found by trying: a token is a word if it consists of
letters and the tokenizer returns exactly this token for it after a space. So no family of tokenizers needs its own
rule, and pieces, special tokens and forms that occur only at the beginning of a text are excluded.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import normalize

from faithmeter.data.batch import TEXT
from faithmeter.models.classifier import Classifier

BEFORE = "a "  # stands before a word when it is tokenised: words within a text are what is compared
SPACE_MARKS = "Ġ▁"  # stand for a space in tokens of byte-level and sentence pieces that nobody told how to decode
SIMILARITIES_AT_ONCE = 2**24  # in memory: 64 MB


class Neighbours:
    """The nearest words of words by the cosine of their embeddings, of which no two differ in case alone.

    A word of several pieces has the mean of their embeddings; one with a piece that the model does not know has no
    neighbours, nor has one without letters. Of a word in several cases, the small letters are the candidate.
    """

    def __init__(self, classifier: Classifier, count: int) -> None:
        self.classifier, self.count = classifier, count
        self.known: dict[str, tuple[str, ...]] = {}

    @cached_property
    def candidates(self) -> tuple[list[str], Tensor]:
        """The words of the vocabulary and their embeddings, of length 1; computed on first use."""
        embeddings = self.classifier.vocabulary().float()
        whole = _whole_words(self.classifier, len(embeddings))
        return list(whole), normalize(embeddings[list(whole.values())], dim=-1)

    def prepare(self, words: Iterable[str]) -> None:
        """Look up words together, which is faster than one by one."""
        asked = sorted({word.casefold() for word in words} - self.known.keys())
        pieces = pieces_of(self.classifier, asked)
        unknown = self.classifier.tokenizer.unk_token_id
        clear = [word for word in asked if pieces[word] and unknown not in pieces[word] and _has_letters(word)]
        self.known |= dict.fromkeys(asked, ())
        embeddings = self.classifier.vocabulary().float()
        at_once = max(1, SIMILARITIES_AT_ONCE // max(1, len(self.candidates[0])))
        for start in range(0, len(clear), at_once):
            some = clear[start : start + at_once]
            means = torch.stack([embeddings[pieces[word]].mean(dim=0) for word in some])
            self.known |= self._nearest(some, normalize(means, dim=-1))

    def of(self, word: str) -> tuple[str, ...]:
        """Return the nearest other words, the nearest first."""
        self.prepare((word,))
        return self.known[word.casefold()]

    def _nearest(self, words: Sequence[str], points: Tensor) -> dict[str, tuple[str, ...]]:
        candidates, embeddings = self.candidates
        similar = points @ embeddings.T
        # one more than wanted, for a word is its own nearest neighbour
        nearest = similar.topk(min(self.count + 1, len(candidates)), dim=-1).indices.tolist()
        found = {}
        for word, places in zip(words, nearest, strict=True):
            others = [candidates[place] for place in places if candidates[place].casefold() != word]
            found[word] = tuple(others[: self.count])
        return found


def pieces_of(classifier: Classifier, words: Sequence[str]) -> dict[str, list[int]]:
    """Return the token ids that each word is made of within a text, with the space before it where that is a token."""
    if not words:
        return {}
    found = {}
    for word, encoding in zip(words, classifier.encodings([BEFORE + word for word in words]), strict=True):
        tokens = zip(encoding.ids, encoding.sequence_ids, encoding.offsets, strict=True)
        found[word] = [i for i, sequence, (_, end) in tokens if sequence == TEXT and end >= len(BEFORE)]
    return found


def _whole_words(classifier: Classifier, size: int) -> dict[str, int]:
    """Return the words that are one token each, with its id; of a word in several cases the one in small letters."""
    special = set(classifier.tokenizer.all_special_ids)
    ids = [number for number in range(min(size, len(classifier.tokenizer))) if number not in special]
    spelt = classifier.tokenizer.backend_tokenizer.decode_batch([[number] for number in ids], skip_special_tokens=False)
    written = {number: word.strip().lstrip(SPACE_MARKS) for number, word in zip(ids, spelt, strict=True)}
    written = {number: word for number, word in written.items() if word.isalpha() and len(word) > 1}
    pieces = pieces_of(classifier, list(dict.fromkeys(written.values())))
    by_letters: dict[str, tuple[str, int]] = {}
    for number, word in written.items():
        if pieces[word] == [number] and (word.casefold() not in by_letters or word.islower()):
            by_letters[word.casefold()] = word, number
    return dict(by_letters.values())


def _has_letters(word: str) -> bool:
    return any(character.isalpha() for character in word)
