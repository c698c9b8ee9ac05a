"""Which words to attack and how: greedy, by importance, for all texts at once.

The order of the words is that of leaving each out; at each word the candidate that lowers the odds of the class most is
kept, as in TextFooler (Jin et al., 2020). Own code, because `textattack` cannot be imported with transformers 5, and
because it evaluates one text after the other, whereas here all texts share forward passes.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from faithmeter.attacks.kinds import ATTACKS, DEFAULT_KINDS
from faithmeter.attacks.neighbours import Neighbours
from faithmeter.attacks.words import Words, divided
from faithmeter.data.batch import TEXT, Batch, Encoded, Ints, Texts, listed
from faithmeter.errors import InputError, nearest
from faithmeter.masking import Mask, Purpose, random_stream
from faithmeter.models.classifier import Classifier
from faithmeter.models.temporary import explaining
from faithmeter.problems import require_classes

BUDGET = 0.2
NEIGHBOURS = 8  # candidates of a word: these, and up to four misspellings
TEXTS_AT_ONCE = 256  # more fill passes no better, and their maskings are in memory
LEAST = 1e-4  # of log-odds: what is lower by less may be rounding, which depends on the batch
DIGITS = 5  # of log-odds that are compared: the rest is rounding, which depends on the batch
TokensOfWords = Mapping[int, Sequence[int]]  # the positions of each word's tokens
# (classifier, batch, tokens of the words of each row, class of each row) -> an importance for each word of each row
Order = Callable[[Classifier, Batch, Sequence[TokensOfWords], Tensor], list[dict[int, float]]]


@dataclass(frozen=True)
class Attack:
    """Attacked texts, and what it took.

    `succeeded`: the prediction changed. `skipped`: the text was already misclassified, so it was not attacked. A text
    that withstood is given as it was when the budget or the words were used up. `changed` of `words` were changed
    (those that the model sees); `queries` is how often the text was given to the model, and `tried` how many changed
    texts it was given: if that is 0, the attack had nothing to try. `before` and `after` are the predicted classes.
    """

    texts: tuple[str, ...]
    succeeded: Mask
    skipped: Mask
    changed: Ints
    words: Ints
    queries: Ints
    tried: Ints
    before: Ints
    after: Ints

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def success_rate(self) -> float:
        """The share that succeeded of the texts that were attacked; nan where none was."""
        attacked = int((~self.skipped).sum())
        return int(self.succeeded.sum()) / attacked if attacked else math.nan


def attack_texts(
    classifier: Classifier,
    texts: Texts,
    contexts: Texts | None = None,
    labels: Sequence[int] | Ints | None = None,
    *,
    kinds: Sequence[str] = DEFAULT_KINDS,
    budget: float = BUDGET,
    order: str = "masking",
    seed: int = 0,
    rows: Sequence[int] | Ints | None = None,
    progress: Callable[[int], None] | None = None,
) -> Attack:
    """Change words of texts until the prediction changes; contexts, and everything between the words, are not changed.

    The attacked class is the label, if labels are given, and otherwise the predicted class. `kinds` are names of
    `ATTACKS`, and `order` says how words are ranked (`ORDERS`): by `masking` each, or by their `gradient`, which takes
    two thirds of the time. At most `budget` of the words that the model sees are changed, rounded up. All that is
    random comes from the seed and the dataset row (`rows`; by default the place in `texts`), so that a text's attack
    does not depend on the others. `progress` is called with the number of finished texts. The model is not changed. A
    string is one text.
    """
    texts, contexts = listed(texts, contexts)
    _refuse_nonsense(classifier, texts, labels, rows, kinds, budget, order)
    numbers = range(len(texts)) if rows is None else [int(row) for row in rows]
    search = _Search(classifier, kinds, order, budget, seed, progress or (lambda done: None))  # noqa: ARG005
    targets: list[_Target] = []
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        part = slice(start, start + TEXTS_AT_ONCE)
        some = search.targets(
            texts[part],
            None if contexts is None else contexts[part],
            None if labels is None else labels[part],
            numbers[part],
        )
        search.run(some)
        targets += some
    return _result(targets)


def _refuse_nonsense(
    classifier: Classifier,
    texts: Sequence[str],
    labels: Sequence[int] | Ints | None,
    rows: Sequence[int] | Ints | None,
    kinds: Sequence[str],
    budget: float,
    order: str,
) -> None:
    check_settings(kinds, budget)
    if order not in ORDERS:
        raise InputError(f"There is no order {order!r} to attack words in: choose from {', '.join(ORDERS)}.")
    require_classes(classifier.problem, "An attack on texts")
    for name, given in (("labels", labels), ("rows", rows)):
        if given is not None and len(given) != len(texts):
            raise InputError(f"There are {len(texts)} texts and {len(given)} {name}: give one for each text.")
    if labels is not None and not all(0 <= label < len(classifier.labels) for label in labels):
        raise InputError(f"A label is not the number of a class: this model has {len(classifier.labels)}, from 0.")


def check_settings(kinds: Sequence[str], budget: float) -> None:
    """Refuse kinds of attack that are not there, and a budget that is no share."""
    for kind in kinds:
        if kind not in ATTACKS:
            raise InputError(f"There is no attack {kind!r}.{nearest(kind, ATTACKS)} There are {', '.join(ATTACKS)}.")
    if not kinds:
        raise InputError(f"No kind of attack is named: choose from {', '.join(ATTACKS)}.")
    if not 0 < budget <= 1:
        raise InputError(f"The budget is the share of words that may be changed, above 0 and up to 1; not {budget}.")


@dataclass
class _Target:
    """A text under attack: its current form, the model's output for it, and the changes left to try."""

    now: Words
    context: str | None
    row: int
    goal: int  # the class that the attack is to drive away
    before: int
    after: int
    odds: float
    kept: bytes  # ids of what is not text, which must stay: special tokens and the context
    ids: bytes
    order: list[int] = field(default_factory=list)  # words to attack, the most important first
    words: int = 0
    allowed: int = 0  # words that may be changed in all
    queries: int = 1
    tried: int = 0
    skipped: bool = False

    @property
    def open(self) -> bool:
        return self.after == self.goal and bool(self.order) and len(self.now.changed) < self.allowed


@dataclass(frozen=True)
class _Try:
    """A candidate for a text: the words, the ids that they become, and what the model says."""

    words: Words
    ids: bytes
    odds: float
    predicted: int


class _Search:
    """An attack on texts: what it may do, and the model."""

    def __init__(
        self,
        classifier: Classifier,
        kinds: Sequence[str],
        order: str,
        budget: float,
        seed: int,
        progress: Callable[[int], None],
    ) -> None:
        self.classifier, self.kinds, self.order = classifier, tuple(dict.fromkeys(kinds)), order
        self.budget, self.seed, self.progress = budget, seed, progress
        self.neighbours = Neighbours(classifier, NEIGHBOURS)

    def targets(
        self,
        texts: Sequence[str],
        contexts: Sequence[str] | None,
        labels: Sequence[int] | Ints | None,
        rows: Sequence[int],
    ) -> list[_Target]:
        """Return the texts with the model's output, and their words in the order of attack."""
        encoded = self.classifier.encode(texts, contexts)
        logits = _logits(self.classifier, encoded, range(len(texts)))
        found, spans = [], []
        for place, text in enumerate(texts):
            words, where = divided(text)
            predicted = int(logits[place].argmax())
            goal = predicted if labels is None else int(labels[place])
            ids, kept, _ = _row(encoded, place)
            odds = float(log_odds(logits[place : place + 1], torch.tensor([goal])))
            context = None if contexts is None else contexts[place]
            target = _Target(words, context, rows[place], goal, predicted, predicted, odds, kept, ids)
            target.skipped = predicted != goal
            found.append(target)
            spans.append(where)
        self._order(found, encoded, _tokens_of_words(self.classifier, texts, contexts, encoded, spans))
        return found

    def _order(self, targets: Sequence[_Target], encoded: Encoded, tokens: Sequence[TokensOfWords]) -> None:
        """Return for each text the words to attack, in order, and how many of them may be changed."""
        for target, of_words in zip(targets, tokens, strict=True):
            target.words = len(of_words)
            target.allowed = max(1, math.ceil(round(self.budget * len(of_words), 9)))
        chosen = [place for place, target in enumerate(targets) if target.words and not target.skipped]
        if not chosen:
            return
        goals = torch.tensor([targets[place].goal for place in chosen])
        importance = ORDERS[self.order](self.classifier, encoded.batch(chosen), [tokens[p] for p in chosen], goals)
        for place, found in zip(chosen, importance, strict=True):
            targets[place].order = most_important_first(found)
            targets[place].queries += len(found) if self.order == "masking" else 1

    def run(self, targets: Sequence[_Target]) -> None:
        """Attack one word of every text that still stands, until none does or nothing is left to try."""
        open_ = [target for target in targets if target.open]
        self.progress(len(targets) - len(open_))
        while open_:
            tries = self._tries(open_)
            for target, found in zip(open_, tries, strict=True):
                target.queries += len(found)
                target.tried += len(found)
                goal = target.goal
                # one that changes the answer before any that does not; of equal ones the first
                best = min(found, key=lambda one: (one.predicted == goal, one.odds), default=None)
                if best is not None and (best.predicted != goal or best.odds < target.odds - LEAST):
                    target.now, target.ids = best.words, best.ids
                    target.odds, target.after = best.odds, best.predicted
            still = [target for target in open_ if target.open]
            self.progress(len(open_) - len(still))
            open_ = still

    def _tries(self, targets: Sequence[_Target]) -> list[list[_Try]]:
        """Return the model's output for all candidates for the next word of each text, in packed passes."""
        places = [target.order.pop(0) for target in targets]
        if "replace" in self.kinds:
            self.neighbours.prepare(t.now.words[place] for t, place in zip(targets, places, strict=True))
        candidates = [
            (number, words)
            for number, (target, place) in enumerate(zip(targets, places, strict=True))
            for words in self._candidates(target, place)
        ]
        tries: list[list[_Try]] = [[] for _ in targets]
        if not candidates:
            return tries
        contexts = [targets[number].context or "" for number, _ in candidates]
        pairs = targets[0].context is not None
        encoded = self.classifier.encode([words.text for _, words in candidates], contexts if pairs else None)
        chosen = _admissible(encoded, [targets[number] for number, _ in candidates])
        logits = _logits(self.classifier, encoded, chosen)
        goals = torch.tensor([targets[candidates[row][0]].goal for row in chosen], dtype=torch.long)
        odds = np.round(log_odds(logits, goals).numpy(), DIGITS).tolist()
        for row, one, predicted in zip(chosen, odds, logits.argmax(dim=-1).tolist(), strict=True):
            number, words = candidates[row]
            tries[number].append(_Try(words, _row(encoded, row)[0], one, predicted))
        return tries

    def _candidates(self, target: _Target, place: int) -> Iterator[Words]:
        """Yield what the kinds of attack make of a word, within the budget."""
        if place in target.now.changed:  # swapped with the one before
            return
        random = random_stream(self.seed, Purpose.ATTACK, target.row, place)
        for kind in self.kinds:
            for words in ATTACKS[kind](target.now, place, self.neighbours, random):
                if len(words.changed) <= target.allowed:
                    yield words


def _admissible(encoded: Encoded, targets: Sequence[_Target]) -> list[int]:
    """Return the candidates, one per row, that may be tried.

    Not those that leave no token of the text, that become or lose a special token or move where a pair is cut, or whose
    ids are those of the text as it is or of an earlier candidate: the model cannot tell them apart.
    """
    seen: set[tuple[int, bytes]] = set()
    chosen = []
    for row, target in enumerate(targets):
        ids, kept, maskable = _row(encoded, row)
        if maskable and kept == target.kept and ids != target.ids and (id(target), ids) not in seen:
            seen.add((id(target), ids))
            chosen.append(row)
    return chosen


def _row(encoded: Encoded, row: int) -> tuple[bytes, bytes, int]:
    """Return a row's ids, the ids of what is not its text, and how many of its tokens can be masked."""
    part = slice(encoded.offsets[row], encoded.offsets[row + 1])
    ids, maskable = encoded.ids[part], encoded.sequence[part] == TEXT
    return ids.tobytes(), ids[~maskable].tobytes(), int(maskable.sum())


def _tokens_of_words(
    classifier: Classifier,
    texts: Sequence[str],
    contexts: Sequence[str] | None,
    encoded: Encoded,
    spans: Sequence[Sequence[tuple[int, int]]],
) -> list[TokensOfWords]:
    """Return, of each text, the maskable tokens of each word; a word that was cut away or is special has none."""
    found: list[TokensOfWords] = []
    for row, encoding in enumerate(classifier.encodings(texts, contexts)):
        maskable = encoded.sequence[encoded.offsets[row] : encoded.offsets[row + 1]] == TEXT
        owner = {at: word for word, (start, end) in enumerate(spans[row]) for at in range(start, end)}
        tokens: dict[int, list[int]] = {}
        for position in np.flatnonzero(maskable).tolist():
            start, end = encoding.offsets[position]
            for word in dict.fromkeys(owner[at] for at in range(start, end) if at in owner):
                tokens.setdefault(word, []).append(position)
        found.append(dict(sorted(tokens.items())))
    return found


def _logits(classifier: Classifier, encoded: Encoded, rows: Sequence[int]) -> Tensor:
    """Return the logits of rows of a split, packed by length, on the CPU."""
    if not len(rows):
        return torch.zeros(0, classifier.model.config.num_labels)
    batch = encoded.batch(rows).to(classifier.device)
    every = torch.arange(len(batch), device=classifier.device)
    return classifier.logits_of_masks(batch, every, batch.masked).cpu()


def _result(targets: Sequence[_Target]) -> Attack:
    columns: dict[str, Any] = {
        "texts": tuple(target.now.text for target in targets),
        "succeeded": np.array([t.after != t.goal and not t.skipped for t in targets], dtype=np.bool_),
        "skipped": np.array([target.skipped for target in targets], dtype=np.bool_),
        "changed": np.array([len(target.now.changed) for target in targets], dtype=np.int64),
    }
    for one in fields(Attack)[len(columns) :]:
        columns[one.name] = np.array([getattr(target, one.name) for target in targets], dtype=np.int64)
    return Attack(**columns)


# ------------------------------------------------------------------------------ in which order words are attacked
# The most important first, by one of two measures. `masking` masks every word in turn, which takes as many forward
# passes as there are words, as attacks in the literature do. `gradient` takes one forward and one backward pass: for
# training, which attacks again in every epoch.


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
