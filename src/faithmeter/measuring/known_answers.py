"""Classifiers whose reasons are known because their weights are set by hand, and the true importance of their tokens.

Each is a BERT of one or two layers that answers a rule about its words, 1 or 0. A number v of the hidden states is a
pair of dimensions, v and −v, so that a layer norm subtracts nothing; a constant pair far larger than the others keeps
what it divides by nearly constant. Attention averages the words that the rule reads into the first position, a
feed-forward layer with ReLU takes the smaller or the larger of two averages, and the head compares with a threshold.
Words that the rule does not read, and the mask token, have embeddings of the same length in directions that no later
weight reads: masking one changes nothing, and masking any other is removing it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import factorial, sqrt
from types import MappingProxyType

import numpy as np
import torch
import transformers
from torch import Tensor

from faithmeter.data.batch import Batch
from faithmeter.errors import InputError
from faithmeter.importance.measure import open_units
from faithmeter.masking import Mask, Purpose, random_stream
from faithmeter.models.classifier import Classifier
from faithmeter.models.from_scratch import SPECIALS, word_level_tokenizer

FILLERS = ("a", "film", "it", "one", "the", "was")  # that no rule reads
SHORTEST, LONGEST = 3, 8  # words of a drawn text
MAX_LENGTH = 18  # tokens that the models read; the thresholds are right up to here
MOST_PLAYERS = 12  # units of a text whose sets are all evaluated
# pairs of dimensions: a constant, the two words of the rule, their averages, what the feed-forward layer finds, the
# other words and the special tokens, and where a token is
CONSTANT, FIRST, SECOND, READ_FIRST, READ_SECOND, FOUND, OTHERS = range(7)
PLACES = OTHERS + len(FILLERS) + 1
PAIRS = PLACES + MAX_LENGTH
WIDTH = 2 * PAIRS
CONSTANT_SIZE = sqrt(PAIRS)  # its pair alone has variance 1
THRESHOLD = 0.03  # between none and one of `MAX_LENGTH` tokens
STEEPNESS, SIZE = 30.0, 3.0  # of the head: a logit of ± SIZE · tanh(STEEPNESS · (average − THRESHOLD))
LOOKS = 2.0  # attention score of the words that are looked for; that of others is 0
PREVIOUS = 16.0  # a query's and a key's number where the key is one place before: a score of about 30


@dataclass(frozen=True)
class Rule:
    """What a model answers: 1 where `answer` is true of a text's words, among which only `words` are read.

    `decided` are the answers that masking can change: of most rules it never brings about a 1.
    """

    name: str
    meaning: str
    words: tuple[str, ...]
    answer: Callable[[Sequence[str]], bool]
    build: "Callable[[transformers.BertForSequenceClassification], None]"
    decided: tuple[bool, ...] = (True,)
    layers: int = 1


def known_classifier(rule: Rule) -> Classifier:
    """Return the model that answers a rule, with weights that are set by hand."""
    tokenizer = word_level_tokenizer([" ".join((*rule.words, *FILLERS))], max_length=MAX_LENGTH)
    config = transformers.BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        num_hidden_layers=rule.layers,
        num_attention_heads=1,
        intermediate_size=2,
        hidden_act="relu",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=MAX_LENGTH,
        type_vocab_size=1,
        pad_token_id=tokenizer.pad_token_id,
        id2label={0: "no", 1: "yes"},
        label2id={"no": 0, "yes": 1},
    )
    model = transformers.BertForSequenceClassification(config).eval()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            weights.fill_(1.0 if name.endswith("LayerNorm.weight") else 0.0)
        embeddings = model.bert.embeddings
        _set(embeddings.token_type_embeddings.weight[0], CONSTANT, CONSTANT_SIZE)
        pairs = dict.fromkeys(SPECIALS, OTHERS) | {word: OTHERS + 1 + k for k, word in enumerate(FILLERS)}
        pairs |= dict(zip(rule.words, (FIRST, SECOND), strict=False))
        for word, pair in pairs.items():
            _set(embeddings.word_embeddings.weight[tokenizer.convert_tokens_to_ids(word)], pair, 1.0)
        for layer in model.bert.encoder.layer:
            layer.attention.output.dense.weight.fill_diagonal_(1.0)
        model.bert.pooler.dense.bias[0] = -STEEPNESS * THRESHOLD
        model.classifier.weight[:, 0] = torch.tensor([-SIZE, SIZE])
        rule.build(model)
    return Classifier(model, tokenizer, max_length=MAX_LENGTH)


# ---------------------------------------------------------------------------------------- weights


def _set(vector: Tensor, pair: int, value: float) -> None:
    """Write a number into a vector of hidden states."""
    vector[2 * pair], vector[2 * pair + 1] = value, -value


def _read(row: Tensor, pair: int, factor: float) -> None:
    """Let a row of a linear layer read a number of the hidden states, times a factor."""
    row[2 * pair], row[2 * pair + 1] = factor / 2, -factor / 2


def _move(weight: Tensor, source: int, target: int, factor: float = 1.0) -> None:
    """Let a linear layer add one number of the hidden states, times a factor, to another."""
    _read(weight[2 * target], source, factor)
    _read(weight[2 * target + 1], source, -factor)


def _head(model: transformers.BertForSequenceClassification, factors: dict[int, float]) -> None:
    """Let the head compare a sum of numbers of the first position with the threshold."""
    for pair, factor in factors.items():
        _read(model.bert.pooler.dense.weight[0], pair, STEEPNESS * factor)


def _averages(model: transformers.BertForSequenceClassification) -> None:
    """Let the first layer average the two words over the text; a query of zeros attends evenly."""
    value = model.bert.encoder.layer[0].attention.self.value.weight
    _move(value, FIRST, READ_FIRST)
    _move(value, SECOND, READ_SECOND)


def _keyword(model: transformers.BertForSequenceClassification) -> None:
    _averages(model)
    _head(model, {READ_FIRST: 1.0})


def _attended_keyword(model: transformers.BertForSequenceClassification) -> None:
    _keyword(model)
    attention = model.bert.encoder.layer[0].attention.self
    attention.query.bias[0] = LOOKS * sqrt(WIDTH)
    _read(attention.key.weight[0], FIRST, 1.0)


def _extreme(model: transformers.BertForSequenceClassification, factor: float) -> None:
    """Let the head read (a + b)/2 + factor · |a − b|/2: the larger average, or with −1 the smaller."""
    _averages(model)
    layer = model.bert.encoder.layer[0]
    for row, sign in enumerate((1.0, -1.0)):
        _read(layer.intermediate.dense.weight[row], READ_FIRST, sign)
        _read(layer.intermediate.dense.weight[row], READ_SECOND, -sign)
        _set(layer.output.dense.weight[:, row], FOUND, factor / 2)
    _head(model, {READ_FIRST: 0.5, READ_SECOND: 0.5, FOUND: 1.0})


def _both(model: transformers.BertForSequenceClassification) -> None:
    _extreme(model, -1.0)


def _either(model: transformers.BertForSequenceClassification) -> None:
    _extreme(model, 1.0)


def _majority(model: transformers.BertForSequenceClassification) -> None:
    _averages(model)
    _head(model, {READ_FIRST: 1.0, READ_SECOND: -1.0})


def _negation(model: transformers.BertForSequenceClassification) -> None:
    """Attend to the token before, find words that the negation stands before, and average the others of the kind."""
    before, average = model.bert.encoder.layer
    attention = before.attention.self
    for place in range(MAX_LENGTH):
        _set(model.bert.embeddings.position_embeddings.weight[place], PLACES + place, 1.0)
        _read(attention.query.weight[place], PLACES + place, PREVIOUS)
        if place:
            _read(attention.key.weight[place], PLACES + place - 1, PREVIOUS)
    _move(attention.value.weight, SECOND, READ_SECOND)
    row = before.intermediate.dense.weight[0]
    _read(row, FIRST, 1.0)
    _read(row, READ_SECOND, 1.0)
    before.intermediate.dense.bias[0] = -1.0
    _set(before.output.dense.weight[:, 0], FOUND, 1.0)
    value = average.attention.self.value.weight
    for target, sign in ((2 * READ_FIRST, 1.0), (2 * READ_FIRST + 1, -1.0)):
        _read(value[target], FIRST, sign)
        _read(value[target], FOUND, -sign)
    _head(model, {READ_FIRST: 1.0})


def _not_negated(words: Sequence[str]) -> bool:
    return any(word == "good" and (not k or words[k - 1] != "not") for k, word in enumerate(words))


_TABLE = (
    Rule("keyword", "`good` is in the text", ("good",), lambda words: "good" in words, _keyword),
    Rule(
        "keyword-attended",
        "the same, and attention looks for it",
        ("good",),
        lambda words: "good" in words,
        _attended_keyword,
    ),
    Rule(
        "and",
        "`good` and `fresh` are in the text",
        ("good", "fresh"),
        lambda words: "good" in words and "fresh" in words,
        _both,
    ),
    Rule(
        "or",
        "`good` or `fresh` is in the text",
        ("good", "fresh"),
        lambda words: "good" in words or "fresh" in words,
        _either,
    ),
    Rule(
        "majority",
        "there are more `good` than `bad`",
        ("good", "bad"),
        lambda words: words.count("good") > words.count("bad"),
        _majority,
        (True, False),
    ),
    Rule(
        "negation",
        "some `good` has no `not` directly before it",
        ("good", "not"),
        _not_negated,
        _negation,
        (True, False),
        layers=2,
    ),
)
RULES = MappingProxyType({rule.name: rule for rule in _TABLE})


# ---------------------------------------------------------------------------------------- the truth


def deciding(rule: Rule, words: Sequence[str]) -> Mask:
    """Return the words that decide: those of the smallest sets whose masking changes the rule's answer.

    Smallest: no part of the set does so. It is found from the rule alone, and is empty where no masking does.
    """
    answer, found = rule.answer(words), list[frozenset[int]]()
    for size in range(1, len(words) + 1):
        for chosen in map(frozenset, combinations(range(len(words)), size)):
            if not any(known <= chosen for known in found):
                masked = ["[MASK]" if k in chosen else word for k, word in enumerate(words)]
                if rule.answer(masked) != answer:
                    found.append(chosen)
    return np.array([any(k in one for one in found) for k in range(len(words))], dtype=np.bool_)


def known_texts(rule: Rule, count: int, *, seed: int = 0) -> tuple[list[list[str]], list[Mask]]:
    """Return drawn texts, as words, and which of them decide; in each some words do and some do not.

    Where masking can change either answer, every other text has the other one.
    """
    texts, decide = [], []
    for row in range(count):
        random = random_stream(seed, Purpose.KNOWN_ANSWERS, row)
        while True:
            size = int(random.integers(SHORTEST, LONGEST + 1))
            read = random.random(size) < 0.5
            words = [str(random.choice(rule.words if one else FILLERS)) for one in read]
            truth = deciding(rule, words)
            if truth.any() and not truth.all() and rule.answer(words) == rule.decided[row % len(rule.decided)]:
                break
        texts.append(words)
        decide.append(truth)
    return texts, decide


def exact_shapley(classifier: Classifier, batch: Batch, targets: Tensor, _seed: int) -> Tensor:
    """Return the Shapley value of each unit by the definition of Shapley (1953): from all sets of a text's units.

    What a set is worth is the logit of the target with all other units masked. φ_i = Σ_S |S|! (n − |S| − 1)! / n! ·
    (v(S ∪ i) − v(S)), over the sets S without i.
    """
    batch, targets = batch.to(classifier.device), targets.to(classifier.device)
    found = np.zeros(batch.input_ids.shape, dtype=np.float32)
    for row, units in enumerate(open_units(batch)):
        n = units.count
        if n > MOST_PLAYERS:
            raise InputError(f"A text has {n} units, and all sets are evaluated only up to {MOST_PLAYERS}.")
        kept = np.arange(2**n)[:, None] >> np.arange(n) & 1 == 1
        masked = torch.from_numpy(units.tokens_of(~kept)).to(targets.device) | batch.masked[row]
        rows = torch.full((len(kept),), row, device=targets.device)
        worth = classifier.logits_of_masks(batch, rows, masked)[:, targets[row]].double().cpu().numpy()
        size = kept.sum(axis=1)
        weight = [factorial(s) * factorial(n - s - 1) / factorial(n) for s in range(n)]
        # a set with i counts as S ∪ i, one without it as S
        share = np.array([[weight[s - 1] if i else -weight[s] for i in one] for one, s in zip(kept, size, strict=True)])
        found[row] = units.spread(worth @ share if n else np.zeros(0))
    return torch.from_numpy(found)
