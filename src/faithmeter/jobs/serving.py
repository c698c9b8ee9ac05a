"""Serve: a page on this machine to explore a run's model."""

import ctypes
import sys
from pathlib import Path

from faithmeter.errors import InputError
from faithmeter.run import Run


def serve(path: str | Path, *, host: str = "127.0.0.1", port: int = 8000) -> None:
    """Serve the page of a run until interrupted. The host is this machine alone unless another is named."""
    try:
        import uvicorn

        from faithmeter.web.app import LOOPBACK, create_app
    except ImportError as error:
        raise InputError("The page needs the extra `web`: `pip install 'faithmeter[web]'`.") from error
    _share_one_heap()
    uvicorn.run(
        create_app(Run(path), LOOPBACK | {host}), host=host, port=port, log_level="warning", timeout_keep_alive=10
    )


def _share_one_heap() -> None:
    """Let all threads share one heap of glibc's: they take turns anyway, and each would keep a pass of its own."""
    if sys.platform == "linux":
        set_option = getattr(ctypes.CDLL(None), "mallopt", None)  # not every Linux has glibc
        if set_option is not None:
            set_option(-8, 1)  # M_ARENA_MAX
