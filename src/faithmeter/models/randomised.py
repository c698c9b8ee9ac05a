"""Models with fresh weights, as before any training, in all or some of their blocks.

A block is an attention layer with the feed-forward layer behind it.
"""

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from faithmeter.masking import Purpose, random_stream
from faithmeter.models.classifier import Classifier

HEAD, EMBEDDINGS = "head", "embeddings"


def randomised(classifier: Classifier, *, cascading: bool, seed: int) -> Iterator[tuple[str, Classifier]]:
    """Yield the classifier with blocks of fresh weights, from the head down, and the name of the last one replaced.

    Each is a copy that changes when the next is asked for. The weights are drawn as the model's own class draws them.
    """
    fresh = _fresh(classifier.model, seed)
    changed = copy.copy(classifier)
    changed.model = copy.deepcopy(classifier.model)
    for name, parameters in blocks(classifier.model).items():
        if not cascading:
            changed.model.load_state_dict(classifier.model.state_dict())
        learnt = dict(changed.model.named_parameters(remove_duplicate=False))
        with torch.no_grad():
            for parameter in parameters:
                learnt[parameter].copy_(fresh[parameter])
        yield name, changed


def untrained(classifier: Classifier, seed: int) -> Classifier:
    """Return a copy of the classifier all of whose weights are fresh: the last step of a cascade."""
    *_, (_, changed) = randomised(classifier, cascading=True, seed=seed)
    return changed


def blocks(model: nn.Module) -> dict[str, list[str]]:
    """Return the names of a model's parameters by block, from the head down to the embeddings.

    Blocks are the members of the longest list of modules in the body, or, where there is none, the body's own parts.
    What lies in the body and in no block goes with the embeddings, or with the head where the body ends in it.
    """
    prefix: str = model.base_model_prefix  # type: ignore[assignment]
    body = f"{prefix}." if hasattr(model, prefix) else ""
    lists = {name: module for name, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    name = max(lists, key=lambda one: len(lists[one]), default=None)
    if name is not None:
        layers = [f"{name}.{number}." for number in range(len(lists[name]))]
    else:
        parts = dict(model.named_children())
        layers = [f"{part}." for part in parts if list(parts[part].parameters())]
    every = [parameter for parameter, _ in model.named_parameters(remove_duplicate=False)]
    below = _below_the_layers(model)
    found: dict[str, list[str]] = {HEAD: []}
    for number in range(len(layers), 0, -1):
        found[f"layer {number}"] = [one for one in every if one.startswith(layers[number - 1]) and one not in below]
    found[EMBEDDINGS] = sorted(below)
    taken = {one for names in found.values() for one in names}
    for one in every:
        if one not in taken:
            inside = body and one.startswith(body) and "pooler" not in one
            found[EMBEDDINGS if inside else HEAD].append(one)
    return {name: names for name, names in found.items() if names}


def _below_the_layers(model: nn.Module) -> set[str]:
    """Return the names of the word embeddings' parameters, which may be tied to others."""
    words = {id(parameter) for parameter in model.get_input_embeddings().parameters()}  # type: ignore[operator]
    return {name for name, one in model.named_parameters(remove_duplicate=False) if id(one) in words}


def _fresh(model: nn.Module, seed: int) -> dict[str, Tensor]:
    """Return the parameters of an untrained model of the same kind."""
    with torch.random.fork_rng():
        torch.manual_seed(int(random_stream(seed, Purpose.RANDOM_LAYERS).integers(2**31)))
        config = copy.deepcopy(model.config)
        fresh = type(model)._from_config(config, attn_implementation=model.config._attn_implementation)  # type: ignore
    device = next(model.parameters()).device
    return {name: one.detach().to(device) for name, one in fresh.named_parameters(remove_duplicate=False)}
