"""Models that lack a mask, padding or end token: what they are given, and that they read right with it."""

import copy
import json

import pytest
import torch
import transformers
from conftest import (
    ARCHITECTURES,
    WITHOUT_MASK,
    decoder_bpe,
    random_classifier,
    sentiment_rows,
    text_to_text_pieces,
    word_pieces,
)  # fmt: skip

from faithmeter import DataSpec, adopt, check
from faithmeter.data.batch import SPECIAL, TEXT
from faithmeter.errors import InputError
from faithmeter.explaining.explanation import explain_texts
from faithmeter.models.classifier import Classifier, load_classifier
from faithmeter.models.special_tokens import stand_in_for_mask
from faithmeter.progress import Silent

SHORT, LONG, LABELS = "The film was great", "It was not bad at all, the story was very good!", ("a", "b", "c")
TINY = {
    "gpt2": ({"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 40}, transformers.GPT2LMHeadModel),
    "llama": (
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64},
        transformers.LlamaForCausalLM,
    ),
    "qwen2": (
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
         "num_key_value_heads": 1},
        transformers.Qwen2ForCausalLM,
    ),
    "opt": (
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 64, "word_embed_proj_dim": 32},
        transformers.OPTForCausalLM,
    ),
}  # fmt: skip


class Heard(Silent):
    def __init__(self):
        self.warned = []

    def warn(self, text):
        self.warned.append(text)


EVERY_DECODER = pytest.mark.parametrize("kind", TINY)


def published(folder, kind, *, tokenizer=None, head=False, spare=0, **settings):
    """A folder with a decoder as it is published: a language model, or with `head` a classifier of three classes."""
    shape, causal = TINY[kind]
    tokenizer = copy.deepcopy(tokenizer or decoder_bpe())
    config = causal.config_class(
        **shape, vocab_size=len(tokenizer) + spare, num_labels=3, **{"pad_token_id": None, **settings}
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForSequenceClassification.from_config(config) if head else causal(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model.eval(), tokenizer


@EVERY_DECODER
def test_a_decoder_is_given_a_mask_padding_and_an_end_and_keeps_all_it_knew(kind, tmp_path):
    model, tokenizer = published(tmp_path, kind)
    classifier = load_classifier(str(tmp_path), LABELS, new_head=True)
    given, words = classifier.tokenizer, len(tokenizer)
    assert (given.mask_token, given.pad_token) == ("<mask>", "<pad>")
    assert {given.mask_token_id, given.pad_token_id} == {words, words + 1}
    assert classifier.model.config.pad_token_id == classifier.pad_token_id == given.pad_token_id
    before, after = (one.get_input_embeddings().weight.detach() for one in (model, classifier.model))
    assert torch.equal(after[:words], before)
    torch.testing.assert_close(after[words:], before.mean(dim=0).expand(2, -1))
    assert ["mask" in note for note in classifier.notes] == [True, False]  # the other tells of the new head
    assert "<mask> was added, which it has never seen" in classifier.notes[0]
    again = load_classifier(str(tmp_path), LABELS, new_head=True)
    assert all(map(torch.equal, classifier.model.parameters(), again.model.parameters()))


@EVERY_DECODER
def test_the_end_of_a_text_is_read_and_never_masked_and_survives_a_cut(kind, tmp_path):
    published(tmp_path, kind)
    classifier = load_classifier(str(tmp_path), LABELS, new_head=True, max_length=30)
    encoded = classifier.encode([SHORT, LONG * 10, LONG * 10], [LONG, SHORT, LONG * 10])
    assert encoded.truncated == 2
    assert encoded.lengths.tolist()[1:] == [30, 30]
    ends = encoded.offsets[1:] - 1
    assert set(encoded.ids[ends]) == {classifier.tokenizer.eos_token_id}
    assert set(encoded.sequence[ends]) == {SPECIAL}
    batch = encoded.batch([0, 1, 2]).to(classifier.device)
    everything = batch.with_masked(batch.maskable)
    read = classifier.read_weights(everything)
    assert read.argmax(dim=1).tolist() == (encoded.lengths - 1).tolist()
    assert read.sum(dim=1).tolist() == [1.0] * 3
    # text, end, context, end: the two are kept apart
    span = slice(encoded.offsets[0], encoded.offsets[1])
    assert (encoded.ids[span] == classifier.tokenizer.eos_token_id).sum() == 2
    assert (encoded.sequence[span] == TEXT).sum() == len(classifier.encode([SHORT]).ids) - 1


@EVERY_DECODER
def test_masking_the_last_word_changes_the_answer_and_padding_does_not(kind, tmp_path):
    published(tmp_path, kind)
    classifier = load_classifier(str(tmp_path), LABELS, new_head=True)
    encoded = classifier.encode([SHORT, LONG, ""])
    last_only = encoded.masked_by(lambda _, maskable: maskable & (maskable[::-1].cumsum()[::-1] == 1))
    plain, masked = classifier.predict(encoded), classifier.predict(last_only)
    assert torch.isfinite(plain).all()
    assert ((plain - masked).abs().amax(dim=1) > 1e-4).tolist() == [True, True, False]
    for row in range(3):
        alone = classifier.model.eval()(input_ids=classifier.shown(last_only.batch([row])).input_ids).logits
        torch.testing.assert_close(masked[row : row + 1], alone, atol=1e-5, rtol=0)


@EVERY_DECODER
def test_what_was_given_is_saved_and_loads_with_plain_transformers(kind, tmp_path):
    published(tmp_path / "base", kind)
    classifier = load_classifier(str(tmp_path / "base"), LABELS, new_head=True, seed=3)
    classifier.save(tmp_path / "saved")
    expected = classifier.predict(classifier.encode([LONG], [SHORT]))
    loaded = load_classifier(str(tmp_path / "saved"), LABELS)
    assert not loaded.notes
    torch.testing.assert_close(loaded.predict(loaded.encode([LONG], [SHORT])), expected, atol=1e-6, rtol=0)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    batch = tokenizer([LONG, SHORT], [SHORT, LONG * 2], return_tensors="pt", padding=True, padding_side="right")
    torch.testing.assert_close(model(**batch).logits[:1], expected, atol=1e-5, rtol=0)
    assert tokenizer.mask_token_id == classifier.mask_token_id


def test_the_end_token_as_padding_is_replaced_before_a_decoder_is_trained(tmp_path):
    tokenizer = copy.deepcopy(decoder_bpe())
    tokenizer.pad_token = tokenizer.eos_token
    published(tmp_path, "qwen2", tokenizer=tokenizer, pad_token_id=tokenizer.eos_token_id)
    classifier = load_classifier(str(tmp_path), LABELS, new_head=True)
    assert classifier.tokenizer.pad_token == "<pad>"
    assert classifier.pad_token_id != classifier.tokenizer.eos_token_id


def test_spare_rows_of_an_embedding_are_used_and_none_is_lost(tmp_path):
    published(tmp_path, "llama", spare=10)
    classifier = load_classifier(str(tmp_path), LABELS, new_head=True)
    words = len(decoder_bpe())
    weight = classifier.model.get_input_embeddings().weight.detach()
    assert len(weight) == words + 10
    torch.testing.assert_close(weight[words : words + 2], weight[:words].mean(dim=0).expand(2, -1))


def test_a_decoder_that_came_trained_reads_as_it_learnt_to(tmp_path):
    """With the end token as padding and none at the end of a text, as most are published: only a mask is added."""
    end = decoder_bpe().eos_token_id
    model, tokenizer = published(tmp_path, "gpt2", head=True, pad_token_id=end)
    classifier = load_classifier(str(tmp_path), LABELS)
    assert classifier.tokenizer.pad_token_id == classifier.pad_token_id == end
    assert len(classifier.tokenizer) == len(tokenizer) + 1
    expected = model(**tokenizer(LONG, return_tensors="pt")).logits
    encoded = classifier.encode([SHORT, LONG])
    torch.testing.assert_close(classifier.predict(encoded)[1:], expected, atol=1e-5, rtol=0)
    batch = encoded.batch([0, 1])
    assert classifier.read_weights(batch).argmax(dim=1).tolist() == (encoded.lengths - 1).tolist()
    assert torch.isfinite(classifier.predict(classifier.encode(["", SHORT]))).all()


def test_a_text_that_ends_in_the_padding_token_is_read_before_it_as_transformers_does(tmp_path):
    end = decoder_bpe().eos_token_id
    model, tokenizer = published(tmp_path, "gpt2", head=True, pad_token_id=end)
    classifier = load_classifier(str(tmp_path), LABELS)
    encoded = classifier.encode([f"{SHORT}<|endoftext|>", LONG])
    expected = model(**tokenizer(f"{SHORT}<|endoftext|>", return_tensors="pt")).logits
    torch.testing.assert_close(classifier.predict(encoded)[:1], expected, atol=1e-5, rtol=0)
    assert classifier.read_weights(encoded.batch([0, 1])).argmax(dim=1).tolist() == (encoded.lengths - [2, 1]).tolist()


def test_a_trained_decoder_without_padding_is_given_one(tmp_path):
    model, tokenizer = published(tmp_path, "gpt2", head=True)
    classifier = load_classifier(str(tmp_path), LABELS)
    assert classifier.tokenizer.pad_token == "<pad>"
    together = classifier.predict(classifier.encode([SHORT, LONG]))
    for row, text in enumerate((SHORT, LONG)):
        expected = model(**tokenizer(text, return_tensors="pt")).logits
        torch.testing.assert_close(together[row : row + 1], expected, atol=1e-5, rtol=0)


# ------------------------------------------------------------- a model that is handed over, not to be changed


def test_a_sentinel_is_the_mask_of_a_t5_and_no_token_is_added():
    classifier = random_classifier("t5")
    assert classifier.tokenizer.mask_token == "<extra_id_0>"
    assert classifier.model.config.vocab_size == len(text_to_text_pieces())


def test_a_handed_over_model_is_masked_with_what_its_tokenizer_has():
    model = random_classifier("bert").model
    tokenizer = copy.deepcopy(word_pieces())
    tokenizer.mask_token = None
    assert Classifier(model, tokenizer).tokenizer.mask_token == "[MASK]"  # a word of its vocabulary, though not named
    assert tokenizer.mask_token is None
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    unknown = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, unk_token="[UNK]")
    assert backend["model"]["unk_token"] == "[UNK]"
    unknown.get_vocab = dict  # as if it had no token of such a name
    assert stand_in_for_mask(model, unknown) == "[UNK]"
    unknown.unk_token, unknown.pad_token = None, "[PAD]"
    assert stand_in_for_mask(model, unknown) == "[PAD]"


def test_a_decoder_is_never_masked_with_its_padding_and_is_told_what_to_do():
    tokenizer = copy.deepcopy(decoder_bpe())
    tokenizer.pad_token = tokenizer.eos_token
    config = transformers.GPT2Config(**TINY["gpt2"][0], vocab_size=len(tokenizer), pad_token_id=tokenizer.eos_token_id)
    model = transformers.GPT2ForSequenceClassification(config)
    with pytest.raises(InputError, match=r"no mask token.*load_classifier"):
        Classifier(model, tokenizer)
    model.config.pad_token_id = None
    with pytest.raises(InputError, match=r"no padding token.*load_classifier"):
        Classifier(model, tokenizer)


@pytest.mark.parametrize("architecture", [name for name, row in ARCHITECTURES.items() if row[2] in WITHOUT_MASK])
def test_words_of_an_explanation_have_no_spaces_around_them(architecture):
    (found,) = explain_texts(random_classifier(architecture), [SHORT], measure="loo-signed")
    assert [word.text for word in found.words] == SHORT.split()


def test_a_trained_decoder_can_be_judged_and_is_said_to_have_never_seen_its_mask(tmp_path):
    published(tmp_path / "model", "gpt2", head=True, pad_token_id=decoder_bpe().eos_token_id)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config["id2label"], config["label2id"] = {0: "negative", 1: "positive", 2: "neither"}, {}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    rows = [*sentiment_rows(80), *({"text": "a film", "label": "neither"} for _ in range(20))]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    heard = Heard()
    run = adopt(tmp_path / "run", str(tmp_path / "model"), DataSpec(data=str(tmp_path / "rows.jsonl")), reporter=heard)
    assert any("<mask> was added, which it has never seen" in said and "check" in said for said in heard.warned)
    assert run.classifier().tokenizer.mask_token == "<mask>"
    assert len(check(run.path)) == 11
