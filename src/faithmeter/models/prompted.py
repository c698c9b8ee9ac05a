"""A prompted language model as a classifier: a template with a slot for the text, and a word for each class.

The score of a class is the log-likelihood of its word, of one or several tokens, after the prompt. The template is
part of the tokenizer: it adds the tokens around the slot as it would add special tokens, so they are never masked,
only the text itself is cut where it is too long, and everything that explains or measures a text works unchanged.
Own code because no library has it: transformers classifies with a trained head, and pipelines for prompts do not give
gradients.
"""

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from tokenizers import normalizers, processors
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache
from transformers.modeling_outputs import SequenceClassifierOutput

from faithmeter.errors import InputError
from faithmeter.models.sources import cannot_load, model_source
from faithmeter.models.special_tokens import NEW_MASK, NEW_PAD, require_words

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
        found = self.template.replace(CONTEXT, context or "").replace(TEXT, text)
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


class PromptedConfig(transformers.PretrainedConfig):
    """The config: that of the language model, the tokens of each word, and what is added to each class's score."""

    model_type = "prompted"

    def __init__(
        self,
        language_model: dict[str, Any] | None = None,
        word_ids: Sequence[Sequence[int]] = ((0,), (1,)),
        offsets: Sequence[float] | None = None,
        known_tokens: int = 0,
        prefix: int = 0,
        template: str = "",
        words: Sequence[str] = (),
        **more: Any,  # noqa: ANN401 (transformers' own settings)
    ) -> None:
        self.language_model = language_model or {"model_type": "llama"}
        self.word_ids = [list(ids) for ids in word_ids]
        self.offsets = list(offsets or [0.0] * len(self.word_ids))
        self.known_tokens, self.prefix, self.template, self.words = known_tokens, prefix, template, list(words)
        for name in ("vocab_size", "hidden_size", "max_position_embeddings", "num_hidden_layers"):
            more.setdefault(name, self.of_language_model().to_dict().get(name))
        super().__init__(**{"num_labels": len(self.word_ids), **more})

    def of_language_model(self) -> transformers.PretrainedConfig:
        """Return the config of the language model."""
        return transformers.AutoConfig.for_model(**copy.deepcopy(self.language_model))


class PromptedForSequenceClassification(transformers.PreTrainedModel):
    """The classifier: `input_ids` of whole prompts and `attention_mask` in; logits, hidden states and attentions out.

    The logit of a class is the log-likelihood of its word, plus the class's offset.
    """

    config_class = PromptedConfig
    base_model_prefix = "language_model"
    _supports_sdpa = True

    def __init__(self, config: PromptedConfig) -> None:
        super().__init__(config)
        self.language_model = transformers.AutoModelForCausalLM.from_config(
            config.of_language_model(), attn_implementation=config._attn_implementation
        )
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        self.language_model._init_weights(module)

    @property
    def base_model(self) -> nn.Module:
        """The language model without its head."""
        return self.language_model.base_model

    def get_input_embeddings(self) -> nn.Module:
        """Return the lookup of word embeddings."""
        return self.language_model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Exchange the lookup."""
        self.language_model.set_input_embeddings(value)

    def resize_token_embeddings(self, *sizes: Any, **how: Any) -> nn.Module:  # noqa: ANN401 (transformers' own)
        """Let the language model know more tokens; their likelihood is not counted."""
        found = self.language_model.resize_token_embeddings(*sizes, **how)
        self.config.vocab_size = self.language_model.config.vocab_size
        self.config.language_model = self.language_model.config.to_dict()
        return found

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> SequenceClassifierOutput:
        """Classify rows of prompts, padded on the right."""
        attended = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        tokens, lengths = input_ids.shape[1], attended.sum(dim=1)
        more, begins = self._continuations(input_ids.device)
        states = self.get_input_embeddings()(input_ids)
        positions = torch.arange(tokens, device=input_ids.device).expand(len(input_ids), -1)
        if len(more):  # all words but their last tokens follow the prompt, and none sees another
            states = torch.cat([states, self._looked_up(more).to(states).expand(len(states), -1, -1)], dim=1)
            positions = torch.cat([positions, lengths[:, None] + begins[:, 1]], dim=1)
            attended = self._visible(attended, begins[:, 0], states.dtype)
        wanted = {"output_hidden_states": output_hidden_states, "output_attentions": output_attentions}
        output = self._body(states, attended, positions, wanted, input_ids)
        scores = self._scores(output.last_hidden_state, lengths, tokens)
        return SequenceClassifierOutput(
            logits=scores + torch.tensor(self.config.offsets, device=scores.device, dtype=scores.dtype),
            hidden_states=output.hidden_states and tuple(state[:, :tokens] for state in output.hidden_states),
            attentions=output.attentions and tuple(one[:, :, :tokens, :tokens] for one in output.attentions),
        )

    def _looked_up(self, ids: Tensor) -> Tensor:
        """Return word embeddings without the lookup's hooks, which are meant for the tokens of the text."""
        lookup: Any = self.get_input_embeddings()
        return lookup.forward(ids)

    def _continuations(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the tokens of the words but the last of each, and of each token its class and place in the word."""
        every = [
            (one, (label, place))
            for label, ids in enumerate(self.config.word_ids)
            for place, one in enumerate(ids[:-1])
        ]
        ids = torch.tensor([one for one, _ in every], dtype=torch.long, device=device)
        return ids, torch.tensor([where for _, where in every], dtype=torch.long, device=device).reshape(-1, 2)

    def _visible(self, attended: Tensor, classes: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the (rows, 1, tokens, tokens) mask with which prompt and words attend: 0, or as little as can be."""
        rows, tokens = attended.shape
        size = tokens + len(classes)
        seen = torch.ones(size, size, dtype=torch.bool, device=attended.device).tril()
        of_class = torch.cat([torch.full((tokens,), -1, device=classes.device), classes])
        seen &= (of_class[None, :] == -1) | (of_class[None, :] == of_class[:, None])
        kept = torch.cat([attended.bool(), attended.new_ones(rows, len(classes)).bool()], dim=1)
        # a padded position sees itself, or its softmax would have nothing to divide by
        allowed = (seen[None] & kept[:, None, :]) | torch.eye(size, dtype=torch.bool, device=attended.device)
        return torch.zeros(rows, 1, size, size, dtype=dtype, device=attended.device).masked_fill(
            ~allowed[:, None], torch.finfo(dtype).min
        )

    def _body(
        self, states: Tensor, attended: Tensor, positions: Tensor, wanted: Mapping[str, bool], input_ids: Tensor
    ) -> Any:  # noqa: ANN401 (the model's own)
        """Return the body's output; what all prompts begin with is computed once for all rows, if only scores count."""
        shared = self.config.prefix
        plain = not torch.is_grad_enabled() and not any(wanted.values()) and not self.base_model._forward_hooks
        alike = plain and len(states) > 1 and 0 < shared < input_ids.shape[1]
        if not alike or not torch.equal(states[:, :shared], states[:1, :shared].expand(len(states), -1, -1)):
            return self.base_model(
                inputs_embeds=states, attention_mask=attended, position_ids=positions, use_cache=False, **wanted
            )
        cache = DynamicCache(config=self.language_model.config)
        self.base_model(
            inputs_embeds=states[:1, :shared],
            position_ids=positions[:1, :shared],
            past_key_values=cache,
            use_cache=True,
        )
        cache.batch_repeat_interleave(len(states))
        output = self.base_model(
            inputs_embeds=states[:, shared:],
            attention_mask=attended[:, :, shared:] if attended.ndim == 4 else attended,
            position_ids=positions[:, shared:],
            past_key_values=cache,
            use_cache=True,
        )
        # nothing reads the states of the prefix
        missing = output.last_hidden_state.new_zeros(len(states), shared, output.last_hidden_state.shape[-1])
        output.last_hidden_state = torch.cat([missing, output.last_hidden_state], dim=1)
        return output

    def _scores(self, states: Tensor, lengths: Tensor, tokens: int) -> Tensor:
        """Return the (rows, classes) log-likelihoods of the words, each token from the state before it."""
        last = states[torch.arange(len(states), device=states.device), lengths - 1]
        read = torch.cat([last[:, None], states[:, tokens:]], dim=1)
        head: Any = self.language_model.get_output_embeddings()
        likely = head(read)[..., : self.config.known_tokens].float().log_softmax(dim=-1)
        scores, place = [], 1
        for ids in self.config.word_ids:
            parts = [likely[:, 0, ids[0]]]
            for one in ids[1:]:
                parts.append(likely[:, place, one])
                place += 1
            scores.append(torch.stack(parts).sum(dim=0))
        return torch.stack(scores, dim=1)


transformers.AutoConfig.register(PromptedConfig.model_type, PromptedConfig)
transformers.AutoModelForSequenceClassification.register(PromptedConfig, PromptedForSequenceClassification)


# -------------------------------------------------------------------------------------------------------- making one


def read_language_model(
    name: str,
) -> tuple[transformers.PreTrainedModel, transformers.PreTrainedTokenizerBase]:
    """Load a causal language model and its tokenizer as safely as a classifier; refuse any other kind by name."""
    source = model_source(name)
    try:
        config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=False)
        if not any(kind.endswith(("ForCausalLM", "LMHeadModel")) for kind in config.architectures or ()):
            kinds = ", ".join(config.architectures or ("a model without a name",))
            raise InputError(
                f"{name} is {kinds}, and only a causal language model can be prompted. Classify with it instead: "
                f"`faithmeter train RUN --model {name}`."
            )
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            source,
            use_safetensors=True,
            dtype=torch.float32,
            attn_implementation="sdpa",
            trust_remote_code=False,
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise InputError(cannot_load(name, error)) from error
    require_words(tokenizer, name)
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
