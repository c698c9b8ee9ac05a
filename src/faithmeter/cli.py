"""The command line: parses, calls a job, prints. Bad input ends in one sentence and exit code 2."""

import errno
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from faithmeter import __version__
from faithmeter.attack_command import attack
from faithmeter.audit_command import audit
from faithmeter.command_options import Data, load_jobs, names, with_data_options, with_finite_numbers
from faithmeter.compare_command import compare
from faithmeter.errors import InputError
from faithmeter.printing import (
    console,
    print_check,
    print_explanation,
    print_faithfulness,
    print_performance,
    print_tasks,
)
from faithmeter.progress import Terminal
from faithmeter.roar_command import roar
from faithmeter.scale_command import scale
from faithmeter.select_command import select
from faithmeter.suite_command import bench_suite
from faithmeter.tasks import TASKS
from faithmeter.train_command import train
from faithmeter.transfer_command import transfer

if TYPE_CHECKING:
    from types import ModuleType

    from faithmeter.data import DataSpec

# the paper's; LIME and KernelSHAP, at 200 passes a text and step, would take longer than all of these together
QUICK_MEASURES = (
    "grad-l1", "grad-l2", "x-grad-signed", "x-grad-abs", "ig-signed", "ig-abs", "loo-signed", "loo-abs", "beam"
)  # fmt: skip
errors = Console(stderr=True, highlight=False)

app = typer.Typer(
    help="Which explanation of your text classifier can you believe? Faithfulness measured, with statistics.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


INTERRUPTED = 130
GO_ON = (
    "What is finished is kept: the same command goes on with a measurement, a retraining or a suite, and "
    "`faithmeter train RUN --resume` with a training."
)


def main() -> None:
    """Run the command line; turn bad input, an interruption, and a full disk or memory into one sentence."""
    try:
        app()
    except InputError as error:
        _fail(str(error))
    except SystemExit as end:
        if end.code != INTERRUPTED:
            raise
        _fail(f"interrupted. {GO_ON}", code=INTERRUPTED)  # typer makes an exit of it, without a word
    except Exception as error:
        if _memory_full(error):
            _fail(f"memory ran out. End other programs, or use a machine or a GPU with more of it. {GO_ON}")
        if not _disk_full(error):
            raise
        _fail(f"the disk is full, so the last file was not written. Make room, then go on. {GO_ON}")


def _fail(message: str, code: int = 2) -> None:
    errors.print(f"Error: {message}", style="red", markup=False, soft_wrap=True)
    sys.exit(code)


def _disk_full(error: BaseException) -> bool:
    """Whether the disk is full; safetensors says so only in words."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    said = str(error)  # as do workers of a cluster, whose errors come in others
    return any(
        f"{words} {number}" in said for words in ("os error", "[Errno") for number in (errno.ENOSPC, errno.EDQUOT)
    )


def _memory_full(error: BaseException) -> bool:
    """Whether memory ran out, elsewhere than where a batch can be halved."""
    if "torch" not in sys.modules:  # which takes seconds to load, and nothing else fills the memory
        return isinstance(error, MemoryError)
    from faithmeter.passes import out_of_memory

    return out_of_memory(error)


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
    seed: Annotated[int, typer.Option(min=0, help="Seed of the model's weights and masks.")] = 0,
    data_seed: Annotated[int, typer.Option(min=0, help="Seed of the generated data and of splits.")] = 0,
) -> None:
    """Train, check and measure offline, in a few minutes: bAbI-1, a small encoder, nine importance measures."""
    path = run or _free_path(Path("runs") / ("quickstart-sentiment" if sentiment else "quickstart"))
    jobs = load_jobs()
    if sentiment:
        data, model = jobs.DataSpec(task="rotten-tomatoes", seed=data_seed), "minilm"
        options = jobs.TrainingOptions(epochs=4, learning_rate=1e-4, batch_size=32, seed=seed)
        measured = jobs.MeasureOptions(QUICK_MEASURES, rows=60, beam_rows=5)  # a real model takes its time
        console.print(f"Masked fine-tuning of MiniLM on Rotten Tomatoes reviews, into {path}.")
        console.print("All of it takes about a quarter of an hour on two cores.")
    else:
        data, model, options = jobs.DataSpec(task="babi-1", seed=data_seed), "small", jobs.TrainingOptions(seed=seed)
        measured = jobs.MeasureOptions(QUICK_MEASURES, rows=200, beam_rows=10)
        console.print(f"Masked fine-tuning of a small encoder on generated bAbI-1 questions, into {path}.")
    reporter = Terminal(console)
    print_performance(jobs.train(path, data, model, options, reporter=reporter))
    console.print("\nIs masking in-distribution for this model?")
    verdicts = jobs.check(path, reporter=reporter)
    print_check(verdicts, jobs.in_words(path, verdicts), jobs.Run(path).results)
    console.print("\nWhich importance measure is faithful to it?")
    print_faithfulness(jobs.measure(path, measured, workers=None, reporter=reporter).results)
    (page,) = jobs.report([path], path / "report", reporter=reporter)
    console.print(f"\nThe report, to look at and pass on: {page}", soft_wrap=True)


def _free_path(path: Path) -> Path:
    candidates = (path, *(path.with_name(f"{path.name}-{number}") for number in range(2, 1000)))
    return next(candidate for candidate in candidates if not candidate.exists())


_SUBJECT = "A trained run; or, with --data or --task, a model folder or hub name that classifies already."
_RunOption = Annotated[
    Path | None,
    typer.Option(help="For a MODEL: the run directory to keep it and its results in.  [default: runs/NAME]"),
]
_MaskedBefore = Annotated[
    bool, typer.Option("--masked-before", help="For a MODEL: you say that it was fine-tuned on masked text.")
]
_MaxLength = Annotated[
    int | None, typer.Option(min=1, help="For a MODEL: longest text in tokens; longer ones are cut.  [default: 512]")
]


def _run_of(
    jobs: "ModuleType",
    subject: str,
    data: "DataSpec | None",
    run: Path | None,
    masked_before: bool,
    max_length: int | None,
    reporter: Terminal,
) -> Path:
    """Return the run that a command is about, and make one of a model that came trained."""
    if data is None:
        if run is not None or masked_before or max_length is not None:
            said = "--run, --masked-before and --max-length say how to make a run of a model with --data or --task"
            raise InputError(f"{said}; a run keeps what it was made with.")
        return Path(subject)
    path = run or Path("runs") / Path(subject).resolve().name
    if path.resolve() == Path(subject).resolve():
        raise InputError(f"{path} is the model itself: name another place for its run and results with --run.")
    known = path.exists()
    settings = {"masked_before": masked_before, "max_length": max_length or 512}
    adopted = jobs.adopt(path, subject, data, **settings, reporter=reporter)
    if not known:
        print_performance(adopted)
    return path


app.command()(with_data_options(train))


@app.command()
@with_data_options
def check(
    subject: Annotated[str, typer.Argument(metavar="RUN|MODEL", help=_SUBJECT)],
    data: Data,
    form: Annotated[str, typer.Option(help="calibrated (holds its level) or paper.")] = "calibrated",
    rows: Annotated[int, typer.Option(min=4, help="Validation rows to fit the test on, drawn at random.")] = 6000,
    run: _RunOption = None,
    masked_before: _MaskedBefore = False,
    max_length: _MaxLength = None,
) -> None:
    """Ask whether masking is in-distribution for a model: MaSF, fitted on the validation split."""
    jobs, reporter = load_jobs(), Terminal(console)
    path = _run_of(jobs, subject, data, run, masked_before, max_length, reporter)
    verdicts = jobs.check(path, form=form, rows=rows, reporter=reporter)
    words = jobs.in_words(path, verdicts) if form == "calibrated" else None
    print_check(verdicts, words, jobs.Run(path).results)


@app.command()
@with_data_options
def measure(
    subjects: Annotated[
        list[str], typer.Argument(metavar="RUN|MODEL...", help=_SUBJECT + " Several seeds are pooled.")
    ],
    data: Data,
    measures: Annotated[
        str | None,
        typer.Option(
            help="Importance measures, with commas between.  [default: all but loo-sampled, ig-mask, ensembles]"
        ),
    ] = None,
    target: Annotated[str, typer.Option(help="Class whose logit is explained: gold or predicted.")] = "gold",
    rows: Annotated[
        int | None, typer.Option(min=1, help="Use only so many test rows, drawn at random.  [default: all]")
    ] = None,
    beam_rows: Annotated[
        int | None, typer.Option(min=1, help="Rows for beam search, which is dear.  [default: --rows]")
    ] = None,
    random_runs: Annotated[int, typer.Option(help="Random maskings whose mean is the baseline.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the rows and of random masking.")] = 0,
    by: Annotated[str, typer.Option(help="Mask and explain by token, word, sentence or chunk.")] = "token",
    chunk: Annotated[int, typer.Option(min=1, help="Tokens that a chunk holds at most; no word is cut.")] = 16,
    without_check: Annotated[
        bool, typer.Option("--without-check", help="Measure without in-distribution test.")
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Processes.  [default: one a core, at most 8; one for a GPU, or under a minute]"),
    ] = None,
    run: _RunOption = None,
    masked_before: _MaskedBefore = False,
    max_length: _MaxLength = None,
) -> None:
    """Measure how faithful importance measures are: ACU and RACU with intervals. Goes on where it was stopped."""
    jobs, reporter = load_jobs(), Terminal(console)
    chosen = {} if measures is None else {"measures": names(measures)}
    options = jobs.MeasureOptions(
        target=target,
        rows=rows,
        beam_rows=beam_rows,
        random_runs=random_runs,
        seed=seed,
        without_check=without_check,
        by=by,
        chunk=chunk,
        **chosen,
    )
    if run is not None and len(subjects) > 1:
        raise InputError("--run is the place for one model; give several models one by one, then their runs together.")
    paths = [_run_of(jobs, subject, data, run, masked_before, max_length, reporter) for subject in subjects]
    if len(paths) > 1:  # before hours of work on what cannot be pooled
        jobs.require_repetitions([jobs.Run(path) for path in paths])
    measured = []
    for path in paths:
        if len(paths) > 1:
            console.print(f"{path}:")
        measured.append(jobs.measure(path, options, workers=workers, reporter=reporter))
        print_faithfulness(measured[-1].results)
    if len(measured) > 1:
        console.print(f"\nAll {len(measured)} runs together:")
        print_faithfulness(jobs.pool(measured))


@app.command()
def explain(
    run: Annotated[Path, typer.Argument(help="A trained run.")],
    text: Annotated[
        str | None, typer.Argument(help="The text.  [default: lines of --file, or of standard input]")
    ] = None,
    context: Annotated[str | None, typer.Option(help="The second text of a pair.")] = None,
    file: Annotated[
        Path | None, typer.Option(help="Texts to explain: a line each, or a table with the run's columns.")
    ] = None,
    measure: Annotated[str | None, typer.Option(help="Importance measure.  [default: the run's most faithful]")] = None,
    budget: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Take the most faithful measure that needs no longer for a text."),
    ] = None,
    target: Annotated[str, typer.Option(help="Class that is explained: predicted, or a class name.")] = "predicted",
    tokens: Annotated[bool, typer.Option("--tokens", help="Show tokens instead of words.")] = False,
    by: Annotated[
        str | None,
        typer.Option(help="Explain by token, word, sentence or chunk.  [default: as the run was measured, or token]"),
    ] = None,
    chunk: Annotated[
        int | None, typer.Option(min=1, help="Tokens that a chunk holds at most.  [default: as measured, or 16]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, for machines.")] = False,
) -> None:
    """Explain texts: which words made the model decide, and how faithful this very explanation is."""
    jobs = load_jobs()
    texts, contexts = _texts(jobs, run, text, context, file)
    reporter = Terminal(errors if as_json else console)  # machines read objects alone
    chosen = {"measure": measure, "budget": budget, "target": target, "by": by, "chunk": chunk}
    for explanation in jobs.explain(run, texts, contexts, **chosen, reporter=reporter):
        if as_json:
            print(json.dumps(explanation.as_row(), ensure_ascii=False))
        else:
            print_explanation(explanation, tokens)


def _texts(
    jobs: "ModuleType", run: Path, text: str | None, context: str | None, file: Path | None
) -> tuple[list[str], list[str] | None]:
    """Return the texts to explain and their contexts, from the arguments, a file, or standard input."""
    if text is not None:
        return [text], None if context is None else [context]
    if file is not None and file.suffix != ".txt":
        return jobs.read_texts(run, file)
    lines = sys.stdin if file is None else file.read_text(encoding="utf-8").split("\n")
    texts = [line.rstrip("\n") for line in lines if line.strip()]
    if not texts:
        raise InputError("There is no text to explain: give one, or a file with --file, or lines on standard input.")
    return texts, None if context is None else [context] * len(texts)


app.command()(with_data_options(roar))
app.command()(audit)
app.command()(attack)
app.command()(with_data_options(scale))
app.command()(with_data_options(compare))
app.command()(select)
app.command()(with_data_options(transfer))
app.command()(bench_suite)


@app.command()
def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Runs; those that differ in the seed are pooled.")
    ],
    out: Annotated[Path | None, typer.Option(help="Folder for the report.  [default: RUN/report]")] = None,
    formats: Annotated[
        str, typer.Option("--format", help="html, markdown, latex, csv, svg, png, pdf; several with commas.")
    ] = "html",
    examples: Annotated[bool, typer.Option(help="Explain a few test texts by several measures.")] = True,
) -> None:
    """Write a report: which explanation to believe, by how much, and why. One page that needs nothing else."""
    chosen = [name.strip() for name in formats.split(",")]
    files = load_jobs().report(
        runs, out or runs[0] / "report", formats=chosen, examples=examples, reporter=Terminal(console)
    )
    for file in files:
        console.print(str(file), soft_wrap=True, markup=False)


@app.command()
def serve(
    run: Annotated[Path, typer.Argument(help="A trained run.")],
    host: Annotated[
        str, typer.Option(help="Who may ask: this machine alone, unless you name another address.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
) -> None:
    """Serve a page to explore a run's model: type a text, see which words decide, mask them and watch."""
    load_jobs().serve(run, host=host, port=port, reporter=Terminal(console))


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
    print_tasks(rows)


for _command in app.registered_commands:
    assert _command.callback is not None
    _command.callback = with_finite_numbers(_command.callback)

if __name__ == "__main__":
    main()
