"""The command `faithmeter bench-suite`: parses, calls the study, prints."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from faithmeter.cli.options import either, load_libraries
from faithmeter.cli.printing import console, terminal
from faithmeter.errors import InputError
from faithmeter.progress import Terminal

RAY = "With --engine ray"


def bench_suite(
    suite: Annotated[
        str | None, Argument(metavar="SUITE", help="A suite file, or the name of an included one.")
    ] = None,
    out: Annotated[Path | None, Argument(help="Folder for all runs.")] = None,
    engine: Annotated[
        str | None,
        Option(help=f"{either('studies.suite.suite.ENGINES')}.  [default: processes, one per core]"),
    ] = None,
    workers: Annotated[
        int | None, Option(min=1, help="Jobs in parallel.  [default: one per core, or all of the cluster]")
    ] = None,
    address: Annotated[
        str | None, Option(help="Address of the cluster.  [default: start one here]", rich_help_panel=RAY)
    ] = None,
    cpus: Annotated[float, Option(help="Cores per worker.", rich_help_panel=RAY)] = 1,
    gpus: Annotated[float, Option(help="GPUs per worker, or a share of one.", rich_help_panel=RAY)] = 0,
    data_dir: Annotated[
        Path | None, Option(help="Folder with the files of named tasks: DIR/sst2/train.csv ...")
    ] = None,
    redo: Annotated[
        bool, Option("--redo", help="Remove results with other settings, data or model, and redo them.")
    ] = False,
    estimate: Annotated[bool, Option(help="Estimate the duration first, by timing every model on its task.")] = True,
    dry_run: Annotated[bool, Option("--dry-run", help="Print what would be done, and do nothing.")] = False,
    listed: Annotated[bool, Option("--list", help="List the included suites.")] = False,
    show: Annotated[str | None, Option(metavar="NAME", help="Print an included suite, to copy.")] = None,
) -> None:
    """Run a whole benchmark from one file, with one report.

    Every task with every model, way of training and seed. The same command resumes an interrupted suite.
    """
    load_libraries()
    from faithmeter.runs.engines import workers_here
    from faithmeter.studies.suite import suite as study
    from faithmeter.studies.suite.file import read_suite, ready_suites, suite_text

    if listed:
        for name in ready_suites():
            console.print(f"{name}: {read_suite(name).about}", markup=False, soft_wrap=True, highlight=False)
        return
    if show is not None:
        print(suite_text(show)[0], end="")
        return
    if suite is None or out is None:
        raise InputError("Name a suite and a folder for its runs; --list shows the included ones.")
    here = workers_here() if workers is None else workers
    chosen = engine or ("this-process" if here == 1 and address is None else "ray" if address else "processes")
    options = study.EngineOptions(chosen, workers, address, cpus, gpus)
    done = study.bench_suite(
        suite, out, options, data_dir=data_dir, redo=redo, estimate=estimate, dry_run=dry_run,
        reporter=Terminal(console) if dry_run else terminal(),  # its plan is what was asked for
    )  # fmt: skip
    for file in done.tables:
        console.print(f"Results of all runs, without times: {file}", soft_wrap=True, highlight=False)
    if done.page is not None:
        console.print(f"Report on all runs: {done.page}", soft_wrap=True, highlight=False)
    if done.failures:
        raise InputError(
            f"{len(done.failures)} jobs failed, and jobs that depend on them were skipped; all others are finished. "
            + " ".join(done.failures)
        )
