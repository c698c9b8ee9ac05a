"""A prompted language model as a classifier: a template with a slot for the text, and a word for each class.

The score of a class is the log-likelihood of its word, of one or several tokens, after the prompt. Own code because
transformers classifies with a trained head, and pipelines for prompts do not give gradients.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache
from transformers.modeling_outputs import SequenceClassifierOutput


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
