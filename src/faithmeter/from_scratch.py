"""Models built from scratch, with word-level tokenizers, for tasks that need no pretraining. All load as any other.

The small encoder has rotary positions (RoFormer), which are what makes it learn bAbI: of many small shapes tried,
learned and sinusoidal positions stalled at half the accuracy. Two wide heads learn it faster and more surely than four
or eight narrow ones, and three layers than two. BiLSTM-attention is the model of the ROAR paper.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from faithmeter.bilstm import BILSTM, BiLSTMConfig, BiLSTMForSequenceClassification
from faithmeter.classifier import MAX_LENGTH, Classifier, attention_implementation
from faithmeter.word_vectors import word_vectors

SMALL = "small"
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_WORDS = 30_000
FEW_WORDS = 1000  # a little world of fewer words, such as bAbI's, needs fewer dimensions (ROAR Table 4)
FROM_SCRATCH = (SMALL, BILSTM)


def small_classifier(texts: Iterable[str], labels: Sequence[str], *, seed: int = 0) -> Classifier:
    """Build a fresh classifier whose vocabulary is the words of `texts`; `seed` draws its weights."""
    tokenizer = word_level_tokenizer(texts)
    config = transformers.RoFormerConfig(
        vocab_size=len(tokenizer),
        embedding_size=64,
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=128,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=MAX_LENGTH,
        initializer_range=0.1,
        pad_token_id=tokenizer.pad_token_id,
        id2label=dict(enumerate(labels)),
        label2id={label: index for index, label in enumerate(labels)},
    )
    model_class = transformers.RoFormerForSequenceClassification
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = transformers.AutoModelForSequenceClassification.from_config(
            config, attn_implementation=attention_implementation(model_class)
        )
    return Classifier(model, tokenizer)


def bilstm_classifier(
    texts: Iterable[str],
    labels: Sequence[str],
    *,
    pairs: bool,
    vectors: str | Path | None = None,
    seed: int = 0,
    max_length: int = MAX_LENGTH,
) -> Classifier:
    """Build a fresh BiLSTM-attention classifier, with the paper's sizes and special tokens (ROAR App. C.1).

    Its embeddings are random, but for the words that the file `vectors` has: standard normal for a world of few words,
    as in the paper, and a tenth of that otherwise, which does better on SST (0.82 instead of 0.80). A word that occurs
    once is unknown, so that it is learnt what an unknown word may mean.
    """
    tokenizer = word_level_tokenizer(texts, end="[EOS]", at_least=2, max_length=max_length)
    known = {} if vectors is None else word_vectors(Path(vectors), frozenset(tokenizer.get_vocab()))
    few = len(tokenizer) < FEW_WORDS
    config = BiLSTMConfig(
        vocab_size=len(tokenizer),
        embedding_size=len(next(iter(known.values()))) if known else 50 if few else 300,
        hidden_size=32 if few else 128,
        pairs=pairs,
        special_token_ids=tuple(tokenizer.convert_tokens_to_ids(["[PAD]", "[CLS]", "[SEP]", "[EOS]"])),
        max_position_embeddings=max_length,
        pad_token_id=tokenizer.pad_token_id,
        id2label=dict(enumerate(labels)),
        label2id={label: index for index, label in enumerate(labels)},
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = BiLSTMForSequenceClassification(config)
    with torch.no_grad():
        for table in (model.embedding, *((model.context_embedding,) if pairs else ())):
            table.weight.mul_(1.0 if few else 0.1)
            for word, vector in known.items():
                table.weight[tokenizer.convert_tokens_to_ids(word)] = vector
    return Classifier(model, tokenizer, max_length=max_length)


def word_level_tokenizer(
    texts: Iterable[str], end: str = "[SEP]", at_least: int = 1, max_length: int = MAX_LENGTH
) -> transformers.PreTrainedTokenizerFast:
    """Return a tokenizer of lower-cased words and punctuation marks, the most frequent first.

    `end` ends a row; words that occur less than `at_least` times are unknown.
    """
    normalizer, splitter = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text)))
    specials = list(dict.fromkeys((*SPECIALS, end)))
    often = [word for word, count in counts.items() if count >= at_least]
    words = sorted(often, key=lambda word: (-counts[word], word))[: MAX_WORDS - len(specials)]
    vocabulary = {word: index for index, word in enumerate((*specials, *words))}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.normalizer, backend.pre_tokenizer = normalizer, splitter
    backend.post_processor = processors.TemplateProcessing(
        single=f"[CLS] $A {end}",
        pair=f"[CLS] $A [SEP] $B:1 {end}:1",
        special_tokens=[(token, vocabulary[token]) for token in dict.fromkeys(("[CLS]", "[SEP]", end))],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        eos_token=None if end == "[SEP]" else end,
        mask_token="[MASK]",
        model_max_length=max_length,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )
