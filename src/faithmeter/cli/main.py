"""The command line: parses, calls a job, prints. Bad input ends in one sentence and exit code 2."""

import errno
import sys
from typing import Annotated

import typer

from faithmeter import __version__
from faithmeter.cli.attack import attack
from faithmeter.cli.audit import AuditCommand, audit
from faithmeter.cli.bench_suite import bench_suite
from faithmeter.cli.check import check
from faithmeter.cli.compare import compare
from faithmeter.cli.explain import explain
from faithmeter.cli.measure import measure
from faithmeter.cli.options import with_data_options, with_finite_numbers
from faithmeter.cli.printing import console, errors
from faithmeter.cli.quickstart import quickstart
from faithmeter.cli.report import report
from faithmeter.cli.roar import roar
from faithmeter.cli.scale import scale
from faithmeter.cli.select import select
from faithmeter.cli.serve import serve
from faithmeter.cli.tasks import tasks
from faithmeter.cli.train import train
from faithmeter.cli.transfer import transfer
from faithmeter.errors import InputError

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
    from faithmeter.models.memory import out_of_memory

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


# in the order of the help
for _command in (
    quickstart, with_data_options(train), with_data_options(check), with_data_options(measure), explain,
    with_data_options(roar), audit, attack, with_data_options(scale), with_data_options(compare), select,
    with_data_options(transfer), bench_suite, report, serve, tasks,
):  # fmt: skip
    app.command(cls=AuditCommand if _command is audit else None)(with_finite_numbers(_command))
