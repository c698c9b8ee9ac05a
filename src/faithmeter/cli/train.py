"""The command `faithmeter train`: parses, calls the job, prints."""

from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer

from faithmeter.cli.options import Data, load_libraries, names, required
from faithmeter.cli.printing import console, print_performance
from faithmeter.errors import InputError
from faithmeter.progress import Terminal


def train(
    run: Annotated[Path, typer.Argument(help="The run directory to make; later commands take it.")],
    data: Data,
    model: Annotated[
        str,
        typer.Option(
            help="A hub name, a model folder, `minilm` (a package), or from scratch: `bilstm`, or `tiny`, `mini`, "
            "`small`, `base` (encoders), `t5-tiny` ... `gpt2-base`."
        ),
    ] = "small",
    vectors: Annotated[
        str | None, typer.Option(help="For `bilstm`: a file of word vectors (GloVe, fastText; .gz too) to begin with.")
    ] = None,
    strategy: Annotated[str | None, typer.Option(help="masked, plain or only-masking.  [default: masked]")] = None,
    validation: Annotated[
        str | None, typer.Option(help="What picks the best epoch: both, unmasked or masked.  [default: both]")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data.  [default: the task's]")] = None,
    optimizer: Annotated[str | None, typer.Option(help="adamw or amsgrad.  [default: adamw; bilstm: amsgrad]")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="[default: 2e-5; from scratch: 1e-3]")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows at a time.  [default: 16; from scratch: 32]")] = None,
    accumulate: Annotated[int | None, typer.Option(help="Batches an optimiser step.  [default: 1]")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Not on biases and norms.  [default: 0.01]")] = None,
    warmup: Annotated[float | None, typer.Option(help="Share of the steps that warm up.  [default: 0.06]")] = None,
    clip: Annotated[
        float | None, typer.Option(help="Largest gradient norm, 0 for any.  [default: 0; from scratch: 1]")
    ] = None,
    mask_context: Annotated[
        bool | None, typer.Option("--mask-context", help="Also mask the context in training, as the paper's code.")
    ] = None,
    curriculum: Annotated[
        bool | None, typer.Option(help="Show short texts first.  [default: from scratch, but for `bilstm`]")
    ] = None,
    mixed_precision: Annotated[str | None, typer.Option(help="no, fp16 or bf16.  [default: no]")] = None,
    robust: Annotated[
        str | None,
        typer.Option(
            help="What to add to the loss or the data, with commas: igr, vat, explanation-guided (whose loss, as it "
            "is, flattens attention), adversarial."
        ),
    ] = None,
    igr_weight: Annotated[float | None, typer.Option(help="Of the squared input gradient.  [default: 0.001]")] = None,
    vat_weight: Annotated[float | None, typer.Option(help="Of the change under virtual attack.  [default: 1]")] = None,
    vat_radius: Annotated[
        float | None, typer.Option(help="Length of that attack, as a share of the embeddings'.  [default: 0.03]")
    ] = None,
    guided_weight: Annotated[
        float | None, typer.Option(help="Of the distance from attention to attribution.  [default: 0.1]")
    ] = None,
    guided_share: Annotated[
        float | None, typer.Option(help="Share of the tokens, the least important, masked as noise.  [default: 0.2]")
    ] = None,
    adversarial_share: Annotated[
        float | None, typer.Option(help="Share of the rows added in attacked form each epoch.  [default: 0.1]")
    ] = None,
    adversarial_budget: Annotated[
        float | None, typer.Option(help="Share of the words an attack may change.  [default: 0.2]")
    ] = None,
    tracker: Annotated[str | None, typer.Option(help="A tracker of accelerate: tensorboard, wandb ...")] = None,
    max_length: Annotated[int, typer.Option(help="Longest text in tokens; longer ones are cut.")] = 512,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of weights, order and masks.  [default: 0]")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted training of this run.")] = False,
) -> None:
    """Masked fine-tuning: turn a text classifier into a faithfulness measurable one."""
    given = locals()
    load_libraries()
    from faithmeter.studies import train as study

    reporter = Terminal(console)
    options = {field.name: given[field.name] for field in fields(study.TrainingOptions)}
    if resume:
        said = data is not None or any(value is not None for value in options.values())
        if said:
            raise InputError(f"--resume goes on with what {run} was made with: leave the other options out.")
        print_performance(study.resume(run, reporter=reporter))
        return
    if robust is not None:
        options["robust"] = names(robust)
    taught = study.TrainingOptions(**options)
    print_performance(
        study.train(run, required(data), model, taught, max_length=max_length, vectors=vectors, reporter=reporter)
    )
