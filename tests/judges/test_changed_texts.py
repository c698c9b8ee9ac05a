"""Judges that change texts: tokens put in or taken out, and two texts joined."""

import numpy as np
import pytest
import scipy
import torch
from conftest import random_classifier

from faithmeter import InputError
from faithmeter.importance.measure import of_function
from faithmeter.importance.table import IMPORTANCE_MEASURES
from faithmeter.judges import mosaic, token_change
from faithmeter.judges.changed_texts import changed_batch, inserted
from faithmeter.judges.judge import Bench, answers_of
from faithmeter.judges.mosaic import MOSAIC, focus, joined
from faithmeter.judges.token_change import TOKEN_CHANGE, with_tokens, without_tokens

TEXTS = ["the film was great", "was the story bad? the plot was very good!", "good", "", "it was not awful at all"]


@pytest.fixture(scope="module")
def classifier():
    found = random_classifier("bert")
    with torch.no_grad():  # random weights say nearly the same of every text, and a bias decides
        found.model.classifier.weight *= 200
        batch = found.encode(TEXTS).batch(range(len(TEXTS)))
        found.model.classifier.bias -= found.predict_with_features(batch)[0].mean(dim=0)
    return found


@pytest.fixture
def bench(classifier):
    return Bench(classifier, classifier.encode(TEXTS), None, seed=0)


def tokens(encoded, row):
    return encoded.ids[encoded.offsets[row] : encoded.offsets[row + 1]].tolist()


def test_a_changed_text_is_what_the_tokenizer_would_have_made_of_it(classifier):
    # words of whole tokens, so that putting one in is the same before and after tokenising
    encoded = classifier.encode(["the film was", "the was film was"])
    word = classifier.encode(["was"]).ids[1:2]
    batch = encoded.batch([0])
    made = changed_batch(encoded, batch, [inserted(encoded, 0, [2], word)])
    expected = encoded.batch([1])
    for name in ("input_ids", "attention_mask", "token_type_ids", "maskable", "masked"):
        assert torch.equal(getattr(made.batch, name), getattr(expected, name)), name
    assert made.origin.tolist() == [[0, 1, -1, *range(2, batch.input_ids.shape[1])]]
    assert made.batch.rows.tolist() == [0]


def test_tokens_of_a_pairs_text_are_changed_and_its_context_stays(classifier):
    encoded = classifier.encode(["the film was great"], ["was it good"])
    for made in (with_tokens(encoded, 0, 0, 512), without_tokens(encoded, 0, 0)):
        batch = changed_batch(encoded, encoded.batch([0]), [made]).batch
        before = encoded.batch([0])
        assert (
            batch.input_ids[batch.token_type_ids == 1].tolist() == before.input_ids[before.token_type_ids == 1].tolist()
        )
        assert int(batch.maskable.sum()) != int(before.maskable.sum())


def test_a_tenth_of_the_tokens_and_at_least_one_is_put_in_or_taken_out(bench):
    vocabulary = set(bench.test.ids[bench.test.maskable].tolist())
    for row, n in enumerate(bench.test.maskable_counts.tolist()):
        more, fewer = with_tokens(bench.test, row, 0, 512), without_tokens(bench.test, row, 0)
        many = int(np.ceil(n / 10))
        assert len(more.ids) - len(tokens(bench.test, row)) == many
        assert set(more.ids[more.origin < 0].tolist()) <= vocabulary
        assert more.ids[more.origin >= 0].tolist() == tokens(bench.test, row)
        assert len(tokens(bench.test, row)) - len(fewer.ids) == (many if n > 1 else 0)
        assert fewer.ids.tolist() == [tokens(bench.test, row)[place] for place in fewer.origin]
    again = with_tokens(bench.test, 1, 0, 512)
    assert again.ids.tolist() == with_tokens(bench.test, 1, 0, 512).ids.tolist()
    assert again.ids.tolist() != with_tokens(bench.test, 1, 1, 512).ids.tolist()


def test_a_text_as_long_as_the_model_reads_gets_no_more_tokens(bench):
    longest = len(tokens(bench.test, 1))
    assert len(with_tokens(bench.test, 1, 0, longest).ids) == longest


def by_id(_classifier, batch, _targets, _seed):
    return batch.input_ids.float() ** 2 % 17


def by_place(_classifier, batch, _targets, _seed):
    return torch.arange(batch.input_ids.shape[1]).float().expand(batch.input_ids.shape)


def test_the_rank_correlation_is_that_of_the_tokens_both_texts_have(bench, monkeypatch):
    monkeypatch.setattr(token_change, "SHARE", 0.4)

    def by_both(_classifier, batch, _targets, _seed):
        return (3 * batch.input_ids + 5 * torch.arange(batch.input_ids.shape[1])).float() % 11

    batch = bench.test.batch([0, 1, 4])
    found = TOKEN_CHANGE.judge(bench, batch, of_function(by_both))
    judged = 0
    for name, change in {
        "inserted": lambda row: with_tokens(bench.test, row, 0, 512),
        "removed": lambda row: without_tokens(bench.test, row, 0),
    }.items():
        for line, row in enumerate((0, 1, 4)):
            text, old = change(row), tokens(bench.test, row)
            before = [(3 * one + 5 * place) % 11 for place, one in enumerate(old)]
            after = [(3 * one + 5 * place) % 11 for place, one in enumerate(text.ids.tolist())]
            pairs = [  # without [CLS] and [SEP]
                (before[origin], after[place])
                for place, origin in enumerate(text.origin.tolist())
                if 0 < origin < len(old) - 1
            ]
            if found[f"same_answer@{name}"][line] == 1:
                judged += 1
                assert found[name][line] == pytest.approx(scipy.stats.spearmanr(*zip(*pairs, strict=True)).statistic)
            else:
                assert np.isnan(found[name][line])
    assert judged


def test_what_depends_on_the_token_or_its_place_alone_does_not_change_and_chance_does(bench):
    every = Bench(bench.classifier, bench.classifier.encode(TEXTS[:2] * 30), None, seed=0)
    batch = every.test.batch(range(60))
    for measure in (of_function(by_id), of_function(by_place)):
        found = TOKEN_CHANGE.judge(every, batch, measure)
        for name in ("inserted", "removed"):
            known = found[name][~np.isnan(found[name])]
            assert len(known)
            np.testing.assert_allclose(known, 1.0)
    found = TOKEN_CHANGE.judge(every, batch, IMPORTANCE_MEASURES["random"])
    assert abs(np.nanmean(found["inserted"])) < 0.25  # about 60 texts of sd .35: 5 standard errors
    assert abs(np.nanmean(found["removed"])) < 0.25


def test_focus_is_the_share_of_positive_importance_on_the_own_half():
    maskable = torch.tensor([[False, True, True, True, True], [False, True, True, False, False]])
    own = torch.tensor([[False, True, True, False, False], [False, True, False, False, False]])
    importance = torch.tensor([[9.0, 3.0, -5.0, 1.0, -1.0], [0.0, -1.0, -2.0, 4.0, 4.0]])
    np.testing.assert_allclose(focus(importance, maskable, own), [0.75, np.nan])


def test_joined_texts_stand_side_by_side_in_the_order_drawn(bench):
    first, second = tokens(bench.test, 0), tokens(bench.test, 4)
    after = joined(bench.test, 0, 4, before=False, longest=512)
    assert after.ids.tolist() == [*first[:-1], *second[1:-1], first[-1]]
    assert after.ids[after.origin >= 0].tolist() == first
    before = joined(bench.test, 0, 4, before=True, longest=512)
    assert before.ids.tolist() == [first[0], *second[1:-1], *first[1:]]


def test_texts_too_long_together_share_the_room(bench):
    first, second = tokens(bench.test, 1)[1:-1], tokens(bench.test, 4)[1:-1]
    assert len(first) > 8 < len(second)
    for before in (False, True):
        cut = joined(bench.test, 1, 4, before=before, longest=2 + 16)
        halves = [second[:8], first[:8]] if before else [first[:8], second[:8]]
        assert cut.ids.tolist()[1:-1] == halves[0] + halves[1]
    # a short one leaves its room to the other
    cut = joined(bench.test, 2, 1, before=False, longest=2 + 10)
    own = tokens(bench.test, 2)[1:-1]
    assert cut.ids.tolist()[1:-1] == (own + first)[:10]


def test_a_text_is_joined_with_one_of_another_predicted_class_and_its_own_class_is_explained(bench):
    classes = answers_of(bench.classifier, bench.test.batch(range(len(TEXTS)))).tolist()
    assert len(set(classes)) > 1
    asked = []

    def listening(_classifier, batch, targets, _seed):
        asked.append((batch, targets))
        return torch.ones(batch.maskable.shape)

    rows = [0, 1, 3, 4]
    found = MOSAIC.judge(bench, bench.test.batch(rows), of_function(listening))
    ((batch, targets),) = asked
    assert targets.tolist() == [classes[row] for row in rows]
    for line, row in enumerate(rows):
        inside = batch.input_ids[line][batch.maskable[line]].tolist()
        own = tokens(bench.test, row)[1:-1]
        if not own:
            assert np.isnan(found["focus"][line])
            continue
        partners = [
            other
            for other in range(len(TEXTS))
            if inside in (own + tokens(bench.test, other)[1:-1], tokens(bench.test, other)[1:-1] + own)
        ]
        assert partners
        assert all(classes[other] != classes[row] for other in partners)
        # every token of the same importance: the share of the tokens
        assert found["focus"][line] == pytest.approx(len(own) / len(inside))
        assert found["chance_focus"][line] == found["focus"][line]


def test_without_a_text_of_another_class_there_is_nothing_to_join(bench, monkeypatch):
    monkeypatch.setattr(
        mosaic, "_pool", lambda bench: (np.arange(2), bench.predicted(bench.test.batch([0])).repeat(2).numpy())
    )
    found = MOSAIC.judge(bench, bench.test.batch([0]), of_function(by_id))
    assert np.isnan(found["focus"]).all()


def test_pairs_cannot_be_joined(classifier):
    bench = Bench(classifier, classifier.encode(["the film"], ["was it good"]), None, seed=0)
    with pytest.raises(InputError, match="pairs"):
        MOSAIC.judge(bench, bench.test.batch([0]), of_function(by_id))
