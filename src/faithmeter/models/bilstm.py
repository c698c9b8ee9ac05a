"""BiLSTM-attention as a transformers model like any other (Madsen et al., 2022, App. C.1).

Embedding, a bidirectional LSTM, additive attention over the words, a linear layer. A pair has an embedding and an LSTM
of its own for the context, whose last state takes part in the attention and in the decision. Written by hand because
transformers has none; being a `PreTrainedModel` it is saved, loaded, trained and explained by the same code.
"""

from dataclasses import dataclass

import torch
import transformers
from torch import Tensor, nn
from transformers.modeling_outputs import ModelOutput

BILSTM = "bilstm"


class BiLSTMConfig(transformers.PretrainedConfig):
    """The sizes of a BiLSTM-attention classifier. `special_token_ids` are never attended to, as in the paper."""

    model_type = "bilstm-attention"

    def __init__(
        self,
        vocab_size: int = 0,
        embedding_size: int = 300,
        hidden_size: int = 128,
        pairs: bool = False,
        special_token_ids: tuple[int, ...] = (),
        max_position_embeddings: int = 512,
        **others: object,  # what every config of transformers takes: classes, ids of special tokens ...
    ) -> None:
        self.vocab_size, self.embedding_size, self.hidden_size = vocab_size, embedding_size, hidden_size
        self.pairs, self.special_token_ids = pairs, list(special_token_ids)
        self.max_position_embeddings = max_position_embeddings
        super().__init__(**others)


@dataclass
class BiLSTMOutput(ModelOutput):
    """Logits; the attention of the one layer, head and query; and, if requested, the LSTMs' states."""

    logits: Tensor | None = None
    attentions: tuple[Tensor, ...] | None = None
    hidden_states: tuple[Tensor, ...] | None = None


class Encoder(nn.Module):
    """A bidirectional LSTM of one layer over sequences of different lengths, each at the start of its row.

    Two plain LSTMs, one of them on the reversed words: on a processor twice as fast as a packed sequence, with the
    same result, since what follows a sequence cannot reach back into it.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.forwards = nn.LSTM(inputs, hidden, batch_first=True)
        self.backwards = nn.LSTM(inputs, hidden, batch_first=True)

    def forward(self, embeddings: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return the (rows, tokens, 2 × hidden) states and the (rows, 2 × hidden) last state of both directions."""
        positions = torch.arange(embeddings.shape[1], device=lengths.device)
        mirror = (lengths[:, None] - 1 - positions).clamp_min(0)[..., None]  # padding mirrors the first word: unused
        there, _ = self.forwards(embeddings)
        back, _ = self.backwards(embeddings.take_along_dim(mirror, dim=1))
        last = (lengths - 1).clamp_min(0)[:, None, None]
        ends = torch.cat([states.take_along_dim(last, dim=1)[:, 0] for states in (there, back)], dim=-1)
        return torch.cat((there, back.take_along_dim(mirror, dim=1)), dim=-1), ends


class BiLSTMForSequenceClassification(transformers.PreTrainedModel):
    """The classifier: `input_ids`, `attention_mask` and, for pairs, `token_type_ids` in; logits and attention out."""

    config_class = BiLSTMConfig
    base_model_prefix = "bilstm"

    def __init__(self, config: BiLSTMConfig) -> None:
        super().__init__(config)
        states = 2 * config.hidden_size
        self.embedding = nn.Embedding(config.vocab_size, config.embedding_size, padding_idx=config.pad_token_id)
        self.encoder = Encoder(config.embedding_size, config.hidden_size)
        self.attention = nn.Linear(states, config.hidden_size)
        self.attention_vector = nn.Linear(config.hidden_size, 1, bias=False)
        if config.pairs:
            self.context_embedding = nn.Embedding(
                config.vocab_size, config.embedding_size, padding_idx=config.pad_token_id
            )
            self.context_encoder = Encoder(config.embedding_size, config.hidden_size)
            self.context_attention = nn.Linear(states, config.hidden_size, bias=False)
            self.from_text = nn.Linear(states, config.hidden_size)
            self.from_context = nn.Linear(states, config.hidden_size)
        self.decoder = nn.Linear(config.hidden_size if config.pairs else states, config.num_labels)
        if not self.decoder.weight.is_meta:  # drawn already; only a checkpoint's gaps are left to `_init_weights`
            for module in self.modules():
                module._is_hf_initialized = True
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Draw weights as torch does, for what a checkpoint lacks."""
        if isinstance(module, nn.Linear | nn.Embedding | nn.LSTM):
            module.reset_parameters()

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding of the text: what importance measures differentiate by."""
        return self.embedding

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = True,
    ) -> BiLSTMOutput:
        """Classify rows of `[CLS] text [EOS]` or `[CLS] text [SEP] context [EOS]`."""
        first = attention_mask.bool()
        if self.config.pairs:
            assert token_type_ids is not None
            first = first & (token_type_ids == 0)
        lengths = first.sum(dim=1)
        states, _ = self.encoder(self.embedding(input_ids), lengths)
        states = states * first[..., None]
        energy = self.attention(states)
        if self.config.pairs:
            context, question = self._read_context(input_ids, lengths, attention_mask.sum(dim=1))
            energy = energy + self.context_attention(question)[:, None]
        special = torch.tensor(self.config.special_token_ids, device=input_ids.device)
        attended = first & ~torch.isin(input_ids, special)
        energy = self.attention_vector(energy.tanh())[..., 0].masked_fill(~attended, torch.finfo(energy.dtype).min)
        # a text without a word has no attention at all, and speaks by its context or bias alone
        attention = (energy.softmax(dim=1) * attended)[:, None, None]
        summary = (attention @ states[:, None])[:, 0, 0]
        if self.config.pairs:
            summary = (self.from_text(summary) + self.from_context(question)).tanh()
            states = states + context
        hidden = (states,) if output_hidden_states else None
        shown = (attention,) if output_attentions else None
        return BiLSTMOutput(logits=self.decoder(summary), attentions=shown, hidden_states=hidden)

    def _read_context(self, input_ids: Tensor, lengths: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        """Return the states of the context at its places in the row, 0 elsewhere, and its last state."""
        of_context = total - lengths
        width = max(1, int(of_context.max()))
        steps = torch.arange(width, device=lengths.device)
        places = (lengths[:, None] + steps).clamp_max(input_ids.shape[1] - 1)  # beyond its end anything goes
        embeddings = self.context_embedding(input_ids.take_along_dim(places, dim=1))
        states, last = self.context_encoder(embeddings, of_context)
        states = states * (steps < of_context[:, None])[..., None]
        last = last * (of_context > 0)[:, None]  # without a context there is nothing to have read
        placed = states.new_zeros(*input_ids.shape, states.shape[-1])
        return placed.scatter_add(1, places[..., None].expand_as(states), states), last


transformers.AutoConfig.register(BiLSTMConfig.model_type, BiLSTMConfig)
transformers.AutoModelForSequenceClassification.register(BiLSTMConfig, BiLSTMForSequenceClassification)
