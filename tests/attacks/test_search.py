"""The search: what an attack promises, on any text, and against a search written plainly, one text at a time."""

import functools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import WORDS, random_classifier, sentiment_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from faithmeter.attacks import search
from faithmeter.attacks.kinds import ATTACKS, DEFAULT_KINDS
from faithmeter.attacks.neighbours import Neighbours
from faithmeter.attacks.search import ORDERS, attack_texts
from faithmeter.attacks.words import divided
from faithmeter.errors import InputError
from faithmeter.masking import Purpose, random_stream
from faithmeter.models.from_scratch import small_classifier

EVERY_KIND = tuple(ATTACKS)
ODD_TEXTS = (
    "",
    " ",
    "?!",
    "👍🏽 ❤️",
    "x",
    "good",
    "[MASK]",
    "good [MASK] film",
    "a\u0301",
    "\x00",
    "'",
    "it was " * 400,
)
TEXTS = [row["text"] for row in sentiment_rows(12, seed=3)]


def undecided(classifier):
    """The model with a head that says now this, now that: random weights say nearly the same of every text.

    In double precision, because such a head makes rounding, which depends on the batch and the processor, larger too.
    """
    classifier.model.double()
    logits = classifier.predict(classifier.encode(TEXTS))
    head = [module for module in classifier.model.modules() if isinstance(module, torch.nn.Linear)][-1]
    with torch.no_grad():
        spread = logits.std(dim=0).mean()
        head.weight /= spread
        head.bias.copy_((head.bias - logits.median(dim=0).values) / spread)
    classifier.max_length = 32
    return classifier


@functools.cache
def toy():
    return undecided(small_classifier([" ".join(WORDS), "[MASK]"], ("negative", "positive"), seed=0))


@functools.cache
def pieces():
    return undecided(random_classifier("bert"))


@functools.cache
def bytes_():
    return random_classifier("roberta")


@functools.cache
def decoder():
    return random_classifier("gpt2")


# words of the vocabulary and others, with all that may stand between and around them
texts = st.lists(
    st.one_of(st.sampled_from(WORDS), st.sampled_from(["zebra", "It's", "?", ",", "...", "👍", "[MASK]", "\n"])),
    max_size=12,
).map(" ".join)
any_text = st.one_of(texts, st.text(max_size=30))
chosen_kinds = st.sets(st.sampled_from(EVERY_KIND), min_size=1).map(sorted)


def log_odds(classifier, text, context, goal, masked=()):
    """Naively, from the formula: log p / (1 − p), of one text alone; and the predicted class."""
    encoded = classifier.encode([text], None if context is None else [context])
    batch = encoded.batch([0])
    mask = batch.masked.clone()
    mask[0, list(masked)] = True
    with torch.no_grad():
        probabilities = classifier.logits(batch.with_masked(mask))[0].double().softmax(dim=-1)
    return math.log(probabilities[goal]) - math.log(1 - probabilities[goal]), int(probabilities.argmax())


def attacked_plainly(classifier, text, context, budget, kinds, seed, row):
    """The attack of one text, step by step as the page tells it."""
    _, goal = log_odds(classifier, text, context, 0)
    now, goal_odds = divided(text)[0], log_odds(classifier, text, context, goal)[0]
    (encoding,) = classifier.encodings([text], None if context is None else [context])
    falls = {}
    for word, (start, end) in enumerate(divided(text)[1]):
        tokens = [
            place
            for place, (sequence, (a, b)) in enumerate(zip(encoding.sequence_ids, encoding.offsets, strict=True))
            if sequence == 0 and a < end and b > start
        ]
        falls[word] = goal_odds - log_odds(classifier, text, context, goal, tokens)[0]
    allowed = math.ceil(budget * len(falls) - 1e-9)
    neighbours = Neighbours(classifier, search.NEIGHBOURS)
    for place in sorted(falls, key=lambda word: (-round(falls[word], 5), word)):
        if place in now.changed:
            continue
        random, found = random_stream(seed, Purpose.ATTACK, row, place), []
        for kind in kinds:
            for one in ATTACKS[kind](now, place, neighbours, random):
                if len(one.changed) <= allowed:
                    odds, answer = log_odds(classifier, one.text, context, goal)
                    found.append((answer == goal, round(odds, 5), len(found), one))
        if found and (not min(found)[0] or min(found)[1] < goal_odds - 1e-4):
            _, goal_odds, _, now = min(found)
        if log_odds(classifier, now.text, context, goal)[1] != goal or len(now.changed) == allowed:
            break
    return now.text


@pytest.mark.parametrize("kinds", [DEFAULT_KINDS, EVERY_KIND, ("delete",)])
def test_the_attack_is_the_greedy_one_that_a_plain_search_finds(kinds):
    contexts = ["it was a film"] * len(TEXTS)
    found = attack_texts(toy(), TEXTS, contexts, kinds=kinds, budget=0.5, seed=3)
    expected = [
        attacked_plainly(toy(), text, context, 0.5, kinds, 3, row)
        for row, (text, context) in enumerate(zip(TEXTS, contexts, strict=True))
    ]
    assert list(found.texts) == expected
    assert found.texts != tuple(TEXTS)


@settings(max_examples=40, deadline=None)
@given(st.lists(any_text, min_size=1, max_size=4), chosen_kinds, st.floats(0.01, 1.0), st.sampled_from([toy, pieces]))
def test_any_attack_keeps_its_promises(given_texts, kinds, budget, classifier):
    classifier = classifier()
    found = attack_texts(classifier, given_texts, kinds=kinds, budget=budget)
    before, after = classifier.encode(given_texts), classifier.encode(found.texts)
    predicted = classifier.predict(after).argmax(dim=-1).numpy()
    np.testing.assert_array_equal(predicted, found.after)
    np.testing.assert_array_equal(found.succeeded, found.before != found.after)
    for row, (old, new) in enumerate(zip(given_texts, found.texts, strict=True)):
        parts = [slice(one.offsets[row], one.offsets[row + 1]) for one in (before, after)]
        special = [
            one.ids[part][~one.maskable[part]].tolist() for one, part in zip((before, after), parts, strict=True)
        ]
        assert special[0] == special[1]
        assert after.maskable[parts[1]].any() or not before.maskable[parts[0]].any()
        assert found.changed[row] <= max(1, math.ceil(budget * found.words[row] - 1e-9))
        assert found.changed[row] == (0 if old == new else found.changed[row])
        between_old, between_new = ("".join(divided(text)[0].gaps) for text in (old, new))
        assert "".join(between_old.split()) == "".join(between_new.split())  # punctuation
        if "delete" not in kinds:
            assert divided(old)[0].gaps == divided(new)[0].gaps  # and white space
            differing = sum(a != b for a, b in zip(divided(old)[0].words, divided(new)[0].words, strict=True))
            assert differing == found.changed[row]


@pytest.mark.parametrize("order", ORDERS)
def test_a_text_is_attacked_alike_alone_and_among_others(order):
    many = [*TEXTS, *ODD_TEXTS]
    together = attack_texts(toy(), many, kinds=EVERY_KIND, order=order, seed=1)
    for row, text in enumerate(many):
        alone = attack_texts(toy(), [text], kinds=EVERY_KIND, order=order, seed=1, rows=[row])
        assert alone.texts[0] == together.texts[row]
        assert alone.queries[0] == together.queries[row]
        assert alone.changed[0] == together.changed[row]


def test_of_a_text_that_is_cut_only_what_the_model_sees_is_attacked():
    (text,) = ODD_TEXTS[-1:]
    found = attack_texts(toy(), [text], kinds=("replace", "characters"), budget=1.0)
    seen = toy().max_length - 2  # a token a word, and two that are special
    assert found.words[0] == seen
    assert found.texts[0].split()[seen:] == text.split()[seen:]


def test_a_seed_gives_the_same_attack_and_another_seed_another():
    kinds = ("characters",)
    first, again, other = (attack_texts(pieces(), TEXTS, kinds=kinds, budget=1, seed=seed) for seed in (0, 0, 1))
    assert first.texts == again.texts
    assert first.texts != other.texts
    moved = attack_texts(pieces(), TEXTS, kinds=kinds, budget=1, seed=0, rows=range(5, 5 + len(TEXTS)))
    assert first.texts != moved.texts  # draws belong to the dataset row


@pytest.mark.parametrize("classifier", [toy, pieces, bytes_, decoder])
def test_odd_texts_are_no_trouble(classifier):
    found = attack_texts(classifier(), ODD_TEXTS, kinds=EVERY_KIND, budget=0.02)
    assert len(found) == len(ODD_TEXTS)
    assert found.texts[:4] == ODD_TEXTS[:4]  # where there is no word, there is nothing to attack
    assert found.words[:4].tolist() == [0, 0, 0, 0]


def test_the_context_stays_even_where_a_pair_is_cut():
    classifier = random_classifier("bert")
    classifier.max_length = 24
    text, context = "the film was great " * 4, "was the story bad ? " * 4
    found = attack_texts(classifier, [text], [context], kinds=EVERY_KIND, budget=1.0)
    before, after = classifier.encode([text], [context]), classifier.encode(found.texts, [context])
    assert before.truncated == after.truncated == 1
    assert before.ids[~before.maskable].tolist() == after.ids[~after.maskable].tolist()


def test_a_special_token_is_neither_made_nor_lost():
    # to leave out "x" would make the mask token of what is left
    classifier = toy()
    (attacked,) = attack_texts(classifier, ["good [xMASK] [MASK]"], kinds=("delete", "characters"), budget=1).texts
    assert attacked.count("[MASK]") == 1


def test_a_text_that_is_wrong_already_is_skipped_and_counts_for_nothing():
    plain = attack_texts(toy(), TEXTS, budget=1)
    right = plain.before.copy()
    labels = np.where(np.arange(len(TEXTS)) % 3 == 0, 1 - right, right)
    found = attack_texts(toy(), TEXTS, None, labels, budget=1)
    np.testing.assert_array_equal(found.skipped, labels != right)
    for row in np.flatnonzero(found.skipped):
        assert found.texts[row] == TEXTS[row]
        assert (found.queries[row], found.changed[row], found.succeeded[row]) == (1, 0, False)
    for row in np.flatnonzero(~found.skipped):
        assert found.texts[row] == plain.texts[row]
    assert found.success_rate == found.succeeded.sum() / (~found.skipped).sum()
    assert math.isnan(attack_texts(toy(), TEXTS, None, 1 - right).success_rate)


def test_queries_are_counted_one_by_one(monkeypatch):
    asked = []
    logits = type(toy()).logits

    def counting(self, batch, **more):
        asked.append(len(batch))
        return logits(self, batch, **more)

    monkeypatch.setattr(type(toy()), "logits", counting)
    found = attack_texts(toy(), TEXTS, budget=0.5)
    assert found.queries.sum() == sum(asked)


def test_the_model_is_left_as_it_was():
    classifier = random_classifier("bert")
    classifier.model.train()
    classifier.model.bert.embeddings.eval()
    (weight := classifier.model.classifier.weight).requires_grad_(False)
    before = {name: value.clone() for name, value in classifier.model.state_dict().items()}
    modes = [module.training for module in classifier.model.modules()]
    learnt = [parameter.requires_grad for parameter in classifier.model.parameters()]
    state = torch.get_rng_state()
    for order in ORDERS:
        attack_texts(classifier, TEXTS[:3], order=order)
    assert modes == [module.training for module in classifier.model.modules()]
    assert learnt == [parameter.requires_grad for parameter in classifier.model.parameters()]
    assert not weight.requires_grad
    assert all(torch.equal(value, before[name]) for name, value in classifier.model.state_dict().items())
    assert all(parameter.grad is None for parameter in classifier.model.parameters())
    assert torch.equal(state, torch.get_rng_state())


def test_more_budget_beats_more_texts_and_every_text_is_told_as_done():
    done = []
    few, many = (attack_texts(toy(), TEXTS, kinds=EVERY_KIND, budget=b, progress=done.append) for b in (0.1, 1.0))
    assert many.succeeded.sum() >= few.succeeded.sum()
    assert many.succeeded.any()
    assert sum(done) == 2 * len(TEXTS)


def test_the_gradient_orders_words_by_the_size_of_its_part_at_each():
    classifier = pieces()
    encoded = classifier.encode(["was the film great"])
    batch, tokens = encoded.batch([0]), {0: [1], 1: [2], 2: [3, 4, 5]}
    (found,) = ORDERS["gradient"](classifier, batch, [tokens], torch.tensor([1]))
    embeddings = classifier.embed(batch).requires_grad_()
    classifier.model.eval()
    classifier.logits_from(batch, embeddings)[0, 1].backward()
    sizes = embeddings.grad[0].norm(dim=-1)
    expected = {word: float(sizes[places].max() / sizes[1:6].max()) for word, places in tokens.items()}
    assert found == pytest.approx(expected, rel=1e-5)
    classifier.model.zero_grad()


def test_the_order_by_gradients_does_not_hang_on_the_scale_of_the_embeddings(monkeypatch):
    classifier = random_classifier("bert")
    texts = ["was the film great and was it not"]
    before = attack_texts(classifier, texts, order="gradient", budget=1)
    real = classifier.logits_and_gradients

    def scaled(*given):
        logits, gradients = real(*given)
        return logits, 1e-7 * gradients

    monkeypatch.setattr(classifier, "logits_and_gradients", scaled)
    assert attack_texts(classifier, texts, order="gradient", budget=1).texts == before.texts
    encoded = classifier.encode(["was the film great"])
    (found,) = ORDERS["gradient"](classifier, encoded.batch([0]), [{0: [1], 1: [2], 2: [3]}], torch.tensor([1]))
    assert max(found.values()) == 1


def test_a_candidate_that_changes_the_answer_is_taken_before_one_that_lowers_the_odds_more(monkeypatch):
    answers = iter([[[0.5, 0.25, 0.25]], [[0.36, 0.32, 0.32], [0.40, 0.45, 0.15]]])
    monkeypatch.setattr(search, "_logits", lambda *_: torch.tensor(next(answers)).log())
    monkeypatch.setattr(search, "ORDERS", {"masking": lambda *_: [{0: 1.0}]})

    def two(words, place, *_):
        return [words.with_words({place: new}) for new in ("bad", "great")]

    monkeypatch.setattr(search, "ATTACKS", {"replace": two})
    found = attack_texts(random_classifier("bert"), ["good film"], kinds=("replace",), budget=0.5)
    assert (found.texts, found.after.tolist(), found.succeeded.tolist()) == (("great film",), [1], [True])


def test_a_candidate_without_a_token_or_with_other_special_tokens_is_not_tried():
    classifier = pieces()
    encoded = classifier.encode(["good", "", "good [MASK]", "film", "film"])
    original = classifier.encode(["the story"])
    kept = original.ids[~original.maskable].tobytes()
    target = SimpleNamespace(kept=kept, ids=original.ids.tobytes())
    # no token of the text is left; a special token came; the last one has the ids of the one before it
    assert search._admissible(encoded, [target] * 5) == [0, 3]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"kinds": ("replce",)}, "did you mean 'replace'|Did you mean"),
        ({"kinds": ()}, "No kind"),
        ({"budget": 0}, "budget"),
        ({"budget": 1.2}, "budget"),
        ({"order": "chance"}, "order"),
        ({"labels": [0]}, "labels"),
        ({"labels": [0, 7]}, "not the number of a class"),
        ({"rows": [0]}, "rows"),
        ({"contexts": ["a"]}, "contexts"),
    ],
)
def test_nonsense_is_refused(options, why):
    with pytest.raises(InputError, match=why):
        attack_texts(toy(), ["good film", "bad film"], **options)
