"""The command line: collects the commands, and turns errors into one sentence and an exit code."""

import errno
import logging
import sys
from typing import Annotated

import typer

from faithmeter import __version__
from faithmeter.cli.attack import attack
from faithmeter.cli.audit import audit
from faithmeter.cli.bench_suite import bench_suite
from faithmeter.cli.check import check
from faithmeter.cli.compare import compare
from faithmeter.cli.explain import explain
from faithmeter.cli.fetch import fetch
from faithmeter.cli.measure import measure
from faithmeter.cli.options import Command, either, with_data_options, with_finite_numbers
from faithmeter.cli.plan import plan
from faithmeter.cli.printing import console, errors, quiet
from faithmeter.cli.prompt import prompt
from faithmeter.cli.quickstart import quickstart
from faithmeter.cli.report import report
from faithmeter.cli.roar import roar
from faithmeter.cli.scale import scale
from faithmeter.cli.scores import scores
from faithmeter.cli.select import select
from faithmeter.cli.serve import serve
from faithmeter.cli.tasks import tasks
from faithmeter.cli.train import train
from faithmeter.cli.transfer import transfer
from faithmeter.errors import InputError
from faithmeter.models.fast.options import AUTO, PassOptions, use_pass_options

EXIT_CODES = """\b
Exit codes:
  0    done
  1    a bug in faithmeter, with a traceback to report
  2    bad input, or the command cannot continue: one sentence says why and what to do
  130  interrupted
"""
app = typer.Typer(
    help="Which explanations of your text classifier are faithful? Measured, with statistics.",
    epilog=EXIT_CODES,
    context_settings={"max_content_width": 100},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


INTERRUPTED = 130
GO_ON = (
    "Finished work is kept: the same command resumes a measurement, a retraining or a suite, and "
    "`faithmeter train RUN --resume` resumes a training."
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
        _fail(f"interrupted. {GO_ON}", code=INTERRUPTED)  # typer turns it into an exit without a message
    except Exception as error:
        if _memory_full(error):
            _fail(f"out of memory. Close other programs, or use a machine or a GPU with more memory. {GO_ON}")
        if isinstance(error, OSError) and not _disk_full(error) and (error.errno or error.filename):
            _fail(_in_words(error))
        if not _disk_full(error):
            raise
        _fail(f"the disk is full, so the last file was not written. Free some space, then resume. {GO_ON}")


def _in_words(error: OSError) -> str:
    """Return what the system refused, and what to do about it."""
    place = f" {error.filename}" if error.filename else ""
    said = f"the system refused{place}: {error.strerror or error}."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{said} Commands that write need a run that is yours to write: copy it, and use the copy."
    if error.errno == errno.EFBIG:
        return f"{said} Raise the limit on the size of files (`ulimit -f`), or choose another disk. {GO_ON}"
    return f"{said} Is it there, and is it a file where a file is expected? Restore it from a copy."


def _fail(message: str, code: int = 2) -> None:
    errors.print(f"Error: {message}", style="red", markup=False, soft_wrap=True)
    sys.exit(code)


def _disk_full(error: BaseException) -> bool:
    """Whether the disk is full; safetensors reports it only in the message."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    said = str(error)  # as do workers of a cluster, whose errors are wrapped in others
    return any(
        f"{words} {number}" in said for words in ("os error", "[Errno") for number in (errno.ENOSPC, errno.EDQUOT)
    )


def _memory_full(error: BaseException) -> bool:
    """Whether memory ran out where no batch can be halved."""
    if "torch" not in sys.modules:  # which takes seconds to load, and nothing else fills the memory
        return isinstance(error, MemoryError)
    from faithmeter.models.memory import out_of_memory

    return out_of_memory(error)


def _version(wanted: bool) -> None:
    if wanted:
        console.print(f"faithmeter {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[  # noqa: ARG001 (its callback answers)
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    quietly: Annotated[
        bool, typer.Option("--quiet", help="Print only results and warnings, no progress and no notes.")
    ] = False,
    verbosely: Annotated[
        bool, typer.Option("--verbose", help="Print to standard error how passes are computed, and what was measured.")
    ] = False,
    linear_layers: Annotated[
        str,
        typer.Option(help=f"How a processor multiplies: {either('models.fast.options.LINEAR_LAYERS')}; auto measures."),
    ] = AUTO,
    tokens_at_once: Annotated[
        int | None, typer.Option(help="Tokens per pass on a processor.  [default: 1024, or as measured]")
    ] = None,
) -> None:
    quiet.set(quietly)
    if verbosely:
        logging.basicConfig(format="%(message)s")  # to standard error
    logging.getLogger("faithmeter").setLevel(logging.INFO if verbosely else logging.WARNING)
    use_pass_options(PassOptions(linear_layers, tokens_at_once))


# in the order of --help
for _command in (
    quickstart, with_data_options(train), with_data_options(prompt), with_data_options(check), plan,
    with_data_options(measure), explain, scores, with_data_options(roar), audit, attack, with_data_options(scale),
    with_data_options(compare), select, with_data_options(transfer), bench_suite, report, serve, tasks, fetch,
):  # fmt: skip
    app.command(cls=Command)(with_finite_numbers(_command))
