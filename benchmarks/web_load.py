"""Does the page answer under load? Many people at once, some of whom leave or stall; exit code 1 on any error.

    python benchmarks/web_load.py RUN --clients 20 --seconds 60

starts `faithmeter serve RUN`, lets every client ask as the page's own script does (ask, then poll ever more slowly),
and prints answers, errors, waits, and the server's resident memory. Beside them one client stalls in the middle of its
question for the whole time, and every fifth question's asker is gone before the answer is there.
"""

import argparse
import contextlib
import http.client
import json
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from faithmeter import Run

MEASURES = (["loo-signed"], ["grad-l2", "x-grad-signed"], ["x-grad-abs"], ["loo-abs", "grad-l1"], ["ig-signed"])
LEAVES = 5  # of so many questions one is left before its answer is there
GRACE = 120  # seconds after the end for answers that were asked for before it
TOO_LONG = 60  # seconds without an answer to a single request


@dataclass
class Tally:
    """What all clients saw together."""

    waits: list[float] = field(default_factory=list)
    left: int = 0
    errors: list[str] = field(default_factory=list)


@dataclass
class Client:
    """Somebody at the page, who asks again and again until the end."""

    port: int
    rows: int
    end: float
    number: int
    tally: Tally

    def run(self) -> None:
        """Ask until the end; whatever goes wrong is an error."""
        choice = random.Random(self.number)
        while time.monotonic() < self.end:
            try:
                self.ask_once(choice, leaves=choice.random() < 1 / LEAVES)
            except Exception as error:
                self.tally.errors.append(f"{type(error).__name__}: {error}")
                time.sleep(1)

    def ask_once(self, choice: random.Random, *, leaves: bool) -> None:
        """Take a test text and have it explained, as the page's script does."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TOO_LONG)
        with contextlib.closing(connection):
            text = self.call(connection, "GET", f"/rows/{choice.randrange(self.rows)}")
            question = {key: text[key] for key in ("text", "context")} | {"measures": choice.choice(MEASURES)}
            started = time.monotonic()
            job = self.call(connection, "POST", "/explanations", question)["job"]
            pause = 0.1
            while (found := self.call(connection, "GET", f"/explanations/{job}"))["state"] == "running":
                if leaves and pause > 0.5:
                    # in the middle of a request: the answer finds nobody
                    connection.request("GET", f"/explanations/{job}")
                    self.tally.left += 1
                    return
                if time.monotonic() > self.end + GRACE:
                    raise TimeoutError(f"no explanation after {time.monotonic() - started:.0f} s")
                time.sleep(pause)
                pause = min(1.0, pause * 1.3)
        if found["state"] != "done" or len(found["answer"]) != len(question["measures"]):
            raise ValueError(f"{found['state']}: {found['error']}")
        self.tally.waits.append(time.monotonic() - started)

    @staticmethod
    def call(connection: http.client.HTTPConnection, method: str, path: str, content: object = None) -> dict:
        """Return what the server answers; anything but success is an error."""
        body, headers = (None, {}) if content is None else (json.dumps(content), {"Content-Type": "application/json"})
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        answer = json.loads(response.read())
        if response.status not in (200, 202):
            raise ValueError(f"{response.status}: {answer}")
        return answer


@contextlib.contextmanager
def serving(run: Path) -> Iterator[tuple[int, subprocess.Popen]]:
    """Serve the run in a process of its own; yields the port and the process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "faithmeter", "serve", str(run), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            while True:
                if server.poll() is not None:
                    raise SystemExit(f"`{' '.join(command)}` ended with code {server.returncode}.")
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                time.sleep(0.2)
            yield port, server
        finally:
            server.terminate()


@contextlib.contextmanager
def stalled(port: int) -> Iterator[None]:
    """Begin a question and never end it."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        head = "POST /explanations HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        connection.sendall(f'{head}Content-Length: 1000\r\n\r\n{{"text": "'.encode())
        yield


def resident_megabytes(process: int) -> float:
    """Return how much memory a process holds."""
    return int(subprocess.check_output(["ps", "-o", "rss=", "-p", str(process)])) / 1024


def main() -> None:
    """Serve, ask, count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60)
    arguments = parser.parse_args()
    tally, memory = Tally(), {}
    rows = len(Run(arguments.run).data().test)
    with serving(arguments.run) as (port, server), stalled(port):
        # the first answer fetches the model and the in-distribution test into memory
        Client(port, rows, time.monotonic(), 0, Tally()).ask_once(random.Random(0), leaves=False)
        started = time.monotonic()
        end = started + arguments.seconds
        clients = [Client(port, rows, end, number, tally) for number in range(arguments.clients)]
        threads = [threading.Thread(target=client.run) for client in clients]
        memory["start"] = resident_megabytes(server.pid)
        for thread in threads:
            thread.start()
        time.sleep(arguments.seconds / 2)
        memory["middle"] = resident_megabytes(server.pid)
        for thread in threads:
            thread.join()
        memory["end"] = resident_megabytes(server.pid)
        took = time.monotonic() - started
    for error in tally.errors:
        print(error, file=sys.stderr)
    median, late = np.percentile(tally.waits or [np.nan], (50, 95))
    print(
        f"{arguments.clients} clients, one more that stalled; {took:.0f} s\n"
        f"answers {len(tally.waits)}, left while waiting {tally.left}, errors {len(tally.errors)}\n"
        f"wait: median {median:.1f} s, 95th percentile {late:.1f} s\n"
        f"server's memory: {', '.join(f'{when} {megabytes:.0f} MB' for when, megabytes in memory.items())}"
    )
    sys.exit(bool(tally.errors) or not tally.waits)


if __name__ == "__main__":
    main()
