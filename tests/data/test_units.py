"""Units: what is masked and explained as a whole, against naive references."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from conftest import WORDS, random_classifier
from hypothesis import given, settings
from hypothesis import strategies as st
from importance.reference import CONTEXTS, TARGETS, TEXTS, alone, plain_logit, strong_classifier

from faithmeter import InputError
from faithmeter.data.batch import Batch
from faithmeter.data.units import UNITS, sentence_starts, with_units
from faithmeter.explaining.explanation import explain_texts
from faithmeter.explaining.options import ExplainOptions
from faithmeter.importance.measure import ImportanceMeasure, even_shares, open_units
from faithmeter.importance.table import IMPORTANCE_MEASURES, as_measure
from faithmeter.in_distribution.masf import MaSF, fit_calibrated, neighbouring_steps, step_features
from faithmeter.measuring.curves import mask_most_important, masking_walk
from faithmeter.studies.measure import Stopwatch, _walk_table

LARGER = ("word", "sentence", "chunk")
ROWS = [2, 0, 3, 1]
BY_SENTENCE = ExplainOptions(by="sentence")
LONG = "The film was great. It was not awful at all! Was the story bad? The plot was very good, unbelievably so."


def unit_batch(classifier, by, *, pairs=False, masked=False, chunk=3):
    """The example texts in a padded batch with units; with `masked`, every third maskable token is masked."""
    contexts = CONTEXTS if pairs else None
    encoded = with_units(classifier.encode(TEXTS, contexts), classifier, TEXTS, contexts, by=by, chunk=chunk)
    batch = encoded.batch(ROWS)
    if masked:
        batch = batch.with_masked(batch.maskable & (batch.maskable.cumsum(dim=1) % 3 == 0))
    return batch


def encoded_by(classifier, text, by, context=None, chunk=16):
    contexts = None if context is None else [context]
    return with_units(classifier.encode([text], contexts), classifier, [text], contexts, by=by, chunk=chunk)


# ---------------------------------------------------------------------------------------------- from a text


def sentences(text):
    starts = [0, *sentence_starts(text), len(text)]
    return [text[start:end].strip() for start, end in pairwise(starts)]


@pytest.mark.parametrize(
    "expected",
    [
        ["I liked it.", "She did not!", "Why?", "Well ..."],
        ["He said “no.”", "Then he left (in a hurry.)", "The end"],
        ["Mr. Smith met J. Doe at 5.30 p.m. and left.", "It was late, e.g. midnight."],
        ["Well... maybe it was good."],
        ["no capitals here.", "so this is another one."],
        ["a tokenised text has stops apart .", "and goes on in lower case !", "see ?"],
        ["no stop at all"],
        ["..."],
        [""],
    ],
)
def test_sentences_end_where_a_reader_would_end_them(expected):
    assert sentences(" ".join(expected)) == expected


def test_an_empty_line_or_a_break_ends_a_sentence_and_a_wrapped_line_does_not():
    found = sentences("a title\n\nThe film\nwas long<br /><br />The end")
    assert found == ["a title", "The film\nwas long<br /><br />", "The end"]
    assert sentences("好看。真的！走吧") == ["好看。", "真的！", "走吧"]


@pytest.mark.parametrize("architecture", ["bert", "roberta", "deberta", "t5", "gpt2"])
@pytest.mark.parametrize("by", LARGER)
def test_units_count_from_zero_hold_whole_words_and_nothing_of_the_context(by, architecture):
    classifier = random_classifier(architecture)
    context = "The story was bad. It was awful."
    encoded = encoded_by(classifier, LONG, by, context, chunk=5)
    (encoding,) = classifier.encodings([LONG], [context])
    units, maskable = encoded.units, encoded.maskable
    assert (units[~maskable] == -1).all()
    assert (np.diff(units[maskable]) >= 0).all()
    assert sorted(set(units[maskable].tolist())) == list(range(encoded.unit_counts[0]))
    of_word = {}
    for position in np.flatnonzero(maskable):
        of_word.setdefault(encoding.word_ids[position], set()).add(int(units[position]))
    assert all(len(found) == 1 for word, found in of_word.items() if word is not None)


def test_the_sentences_of_a_text_are_its_units():
    (found,) = explain_texts(random_classifier("bert"), [LONG], options=BY_SENTENCE, measure="random")
    assert [piece.text for piece in found.units] == sentences(LONG)
    assert found.by == "sentence"


@pytest.mark.parametrize("chunk", [1, 4, 7, 1000])
def test_a_chunk_is_as_full_as_its_words_allow_and_only_a_longer_word_exceeds_it(chunk):
    classifier = random_classifier("bert")
    words = encoded_by(classifier, LONG, "word").units
    chunks = encoded_by(classifier, LONG, "chunk", chunk=chunk).units
    maskable = words >= 0
    sizes = np.bincount(words[maskable])
    for number in range(chunks.max() + 1):
        held = np.unique(words[chunks == number])
        assert sizes[held].sum() <= chunk or len(held) == 1
        if number:
            before = np.unique(words[chunks == number - 1])
            assert sizes[before].sum() + sizes[held[0]] > chunk


def test_tokens_are_their_own_units_and_unknown_units_are_refused():
    classifier = random_classifier("bert")
    encoded = classifier.encode(TEXTS)
    assert with_units(encoded, classifier, TEXTS, by="token").units is None
    counts = [int(encoded.batch([row]).maskable.sum()) for row in range(len(TEXTS))]
    assert encoded.unit_counts.tolist() == counts
    with pytest.raises(InputError, match=r"no unit 'sentense'.*sentence"):
        with_units(encoded, classifier, TEXTS, by="sentense")
    with pytest.raises(InputError, match="at least 1 token"):
        with_units(encoded, classifier, TEXTS, by="chunk", chunk=0)


# ------------------------------------------------------------------------------------------ masked as a whole


@torch.no_grad()
def naive_leave_one_out(classifier, batch):
    """One unit of one text at a time, straight from the bare model."""
    expected = torch.zeros(batch.maskable.shape)
    for row, target in enumerate(TARGETS.tolist()):
        one = alone(batch, row)
        open_ = one.maskable & ~one.masked
        whole = plain_logit(classifier, one, target)
        for unit in one.units[open_].unique():
            mine = open_ & (one.units == unit)
            drop = whole - plain_logit(classifier, one.with_masked(one.masked | mine), target)
            expected[row, : mine.shape[1]][mine[0]] = drop
    return expected


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("by", LARGER)
def test_leave_one_out_masks_a_unit_as_a_whole(by, pairs, masked):
    classifier = strong_classifier("bert")
    batch = unit_batch(classifier, by, pairs=pairs, masked=masked)
    expected = naive_leave_one_out(classifier, batch)
    assert expected.abs().max() > 1e-3
    found = IMPORTANCE_MEASURES["loo-signed"].explain(classifier, batch, TARGETS, 0)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    absolute = IMPORTANCE_MEASURES["loo-abs"].explain(classifier, batch, TARGETS, 0)
    torch.testing.assert_close(absolute, expected.abs(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "combine"),
    [
        ("grad-l1", torch.sum),
        ("grad-l2", torch.linalg.vector_norm),
        ("x-grad-signed", torch.sum),
        ("x-grad-abs", None),
        ("ig-signed", torch.sum),
        ("ig-abs", None),
        ("deep-lift", torch.sum),
        ("attention", torch.sum),
        ("scaled-attention", torch.sum),
        ("attention-average", torch.sum),
        ("attention-rollout", torch.sum),
    ],
)
@pytest.mark.parametrize("by", ["word", "sentence"])
def test_what_comes_from_one_pass_is_combined_over_the_tokens_of_a_unit(by, name, combine):
    classifier = strong_classifier("bert")
    batch = unit_batch(classifier, by, pairs=True)
    signed = name.replace("-abs", "-signed")
    tokens = IMPORTANCE_MEASURES[signed].explain(classifier, replace(batch, units=None), TARGETS, 0)
    expected = torch.zeros_like(tokens)
    for row in range(len(batch)):
        for unit in range(int(batch.units[row].max()) + 1):
            mine = batch.units[row] == unit
            expected[row, mine] = (combine or torch.sum)(tokens[row, mine])
    if combine is None:
        expected = expected.abs()  # of the unit's, not of its tokens'
    found = IMPORTANCE_MEASURES[name].explain(classifier, batch, TARGETS, 0)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


UNITWISE = [name for name in IMPORTANCE_MEASURES if name not in ("attention-rollout-residual", "ig-abs", "x-grad-abs")]


@pytest.mark.parametrize("name", UNITWISE)
def test_every_measure_gives_a_unit_one_number_alone_as_in_a_batch(name):
    classifier = strong_classifier("bert")
    batch, measure = unit_batch(classifier, "chunk", pairs=True, chunk=4), IMPORTANCE_MEASURES[name]
    found = measure.explain(classifier, batch, TARGETS, 3)
    assert (found[~batch.maskable] == 0).all()
    for row in range(len(batch)):
        one = alone(batch, row)
        single = measure.explain(classifier, one, TARGETS[row : row + 1], 3)[0]
        torch.testing.assert_close(single, found[row, : len(single)], atol=1e-5, rtol=1e-5)
        for unit in range(int(batch.units[row].max()) + 1):
            assert len(found[row, batch.units[row] == unit].unique()) == 1


def test_a_users_own_function_is_added_up_over_a_unit():
    def ones(classifier, batch, targets, seed):
        return torch.ones(batch.maskable.shape)

    classifier = random_classifier("bert")
    batch = unit_batch(classifier, "word")
    found = as_measure(ones).explain(classifier, batch, TARGETS, 0)
    for row in range(len(batch)):
        sizes = torch.bincount(batch.units[row][batch.maskable[row]])
        assert torch.equal(found[row][batch.maskable[row]], sizes[batch.units[row][batch.maskable[row]]].float())
    assert even_shares(batch, found)[batch.maskable].eq(1).all()


def test_units_with_a_token_masked_already_are_open_as_long_as_another_is_left():
    classifier = random_classifier("bert")
    batch = unit_batch(classifier, "sentence", masked=True)
    for row, units in enumerate(open_units(batch)):
        open_ = (batch.maskable & ~batch.masked)[row].numpy()
        assert units.count == len(set(batch.units[row].numpy()[open_].tolist()))
        assert ((units.unit >= 0) == open_).all()
    everything = batch.with_masked(batch.maskable)
    assert [units.count for units in open_units(everything)] == [0] * len(batch)
    assert (IMPORTANCE_MEASURES["loo-signed"].explain(classifier, everything, TARGETS, 0) == 0).all()


# -------------------------------------------------------------------------------------------------- the walk


def planted(units, rows=1):
    table = torch.tensor([units] * rows)
    maskable = table >= 0
    empty = torch.zeros_like(maskable)
    return Batch(table * 0, table * 0 + 1, None, maskable, empty, torch.zeros(rows).long(), torch.arange(rows), table)


def test_units_are_masked_whole_by_importance_as_long_as_half_of_one_fits():
    batch = planted([-1, 0, 0, 0, 0, 1, 2, 2, 2, 3])  # sizes 4, 1, 3, 1 of 9 tokens
    importance = torch.tensor([[9.0, 1, 1, 1, 1, 2, 3, 3, 3, 0]])
    masked = [mask_most_important(batch, importance, step)[0].nonzero().flatten().tolist() for step in range(11)]
    # shares of 0, 0, 1, 2, 3 … tokens: unit 2 at two, unit 1 at four, unit 0 at six, unit 3 at nine
    assert masked[2] == []
    assert masked[3] == [6, 7, 8]
    assert masked[4] == [6, 7, 8]
    assert masked[5] == [5, 6, 7, 8]
    assert masked[6] == [5, 6, 7, 8]
    assert masked[7] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert masked[10] == list(range(1, 10))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(0, 2**31))
def test_a_walk_masks_whole_units_and_never_goes_back(sizes, seed):
    batch = planted([-1, *np.repeat(np.arange(len(sizes)), sizes).tolist()])
    before = batch.masked
    for step, after in enumerate(masking_walk(None, batch, IMPORTANCE_MEASURES["random"], None, seed=seed)):
        shares = [after.masked[batch.units == unit].float().mean() for unit in range(len(sizes))]
        assert set(map(float, shares)) <= {0.0, 1.0}
        assert not (before & ~after.masked).any()
        # at most half of the unit at the edge is too much or too little
        assert abs(int(after.masked.sum()) - sum(sizes) * step // 10) <= max(sizes) / 2
        before = after.masked


def test_who_only_likes_long_units_masks_no_more_than_random_masking_does():
    random, sizes = np.random.default_rng(0), [3, 30, 5, 22, 8, 14, 40, 9, 17, 12]
    rows = [planted(np.repeat(np.arange(10), random.permutation(sizes)).tolist()) for _ in range(60)]
    batch = replace(Batch.stacked(rows), rows=torch.arange(60))
    long_first = ImportanceMeasure(
        "long", "test", lambda c, b, t, s: 1 / even_shares(b, 1.0 * b.maskable), signed=True, recursive=False
    )

    def share(measure):
        walk = masking_walk(None, batch, measure, None, seed=0)
        return float(np.mean([after.masked.float().mean() for after in walk]))

    assert share(long_first) == pytest.approx(0.5, abs=0.02)
    assert share(IMPORTANCE_MEASURES["random"]) == pytest.approx(0.5, abs=0.02)


def test_a_text_of_one_unit_is_masked_at_once_by_every_measure_alike():
    classifier = random_classifier("bert")
    found = [
        explain_texts(classifier, ["the film was great"], options=BY_SENTENCE, measure=name)[0]
        for name in ("loo-signed", "beam", "search", "kernel-shap", "grad-l2")
    ]
    assert all(len(one.units) == 1 for one in found)
    assert all(abs(one.acu) < 1e-6 for one in found)
    (empty,) = explain_texts(classifier, [""], options=BY_SENTENCE, measure="loo-signed")
    assert empty.units == ()


@pytest.mark.parametrize("by", UNITS)
def test_a_text_walks_alike_alone_and_in_a_batch_by_any_unit(by):
    classifier = strong_classifier("bert")
    batch, measure = unit_batch(classifier, by, pairs=True), IMPORTANCE_MEASURES["loo-signed"]
    together = list(masking_walk(classifier, batch, measure, TARGETS, seed=0))
    for row in range(len(batch)):
        single = masking_walk(classifier, alone(batch, row), measure, TARGETS[row : row + 1], seed=0)
        for one, all_ in zip(single, together, strict=True):
            assert torch.equal(one.masked[0], all_.masked[row, : one.masked.shape[1]])


def sentence_batch(classifier, count, seed):
    """Texts of three to five sentences, of four to nine words each: by sentence, and as they are encoded."""
    random = np.random.default_rng(seed)

    def sentence():
        return "The " + " ".join(random.choice(WORDS, random.integers(3, 9))) + "."

    said = [" ".join(sentence() for _ in range(random.integers(3, 6))) for _ in range(count)]
    encoded = classifier.encode(said)
    return with_units(encoded, classifier, said, by="sentence").batch(range(count)), encoded


def test_random_sentences_are_judged_at_the_share_that_is_masked_so_five_percent_are_atypical():
    classifier = random_classifier("roberta")
    _, validation = sentence_batch(classifier, 300, seed=0)
    batch, _ = sentence_batch(classifier, 200, seed=1)
    steps = step_features(classifier, validation, seed=0, steps=range(11))
    masf = fit_calibrated(steps, torch.from_numpy(validation.lengths))
    watch = Stopwatch(IMPORTANCE_MEASURES["random"], None)
    found = _walk_table(classifier, batch, watch, 0, "gold", masf).to_pandas()
    atypical = (found["p_own"] <= 0.05).groupby(found["step"]).mean()
    # 150 texts calibrate: the share wanders by .018 for them and .015 for the 200 tested; three of both together
    assert (atypical < 0.05 + 0.07).all(), atypical
    halves = "The film was great and not bad at all. The film was great and not bad at all."
    (explained,) = explain_texts(classifier, [halves], options=BY_SENTENCE, measure="random", masf=masf)
    unmasked, first, second, *_ = explained.steps
    assert first.masked == second.masked == ()  # half of a sentence is a quarter of the text
    assert first.p_value == second.p_value == 1  # where nothing is masked, masking did nothing atypical
    assert unmasked.p_value < 1


def test_a_text_is_judged_at_its_walks_step_by_token_and_else_at_the_steps_about_its_share():
    def steps_of(size, masked, step):
        batch = planted([-1, *range(size)])
        chosen = torch.zeros_like(batch.masked)
        chosen[0, 1 : 1 + masked] = True
        return [int(at) for at in neighbouring_steps(batch.with_masked(chosen), step)]

    for size in (1, 4, 7, 10, 25, 90):
        assert [steps_of(size, size * k // 10, k) for k in range(11)] == [[k, k] for k in range(11)]
    # of 25 tokens 0, 2, 5, 7, 10 … 25 are masked at steps 0, 1, 2, 3, 4 … 10
    found = [steps_of(25, masked, 9) for masked in (0, 1, 2, 6, 25)]
    assert found == [[0, 0], [0, 1], [1, 1], [2, 3], [10, 10]]
    assert steps_of(7, 1, 9) == [2, 2]  # 1 is 14 %, and a tenth of 7 tokens is none
    assert steps_of(0, 0, 3) == [3, 3]


def test_a_share_between_two_steps_is_typical_where_it_is_of_either():
    class ByStep(MaSF):
        def p_value_table(self, features, lengths, rows, every=((0,), (1,), (2,), (3,))):
            return torch.tensor([0.9, 0.2, 0.4, 0.01]).double()[[step for (step,) in every], None].expand(-1, len(rows))

    batch = planted([-1, *range(25)], rows=3)
    masked = torch.zeros_like(batch.masked)
    for row, count in enumerate((2, 6, 7)):  # step 1, between 2 and 3, step 3
        masked[row, 1 : 1 + count] = True
    masf = ByStep("calibrated", ((0,), (1,), (2,), (3,)), (), (), 0, 0)
    own, outside = masf.walk_p_values(batch.with_masked(masked), torch.zeros(3), 9)
    assert own.tolist() == pytest.approx([0.2, 0.4, 0.01])
    assert outside.tolist() == pytest.approx([0.2, 0.4, 0.9])  # asked at every ratio where it is atypical at its own


def test_one_token_units_give_the_numbers_of_tokens():
    classifier = strong_classifier("bert")
    batch = unit_batch(classifier, "token", pairs=True, masked=True)
    numbered = torch.where(batch.maskable, batch.maskable.cumsum(dim=1) - 1, -1)
    for name in ("loo-signed", "beam", "search", "lime", "kernel-shap", "random", "ig-signed", "ensemble-top3"):
        measure = IMPORTANCE_MEASURES[name]
        tokens = measure.explain(classifier, batch, TARGETS, 1)
        units = measure.explain(classifier, replace(batch, units=numbered), TARGETS, 1)
        assert torch.equal(tokens, units), name
        for step in (3, 7):
            masked = mask_most_important(replace(batch, units=numbered), units, step)
            assert torch.equal(masked, mask_most_important(batch, tokens, step))
