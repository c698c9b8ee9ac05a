"""Serve: a web page to explore a run's model."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from faithmeter.cli.options import load_libraries, refuse_early
from faithmeter.cli.printing import terminal


def serve(
    run: Annotated[Path, Argument(help="A trained run.")],
    host: Annotated[str, Option(help="Address to listen on; by default only this machine can connect.")] = "127.0.0.1",
    port: Annotated[int, Option(min=1, max=65535, help="Port to listen on.")] = 8000,
) -> None:
    """Serve a web page to explore a run's model.

    Type a text, see which words decide, mask them and watch the prediction change.
    """
    refuse_early(run)
    load_libraries()
    from faithmeter.web import serve as page

    page.serve(run, host=host, port=port, reporter=terminal())
