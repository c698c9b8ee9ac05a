"""The command line: parses, calls a job, prints. Bad input ends in one sentence and exit code 2."""

import errno
import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from faithmeter import __version__
from faithmeter.errors import InputError
from faithmeter.progress import Terminal
from faithmeter.results import find
from faithmeter.tasks import TASKS

if TYPE_CHECKING:
    from types import ModuleType

    from faithmeter.run import Run

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)

app = typer.Typer(
    help="Which explanation of your text classifier can you believe? Faithfulness measured, with statistics.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def main() -> None:
    """Run the command line; turn bad input and a full disk into one sentence."""
    try:
        app()
    except InputError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        _fail("interrupted. A training goes on with `faithmeter train RUN --resume`.", code=130)
    except Exception as error:
        if not _disk_full(error):
            raise
        _fail(
            "the disk is full, so the last file was not written; what was there before is untouched. "
            "Make room, then go on with `faithmeter train RUN --resume`."
        )


def _jobs() -> "ModuleType":
    """Import what takes seconds (torch, transformers) only when there is work to do, and quiet it."""
    import transformers

    from faithmeter import jobs

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return jobs


def _fail(message: str, code: int = 2) -> None:
    errors.print(f"Error: {message}", style="red", markup=False, soft_wrap=True)
    sys.exit(code)


def _disk_full(error: BaseException) -> bool:
    """Whether the disk is full; safetensors says so only in words."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return f"os error {errno.ENOSPC}" in str(error) or f"os error {errno.EDQUOT}" in str(error)


def _version(wanted: bool) -> None:
    if wanted:
        console.print(f"faithmeter {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def quickstart(
    run: Annotated[Path | None, typer.Argument(help="Where to put the run.  [default: runs/quickstart]")] = None,
    sentiment: Annotated[
        bool, typer.Option("--sentiment", help="Real film reviews and a real pretrained model (extra `sentiment`).")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the model's weights and masks.")] = 0,
    data_seed: Annotated[int, typer.Option(help="Seed of the generated data and of splits.")] = 0,
) -> None:
    """Train a faithfulness measurable model offline, in about a minute: bAbI-1 and a small encoder."""
    path = run or _free_path(Path("runs") / ("quickstart-sentiment" if sentiment else "quickstart"))
    jobs = _jobs()
    if sentiment:
        data, model = jobs.DataSpec(task="rotten-tomatoes", seed=data_seed), "minilm"
        options = jobs.TrainingOptions(epochs=4, learning_rate=1e-4, batch_size=32, seed=seed)
        console.print(f"Masked fine-tuning of MiniLM on Rotten Tomatoes reviews, into {path}.")
    else:
        data, model, options = jobs.DataSpec(task="babi-1", seed=data_seed), "small", jobs.TrainingOptions(seed=seed)
        console.print(f"Masked fine-tuning of a small encoder on generated bAbI-1 questions, into {path}.")
    _print_performance(jobs.train(path, data, model, options, reporter=Terminal(console)))


def _free_path(path: Path) -> Path:
    candidates = (path, *(path.with_name(f"{path.name}-{number}") for number in range(2, 1000)))
    return next(candidate for candidate in candidates if not candidate.exists())


@app.command()
def train(
    run: Annotated[Path, typer.Argument(help="The run directory to make; later commands take it.")],
    task: Annotated[str | None, typer.Option(help="A named task; `faithmeter tasks` lists them.")] = None,
    data: Annotated[
        str | None, typer.Option(help="Your own csv, tsv, jsonl(.gz) or parquet file, or a folder with train, test ...")
    ] = None,
    validation_data: Annotated[str | None, typer.Option(help="A file to validate on; else cut from --data.")] = None,
    test_data: Annotated[str | None, typer.Option(help="A file to test on; else cut from --data.")] = None,
    data_dir: Annotated[
        str | None, typer.Option(help="Folder with a named task's files: DIR/sst2/train.csv ...")
    ] = None,
    text: Annotated[str, typer.Option(help="Column with the text, which is masked and explained.")] = "text",
    context: Annotated[str | None, typer.Option(help="Column with the second text of a pair; never masked.")] = None,
    label: Annotated[str, typer.Option(help="Column with the label: words or numbers.")] = "label",
    metric: Annotated[str, typer.Option(help="With --data: accuracy, macro-f1, micro-f1 or matthews.")] = "accuracy",
    model: Annotated[
        str, typer.Option(help="A hub name, a model folder, `small` (from scratch) or `minilm` (extra `sentiment`).")
    ] = "small",
    strategy: Annotated[str | None, typer.Option(help="masked, plain or only-masking.  [default: masked]")] = None,
    validation: Annotated[
        str | None, typer.Option(help="What picks the best epoch: both, unmasked or masked.  [default: both]")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data.  [default: the task's]")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="[default: 2e-5; small: 1e-3]")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows at a time.  [default: 16; small: 32]")] = None,
    accumulate: Annotated[int | None, typer.Option(help="Batches an optimiser step.  [default: 1]")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Not on biases and norms.  [default: 0.01]")] = None,
    warmup: Annotated[float | None, typer.Option(help="Share of the steps that warm up.  [default: 0.06]")] = None,
    clip: Annotated[
        float | None, typer.Option(help="Largest gradient norm, 0 for any.  [default: 0; small: 1]")
    ] = None,
    mask_context: Annotated[
        bool | None, typer.Option("--mask-context", help="Also mask the context in training, as the paper's code.")
    ] = None,
    curriculum: Annotated[
        bool | None, typer.Option(help="Show short texts first.  [default: only for `small`]")
    ] = None,
    mixed_precision: Annotated[str | None, typer.Option(help="no, fp16 or bf16.  [default: no]")] = None,
    tracker: Annotated[str | None, typer.Option(help="A tracker of accelerate: tensorboard, wandb ...")] = None,
    max_length: Annotated[int, typer.Option(help="Longest text in tokens; longer ones are cut.")] = 512,
    train_rows: Annotated[int | None, typer.Option(help="Use only so many training rows, drawn at random.")] = None,
    validation_rows: Annotated[int | None, typer.Option(help="Use only so many validation rows.")] = None,
    test_rows: Annotated[int | None, typer.Option(help="Use only so many test rows.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights, order and masks.  [default: 0]")] = None,
    data_seed: Annotated[int, typer.Option(help="Seed of generated data, splits and subsets.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted training of this run.")] = False,
) -> None:
    """Masked fine-tuning: turn a text classifier into a faithfulness measurable one."""
    given = locals()
    jobs, reporter = _jobs(), Terminal(console)
    names = [field.name for field in fields(jobs.TrainingOptions)]
    if resume:
        said = task or data or any(given[name] is not None for name in names)
        if said:
            raise InputError(f"--resume goes on with what {run} was made with: leave the other options out.")
        _print_performance(jobs.resume(run, reporter=reporter))
        return
    spec = jobs.DataSpec(
        task=task,
        data=data,
        validation_data=validation_data,
        test_data=test_data,
        data_dir=data_dir,
        text=text,
        context=context,
        label=label,
        metric=metric,
        train_rows=train_rows,
        validation_rows=validation_rows,
        test_rows=test_rows,
        seed=data_seed,
    )
    options = jobs.TrainingOptions(**{name: given[name] for name in names})
    _print_performance(jobs.train(run, spec, model, options, max_length=max_length, reporter=reporter))


@app.command()
def tasks(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, for machines.")] = False,
) -> None:
    """List the named tasks: what is masked, the metric, and where the data can come from."""
    rows: list[dict[str, Any]] = [
        {
            "name": task.name,
            "text / context": task.text if task.context is None else f"{task.text} / {task.context}",
            "metric": task.metric,
            "epochs": task.epochs,
            "data": task.sources,
            "about": "; ".join(part for part in (task.papers, task.note) if part),
        }
        for task in TASKS.values()
    ]
    if as_json:
        for row in rows:
            print(json.dumps(row, ensure_ascii=False))
        return
    table = Table(box=None, pad_edge=False)
    for column in rows[0]:
        table.add_column(column, no_wrap=column != "about")
    for row in rows:
        table.add_row(*map(str, row.values()))
    console.print(table)
    console.print(
        "\ndata: `hub` needs a connection; `files` means --data-dir DIR; `package` needs the extra `sentiment`."
    )


def _print_performance(run: "Run") -> None:
    rows, config = run.results, run.config
    table = Table(title=f"{config.model} on {config.data.resolved().name}, {config.training.strategy}", box=None)
    table.add_column("tokens masked")
    table.add_column(f"test {config.metric}", justify="right")
    for ratio, name in ((0.0, "none"), (0.5, "50 %, at random"), (1.0, "100 %")):
        table.add_row(name, f"{find(rows, 'performance', ratio):.3f}")
    table.add_row("class majority", f"{find(rows, 'majority'):.3f}")
    console.print(table)
    console.print(f"The run is in {run.path}; the model, for transformers, in {run.model_folder}.", soft_wrap=True)


if __name__ == "__main__":
    main()
