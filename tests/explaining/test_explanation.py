from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import random_classifier

from faithmeter.attacks.search import attack_texts
from faithmeter.errors import InputError
from faithmeter.explaining.explanation import adjusted, explain_texts
from faithmeter.explaining.options import ExplainOptions
from faithmeter.importance.measure import ImportanceMeasure
from faithmeter.importance.table import as_measure
from faithmeter.masking import Purpose, random_stream
from faithmeter.models.classifier import Classifier
from faithmeter.models.from_scratch import bilstm_classifier, small_classifier
from faithmeter.progress import pausing

TEXT, CONTEXT = "The film was great, not awful", "Was the story bad?"


def fixed(values):
    """A measure that gives each maskable token the next of these numbers."""

    def explain(classifier, batch, targets, seed):
        importance = torch.zeros(batch.maskable.shape)
        count = int(batch.maskable.sum())
        importance[batch.maskable] = torch.tensor([float(values[i % len(values)]) for i in range(count)])
        return importance

    return ImportanceMeasure("fixed", "test", explain, signed=True, recursive=False)


@pytest.mark.parametrize("architecture", ["bert", "roberta", "deberta"])
def test_tokens_and_words_are_pieces_of_the_text_and_never_of_its_context(architecture):
    classifier = random_classifier(architecture)
    (found,) = explain_texts(classifier, [TEXT], [CONTEXT], measure=fixed([1]))
    for piece in (*found.tokens, *found.words):
        assert TEXT[piece.start : piece.end] == piece.text
    assert "".join(piece.text for piece in found.words).replace(" ", "") == TEXT.replace(" ", "")
    assert len(found.words) <= len(found.tokens)


def test_the_loudest_token_speaks_for_its_word():
    classifier = random_classifier("bert")
    (found,) = explain_texts(classifier, ["great"], measure=fixed([1, -3, 2]))
    assert len(found.words) == 1
    assert len(found.tokens) > 1
    assert found.words[0].importance == -3


def test_probability_prediction_and_curve_are_the_models():
    classifier = random_classifier("bert")
    (found,) = explain_texts(classifier, [TEXT], measure=as_measure("loo-signed"))
    encoded = classifier.encode([TEXT])
    probabilities = classifier.predict(encoded).softmax(dim=-1)[0]
    everything = classifier.predict(encoded.masked_by(lambda row, maskable: maskable)).softmax(dim=-1)[0]
    target = int(probabilities.argmax())
    assert found.predicted == found.target == classifier.labels[target]
    assert found.probability == pytest.approx(float(probabilities[target]), abs=1e-5)
    assert found.curve[-1] == pytest.approx(float(everything[target]), abs=1e-5)
    assert found.random_curve[-1] == pytest.approx(found.curve[-1], abs=1e-6)
    area = np.trapezoid(np.array(found.random_curve) - np.array(found.curve), dx=0.1)
    assert found.acu == pytest.approx(area)


def test_a_class_can_be_named_as_the_target():
    classifier = random_classifier("bert")
    options = ExplainOptions(target=classifier.labels[2])
    (found,) = explain_texts(classifier, [TEXT], options=options, measure=fixed([1]))
    probabilities = classifier.predict(classifier.encode([TEXT])).softmax(dim=-1)[0]
    assert found.probability == pytest.approx(float(probabilities[2]), abs=1e-5)


def test_a_class_that_there_is_not_is_refused_in_words():
    with pytest.raises(InputError, match=r"no class 'LABEL_9'.*It has LABEL_0"):
        explain_texts(random_classifier("bert"), [TEXT], options=ExplainOptions(target="LABEL_9"), measure="grad-l2")


def test_an_empty_text_is_explained_by_nothing():
    (found,) = explain_texts(random_classifier("bert"), [""], measure=as_measure("loo-signed"))
    assert found.tokens == found.words == ()
    assert found.acu == pytest.approx(0, abs=1e-8)  # predictions of other batches differ in their last digits
    assert found.racu is None


def test_every_step_says_which_tokens_are_masked_and_what_the_model_answers():
    classifier = random_classifier("bert")
    (found,) = explain_texts(classifier, [TEXT], [CONTEXT], measure=fixed([3, 1, 2]))
    count = len(found.tokens)
    assert [len(step.masked) for step in found.steps] == [count * k // 10 for k in range(11)]
    order = sorted(range(count), key=lambda number: -found.tokens[number].importance)
    for step in found.steps:
        assert set(step.masked) == set(order[: len(step.masked)])
    assert [step.probability for step in found.steps] == list(found.curve)
    assert found.steps[0].predicted == found.predicted


def test_an_explanation_shows_itself_in_a_notebook_and_on_a_line():
    (found,) = explain_texts(random_classifier("bert"), ["<b>great</b>"], measure=fixed([1]))
    assert "&lt;" in found._repr_html_()
    assert "<b>" not in found._repr_html_()
    assert str(found).startswith(f"{found.predicted}, p(")


def test_work_that_breathes_can_be_stopped_between_passes():
    class EnoughError(Exception):
        pass

    passes = []

    def pause():
        passes.append(1)
        if len(passes) == 5:
            raise EnoughError

    classifier = random_classifier("bert")
    classifier.tokens_per_batch = 10
    with pytest.raises(EnoughError), pausing(pause):
        explain_texts(classifier, [TEXT], measure="loo-signed")
    assert len(passes) == 5
    explain_texts(classifier, ["great"], measure="grad-l2")  # and nobody is asked any more
    assert len(passes) == 5


def test_a_string_in_place_of_a_list_is_one_text_and_not_its_letters():
    classifier = random_classifier("bert")
    assert explain_texts(classifier, TEXT, measure=fixed([1])) == explain_texts(classifier, [TEXT], measure=fixed([1]))
    paired = [explain_texts(classifier, text, CONTEXT, measure=fixed([1])) for text in (TEXT, [TEXT])]
    assert paired[0] == paired[1]
    assert [one.context for one in paired[0]] == [CONTEXT]
    assert len(classifier.encode(TEXT)) == len(classifier.encode(TEXT, CONTEXT)) == len(classifier.encodings(TEXT)) == 1
    assert classifier.encode(TEXT).ids.tolist() == classifier.encode([TEXT]).ids.tolist()
    assert attack_texts(classifier, TEXT, CONTEXT).texts == attack_texts(classifier, [TEXT], [CONTEXT]).texts
    for built in (small_classifier("great film", "ab"), bilstm_classifier("great great film film", "ab", pairs=False)):
        assert {"great", "film"} <= set(built.tokenizer.get_vocab())


@pytest.mark.parametrize("contexts", [CONTEXT, [CONTEXT], [CONTEXT] * 3])
def test_texts_that_do_not_have_a_context_each_are_refused(contexts):
    classifier = random_classifier("bert")
    for ask in (
        lambda: explain_texts(classifier, [TEXT, TEXT], contexts, measure=fixed([1])),
        lambda: classifier.encode([TEXT, TEXT], contexts),
        lambda: attack_texts(classifier, [TEXT, TEXT], contexts),
    ):
        with pytest.raises(InputError, match=r"There are 2 texts and [13] contexts: give one for each text"):
            ask()


def test_a_text_that_is_too_long_is_said_to_be_cut_and_by_how_much():
    whole = small_classifier(["good film"], ("no", "yes"), max_length=64)
    narrow = Classifier(whole.model, whole.tokenizer, max_length=10)
    text = " ".join(["good"] * 20)  # and two special tokens: 22, of which 10 are read
    (found,) = explain_texts(narrow, text, measure=fixed([1]))
    assert (found.unread, len(found.tokens)) == (12, 8)
    assert "12 of 22 tokens were cut off" in found.cut
    assert "This model can read 64: make its run with --max-length 22" in found.cut
    assert found.as_row()["unread"] == 12
    assert str(found).startswith(f"Warning: {found.cut}\n")
    assert found.cut in found._repr_html_()
    (pair,) = explain_texts(narrow, text, "good film", measure=fixed([1]))  # 20 + 2 + 3
    assert pair.unread == 15
    assert pair.cut.startswith("The text and its context are too long: 15 of 25 tokens")
    (longest,) = explain_texts(whole, " ".join(["good"] * 100), measure=fixed([1]))
    assert longest.unread == 102 - 64
    assert longest.cut.endswith("64 are read at most. Explain it in parts, or take a model that reads longer texts.")
    for text in ("good film", " ".join(["good"] * 62)):
        (all_of_it,) = explain_texts(whole, text, measure=fixed([1]))
        assert (all_of_it.unread, all_of_it.cut, all_of_it.warnings) == (0, None, ())
    assert len(whole.encode([" ".join(["good"] * 100)]).ids) == 64  # and counting has changed nothing


def test_random_orders_are_those_of_the_seed_and_the_row_and_are_counted_naively():
    classifier, texts = random_classifier("bert"), ["Was it?", TEXT]
    for weight in classifier.model.parameters():
        weight.data *= 10 if weight.ndim == 2 else 1  # so that masks matter more than rounding does
    (_, explained) = explain_texts(classifier, texts, options=ExplainOptions(seed=3, orders=19), measure=fixed([3, 1]))
    random, walks = random_stream(3, Purpose.RANDOM_ORDERS, 1), []
    for _ in range(19):
        order = fixed(random.random(len(explained.tokens)))
        walks.append(explain_texts(classifier, texts, options=ExplainOptions(seed=3, orders=0), measure=order)[1])
    as_good = sum(walk.acu >= explained.acu for walk in walks)
    assert (explained.orders, explained.beaten) == (19, 19 - as_good)
    assert explained.order_p_value == pytest.approx((1 + as_good) / 20)
    low, high = np.quantile([walk.curve for walk in walks], (0.025, 0.975), axis=0)
    assert explained.random_low == pytest.approx(low, abs=1e-6)
    assert explained.random_high == pytest.approx(high, abs=1e-6)
    assert f"better than {19 - as_good} of 19 random orders" in str(explained)


def test_a_text_that_has_one_order_is_no_better_than_any():
    classifier = random_classifier("bert")
    for text in ("", "."):
        (explained,) = explain_texts(classifier, [text], options=ExplainOptions(orders=99), measure=fixed([1]))
        assert len(explained.tokens) < 2
        assert explained.against_orders == "Better than 0 of 99 random orders (p = 1.00)."


def test_too_few_random_orders_are_refused_and_none_test_nothing():
    with pytest.raises(InputError, match=r"18 random orders are too few: the smallest p-value would be 1 / 19\."):
        ExplainOptions(orders=18)
    classifier = random_classifier("bert")
    (explained,) = explain_texts(classifier, [TEXT], options=ExplainOptions(orders=0), measure=fixed([1]))
    assert (explained.against_orders, explained.order_p_value, explained.random_low) == (None, None, ())


def test_p_values_of_several_texts_are_adjusted_for_their_number():
    (explained,) = explain_texts(random_classifier("bert"), ["great"], measure=fixed([1]))
    assert explained.order_p_adjusted is None
    several = adjusted([replace(explained, order_p_value=p) for p in (0.01, 0.04, 0.03)])
    # the smallest times 3; .03 · 3/2 is more than the largest, .04 · 3/3
    assert [each.order_p_adjusted for each in several] == pytest.approx([0.03, 0.04, 0.04])
    assert "(p = 0.01, 0.03 adjusted for the number of texts)" in several[0].against_orders
