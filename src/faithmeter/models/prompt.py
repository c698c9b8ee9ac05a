"""Prompts: a template with a slot becomes part of a tokenizer, and a language model a classifier.

The tokenizer adds the tokens around the slot as it would add special tokens, so they are never masked, only the text
itself is cut where it is too long, and everything that explains or measures a text works unchanged.
"""

import copy
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tokenizers
import torch
import transformers
from tokenizers import normalizers, processors

from faithmeter.errors import InputError
from faithmeter.models.checkpoint import reading, require_weights
from faithmeter.models.prompted import PromptedConfig, PromptedForSequenceClassification
from faithmeter.models.sources import model_source
from faithmeter.models.special_tokens import NEW_MASK, NEW_PAD, require_embeddings, require_words

TEXT, CONTEXT = "{text}", "{context}"


@dataclass(frozen=True)
class Prompt:
    """What surrounds a text: `template`, which ends where the word begins; `words`, by class; and answered `examples`.

    A template has one slot {text} and, for pairs, one slot {context} after it. An example is a template that is filled
    in and answered.
    """

    template: str
    words: Mapping[str, str]
    examples: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        counts = [self.template.count(slot) for slot in (TEXT, CONTEXT)]
        if counts[0] != 1 or counts[1] > 1:
            raise InputError(
                f"A template has one slot {TEXT}, which is where the text goes, and for pairs one slot {CONTEXT}; this "
                f"one has {counts[0]} and {counts[1]}: {self.template!r}."
            )
        if counts[1] and self.template.index(CONTEXT) < self.template.index(TEXT):
            raise InputError(f"The slot {CONTEXT} of a template comes after {TEXT}: {self.template!r}.")
        empty = [name for name, word in self.words.items() if not word.strip()]
        if empty or len(self.words) < 2:
            raise InputError("A prompt needs a word for each of two or more classes, and no word may be empty.")

    def filled(self, text: str, context: str | None = None, label: str | None = None) -> str:
        """Return the prompt of one text, as a reader would see it; with a class, answered."""
        slots = {TEXT: text, CONTEXT: context or ""}  # at once: what fills one may look like the other
        found = re.sub(r"\{text\}|\{context\}", lambda slot: slots[slot[0]], self.template)
        return found if label is None else found.rstrip(" ") + self.spelt(label)

    def spelt(self, label: str) -> str:
        """Return the word of a class as it follows the template: after a space, unless the template ends in a line."""
        return (" " if self.template.endswith(" ") else "") + self.words[label].strip()

    @property
    def pieces(self) -> list[str]:
        """The texts before, between and after the slots; a space before a slot belongs to what fills it."""
        whole = "".join(f"{example}\n\n" for example in self.examples) + self.template
        return [piece.removesuffix(" ") for piece in re.split(r"\{text\}|\{context\}", whole)]

    @property
    def spaced(self) -> bool:
        """Whether what fills the slots follows a space; refuse a template where only one does."""
        before = {
            self.template[: self.template.index(slot)][-1:] == " " for slot in (TEXT, CONTEXT) if slot in self.template
        }
        if len(before) > 1:
            raise InputError("Either both slots of a template follow a space, or none does.")
        return before.pop()


def read_language_model(
    name: str,
) -> tuple[transformers.PreTrainedModel, transformers.PreTrainedTokenizerBase]:
    """Load a causal language model and its tokenizer as safely as a classifier; refuse any other kind by name."""
    source = model_source(name)
    with reading(name):
        config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=False)
        if not any(kind.endswith(("ForCausalLM", "LMHeadModel")) for kind in config.architectures or ()):
            kinds = ", ".join(config.architectures or ("a model without a name",))
            raise InputError(
                f"{name} is {kinds}, and only a causal language model can be prompted. Classify with it instead: "
                f"`faithmeter train RUN --model {name}`."
            )
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        model, loading = transformers.AutoModelForCausalLM.from_pretrained(
            source,
            use_safetensors=True,
            dtype=torch.float32,
            attn_implementation="sdpa",
            trust_remote_code=False,
            ignore_mismatched_sizes=True,  # refused by name, and not with a traceback
            output_loading_info=True,
        )
    require_weights(name, model, loading, new_head=False)
    require_words(tokenizer, name)
    require_embeddings(model, tokenizer)
    return model, tokenizer


def prompted(
    language_model: transformers.PreTrainedModel, tokenizer: transformers.PreTrainedTokenizerBase, prompt: Prompt
) -> tuple[PromptedForSequenceClassification, transformers.PreTrainedTokenizerFast]:
    """Return a causal language model and its tokenizer with a prompt as a classifier with a mask token of its own.

    The mask begins as the mean of all embeddings. Weights are shared with the model that is given.
    """
    word_ids = [tokenizer(prompt.spelt(label), add_special_tokens=False)["input_ids"] for label in prompt.words]
    _require_different(prompt, word_ids)
    filling, prefix = _with_template(tokenizer, prompt)
    known = language_model.get_input_embeddings().weight.shape[0]
    config = PromptedConfig(
        language_model=language_model.config.to_dict(),
        word_ids=word_ids,
        known_tokens=min(known, len(tokenizer)),
        prefix=prefix,
        template=prompt.template,
        words=[prompt.words[label].strip() for label in prompt.words],
        pad_token_id=filling.pad_token_id,
        vocab_size=max(known, len(filling)),
    )
    config.id2label = dict(enumerate(prompt.words))
    config.label2id = {label: number for number, label in enumerate(prompt.words)}
    config._attn_implementation = language_model.config._attn_implementation
    with torch.device("meta"):
        model = PromptedForSequenceClassification(config)
    model.language_model = language_model
    _require_plain_head(model)
    if len(filling) > known:
        model.resize_token_embeddings(len(filling), mean_resizing=False)
    lookup: Any = model.get_input_embeddings()
    weight = lookup.weight.data
    weight[len(tokenizer) : len(filling)] = weight[: min(known, len(tokenizer))].mean(dim=0)
    return model.eval(), filling


def _require_different(prompt: Prompt, word_ids: Sequence[Sequence[int]]) -> None:
    names = list(prompt.words)
    for number, ids in enumerate(word_ids):
        for other, earlier in enumerate(word_ids[:number]):
            if list(ids) == list(earlier):
                raise InputError(
                    f"The words of {names[other]} and {names[number]} are the same to the model "
                    f"({prompt.words[names[number]]!r}), so it could not choose between them: use other words."
                )


def _require_plain_head(model: PromptedForSequenceClassification) -> None:
    """Refuse a language model whose logits are not those of its output embeddings alone: its scores would be wrong."""
    ids = torch.arange(min(8, model.config.known_tokens))[None]
    with torch.no_grad():
        expected = model.language_model.eval()(input_ids=ids, use_cache=False).logits
        head: Any = model.language_model.get_output_embeddings()
        found = head(model.base_model(input_ids=ids, use_cache=False).last_hidden_state)
    if not torch.allclose(found, expected, rtol=1e-4, atol=1e-4):
        raise InputError(
            f"A {model.language_model.config.model_type} model changes its logits after its output embeddings, which "
            "is not supported: use another language model."
        )


def _with_template(
    tokenizer: transformers.PreTrainedTokenizerBase, prompt: Prompt
) -> tuple[transformers.PreTrainedTokenizerFast, int]:
    """Return a tokenizer that puts every text into the prompt, and how many tokens come before the text."""
    backend = copy.deepcopy(tokenizer.backend_tokenizer)
    begin = tokenizer("a")["input_ids"][: -len(tokenizer("a", add_special_tokens=False)["input_ids"])]
    begin = begin if tokenizer.bos_token_id is not None and begin[:1] == [tokenizer.bos_token_id] else []
    pieces = [tokenizer(piece, add_special_tokens=False)["input_ids"] for piece in prompt.pieces]
    pieces[0] = [*begin[:1], *pieces[0]]
    around = {f"<prompt-{number}>": ids for number, ids in enumerate(pieces) if ids}
    written = [f"<prompt-{number}>" if ids else "" for number, ids in enumerate(pieces)]
    one, two = (written[0], "$A", *written[1:]), (written[0], "$A", written[1], "$B", *written[2:])
    backend.post_processor = processors.TemplateProcessing(
        single=" ".join(filter(None, one)),
        pair=" ".join(filter(None, two)),
        special_tokens=[
            {"id": name, "ids": ids, "tokens": tokenizer.convert_ids_to_tokens(ids)} for name, ids in around.items()
        ],
    )
    if prompt.spaced:
        before = [] if backend.normalizer is None else [backend.normalizer]
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(" "), *before])
    names = {name: getattr(tokenizer, name) for name in ("bos_token", "eos_token", "unk_token")}
    known = {name: str(token) for name, token in names.items() if token is not None}
    vocabulary = tokenizer.get_vocab()
    own_pad = tokenizer.pad_token if tokenizer.pad_token not in (None, *known.values()) else None
    filling = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        **known,
        mask_token=NEW_MASK,
        pad_token=own_pad or (NEW_PAD if NEW_PAD not in vocabulary else "<padding>"),
        model_max_length=min(tokenizer.model_max_length, 10**9),
        model_input_names=["input_ids", "attention_mask"],
    )
    return filling, len(pieces[0])


def without_template(
    tokenizer: transformers.PreTrainedTokenizerBase, template: str
) -> transformers.PreTrainedTokenizerFast:
    """Return a prompted model's tokenizer as it was before `_with_template`: it reads a text and adds nothing."""
    parts = json.loads(tokenizer.backend_tokenizer.to_str())
    parts["post_processor"] = None
    if Prompt(template, {"no": "no", "yes": "yes"}).spaced:
        _, *before = parts["normalizer"]["normalizers"]  # the first is the space that follows the template
        parts["normalizer"] = before[0] if before else None
    backend = tokenizers.Tokenizer.from_str(json.dumps(parts))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend)
