"""SetFit's model as one classifier: a sentence-transformers body, pooled, and a logistic regression of scikit-learn.

Tunstall et al. (2022). Own code because the two are separate objects, between which no gradient flows. Neither setfit
nor sentence-transformers is imported: their objects are known by what they have.
"""

import copy
import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import normalizers
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput

from faithmeter.errors import InputError
from faithmeter.models.positions import usable_positions
from faithmeter.problems import CLASSES, LABELS, PROBLEMS

MEAN, CLS = "mean", "cls"
POOLING = {"mean": MEAN, "mean_tokens": MEAN, "cls": CLS, "cls_token": CLS}  # as sentence-transformers names them
PROBES = 16  # embeddings at which the folded head is compared with the head
NEARLY = 1e-4  # by which probabilities, and numbers of an embedding relative to its largest, may differ


class SentenceConfig(transformers.PretrainedConfig):
    """The config: that of the body, how its states are pooled (`mean` or `cls`), and whether the result has length 1.

    `classifier_pooling` is ModernBERT's name for it.
    """

    model_type = "sentence-classifier"

    def __init__(
        self,
        body: dict[str, Any] | None = None,
        classifier_pooling: str = MEAN,
        normalise: bool = False,
        **more: Any,  # noqa: ANN401 (transformers' own settings)
    ) -> None:
        self.body = body or {"model_type": "bert"}
        self.classifier_pooling, self.normalise = classifier_pooling, normalise
        own = self.of_body()
        for name in ("vocab_size", "hidden_size", "num_hidden_layers", "type_vocab_size", "pad_token_id"):
            if getattr(own, name, None) is not None:
                more.setdefault(name, getattr(own, name))
        more.setdefault("max_position_embeddings", usable_positions(own))
        super().__init__(**more)

    def of_body(self) -> transformers.PretrainedConfig:
        """Return the config of the body."""
        return transformers.AutoConfig.for_model(**copy.deepcopy(self.body))


class SentenceForSequenceClassification(transformers.PreTrainedModel):
    """The classifier: `input_ids` and `attention_mask` in; logits, hidden states and attentions out."""

    config_class = SentenceConfig
    base_model_prefix = "body"
    _supports_sdpa = True

    def __init__(self, config: SentenceConfig) -> None:
        super().__init__(config)
        own = config.of_body()
        fast = getattr(transformers.MODEL_MAPPING[type(own)], "_supports_sdpa", False)
        self.body = transformers.AutoModel.from_config(
            own, attn_implementation=config._attn_implementation if fast else "eager"
        )
        if hasattr(self.body, "pooler"):
            self.body.pooler = None  # of another head, and not read here
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Draw the head as BERT draws its own; the body's weights are drawn by its own class."""
        if module is self.classifier:
            nn.init.normal_(self.classifier.weight, std=0.02)
            nn.init.zeros_(self.classifier.bias)
        else:
            self.body._init_weights(module)

    def get_input_embeddings(self) -> nn.Module:
        """Return the lookup of word embeddings."""
        return self.body.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Exchange the lookup."""
        self.body.set_input_embeddings(value)

    def resize_token_embeddings(self, *sizes: Any, **how: Any) -> nn.Module:  # noqa: ANN401 (transformers' own)
        """Let the body know more tokens."""
        found = self.body.resize_token_embeddings(*sizes, **how)
        self.config.vocab_size = self.body.config.vocab_size
        self.config.body = self.body.config.to_dict()
        return found

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> SequenceClassifierOutput:
        """Classify rows; positions that are not attended to do not enter the mean."""
        attended = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        typed = "token_type_ids" in inspect.signature(self.body.forward).parameters
        output = self.body(
            input_ids=input_ids,
            attention_mask=attended,
            **({"token_type_ids": token_type_ids} if typed and token_type_ids is not None else {}),
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
        )
        return SequenceClassifierOutput(
            logits=self.classifier(self.pooled(output.last_hidden_state, attended)),
            hidden_states=output.hidden_states,
            attentions=output.attentions,
        )

    def pooled(self, states: Tensor, attended: Tensor) -> Tensor:
        """Return the (rows, dimensions) embedding of each text."""
        if self.config.classifier_pooling == CLS:
            found = states[:, 0]
        else:
            share = attended[..., None].to(states.dtype)
            found = (states * share).sum(dim=1) / share.sum(dim=1).clamp_min(1)
        return nn.functional.normalize(found, dim=-1) if self.config.normalise else found


transformers.AutoConfig.register(SentenceConfig.model_type, SentenceConfig)
transformers.AutoModelForSequenceClassification.register(SentenceConfig, SentenceForSequenceClassification)


def is_setfit(model: Any) -> bool:  # noqa: ANN401 (whatever a notebook has)
    """Whether an object is a SetFitModel, or has the same parts."""
    return hasattr(model, "model_body") and hasattr(model, "model_head")


def folded(model: Any) -> tuple[SentenceForSequenceClassification, transformers.PreTrainedTokenizerBase]:  # noqa: ANN401
    """Return a SetFitModel as one classifier, and its tokenizer; both are copies.

    Its probabilities are those of the head: of several labels, one each. It is compared with the objects themselves, on
    a few texts and at a few embeddings, and refused if it differs.
    """
    first, *others = _modules(model.model_body)
    pooling, normalise = _pooling(others, bool(getattr(model, "normalize_embeddings", False)))
    weight, bias, problem = _coefficients(model.model_head)
    body = copy.deepcopy(model.model_body).float().eval()
    own = next(iter(body.children())).auto_model
    if weight.shape[1] != own.config.hidden_size:
        raise InputError(
            f"The head reads {weight.shape[1]} numbers, and the body gives {own.config.hidden_size}: they are not of "
            "one SetFit model."
        )
    config = SentenceConfig(body=own.config.to_dict(), classifier_pooling=pooling, normalise=normalise)
    config.problem_type = PROBLEMS[problem].problem_type
    config.num_labels = len(weight)
    config.id2label = dict(enumerate(_names(model, problem, len(weight))))
    config.label2id = {name: number for number, name in config.id2label.items()}
    config._attn_implementation = own.config._attn_implementation
    with torch.device("meta"):
        whole = SentenceForSequenceClassification(config)
    whole.body, whole.classifier = own, nn.Linear(weight.shape[1], len(weight), device=own.device)
    with torch.no_grad():
        whole.classifier.weight.copy_(torch.from_numpy(weight))
        whole.classifier.bias.copy_(torch.from_numpy(bias))
    tokenizer = _tokenizer(first)
    _require_same_probabilities(whole, model.model_head, problem)
    _require_same_embeddings(whole.eval(), body, tokenizer, normalise)
    if hasattr(own, "pooler"):
        own.pooler = None
    return whole, tokenizer


def _modules(body: Any) -> list[Any]:  # noqa: ANN401 (a SentenceTransformer)
    """Return the modules of a SentenceTransformer; refuse one that reads other than plain texts with one encoder."""
    modules = list(body.children()) if isinstance(body, nn.Module) else []
    own = getattr(modules[0], "auto_model", None) if modules else None
    if not isinstance(own, transformers.PreTrainedModel) or not hasattr(modules[0], "tokenizer"):
        raise InputError(
            f"The body of a SetFit model is a SentenceTransformer whose first module has a transformers model "
            f"(`auto_model`) and a `tokenizer`; this {type(body).__name__} has none."
        )
    if own.config.is_encoder_decoder or own.config.model_type not in _known_bodies():
        raise InputError(
            f"A SetFit model with a body of the kind {own.config.model_type} is not supported: use one with an encoder "
            "such as BERT, MPNet or ModernBERT."
        )
    if getattr(body, "default_prompt_name", None):
        raise InputError(
            f"The body puts the prompt {body.default_prompt_name!r} before each text, which is not supported: set its "
            "`default_prompt_name` to None if the head was fitted without it."
        )
    return modules


def _known_bodies() -> set[str]:
    """Return the kinds of encoders; a decoder's mask token and padding would have to be given to it first."""
    return {config.model_type for config in transformers.MODEL_FOR_MASKED_LM_MAPPING}


def _pooling(modules: Sequence[Any], normalised_later: bool) -> tuple[str, bool]:
    """Return how states are pooled and whether they are normalised; refuse modules that do anything else."""
    rest = modules[1:]
    said = modules[0].get_config_dict() if modules and hasattr(modules[0], "get_config_dict") else {}
    ways = [name.removeprefix("pooling_mode_") for name, on in said.items() if on is True and "pooling_mode_" in name]
    ways += [said["pooling_mode"]] if isinstance(said.get("pooling_mode"), str) else []
    if len(ways) != 1 or ways[0] not in POOLING:
        raise InputError(
            f"The body pools its states by {' and '.join(ways) or 'something unknown'}; the mean over tokens and the "
            "CLS token are supported, one of them."
        )
    other = next((one for one in rest if type(one).__name__ != "Normalize"), None)
    if other is not None:
        raise InputError(
            f"The body has a module {type(other).__name__} after its pooling, and only Normalize is supported there."
        )
    return POOLING[ways[0]], bool(rest) or normalised_later


def _coefficients(head: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], str]:  # noqa: ANN401
    """Return the (outputs, dimensions) weight and the bias of a head, and the problem that it answers.

    The one row z of two classes becomes -z/2 and z/2, whose softmax is sklearn's sigmoid, and which treat both alike:
    with 0 and z, the first class would have no explanation.
    """
    if hasattr(head, "coef_"):
        weight, bias = np.atleast_2d(np.asarray(head.coef_)), np.atleast_1d(np.asarray(head.intercept_))
        if len(weight) == 1:
            weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
        return weight, np.broadcast_to(bias, len(weight)).copy(), CLASSES
    estimators = list(getattr(head, "estimators_", ()))
    widths = {np.shape(getattr(one, "coef_", ())) for one in estimators}
    if len(estimators) < 2 or len(widths) != 1 or len(next(iter(widths))) != 2:
        raise InputError(
            f"The head is a {type(head).__name__}, and only a fitted LogisticRegression of scikit-learn can be folded "
            "(`coef_`, `intercept_`), or for several labels one of them per label, which all read the embedding alone."
        )
    parts = [(np.asarray(one.coef_), np.broadcast_to(one.intercept_, len(one.coef_))) for one in estimators]
    return np.concatenate([w for w, _ in parts]), np.concatenate([b for _, b in parts]), LABELS


def _names(model: Any, problem: str, outputs: int) -> list[str]:  # noqa: ANN401
    """Return the names of the outputs: SetFit's `labels`, or the head's own classes."""
    given = [str(name) for name in getattr(model, "labels", None) or ()]
    if problem == LABELS:
        return given if len(given) == outputs else [f"LABEL_{number}" for number in range(outputs)]
    classes = np.asarray(model.model_head.classes_).tolist()
    if given and all(isinstance(one, int) and 0 <= one < len(given) for one in classes):
        return [given[one] for one in classes]
    return [str(one) for one in classes]


def _tokenizer(first: Any) -> transformers.PreTrainedTokenizerBase:  # noqa: ANN401 (sentence-transformers' module)
    """Return a copy of the tokenizer that cuts texts, and spells them, as the body does."""
    tokenizer = copy.deepcopy(first.tokenizer)
    tokenizer.model_max_length = min(getattr(first, "max_seq_length", None) or 10**9, tokenizer.model_max_length)
    if getattr(first, "do_lower_case", False):
        backend = tokenizer.backend_tokenizer
        before = [] if backend.normalizer is None else [backend.normalizer]
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *before])
    return tokenizer


def _require_same_probabilities(
    whole: SentenceForSequenceClassification,
    head: Any,  # noqa: ANN401
    problem: str,
) -> None:
    """Refuse a head whose probabilities are no softmax of its decision function, or of labels no sigmoid."""
    points = np.random.default_rng(0).normal(size=(PROBES, whole.classifier.in_features))
    expected = head.predict_proba(points) if hasattr(head, "predict_proba") else np.zeros(0)
    if isinstance(expected, list):  # of labels, (texts, 2) each
        expected = np.stack([one[:, -1] for one in expected], axis=1)
    with torch.no_grad():
        logits = whole.classifier(torch.from_numpy(points).to(whole.classifier.weight))
    found = PROBLEMS[problem].scores(logits).cpu().numpy()
    if found.shape != np.shape(expected) or not np.allclose(found, expected, rtol=0, atol=NEARLY):
        raise InputError(
            f"The probabilities of the {type(head).__name__} are not those of its decision function by "
            f"{'a softmax' if problem == CLASSES else 'a sigmoid per label'}, so one model could not answer as it "
            "does. Fit a LogisticRegression on the same embeddings."
        )


@torch.no_grad()
def _require_same_embeddings(
    whole: SentenceForSequenceClassification,
    body: nn.Module,
    tokenizer: transformers.PreTrainedTokenizerBase,
    normalise: bool,
) -> None:
    """Refuse a body whose own embeddings are others than those that the head is given here."""
    words = [word for word in sorted(tokenizer.get_vocab()) if word.isalpha()] or ["a"]
    inputs = dict(copy.deepcopy(tokenizer)([words[0], " ".join(words[:9])], padding=True, return_tensors="pt"))
    inputs = {name: one.to(whole.body.device) for name, one in inputs.items()}
    expected = body(dict(inputs))["sentence_embedding"]
    expected = nn.functional.normalize(expected, dim=-1) if normalise else expected
    read: list[Tensor] = []
    listener = whole.classifier.register_forward_pre_hook(lambda _, given: read.append(given[0]))
    whole(**{name: one for name, one in inputs.items() if name in inspect.signature(whole.forward).parameters})
    listener.remove()
    if not torch.allclose(read[0], expected, rtol=0, atol=NEARLY * float(expected.abs().max())):
        raise InputError(
            "The embeddings of the body are not what its transformers model and its pooling give, so it does something "
            "more that is not supported."
        )
