"""How a classifier is trained: one table of settings, and their checks."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from faithmeter.errors import InputError, nearest, require_choice, require_finite
from faithmeter.masking import MASK
from faithmeter.models.lora import DTYPES, Lora
from faithmeter.models.operators import OPERATORS
from faithmeter.training.strategy import STRATEGIES, VALIDATIONS

PRECISIONS = ("no", "fp16", "bf16")
IGR, VAT, GUIDED, ADVERSARIAL = "igr", "vat", "explanation-guided", "adversarial"
# what can be added to cross-entropy (see `robust`), and the settings of each
ROBUST: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        IGR: ("igr_weight",),
        VAT: ("vat_weight", "vat_radius"),
        GUIDED: ("guided_weight", "guided_share", "guided_consistency", "guided_attribution", "guided_after"),
        ADVERSARIAL: ("adversarial_share", "adversarial_budget", "adversarial_attack"),
    }
)
# what attention is trained towards, and its steps: input times gradient is an integrated gradient of one step
ATTRIBUTIONS: Mapping[str, int] = MappingProxyType({"x-grad": 1, "ig": 20})
FORMER = "former"  # the attribution of runs from before it was a detached target with a relative floor
# a strategy and what is added to cross-entropy; any other way can be spelt, as in masked+vat
WAYS: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        "plain": ("plain", ()),
        "masked": ("masked", ()),
        "robust": ("plain", (IGR, VAT)),
        "explanation-guided": ("plain", (GUIDED,)),
        "adversarial": ("plain", (ADVERSARIAL,)),
        "combined": ("masked", (IGR, VAT, GUIDED)),
    }
)
LORA = ("lora_rank", "lora_alpha", "lora_targets", "dtype")  # the settings of an adapter
# by name, with what people call them; AMSGrad is Adam's form that never forgets a large gradient
OPTIMIZERS: Mapping[str, str] = MappingProxyType({"adamw": "AdamW", "amsgrad": "AMSGrad"})


@dataclass(frozen=True)
class TrainingConfig:
    """How a classifier is trained. The defaults are the paper's (Madsen et al., 2024, App. D: RoBERTa's for GLUE).

    `batch_size` texts make a batch and `accumulate` batches make one optimiser step. `clip` is the maximum gradient
    norm (0: not clipped). `mask_context` also masks the second sequence in training, as the published code does.
    `curriculum` shows short texts first, for models trained from scratch.

    `robust` names what is added to cross-entropy, in ordinary epochs (docs/robust-training.md says how the strengths
    were found): `igr` and `vat` with their weights, `vat` within `vat_radius` times the length of a text's embeddings;
    `explanation-guided`, which draws attention towards `guided_attribution`, masks the `guided_share` of the tokens
    that matter least, ties attention to what it was with them by `guided_consistency`, and starts after `guided_after`
    epochs of the other losses; and `adversarial`, which from the second epoch on adds attacked copies of
    `adversarial_share` of the rows, with at most `adversarial_budget` of their words changed by
    `adversarial_attack`, a kind of `attacks`.

    `lora` freezes the model and trains an adapter (Hu et al., 2022) of `lora_rank` and `lora_alpha` on the layers
    `lora_targets` (none: all linear layers of the body), with the head and the mask token's embedding. `dtype` is the
    precision of the frozen weights.

    `own_answers` teaches a classifier what it already answers to the unmasked texts, and no label: what masks mean, and
    nothing else.

    `operator` is how masked tokens are removed, a row of `OPERATORS`: what the model learns to read.
    """

    strategy: str = "masked"
    validation: str = "both"
    epochs: int = 10
    optimizer: str = "adamw"
    learning_rate: float = 2e-5
    batch_size: int = 16
    accumulate: int = 1
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.98)
    warmup: float = 0.06
    clip: float = 0.0
    mask_context: bool = False
    curriculum: bool = False
    mixed_precision: str = "no"
    tracker: str | None = None
    robust: tuple[str, ...] = ()
    igr_weight: float = 0.001
    vat_weight: float = 1.0
    vat_radius: float = 0.03
    guided_weight: float = 0.1
    guided_share: float = 0.2
    guided_consistency: float = 0.1
    guided_attribution: str = "x-grad"
    guided_after: int = 0
    adversarial_share: float = 0.1
    adversarial_budget: float = 0.2
    adversarial_attack: str = "characters"
    lora: bool = False
    lora_rank: int = 8
    lora_alpha: float = 16.0
    lora_targets: tuple[str, ...] = ()
    dtype: str = "float32"
    own_answers: bool = False
    operator: str = MASK
    seed: int = 0

    def __post_init__(self) -> None:
        require_finite(vars(self))
        require_choice("strategy", self.strategy, STRATEGIES)
        require_choice("validation", self.validation, VALIDATIONS)
        require_choice("precision", self.mixed_precision, PRECISIONS)
        require_choice("optimizer", self.optimizer, OPTIMIZERS)
        require_choice("operator", self.operator, OPERATORS)
        if self.operator != MASK and not STRATEGIES[self.strategy].every:
            raise InputError(
                f"--operator says how tokens are removed in training, and the strategy {self.strategy} removes none: "
                "leave it out here, and name it in `faithmeter measure --operators`."
            )
        if min(self.epochs, self.batch_size, self.accumulate) < 1:
            raise InputError("Epochs, batch size and accumulated batches must each be 1 or more.")
        if not (self.learning_rate > 0 and 0 <= self.warmup < 1):
            raise InputError("The learning rate must be above 0, and the warm-up at least 0 and below 1.")
        self._require_robust()
        self._require_lora()

    def _require_robust(self) -> None:
        for name in self.robust:
            if name not in ROBUST:
                raise InputError(
                    f"There is no robust training {name!r}.{nearest(name, ROBUST)} Choose from {', '.join(ROBUST)}."
                )
        if len(set(self.robust)) < len(self.robust):
            raise InputError("A kind of robust training is named twice: name each once.")
        require_choice("attribution", self.guided_attribution, (*ATTRIBUTIONS, FORMER))
        if not 0 <= self.guided_after < self.epochs:
            raise InputError(
                f"Explanation-guided training after {self.guided_after} of {self.epochs} epochs has none left or no "
                "start: set --guided-after to a number from 0 to one epoch less."
            )
        weights = (self.igr_weight, self.vat_weight, self.guided_weight, self.guided_consistency)
        if min(weights) < 0 or self.vat_radius <= 0:
            raise InputError("The weights of robust training must be 0 or more, and the radius of VAT above 0.")
        if not all(0 < share < 1 for share in (self.guided_share, self.adversarial_share, self.adversarial_budget)):
            raise InputError("The shares and the budget of robust training must lie between 0 and 1.")
        if ADVERSARIAL in self.robust and self.epochs < 2:
            raise InputError(
                "Adversarial training starts in the second epoch, because an untrained model cannot be attacked: train "
                "for 2 epochs or more."
            )

    def _require_lora(self) -> None:
        if self.dtype not in DTYPES:
            raise InputError(f"There is no dtype {self.dtype!r}: choose from {', '.join(DTYPES)}.")
        if self.lora_rank < 1 or self.lora_alpha <= 0:
            raise InputError("The rank of LoRA must be 1 or more, and its alpha above 0.")
        said = [name for name in LORA if getattr(self, name) != getattr(type(self), name)]
        if said and not self.lora:
            raise InputError(f"--{said[0].replace('_', '-')} is a setting of --lora: pass that too, or leave it out.")

    @property
    def how(self) -> str:
        """The strategy and what is added to it, in words."""
        removed = [] if self.operator == MASK else [f"by {self.operator}"]
        named = " + ".join((" ".join((self.strategy, *removed)), *self.robust, *(["lora"] if self.lora else [])))
        return f"{named} (the former loss)" if self.guided_formerly else named

    @property
    def guided_formerly(self) -> bool:
        """Whether guidance had the loss of an earlier version."""
        return GUIDED in self.robust and self.guided_attribution == FORMER

    @property
    def first_stage(self) -> int:
        """The ordinary epochs before explanation-guided training starts."""
        return self.guided_after if GUIDED in self.robust else 0

    def added_losses(self, epoch: int) -> list[str]:
        """Return the losses that are added in an ordinary epoch, counted from 0."""
        without = (ADVERSARIAL, GUIDED) if epoch < self.first_stage else (ADVERSARIAL,)
        return [name for name in self.robust if name not in without]

    @property
    def adapter(self) -> Lora | None:
        """The adapter that is trained; None where all weights are."""
        return Lora(self.lora_rank, self.lora_alpha, self.lora_targets, self.dtype) if self.lora else None

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> "TrainingConfig":
        """Return the settings that were written as JSON, which has no tuples.

        Guided training without a stored attribution had another loss, which is named and not computed any more.
        """
        read: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in stored.items()
        }
        if GUIDED in read.get("robust", ()):
            read.setdefault("guided_attribution", FORMER)
        return cls(**read)

    @property
    def idle(self) -> set[str]:
        """The settings of robust training, of LoRA and of removal that this one does without."""
        unused = {name for kind, names in ROBUST.items() if kind not in self.robust for name in names}
        unused |= {"operator"} if self.operator == MASK else set()
        return unused if self.lora else {*unused, "lora", *LORA}


@dataclass(frozen=True)
class TrainingOptions:
    """Options of training; None means the default for the model and task."""

    strategy: str | None = None
    validation: str | None = None
    epochs: int | None = None
    optimizer: str | None = None
    learning_rate: float | None = None
    batch_size: int | None = None
    accumulate: int | None = None
    weight_decay: float | None = None
    warmup: float | None = None
    clip: float | None = None
    mask_context: bool | None = None
    curriculum: bool | None = None
    mixed_precision: str | None = None
    tracker: str | None = None
    robust: tuple[str, ...] | None = None
    igr_weight: float | None = None
    vat_weight: float | None = None
    vat_radius: float | None = None
    guided_weight: float | None = None
    guided_share: float | None = None
    guided_consistency: float | None = None
    guided_attribution: str | None = None
    guided_after: int | None = None
    adversarial_share: float | None = None
    adversarial_budget: float | None = None
    adversarial_attack: str | None = None
    lora: bool | None = None
    lora_rank: int | None = None
    lora_alpha: float | None = None
    lora_targets: tuple[str, ...] | None = None
    dtype: str | None = None
    own_answers: bool | None = None
    operator: str | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        require_finite(vars(self))
        if self.guided_attribution is not None:
            require_choice("attribution", self.guided_attribution, ATTRIBUTIONS)

    def over(self, defaults: TrainingConfig) -> TrainingConfig:
        """Return the defaults, overridden by the user's options.

        A strategy brings its own validation, unless another is asked for. Guided training with another robust loss has
        two stages by default: half of the epochs without guidance, since robust training comes first (Li et al., 2023).
        """
        said = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        if self.strategy is not None and self.validation is None:
            require_choice("strategy", self.strategy, STRATEGIES)
            said["validation"] = STRATEGIES[self.strategy].validation
        config = dataclasses.replace(defaults, **said)
        if self.guided_after is None and GUIDED in config.robust and {IGR, VAT} & {*config.robust}:
            return dataclasses.replace(config, guided_after=config.epochs // 2)
        return config


def way_of(name: str) -> tuple[str, tuple[str, ...]]:
    """Return the strategy and the added losses of a way: a name of the table, or strategy+loss+loss."""
    if name in WAYS:
        return WAYS[name]
    strategy, *robust = name.split("+")
    if strategy not in STRATEGIES or not set(robust) <= set(ROBUST):
        raise InputError(
            f"There is no way of training {name!r}.{nearest(name, WAYS)} Choose from {', '.join(WAYS)}, or combine "
            f"{', '.join(STRATEGIES)} with + and any of {', '.join(ROBUST)}."
        )
    return strategy, tuple(robust)
