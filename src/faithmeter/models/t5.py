"""T5's encoder as a classifier: the mean of its last states over the text, and a linear layer (Oxford thesis, 2022).

Written by hand because transformers' own `T5ForSequenceClassification` runs the decoder over the text a second time
and reads one token of it; the encoder alone costs half, and every token it reads can be masked. T5, mT5 and UMT5 are
one class here: they differ in their encoder only. Being a `PreTrainedModel` it is saved, loaded, trained and explained
like any other, and `AutoModelForSequenceClassification` knows it once a name was taken from faithmeter
(`from faithmeter import Classifier`).
"""

from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput

ENCODERS: dict[str, Any] = {
    "t5": transformers.T5EncoderModel,
    "mt5": transformers.MT5EncoderModel,
    "umt5": transformers.UMT5EncoderModel,
}


class T5MeanConfig(transformers.T5Config):
    """The config of a T5, which says in `encoder_type` whose encoder it is: t5, mt5 or umt5."""

    model_type = "t5-encoder-mean"
    encoder_type: str = "t5"


class T5MeanForSequenceClassification(transformers.T5PreTrainedModel):
    """The classifier: `input_ids` and `attention_mask` in; logits, hidden states and attentions out."""

    config_class = T5MeanConfig
    base_model_prefix = "transformer"
    _keys_to_ignore_on_load_unexpected = [r"decoder", r"lm_head", r"classification_head"]  # noqa: RUF012 (transformers')

    def __init__(self, config: T5MeanConfig) -> None:
        super().__init__(config)
        self.transformer = ENCODERS[config.encoder_type](config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.d_model, config.num_labels)
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Draw the head as T5 draws its own; the encoder's weights are drawn by its own class."""
        if module is self.classifier:
            nn.init.normal_(module.weight, std=self.config.initializer_factor * self.config.d_model**-0.5)
            nn.init.zeros_(module.bias)
        else:
            self.transformer._init_weights(module)

    def get_input_embeddings(self) -> nn.Module:
        """Return the lookup that the encoder calls; `shared` is the same weights in another module."""
        return self.transformer.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Exchange the lookup."""
        self.transformer.set_input_embeddings(value)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> SequenceClassifierOutput:
        """Classify rows; positions that are not attended to do not enter the mean."""
        output = self.transformer(
            input_ids=input_ids,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
        )
        states = output.last_hidden_state
        attended = torch.ones(states.shape[:2], device=states.device) if attention_mask is None else attention_mask
        attended = attended[..., None].to(states.dtype)
        # a text without any token has nothing to say, and speaks by the bias alone
        mean = (states * attended).sum(dim=1) / attended.sum(dim=1).clamp_min(1)
        return SequenceClassifierOutput(
            logits=self.classifier(self.dropout(mean)),
            hidden_states=output.hidden_states,
            attentions=output.attentions,
        )


def on_the_encoder(config: transformers.PretrainedConfig) -> transformers.PretrainedConfig:
    """Return the config of our classifier for that of a T5, mT5 or UMT5; any other as it is."""
    if config.model_type not in ENCODERS:
        return config
    values = {name: value for name, value in config.to_dict().items() if name not in ("model_type", "architectures")}
    return T5MeanConfig(**{**values, "is_encoder_decoder": False, "use_cache": False}, encoder_type=config.model_type)


transformers.AutoConfig.register(T5MeanConfig.model_type, T5MeanConfig)
transformers.AutoModelForSequenceClassification.register(T5MeanConfig, T5MeanForSequenceClassification)
