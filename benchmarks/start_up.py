"""How long until there is an answer? Processor seconds of short commands and of the page; exit code 1 over a budget.

    python benchmarks/start_up.py                # trains a small model on 400 generated sentences first
    python benchmarks/start_up.py --run RUN      # of a run that is there already

Each command is a process of its own, started `--repeats` times; the median counts, with the smallest and the largest.
Time is the processor's, of the process and its children, so that a busy machine does not change the verdict. Of the
page it is what the server spends from when it can be reached until the answer is there.
"""

import argparse
import http.client
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from web_load import Client, serving

WORDS = ("film", "story", "actor", "plot", "very", "not", "the", "a", "it", "was")
SENTENCE = "it was a very good film , the actor not so much , but the story and the plot were"


@dataclass(frozen=True)
class Timed:
    """A command, the processor seconds that it may take, and the code that it ends with."""

    name: str
    arguments: Sequence[str]
    budget: float
    code: int = 0


def commands(run: Path, data: Path) -> list[Timed]:
    """Return what is timed: help, one text explained, and what is refused."""
    return [
        Timed("--help", ["--help"], 0.3),
        Timed("explain --help", ["explain", "--help"], 0.4),
        Timed("explain, one text", ["explain", str(run), "a good film"], 3.0),
        Timed("explain, a measure that is none", ["explain", str(run), "a good film", "--measure", "loo"], 1.0, 2),
        Timed("explain, not a run", ["explain", "no-run", "a good film"], 1.0, 2),
        Timed("train, a column that is missing", ["train", "new", "--data", str(data), "--text", "review"], 1.0, 2),
        Timed("train, a file that is missing", ["train", "new", "--data", "missing.csv"], 1.0, 2),
        Timed("train, a strategy that is none", ["train", "new", "--data", str(data), "--strategy", "x"], 1.0, 2),
        Timed("measure, not a run", ["measure", "no-run"], 1.0, 2),
        Timed("serve, not a run", ["serve", "no-run"], 1.0, 2),
    ]


def cpu_seconds_of(arguments: Sequence[str], code: int = 0) -> float:
    """Return the processor seconds of one command in a process of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-m", "faithmeter", *arguments], capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != code:
        raise SystemExit(f"faithmeter {' '.join(arguments)} ended with code {done.returncode}: {done.stderr}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def spent(process: int) -> float:
    """Return the processor seconds of a running process so far."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def page_seconds(run: Path) -> tuple[float, float]:
    """Return the server's processor seconds for its first answer, and for leave-one-out on a sentence after that."""
    with serving(run) as (port, server):
        started = spent(server.pid)
        ask(port, ["grad-l2"])
        first = spent(server.pid)
        ask(port, ["loo-signed"])
        return first - started, spent(server.pid) - first


def ask(port: int, measures: list[str]) -> None:
    """Have the sentence explained, as the page does."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        question = {"text": SENTENCE, "context": None, "measures": measures}
        job = Client.call(connection, "POST", "/explanations", question)["job"]
        while (found := Client.call(connection, "GET", f"/explanations/{job}"))["state"] == "running":
            time.sleep(0.1)
    if found["state"] != "done":
        raise SystemExit(f"The page answered {found['state']}: {found['error']}")


def made_run(folder: Path) -> Path:
    """Train and check a small model on generated sentences, as small as a model of this kind can be."""
    draw, lines = random.Random(0), ["text,label"]
    for number in range(400):
        words = [*draw.choices(WORDS, k=3), "good" if number % 2 else "bad"]
        draw.shuffle(words)
        lines.append(f"{' '.join(words)},{'positive' if number % 2 else 'negative'}")
    data, run = folder / "sentences.csv", folder / "run"
    data.write_text("\n".join(lines) + "\n", encoding="utf-8")
    asked = ("--epochs", "2", "--no-curriculum", "--learning-rate", "2e-3", "--batch-size", "16")
    cpu_seconds_of(["train", str(run), "--data", str(data), "--model", "small", *asked])
    cpu_seconds_of(["check", str(run)])
    return run


def main() -> None:
    """Time everything, print a table, and fail over a budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    late = False
    with tempfile.TemporaryDirectory() as folder:
        run = options.run or made_run(Path(folder))
        data = Path(folder) / "few.csv"
        data.write_text("text,label\ngood,positive\nbad,negative\n", encoding="utf-8")
        print(f"{'processor seconds':40} median  least   most budget")
        rows = [
            (one.name, one.budget, [cpu_seconds_of(one.arguments, one.code) for _ in range(options.repeats)])
            for one in commands(run, data)
        ]
        first, after = zip(*(page_seconds(run) for _ in range(options.repeats)), strict=True)
        rows += [("page, first answer (grad-l2)", 1.0, list(first)), ("page, loo-signed after that", 0.3, list(after))]
    for name, budget, seconds in rows:
        median = statistics.median(seconds)
        late |= median > budget
        told = "  over its budget" if median > budget else ""
        print(f"{name:40} {median:6.2f} {min(seconds):6.2f} {max(seconds):6.2f} {budget:6.1f}{told}")
    sys.exit(late)


if __name__ == "__main__":
    main()
