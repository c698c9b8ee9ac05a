import copy

import pytest
import torch
import transformers
from conftest import ARCHITECTURES, TOKENIZERS, random_classifier

from faithmeter.data.batch import CONTEXT, SPECIAL, TEXT
from faithmeter.errors import InputError
from faithmeter.explaining.explanation import explain_texts
from faithmeter.models.classifier import Classifier, load_classifier
from faithmeter.models.from_scratch import small_classifier
from faithmeter.models.temporary import evaluating

SHORT, LONG = "The film was great", "It was not bad at all, the story was very good!"


def words(classifier, encoded, row, kind):
    span = slice(encoded.offsets[row], encoded.offsets[row + 1])
    ids = encoded.ids[span][encoded.sequence[span] == kind]
    tokens = "".join(classifier.tokenizer.convert_ids_to_tokens(ids)).lower()
    return tokens.translate(dict.fromkeys(map(ord, "#\u2581\u0121")))  # how each family marks the start of a word


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_text_is_maskable_and_its_context_is_not(architecture):
    classifier = random_classifier(architecture)
    encoded = classifier.encode([SHORT, LONG], [LONG, SHORT])
    assert words(classifier, encoded, 0, TEXT) == words(classifier, encoded, 1, CONTEXT) == "thefilmwasgreat"
    assert words(classifier, encoded, 1, TEXT) == words(classifier, encoded, 0, CONTEXT)
    assert set(encoded.ids[encoded.sequence == SPECIAL]) <= set(classifier.tokenizer.all_special_ids)
    alone = classifier.encode([SHORT])
    assert words(classifier, alone, 0, TEXT) == "thefilmwasgreat"
    assert not (alone.sequence == CONTEXT).any()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_row_has_the_same_logits_alone_as_padded_in_a_batch(architecture):
    classifier = random_classifier(architecture)
    pairs = [SHORT, LONG, "bad"], [LONG, "was it", SHORT]
    together = classifier.predict(classifier.encode(*pairs))
    alone = torch.cat([classifier.predict(classifier.encode([t], [c])) for t, c in zip(*pairs, strict=True)])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_equal_those_of_plain_transformers(architecture):
    classifier = random_classifier(architecture)
    plain = classifier.model.eval()(**{
        name: value
        for name, value in classifier.tokenizer(LONG, SHORT, return_tensors="pt").items()
        if name != "token_type_ids" or classifier.takes_type_ids
    }).logits  # fmt: skip
    torch.testing.assert_close(classifier.predict(classifier.encode([LONG], [SHORT])), plain, atol=1e-5, rtol=0)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_texts_longer_than_the_model_run_and_both_sides_of_a_pair_survive(architecture):
    classifier = random_classifier(architecture)
    encoded = classifier.encode([LONG * 100, SHORT, LONG * 100], [SHORT, LONG * 100, LONG * 100])
    assert encoded.lengths.tolist() == [classifier.max_length] * 3
    assert encoded.truncated == 3
    short = len(words(classifier, classifier.encode([SHORT]), 0, TEXT))
    # the short side is whole whichever side it is; two long sides keep about half each
    assert len(words(classifier, encoded, 0, CONTEXT)) == len(words(classifier, encoded, 1, TEXT)) == short
    third = encoded.sequence[encoded.offsets[2] :]
    assert abs((third == TEXT).sum() - (third == CONTEXT).sum()) <= 1
    assert torch.isfinite(classifier.predict(encoded)).all()


def test_positions_that_count_from_the_padding_id_leave_fewer_usable():
    assert random_classifier("roberta").max_length == 130 - 2


@pytest.mark.parametrize("family", TOKENIZERS)
def test_special_tokens_written_in_a_text_are_not_maskable_and_unknown_words_are(family):
    architecture = {"word-piece": "bert", "byte-bpe": "roberta", "sentence-piece": "deberta"}[family]
    classifier = random_classifier(architecture)
    tokenizer = classifier.tokenizer
    encoded = classifier.encode([f"{tokenizer.sep_token} {tokenizer.mask_token}", "\u4e16\u754c", ""])
    assert set(encoded.ids[encoded.maskable]).isdisjoint(set(tokenizer.all_special_ids) - {tokenizer.unk_token_id})
    second = encoded.maskable[encoded.offsets[1] : encoded.offsets[2]]
    assert second.any()
    only_specials = classifier.encode([f"{tokenizer.sep_token}{tokenizer.mask_token}", "", SHORT])
    assert (only_specials.maskable_counts == 0).sum() == 2
    assert torch.isfinite(classifier.predict(only_specials)).all()


def test_masked_tokens_reach_the_model_as_the_mask_token():
    classifier = random_classifier("bert")
    encoded = classifier.encode([SHORT])
    masked = encoded.masked_by(lambda row, maskable: maskable)
    ids = encoded.ids.copy()
    ids[encoded.maskable] = classifier.mask_token_id
    plain = classifier.model.eval()(input_ids=torch.from_numpy(ids)[None]).logits
    torch.testing.assert_close(classifier.predict(masked), plain, atol=1e-6, rtol=0)


def test_the_model_and_tokenizer_are_left_as_they_were():
    base = random_classifier("bert")
    model, tokenizer = base.model, base.tokenizer
    model.train()
    model.bert.pooler.eval()
    before, truncation = copy.deepcopy(model.state_dict()), copy.deepcopy(tokenizer.backend_tokenizer.truncation)
    classifier = Classifier(model, tokenizer)
    classifier.predict(classifier.encode([LONG, SHORT]))
    assert model.training
    assert not model.bert.pooler.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert tokenizer.backend_tokenizer.truncation == truncation


def test_evaluating_restores_the_mode_after_an_error():
    model = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Dropout()).train()
    model[1].eval()

    def fail():
        with evaluating(model):
            assert not model.training
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert (model.training, model[0].training, model[1].training) == (True, True, False)


def test_shares_of_the_work_add_up_to_the_whole():
    classifier = random_classifier("bert")
    classifier.tokens_per_batch = 20
    encoded = classifier.encode([SHORT, LONG, "bad", "good story"])
    parts = sum(classifier.predict(encoded, share=(i, 3)) for i in range(3))
    torch.testing.assert_close(parts, classifier.predict(encoded))


# ------------------------------------------------------------------------------------------------- loading


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_saved_classifier_loads_with_plain_transformers_and_here_with_the_same_logits(architecture, tmp_path):
    classifier = random_classifier(architecture)
    classifier.save(tmp_path)
    expected = classifier.predict(classifier.encode([LONG], [SHORT]))
    loaded = load_classifier(str(tmp_path), ("a", "b", "c"))
    assert loaded.labels == ("a", "b", "c")
    torch.testing.assert_close(loaded.predict(loaded.encode([LONG], [SHORT])), expected, atol=1e-6, rtol=0)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    inputs = tokenizer(LONG, SHORT, return_tensors="pt")
    if not classifier.takes_type_ids:
        inputs.pop("token_type_ids", None)
    torch.testing.assert_close(model.eval()(**inputs).logits, expected, atol=1e-5, rtol=0)


def test_the_attention_implementation_is_always_named(tmp_path):
    random_classifier("bert").save(tmp_path / "bert")
    random_classifier("deberta").save(tmp_path / "deberta")
    assert load_classifier(str(tmp_path / "bert"), ("a", "b", "c")).model.config._attn_implementation == "sdpa"
    assert load_classifier(str(tmp_path / "deberta"), ("a", "b", "c")).model.config._attn_implementation == "eager"


def test_a_new_head_is_drawn_from_the_seed_and_leaves_the_global_seed_alone(tmp_path):
    random_classifier("bert").save(tmp_path)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    heads = [
        load_classifier(str(tmp_path), ("a", "b"), new_head=True, seed=seed).model.classifier.weight
        for seed in (0, 0, 1)
    ]
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])


def test_a_checkpoint_that_is_only_a_pickle_is_refused_with_advice(tmp_path):
    classifier = random_classifier("bert")
    classifier.save(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(classifier.model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"pytorch_model.bin, a pickle file.*save_pretrained"):
        load_classifier(str(tmp_path), ("a", "b"))


def test_code_inside_a_checkpoint_is_not_run(tmp_path):
    random_classifier("bert").save(tmp_path)
    config = (tmp_path / "config.json").read_text()
    config = config.replace(
        "{", '{"auto_map": {"AutoConfig": "evil.Config", "AutoModelForSequenceClassification": "evil.Model"},', 1
    ).replace('"model_type": "bert"', '"model_type": "evil"')
    (tmp_path / "config.json").write_text(config)
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(InputError):
        load_classifier(str(tmp_path), ("a", "b", "c"))
    assert not (tmp_path / "ran").exists()


def test_an_unknown_model_name_gets_the_nearest():
    with pytest.raises(InputError, match=r"no model 'FacebookAI/roberta-bse'.*Did you mean 'FacebookAI/roberta-base'"):
        load_classifier("FacebookAI/roberta-bse", ("a", "b"))


def test_a_folder_without_weights_is_refused(tmp_path):
    with pytest.raises(InputError, match="without model weights"):
        load_classifier(str(tmp_path), ("a", "b"))


def test_the_small_encoder_knows_its_words_and_is_drawn_from_its_seed():
    first, again, other = (small_classifier(["Mary went home."], ("a", "b"), seed=seed) for seed in (0, 0, 1))
    assert first.tokenizer.convert_ids_to_tokens(first.encode(["Mary WENT away."]).ids) == [
        "[CLS]", "mary", "went", "[UNK]", ".", "[SEP]",
    ]  # fmt: skip
    encoded = first.encode(["Mary went home."])
    assert torch.equal(first.predict(encoded), again.predict(encoded))
    assert not torch.equal(first.predict(encoded), other.predict(encoded))


def test_positions_that_are_not_learnt_stay_so_after_loading(tmp_path):
    small_classifier(["a b c"], ("a", "b")).save(tmp_path)
    loaded = load_classifier(str(tmp_path), ("a", "b"))
    assert not loaded.model.roformer.encoder.embed_positions.weight.requires_grad


@pytest.mark.sentiment
def test_minilm_loads_from_its_package():
    classifier = load_classifier("minilm", ("negative", "positive"), new_head=True)
    assert classifier.max_length == 512
    assert classifier.predict(classifier.encode([SHORT])).shape == (1, 2)


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (["good", None], "Text number 1, from 0, is of the type NoneType and no text"),
        ([3], "Text number 0, from 0, is of the type int"),
        (b"good", "Text number 0, from 0, is of the type int"),
        (["good", "\ud83d film"], "Text number 1, from 0, holds half of a character"),
    ],
)
def test_what_is_no_text_is_refused_by_its_number(toy_classifier, texts, why):
    with pytest.raises(InputError, match=why):
        toy_classifier.encode(texts)
    with pytest.raises(InputError, match=why):
        explain_texts(toy_classifier, texts, measure="grad-l2")
