"""Serve: a page to explore a run's model."""

from pathlib import Path
from typing import Annotated

import typer

from faithmeter.cli.options import load_libraries
from faithmeter.cli.printing import terminal


def serve(
    run: Annotated[Path, typer.Argument(help="A trained run.")],
    host: Annotated[
        str, typer.Option(help="Who may ask: this machine alone, unless you name another address.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where the server listens.")] = 8000,
) -> None:
    """Serve a page to explore a run's model.

    Type a text, see which words decide, mask them and watch the answer change.
    """
    load_libraries()
    from faithmeter.web import serve as page

    page.serve(run, host=host, port=port, reporter=terminal())
