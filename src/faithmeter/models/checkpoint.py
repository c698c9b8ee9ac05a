"""The head, the classes and the weights of a checkpoint, and their checks.

transformers initialises missing weights at random and ignores unexpected ones. A model that is to be explained must
predict as it was trained to, so here that is an error, which names the weights. Only a model that is about to be
trained may get a new head, with a message.
"""

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers

from faithmeter.data.labels import nameless
from faithmeter.errors import InputError
from faithmeter.models.bilstm import BiLSTMForSequenceClassification
from faithmeter.models.lora import base_of, classes_in, is_adapter, merged, require_base
from faithmeter.models.memory import out_of_memory
from faithmeter.models.sources import cannot_load, model_source, require_no_pickled_head, require_safetensors
from faithmeter.models.t5 import ENCODERS, on_the_encoder
from faithmeter.problems import CLASSES, LABELS, NUMBER, PROBLEMS, Problem, problem_in, says_nothing

CLASSIFIER = "ForSequenceClassification"
# what other heads do, by how the names of their models end; none of them answers for a whole text
OTHER_HEADS = {
    "ForTokenClassification": "labels each token",
    "ForMaskedLM": "predicts masked words",
    "ForPreTraining": "predicts masked words",
    "ForCausalLM": "writes the next word",
    "LMHeadModel": "writes the next word",
    "ForConditionalGeneration": "writes a text",
    "ForQuestionAnswering": "marks an answer in a text",
    "ForMultipleChoice": "chooses among several texts",
    "ForNextSentencePrediction": "says whether a sentence follows another",
}
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
SHOWN = 3  # weights that a message names
NO_WEIGHTS = (".position_ids", ".token_type_ids", ".inv_freq")  # constants that older versions of transformers saved


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn what transformers raises while it reads a model's files into an error that says what to do.

    Damaged files make it, and the libraries that it calls, raise errors of every kind.
    """
    try:
        require_safetensors(name)
        yield
    except (InputError, MemoryError):
        raise
    except Exception as error:
        if out_of_memory(error):
            raise
        raise InputError(cannot_load(name, error)) from error


def read_config(name: str) -> transformers.PretrainedConfig:
    """Return the config of a folder or hub name; of an adapter, that of its base with the classes of its head."""
    if is_adapter(name) and not (Path(name) / "config.json").is_file():
        return _config_of_adapter(Path(name))
    with reading(name):
        config = transformers.AutoConfig.from_pretrained(model_source(name), trust_remote_code=False)
    if sorted(config.id2label) != list(range(config.num_labels)):
        raise InputError(
            f"The config of {name} names the classes {sorted(config.id2label)} where 0 to {config.num_labels - 1} are "
            "expected: correct its id2label."
        )
    method = getattr(config, "quantization_config", None)
    if method:
        kind = method.get("quant_method") if isinstance(method, dict) else getattr(method, "quant_method", None)
        raise InputError(
            f"{name} is quantised ({kind or 'it does not say how'}), and a folder or hub name is loaded in float32 "
            "only. Load it with transformers and give (model, tokenizer, data) instead, or save it dequantised."
        )
    return config


def _config_of_adapter(folder: Path) -> transformers.PretrainedConfig:
    """Return the config of an adapter that came without one: as peft stores it, only its head tells the classes."""
    config, classes = read_base_config(folder), classes_in(folder)
    if classes is None:
        return config
    if config.num_labels != classes or not classifies(config):
        config.num_labels = classes
    model_class = transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING.get(type(config), None)
    config.architectures = [model_class.__name__] if model_class is not None else config.architectures
    return config


def read_base_config(folder: Path) -> transformers.PretrainedConfig:
    """Return the config of an adapter's base; refuse one that is not here or is another."""
    base = base_of(folder)
    require_base(folder, base)
    try:
        return read_config(base)
    except InputError as error:
        raise InputError(f"{folder} is an adapter, and its base cannot be loaded. {error}") from error


def tokenizer_source(name: str) -> str:
    """Return where the tokenizer of a model is: with an adapter that was stored without one, it is its base's."""
    if is_adapter(name) and not any((Path(name) / file).is_file() for file in TOKENIZER_FILES):
        return model_source(base_of(Path(name)))
    return model_source(name)


def read_adapted(
    folder: Path,
    own: transformers.PretrainedConfig,
    labels: Sequence[str],
    problem: Problem,
    *,
    seed: int,
    tokens: int,
) -> transformers.PreTrainedModel:
    """Return an adapter merged into its base; `own` is the config of the whole, `tokens` what its tokenizer knows."""
    known = outputs(own, problem)
    if known is None or not same_classes(known, labels):
        raise InputError(
            f"{folder} is an adapter whose {problem.name} are ({', '.join(known or ('none',))}) and not "
            f"({', '.join(labels)}). Train another from its base: --model {base_of(folder)} --lora."
        )
    base_config = read_base_config(folder)
    model, drawn = read_model(base_of(folder), base_config, labels, problem, seed=seed)
    whole = merged(folder, model, drawn, tokens)
    whole.config.get_text_config().pad_token_id = whole.config.pad_token_id = own.get_text_config().pad_token_id
    return whole


def read_model(
    name: str,
    own: transformers.PretrainedConfig,
    labels: Sequence[str],
    problem: Problem,
    *,
    seed: int,
    tokens: int = 0,
) -> tuple[transformers.PreTrainedModel, list[str]]:
    """Return the model with these outputs, and the names of the weights that were drawn from `seed` for it.

    `own` is the checkpoint's config. Where its classes, labels or number are these, it keeps its head, and no weight is
    drawn. `tokens` is how many its tokenizer knows, which may be more than the base of an adapter does.
    """
    if is_adapter(name):
        return read_adapted(Path(name), own, labels, problem, seed=seed, tokens=tokens), []
    known = outputs(own, problem)
    keeps = known is not None and same_classes(known, labels)
    config = on_the_encoder(copy.deepcopy(own))
    config.num_labels = len(labels)
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: index for index, label in enumerate(labels)}
    if problem.name != CLASSES:
        config.problem_type = problem.problem_type
    elif not keeps:
        config.problem_type = None
    try:
        model_class = transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[type(config)]
    except KeyError as error:
        raise InputError(
            f"{name} is a {config.model_type} model, which transformers cannot use for sequence classification."
        ) from error
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        with reading(name):
            model, loading = model_class.from_pretrained(
                model_source(name),
                config=config,
                attn_implementation=attention_implementation(model_class),
                use_safetensors=True,
                dtype=torch.float32,
                ignore_mismatched_sizes=True,  # refused by name, and not with a traceback
                output_loading_info=True,
            )
        drawn = require_weights(name, model, loading, new_head=not keeps)
        if not keeps and has_another_head(own):
            drawn = sorted({*drawn, *draw_head(model)})
    return model, drawn


def attention_implementation(model_class: type[transformers.PreTrainedModel]) -> str:
    """Return the fastest implementation the model has: `sdpa`, or else `eager`."""
    return "sdpa" if getattr(model_class, "_supports_sdpa", False) else "eager"


def outputs(config: transformers.PretrainedConfig, problem: Problem) -> tuple[str, ...] | None:
    """Return the names of a checkpoint's outputs if it was trained to answer that problem; None if it was not.

    A checkpoint that does not say whether its outputs are classes or labels is taken for what the data has.
    """
    may_be_labels = problem.name == LABELS and says_nothing(config)
    if not classifies(config) or not (problem_in(config) is problem or may_be_labels):
        return None
    return tuple(config.id2label[number] for number in range(config.num_labels))


def classifies(config: transformers.PretrainedConfig) -> bool:
    """Whether a checkpoint has a head that is of use here: that of a whole T5 reads its decoder, which is left out."""
    return _was_trained_as(config, CLASSIFIER) and config.model_type not in ENCODERS


def has_another_head(config: transformers.PretrainedConfig) -> bool:
    """Whether a checkpoint has a head whose weights might be taken for those of a sequence classifier."""
    return classifies(config) or _was_trained_as(config, "ForTokenClassification")


def _was_trained_as(config: transformers.PretrainedConfig, ending: str) -> bool:
    return any(kind.endswith(ending) for kind in config.architectures or ())


def head_in_words(config: transformers.PretrainedConfig) -> str:
    """Return what head a checkpoint has, in words."""
    if classifies(config):
        return problem_in(config).head
    architecture = next(iter(config.architectures or ()), "")
    does = next((does for ending, does in OTHER_HEADS.items() if architecture.endswith(ending)), None)
    if does is not None and not _was_trained_as(config, CLASSIFIER):
        return f"no head that answers for a whole text (it is a {architecture}, which {does})"
    return "no classification head yet (that of a whole T5 reads its decoder, which is not used here)"


def require_outputs(name: str, config: transformers.PretrainedConfig, labels: Sequence[str], problem: Problem) -> None:
    """Refuse a checkpoint that was not trained to answer that problem with these outputs, in this order."""
    own = outputs(config, problem)
    if own is None:
        require_no_pickled_head(name)
        wanted = f", and not {problem.head}" if classifies(config) else ""
        raise InputError(
            f"{name} has {head_in_words(config)}{wanted}. Train it: `faithmeter train RUN --model "
            f"{name}`, or initialise a new head to train yourself with `load_classifier(..., new_head=True)`."
        )
    if not same_classes(own, labels):
        raise InputError(
            f"The {problem.name} of {name} are ({', '.join(own)}) and not ({', '.join(labels)}), so its predictions "
            "would be misread. Give its own in its own order, or initialise a new head to train with "
            "`load_classifier(..., new_head=True)`."
        )


def same_classes(own: Sequence[str], labels: Sequence[str]) -> bool:
    """Whether labels are a checkpoint's classes in its order; classes with default names may be renamed."""
    return len(own) == len(labels) and (nameless(own) or tuple(own) == tuple(labels))


def require_classifier(model: transformers.PreTrainedModel) -> None:
    """Refuse a model in memory that does not answer for a whole text."""
    kind = type(model)
    named = any(CLASSIFIER in one.__name__ for one in kind.__mro__)
    if kind.__module__.startswith("transformers.") and not named:
        raise InputError(
            f"{kind.__name__} does not classify whole texts, so it has nothing to explain. Load it with "
            "`AutoModelForSequenceClassification`; if it has no such head yet, `faithmeter train` gives it one."
        )
    outputs_, problem = model.config.num_labels, problem_in(model.config)
    if outputs_ > 1 and problem is PROBLEMS[NUMBER]:
        raise InputError(
            f"The {kind.__name__} has a regression head with {outputs_} outputs, and one number can be explained. Give "
            "it a head with one output."
        )
    if outputs_ < 2 and problem is not PROBLEMS[NUMBER]:
        raise InputError(
            f"The {kind.__name__} has {problem.head}, but a single output, so there is nothing to choose from. If that "
            'output is a number, say so in its config: problem_type="regression".'
        )


def require_weights(
    name: str, model: transformers.PreTrainedModel, loading: dict[str, Any], *, new_head: bool
) -> list[str]:
    """Refuse weights that do not fit the model, by name; return those that were drawn at random in their place.

    `loading` is what transformers tells about it. With `new_head`, weights of the head and of a pooler may be drawn,
    and heads of other kinds left out.
    """
    drawn = set(loading["missing_keys"]) | {one[0] for one in loading["mismatched_keys"]}
    left_over = {one for one in loading["unexpected_keys"] if not one.endswith(NO_WEIGHTS) and not _of_a_pooler(one)}
    wrong = {
        "missing": set(loading["missing_keys"]),
        "of another shape": {one[0] for one in loading["mismatched_keys"]},
        "left over": left_over,
    }
    if new_head and all(is_of_head(model, one) or _of_a_pooler(one) for one in drawn | left_over):
        wrong = {}
    said = [f"{_few(names)} {'are' if len(names) > 1 else 'is'} {how}" for how, names in wrong.items() if names]
    said += [str(one) for one in loading["error_msgs"]]
    if said:
        raise InputError(
            f"The weights of {name} do not fit a {type(model).__name__}: {'; '.join(said)}. They would be initialised "
            "at random. Save the model again as it was trained, with `model.save_pretrained(FOLDER)` of the model "
            "itself, not of a wrapper around it or of only its body."
        )
    return sorted(drawn)


def _of_a_pooler(weight: str) -> bool:
    """Whether a weight is of a pooler: some heads read one, and checkpoints of other heads have one too many or few."""
    return "pooler" in weight.split(".")


def is_of_head(model: transformers.PreTrainedModel, weight: str) -> bool:
    """Whether a weight is outside of the model's body, by its name in the model or in a file of the body alone."""
    first = weight.split(".")[0]
    if isinstance(model, BiLSTMForSequenceClassification):
        return first == "decoder"
    body = model.base_model
    return body is not model and first != model.base_model_prefix and not hasattr(body, first)


def new_head_note(config: transformers.PretrainedConfig, drawn: Iterable[str], problem: Problem) -> str:
    """Return the note about a newly initialised head; `config` is the checkpoint's own."""
    other = classifies(config) and problem_in(config) is not problem
    had = f"The model has {head_in_words(config)}. " if other else ""
    return f"{had}A new head is learnt: {_few(drawn)} were drawn at random."


def _few(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = len(ordered) - SHOWN
    return ", ".join(ordered[:SHOWN]) + (f" and {more} more" if more > 0 else "")


@torch.no_grad()
def draw_head(model: transformers.PreTrainedModel) -> list[str]:
    """Initialise every weight of the head again, as the model's class does, and return their names."""
    drawn = [name for name, _ in model.named_parameters() if is_of_head(model, name)]
    for name, module in model.named_modules():
        if name and is_of_head(model, name):
            for parameter in module.parameters(recurse=False):
                parameter._is_hf_initialized = False  # transformers draws only what it did not load
            model._init_weights(module)
    return drawn


@torch.no_grad()
def start_head_at(model: transformers.PreTrainedModel, numbers: Sequence[float]) -> None:
    """Let a new head of one number begin with the mean and the spread of the numbers that it will learn.

    Otherwise it begins near 0, and a number of another size, such as a price, is learnt late or never: the optimiser
    moves every weight by about the learning rate, however far it has to go. Where the last layer of the head has no
    bias, only the spread is set.
    """
    layers = [
        module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and module.out_features == 1 and is_of_head(model, name)
    ]
    if layers:
        found = torch.tensor(numbers, dtype=torch.float64)
        layers[-1].weight.mul_(float(found.std(correction=0)))
        if layers[-1].bias is not None:
            layers[-1].bias.fill_(float(found.mean()))
