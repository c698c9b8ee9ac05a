"""The command `faithmeter train`: parses, calls the study, prints."""

import os
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from faithmeter.cli.options import Data, either, load_libraries, names, names_in, refuse_early, required, several
from faithmeter.cli.printing import print_performance, terminal
from faithmeter.errors import InputError, require_choice

# options in panels of their own
learning, robustness, adapting = (
    partial(Option, rich_help_panel=panel) for panel in ("Optimisation", "Robust training", "LoRA (extra `peft`)")
)
CHOICES = {
    "strategy": ("strategy", "training.strategy.STRATEGIES"),
    "validation": ("validation", "training.strategy.VALIDATIONS"),
    "operator": ("operator", "models.operators.OPERATORS"),
    "optimizer": ("optimizer", "training.config.OPTIMIZERS"),
    "adversarial_attack": ("attack", "attacks.kinds.ATTACKS"),
    "guided_attribution": ("attribution", "training.config.ATTRIBUTIONS"),
    "mixed_precision": ("precision", "training.config.PRECISIONS"),
}
FAMILIES, SIZES = (names_in(f"models.from_scratch.{table}") for table in ("FAMILIES", "SIZES"))


def train(
    run: Annotated[Path, Argument(help="Run directory to create; later commands take it.")],
    data: Data,
    model: Annotated[
        str,
        Option(
            help="A hub name, a model folder, `minilm` (a package), a name of `faithmeter fetch`, or from scratch: "
            f"`bilstm`; {', '.join(SIZES)} (encoders); and the same sizes as "
            f"{', '.join(f'{family}-{SIZES[0]}' for family in FAMILIES[1:])} ..."
        ),
    ] = "small",
    vectors: Annotated[
        str | None, Option(help="For `bilstm`: a file of initial word vectors (GloVe, fastText; .gz too).")
    ] = None,
    strategy: Annotated[
        str | None, Option(help=f"{either('training.strategy.STRATEGIES')}.  [default: masked]")
    ] = None,
    validation: Annotated[
        str | None,
        Option(
            help=f"Validation texts that select the epoch: {either('training.strategy.VALIDATIONS')}.  [default: "
            "unmasked for plain, masked for only-masking, else both]"
        ),
    ] = None,
    operator: Annotated[
        str | None,
        Option(help=f"How masked tokens are removed: {either('models.operators.OPERATORS')}.  [default: mask]"),
    ] = None,
    epochs: Annotated[int | None, Option(help="Epochs.  [default: the task's]")] = None,
    optimizer: Annotated[
        str | None, learning(help=f"{either('training.config.OPTIMIZERS')}.  [default: adamw; bilstm: amsgrad]")
    ] = None,
    learning_rate: Annotated[float | None, learning(help="[default: 2e-5; from scratch: 1e-3; --lora: 5e-4]")] = None,
    batch_size: Annotated[int | None, learning(help="Texts per batch.  [default: 16; from scratch: 32]")] = None,
    accumulate: Annotated[int | None, learning(help="Batches per optimiser step.  [default: 1]")] = None,
    weight_decay: Annotated[float | None, learning(help="Except biases and norms.  [default: 0.01]")] = None,
    warmup: Annotated[float | None, learning(help="Warm-up, as a share of the steps.  [default: 0.06]")] = None,
    clip: Annotated[
        float | None, learning(help="Maximum gradient norm, 0: none.  [default: 0; from scratch: 1]")
    ] = None,
    mask_context: Annotated[
        bool | None, Option("--mask-context", help="Also mask the context in training, like the paper's code.")
    ] = None,
    own_answers: Annotated[
        bool | None,
        Option("--own-answers", help="Learn the model's own answers to unmasked texts, not the labels of the data."),
    ] = None,
    curriculum: Annotated[
        bool | None, Option(help="Short texts first.  [default: from scratch, except `bilstm`]")
    ] = None,
    mixed_precision: Annotated[
        str | None, learning(help=f"{either('training.config.PRECISIONS')}.  [default: no]")
    ] = None,
    robust: Annotated[
        str | None,
        robustness(help=f"Added to the loss or the data: {several('training.config.ROBUST')}."),
    ] = None,
    igr_weight: Annotated[
        float | None, robustness(help="Weight of the squared input gradient.  [default: 0.001]")
    ] = None,
    vat_weight: Annotated[
        float | None, robustness(help="Weight of the virtual adversarial loss.  [default: 1]")
    ] = None,
    vat_radius: Annotated[
        float | None, robustness(help="Perturbation norm, as a share of the embeddings'.  [default: 0.03]")
    ] = None,
    guided_weight: Annotated[
        float | None, robustness(help="Weight of the attention-attribution loss.  [default: 0.1]")
    ] = None,
    guided_share: Annotated[
        float | None, robustness(help="Share of least important tokens masked as noise.  [default: 0.2]")
    ] = None,
    guided_consistency: Annotated[
        float | None,
        robustness(help="Weight of the change of attention when noise is masked.  [default: 0.1]"),
    ] = None,
    guided_attribution: Annotated[
        str | None,
        robustness(help=f"What attention follows: {either('training.config.ATTRIBUTIONS')}.  [default: x-grad]"),
    ] = None,
    guided_after: Annotated[
        int | None,
        robustness(
            help="Epochs of the other losses before explanation-guided starts.  [default: half of them with igr or "
            "vat, else 0]"
        ),
    ] = None,
    adversarial_share: Annotated[
        float | None, robustness(help="Share of texts added in attacked form per epoch.  [default: 0.1]")
    ] = None,
    adversarial_budget: Annotated[
        float | None, robustness(help="Share of the words an attack may change.  [default: 0.2]")
    ] = None,
    adversarial_attack: Annotated[
        str | None,
        robustness(help=f"Kind of attack: {either('attacks.kinds.ATTACKS')}.  [default: characters]"),
    ] = None,
    lora: Annotated[
        bool | None, adapting("--lora", help="Freeze the model; train an adapter, the head and the mask's embedding.")
    ] = None,
    lora_rank: Annotated[int | None, adapting(help="Rank of the updates.  [default: 8]")] = None,
    lora_alpha: Annotated[float | None, adapting(help="Their scale is alpha / rank.  [default: 16]")] = None,
    lora_targets: Annotated[
        str | None, adapting(help="Ends of layers' names, such as query,value.  [default: all linear layers]")
    ] = None,
    dtype: Annotated[
        str | None, adapting(help=f"Of the frozen weights: {either('models.lora.DTYPES')}.  [default: float32]")
    ] = None,
    tracker: Annotated[str | None, Option(help="Experiment tracker of accelerate: tensorboard, wandb ...")] = None,
    max_length: Annotated[int, Option(help="Truncate texts to this many tokens.")] = 512,
    seed: Annotated[int | None, Option(min=0, help="Seed for weights, order and masks.  [default: 0]")] = None,
    resume: Annotated[bool, Option("--resume", help="Resume an interrupted training of this run.")] = False,
) -> None:
    """Fine-tune a text classifier on masked and unmasked texts.

    Masked fine-tuning makes a faithfulness measurable model: masked texts are in-distribution for it.
    """
    given = locals()
    _refuse(run, given)
    load_libraries()
    from faithmeter.studies import train as study
    from faithmeter.training.config import TrainingOptions

    reporter = terminal()
    options = {field.name: given[field.name] for field in fields(TrainingOptions)}
    if resume:
        said = data is not None or any(value is not None for value in options.values())
        if said:
            raise InputError(f"--resume uses the settings stored in {run}: leave out the other options.")
        print_performance(study.resume(run, reporter=reporter))
        return
    for name, listed in (("robust", robust), ("lora_targets", lora_targets)):
        if listed is not None:
            options[name] = names(listed)
    taught = TrainingOptions(**options)
    print_performance(
        study.train(run, required(data), model, taught, max_length=max_length, vectors=vectors, reporter=reporter)
    )


def _refuse(run: Path, given: dict[str, Any]) -> None:
    """Refuse options that name nothing and a run that is there already (or not there to resume), before torch loads."""
    from faithmeter.runs.directory import refuse_existing

    for option, (what, table) in CHOICES.items():
        if given[option] is not None:
            require_choice(what, given[option], names_in(table))
    if given["resume"]:
        refuse_early(run)
        return
    required(given["data"])
    if os.environ.get("RANK", "0") == "0":  # of processes that train together, the first makes the run
        refuse_existing(run)
