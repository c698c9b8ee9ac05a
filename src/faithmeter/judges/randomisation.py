"""Layer randomisation: does an explanation change when the model's learnt weights are randomised?

Adebayo et al. (2018), for texts as in the Oxford thesis (2022), Secs. 2.2.3.3 and 3.3.

Whole blocks (an attention layer with the feed-forward layer behind it) get fresh weights, as before any training:
`cascading` from the head down to the embeddings, each block with all that lie above it; `independent` one at a time.
An explanation that stays as it was does not depend on what was learnt there.

Two tests of Li et al. (2023) compare whole models: `untrained` has fresh weights throughout, and another run was
trained with another seed. Explanations are alike by `rank_correlation` and by `top_overlap`.
"""

import copy
from collections.abc import Iterator

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from faithmeter.data.batch import Batch
from faithmeter.importance import ImportanceMeasure
from faithmeter.judges import Array, Columns
from faithmeter.judges.bench import Bench
from faithmeter.judges.judge import By, Judge, SectionData, ShownColumn
from faithmeter.judges.ranking import ranks
from faithmeter.masking import Purpose, random_stream
from faithmeter.models.classifier import Classifier

HEAD, EMBEDDINGS = "head", "embeddings"
TOP = 4  # one token of so many is among the most important


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


def rank_correlation(before: Tensor, after: Tensor, maskable: Tensor) -> Array:
    """Return each row's Spearman correlation of two explanations over its maskable tokens; nan where it has none.

    Equal importances share their mean rank. A row of fewer than two tokens, or all of one importance, has no ranking.
    """
    found = np.full(len(maskable), np.nan)
    for row, tokens in enumerate(maskable):
        ranks = [stats.rankdata(one[row][tokens].double().numpy()) for one in (before, after)]
        if all(np.ptp(one) > 0 for one in ranks if len(one)) and len(ranks[0]) > 1:
            found[row] = np.corrcoef(*ranks)[0, 1]
    return found


def likeness(before: Tensor, after: Tensor, maskable: Tensor) -> Columns:
    """Return how alike two explanations of each row are: `rank_correlation`, `top_overlap` and `chance_overlap`.

    The overlap is that of the most important quarter of the tokens (at least one), those in both of those in either
    (Jaccard), and what it would be of two quarters drawn at random. All are nan where there is no ranking to compare.
    """
    correlation = rank_correlation(before, after, maskable)
    size = maskable.sum(dim=1)
    many = (size // TOP).clamp_min(1)
    first, second = (maskable & (ranks(one, maskable) < many[:, None]) for one in (before, after))
    overlap = (first & second).sum(dim=1) / (first | second).sum(dim=1).clamp_min(1)
    columns = {"rank_correlation": correlation, "top_overlap": overlap.double().numpy()}
    columns["chance_overlap"] = np.array([_chance(n, k) for n, k in zip(size.tolist(), many.tolist(), strict=True)])
    return {name: np.where(np.isnan(correlation), np.nan, column) for name, column in columns.items()}


def _chance(tokens: int, many: int) -> float:
    """Return the mean overlap of two sets of so `many` of the tokens, drawn at random."""
    both = np.arange(many + 1)
    return float(np.sum(stats.hypergeom.pmf(both, tokens, many, many) * both / (2 * many - both))) if tokens else np.nan


def quick(measure: ImportanceMeasure) -> bool:
    """Whether a measure explains by a few passes: what takes hundreds would take hours on several models.

    Random importance is of no model, and has nothing to change with it.
    """
    return measure.family in ("gradient", "attention") or measure.name in ("loo-signed", "loo-abs")


def _judge(bench: Bench, batch: Batch, measure: ImportanceMeasure) -> Columns:
    targets, before = bench.predicted(batch), bench.explained(batch, measure)
    columns: Columns = {}
    for way in ("cascading", "independent"):
        for block, changed in randomised(bench.classifier, cascading=way == "cascading", seed=bench.seed):
            after = measure.explain(changed, batch, targets, bench.seed)
            columns[f"{way}@{block}"] = rank_correlation(before, after, batch.maskable)
    return columns


RANDOMISATION = Judge(
    "randomisation",
    50,
    _judge,
    {"cascading": False, "independent": False},
    SectionData(
        "Fresh weights",
        By.CHANGES,
        (
            "Blocks of the model get random weights, as before training, and explanations are compared with those of "
            "the trained model. An explanation that does not change does not depend on what was learnt there.",
            "It can show that a measure does not depend on the model's weights. It cannot show that a measure that "
            "changes explains the model well. The fresh weights are one draw, which the intervals do not cover.",
        ),
        (
            ShownColumn("cascading", "cascading from the head", more_is_better=False),
            ShownColumn("independent", "one block at a time", more_is_better=False),
        ),
        table="Rank correlation with the trained model's explanations, with 95 % intervals",
        caption="Rank correlation with the trained model's explanations, by the block that was replaced.",
        layout="blocks",
    ),
    quick,
    lambda bench, explaining: (2 * len(blocks(bench.classifier.model)) + 1) * explaining,
    scored_by_size=True,  # an explanation with its sign reversed counts as the same
)
