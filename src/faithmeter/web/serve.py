"""Serve: a web page on this machine to explore a run's model."""

import ctypes
import ipaddress
import sys
from contextlib import suppress
from pathlib import Path

from faithmeter.errors import InputError
from faithmeter.progress import Reporter, Silent
from faithmeter.runs.run import Run


def serve(path: str | Path, *, host: str = "127.0.0.1", port: int = 8000, reporter: Reporter | None = None) -> None:
    """Serve the page of a run until interrupted. The host is this machine alone unless another is named."""
    try:
        import uvicorn

        from faithmeter.web.app import LOOPBACK, create_app
    except ImportError as error:
        raise InputError("The page needs the extra `web`: `pip install 'faithmeter[web]'`.") from error
    reporter, host = reporter or Silent(), host.strip("[]")
    name = name_in_address(host)
    if name not in LOOPBACK:
        reporter.warn(f"anyone who can reach {host} can use this page; it has no password.")
    app = create_app(Run(path), LOOPBACK | {name})
    reporter.note(f"The page is at http://{name}:{port} until you press Ctrl-C.")
    _share_one_heap()
    uvicorn.run(app, host=host, port=port, log_level="warning", timeout_keep_alive=10)


def name_in_address(host: str) -> str:
    """Return a host as browsers write it in an address; refuse one that stands for every address of the machine."""
    numeric = None
    with suppress(ValueError):
        numeric = ipaddress.ip_address(host)
    if not host or (numeric is not None and numeric.is_unspecified):
        raise InputError(
            f"--host {host!r} stands for every address of this machine, but the page answers only to a name that it "
            "knows, so that other web sites cannot send requests for a visitor. Give the address or host name that "
            "people will type, such as --host 192.168.1.20."
        )
    return f"[{host}]" if isinstance(numeric, ipaddress.IPv6Address) else host.lower()


def _share_one_heap() -> None:
    """Let all threads share one heap of glibc's: they take turns anyway, and each would keep a pass of its own."""
    if sys.platform == "linux":
        set_option = getattr(ctypes.CDLL(None), "mallopt", None)  # not every Linux has glibc
        if set_option is not None:
            set_option(-8, 1)  # M_ARENA_MAX
