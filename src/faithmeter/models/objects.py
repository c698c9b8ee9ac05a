"""A model and a tokenizer in memory: what they are, a hash of both, and a copy in a folder; neither is changed."""

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import torch
import transformers

from faithmeter.errors import InputError
from faithmeter.models.setfit import folded, is_setfit


def model_and_tokenizer(
    model: Any,  # noqa: ANN401 (a model, or what holds one)
    tokenizer: Any,  # noqa: ANN401
) -> tuple[transformers.PreTrainedModel, transformers.PreTrainedTokenizerBase]:
    """Return the model and tokenizer of a pipeline, of a model with adapters (merged into a copy), or as they are.

    A SetFitModel becomes one model, see `folded`.
    """
    if is_setfit(model):
        return folded(model)
    if isinstance(model, transformers.Pipeline):
        model, tokenizer = model.model, tokenizer or model.tokenizer
    if hasattr(model, "merge_and_unload"):  # of peft
        model = copy.deepcopy(model).merge_and_unload()
    if not isinstance(model, transformers.PreTrainedModel):
        raise InputError(
            f"{type(model).__name__} is no transformers model: give a model of "
            "AutoModelForSequenceClassification, a pipeline with one, a SetFitModel, or the name of a folder."
        )
    if not isinstance(tokenizer, transformers.PreTrainedTokenizerBase):
        raise InputError(
            f"{type(tokenizer).__name__} is no tokenizer: give that of the model, (model, tokenizer, data)."
        )
    return model, tokenizer


def quantised(model: torch.nn.Module) -> bool:
    """Whether weights are in 8 bits or fewer: then they cannot be copied into a run, and have no gradients.

    That is told by what transformers and torch leave behind, whichever library did it.
    """
    config = getattr(model, "config", None)
    if getattr(model, "hf_quantizer", None) is not None or getattr(config, "quantization_config", None):
        return True
    return any(".quantized." in type(module).__module__ for module in model.modules())


def save_copy(
    model: transformers.PreTrainedModel, tokenizer: transformers.PreTrainedTokenizerBase, folder: Path
) -> None:
    """Save both as they are. Saving writes into a model's config and into a tokenizer, so copies of those are used."""
    original = model.config
    model.config = copy.deepcopy(original)
    try:
        model.save_pretrained(folder)
    finally:
        model.config = original
    copy.deepcopy(tokenizer).save_pretrained(folder)


def hash_of(model: transformers.PreTrainedModel, tokenizer: transformers.PreTrainedTokenizerBase) -> str:
    """Return a hash of all on which an answer depends: weights, config and tokenizer."""
    digest = hashlib.sha256(json.dumps(model.config.to_dict(), sort_keys=True, default=str).encode())
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        for one in value if isinstance(value, tuple) else (value,):  # packed weights and their bias
            digest.update(_bytes_of(one))
    backend = getattr(tokenizer, "backend_tokenizer", None)
    digest.update(repr(tokenizer.special_tokens_map).encode())
    digest.update((backend.to_str() if backend is not None else repr(sorted(tokenizer.get_vocab().items()))).encode())
    return digest.hexdigest()[:16]


def _bytes_of(value: Any) -> bytes:  # noqa: ANN401 (an entry of a model's state)
    if not isinstance(value, torch.Tensor):
        return repr(value).encode()
    if value.is_quantized:
        scales = value.q_per_channel_scales() if "channel" in str(value.qscheme()) else value.q_scale()
        return repr(scales).encode() + _bytes_of(value.int_repr())
    return value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
