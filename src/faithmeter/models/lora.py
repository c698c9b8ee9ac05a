"""LoRA: a model as a small patch of another, whose own weights are frozen (Hu et al., 2022).

peft trains the patch and defines how it is stored. What is trained besides the low-rank updates: the head, the pooler
that some heads read through, and of the embedding matrix only the row of the mask token, because masked fine-tuning
must teach its meaning. A stored adapter is loaded with its updates added to the weights of its base, so that
everything that explains or measures gets an ordinary model of transformers.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch
import transformers
from torch import Tensor, nn

from faithmeter.errors import InputError, first_line

if TYPE_CHECKING:
    from faithmeter.models.classifier import Classifier

ADAPTER, WEIGHTS, BASE = "adapter_config.json", "adapter_model.safetensors", "base.json"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LINEAR = (nn.Linear, transformers.pytorch_utils.Conv1D)
POOLER = "pooler"


@dataclass(frozen=True)
class Lora:
    """The shape of an adapter: W x becomes W x + (alpha / rank) B A x, with A and B of `rank` rows and columns.

    `targets` are the names, or ends of names, of the linear layers that get one; none means all in the body. `dtype` is
    that of the frozen base; what is trained has 32 bits.
    """

    rank: int
    alpha: float
    targets: tuple[str, ...] = ()
    dtype: str = "float32"


def require_peft() -> None:
    """Refuse work with adapters where peft is not installed."""
    if util.find_spec("peft") is None:
        raise InputError("LoRA adapters need the package peft: `pip install 'faithmeter[peft]'`.")


# ------------------------------------------------------------------------------------------------------- training


def add_lora(classifier: Classifier, base: str, lora: Lora, *, known: int, seed: int) -> None:
    """Freeze a classifier's model in place and give it an adapter to train.

    `base` is the folder or hub name that it was loaded from, and `known` how many tokens that one knows. The updates
    begin as 0 (B is 0, and A is drawn from `seed`), so the first prediction is that of the base.
    """
    require_peft()
    import peft

    if is_adapter(base):
        raise InputError(
            f"{base} is an adapter itself, and an adapter on an adapter cannot be stored. Use its base "
            f"({base_of(Path(base))}) as --model, or train without --lora, which starts from both merged."
        )
    model = classifier.model
    heads = head_modules(model)
    config = peft.LoraConfig(
        task_type=peft.TaskType.SEQ_CLS,
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=target_modules(model, lora.targets, heads),
        modules_to_save=list(heads),  # which peft adds to
        trainable_token_indices={embedding_name(model): trained_tokens(classifier, known)},
        fan_in_fan_out=any(isinstance(one, transformers.pytorch_utils.Conv1D) for one in model.modules()),
    )
    model.to(DTYPES[lora.dtype])
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        classifier.adapter = peft.get_peft_model(model, config)
    # peft takes the name that the model was loaded by, which may be a path from a folder that is soon another
    config.base_model_name_or_path = str(Path(base).resolve()) if Path(base).is_dir() else base
    for name in heads:
        model.get_submodule(name).register_forward_pre_hook(_in_its_own_precision)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def _in_its_own_precision(module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Hand a trained head its input in 32 bits, whatever the base computes in."""
    trained: Any = module  # peft's wrapper, which holds the head of the base beside the trained one
    dtype = next(trained.modules_to_save["default"].parameters()).dtype
    return tuple(one.to(dtype) if isinstance(one, Tensor) and one.is_floating_point() else one for one in given)


def head_modules(model: transformers.PreTrainedModel) -> list[str]:
    """Return the names of the modules outside of the body that have weights, and of the body's pooler."""
    inside = {id(module) for module in model.base_model.modules()}
    heads = [
        name
        for name, child in model.named_children()
        if _has_weights(child) and not any(id(module) in inside for module in child.modules())
    ]
    return heads + [name for name, one in model.named_modules() if name.split(".")[-1] == POOLER and _has_weights(one)]


def _has_weights(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())


def target_modules(model: transformers.PreTrainedModel, named: Sequence[str], heads: Sequence[str]) -> list[str]:
    """Return the linear layers of the body that get low-rank updates: all of them, or those that are named."""
    inside = {id(module) for module in model.base_model.modules()}
    every = [
        name
        for name, module in model.named_modules()
        if isinstance(module, LINEAR)
        and id(module) in inside
        and not any(f"{name}.".startswith(f"{head}.") for head in heads)
    ]
    found = [name for name in every if not named or any(f".{name}".endswith(f".{end}") for end in named)]
    unknown = [end for end in named if not any(f".{name}".endswith(f".{end}") for name in every)]
    if unknown or not found:
        ends = sorted({name.rsplit(".", 1)[-1] for name in every})
        raise InputError(
            f"The model has no linear layer {', '.join(unknown) or 'in its body'} for --lora-targets. "
            f"The names of its layers end in {', '.join(ends) or 'nothing that could be adapted'}."
        )
    return found


def embedding_name(model: transformers.PreTrainedModel) -> str:
    """Return the name of the module that looks up word embeddings."""
    words = model.get_input_embeddings()
    return next(name for name, module in model.named_modules() if module is words)


def trained_tokens(classifier: Classifier, known: int) -> list[int]:
    """Return the ids whose embeddings are trained: the mask, and other tokens that the base does not know.

    Padding is not attended to, so nothing can be learnt of it.
    """
    new = set(range(known, len(classifier.tokenizer))) - {classifier.pad_token_id}
    return sorted({classifier.mask_token_id, *new})


def save_adapter(classifier: Classifier, folder: Path) -> None:
    """Store an adapter as peft reads it, with the config of the whole model and what tells its base from others."""
    adapter, model = classifier.adapter, classifier.model
    adapter.save_pretrained(folder, save_embedding_layers=False)
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    frozen = next(parameter.dtype for parameter in model.parameters() if not parameter.requires_grad)
    base = adapter.peft_config["default"].base_model_name_or_path
    known = {"weights": weights_of(base), "dtype": str(frozen).removeprefix("torch.")}
    (folder / BASE).write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")


def weights_of(base: str) -> str | None:
    """Return a hash of the weights in a model folder; None for a model of the hub."""
    files = sorted(Path(base).glob("*.safetensors")) if Path(base).is_dir() else []
    if not files:
        return None
    found = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            found.update(hashlib.file_digest(opened, "sha256").digest())
    return found.hexdigest()


# -------------------------------------------------------------------------------------------------------- loading


def is_adapter(name: str) -> bool:
    """Whether a folder holds an adapter and not a whole model."""
    return (Path(name) / ADAPTER).is_file()


def base_of(folder: Path) -> str:
    """Return the folder or hub name of an adapter's base; a relative path may be relative to the adapter."""
    base = _settings(folder).get("base_model_name_or_path")
    if not base:
        raise InputError(f"{folder / ADAPTER} does not name the base of the adapter in `base_model_name_or_path`.")
    beside = folder / base
    return str(beside) if beside.is_dir() and not Path(base).is_dir() else str(base)


def require_base(folder: Path, base: str) -> None:
    """Refuse a base folder that is not here, or that is not the one on which the adapter was trained."""
    if Path(base).is_absolute() and not Path(base).is_dir():
        raise InputError(
            f"{folder} is an adapter, and its base is not here: {base}. Put the base model there, or write where it is "
            f"into `base_model_name_or_path` of {folder / ADAPTER}."
        )
    expected = _known_base(folder).get("weights")
    if expected is not None and weights_of(base) not in (None, expected):
        raise InputError(
            f"The base of {folder}, {base}, does not have the weights on which the adapter was trained, so its "
            "predictions would be others. Restore it, or name the right one in `base_model_name_or_path` of "
            f"{folder / ADAPTER}."
        )


def _known_base(folder: Path) -> dict[str, Any]:
    """Return what is known of the base of an adapter that was trained here; nothing of any other."""
    return _read(folder / BASE) if (folder / BASE).is_file() else {}


def _read(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(
            f"{file} is damaged: it cannot be read as JSON. Restore it, or save the adapter again."
        ) from error


def classes_in(folder: Path) -> int | None:
    """Return how many classes the head of an adapter has; None where it has no head of its own."""
    saved = _settings(folder).get("modules_to_save") or ()
    rows = [
        tensor.shape[0]
        for name, tensor in adapter_weights(folder).items()
        if tensor.ndim == 2 and set(name.split(".")) & {one.split(".")[-1] for one in saved} - {POOLER}
    ]
    return min(rows, default=None)  # a head of two layers ends in the narrow one


def _settings(folder: Path) -> dict[str, Any]:
    found = _read(folder / ADAPTER)
    if found.get("task_type") not in (None, "SEQ_CLS"):
        raise InputError(
            f"{folder} is an adapter for {found['task_type']}, which does not classify texts. "
            "Train one that does: `faithmeter train RUN --lora --model BASE`."
        )
    return found


def adapter_weights(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of an adapter; only safetensors are read."""
    if not (folder / WEIGHTS).is_file():
        raise InputError(
            f"{folder} has no {WEIGHTS}: an adapter is read from safetensors only. Save it again with a current peft."
        )
    return safetensors.torch.load_file(folder / WEIGHTS)


def merged(
    folder: Path, model: transformers.PreTrainedModel, drawn: Sequence[str], tokens: int
) -> transformers.PreTrainedModel:
    """Return the base model with an adapter's updates added to its weights, its rows and its head.

    `drawn` are the weights that were initialised at random because the base lacks them: the adapter must have them.
    `tokens` is how many tokens the adapter's tokenizer knows.
    """
    require_peft()
    import peft

    # the base as rounded as it was in training; computed with in 32 bits
    model.to(DTYPES[_known_base(folder).get("dtype", "float32")]).float()
    rows = model.get_input_embeddings().weight.shape[0]
    if tokens > rows:
        model.resize_token_embeddings(tokens, mean_resizing=False)
        weight = model.get_input_embeddings().weight.data
        weight[rows:] = weight[:rows].mean(dim=0)
    weights = adapter_weights(folder)
    try:
        config = peft.PeftConfig.from_pretrained(str(folder))
        if config.is_prompt_learning:
            raise InputError(
                f"{folder} is an adapter of the kind {config.peft_type}, which is not part of the weights."
            )
        config.inference_mode = False  # so that what it should have learnt can be told from the base
        config.base_model_name_or_path = model.name_or_path  # as peft would set it, with a warning
        adapter = peft.get_peft_model(model, config)
        told = peft.set_peft_model_state_dict(adapter, weights)
    except KeyError as error:
        raise InputError(f"The adapter in {folder} does not fit its base: {error.args[0]} is missing.") from error
    except (ValueError, RuntimeError, TypeError) as error:
        raise InputError(f"The adapter in {folder} does not fit its base: {first_line(error)}") from error
    learnt = {name for name, one in adapter.named_parameters() if one.requires_grad}
    missing = sorted(learnt & set(told.missing_keys))
    lacking = [name for name in drawn if not any(_is_of(name, learnt_name) for learnt_name in learnt)]
    if missing or told.unexpected_keys or lacking:
        wrong = (missing or told.unexpected_keys or lacking)[0]
        how = "is left over" if not missing and told.unexpected_keys else "is missing"
        raise InputError(f"The adapter in {folder} does not fit its base: {wrong} {how}.")
    return adapter.merge_and_unload().requires_grad_(True)


def _is_of(weight: str, learnt: str) -> bool:
    """Whether a weight of the base is one that an adapter has, whose name says where it is stored."""
    parts = [part for part in learnt.split(".") if part not in ("modules_to_save", "default", "base_model", "model")]
    return [part for part in weight.split(".") if part != "model"] == parts
