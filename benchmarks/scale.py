"""How time and memory of `check` and `measure` grow: with the number of texts, their length, the classes, the workers.

    python benchmarks/scale.py                      # everything, under 8 minutes on one core
    python benchmarks/scale.py --only texts --repeats 3

Each point is a process of its own, a copy of one that has loaded the libraries. It first does a small job, so that what
is loaded and compiled once is not counted, and then the job that is measured. Points are visited in turn, those of the
number of texts as often as `--repeats` says and the others half as often, and the smallest time and peak of each are
kept: whatever else the machine does can only add to them. Time is that of the processor, but for the workers, where it
is the clock's and only the ratio is told: on a machine that does other work it means little.

Two peaks are told: that of the whole process (what a machine must have; it includes the libraries), whose exponent is
the claim, and that above the process as it was before its first job, whose growth a text is told in kB. The exponent is
the slope of a straight line through the logarithms, by least squares, with Student's 95 % interval; `last` is the slope
between the two largest points, where what costs the same at any size weighs least.
"""

import argparse
import json
import math
import multiprocessing
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from scipy import stats

from faithmeter import DataSpec
from faithmeter.models.from_scratch import small_classifier
from faithmeter.studies.adopt import adopt
from faithmeter.studies.check import check
from faithmeter.studies.measure import MeasureOptions, measure

WORDS = 500
TIME_LIMIT, MEMORY_LIMIT = 1.05, 0.05  # of the exponents in the number of texts


@dataclass(frozen=True)
class Point:
    """A job and the size of its data: `texts` test rows of `length` words each, with this many classes.

    The validation rows are the same along an axis, so that what is fitted on them is too.
    """

    job: str
    texts: int = 100
    length: int = 16
    classes: int = 2
    metric: str = "accuracy"
    validation: int = 250
    measures: tuple[str, ...] = ("x-grad-signed", "x-grad-abs")

    @property
    def data(self) -> str:
        """The name of the run that it works on."""
        return f"{self.texts}-{self.length}-{self.classes}-{self.metric}-{self.validation}"


TEXTS, LENGTHS, CLASSES, WORKERS = (
    (250, 500, 1000, 2000, 4000),
    (16, 32, 64, 128, 256, 510),
    (2, 8, 32, 64),
    (1, 2),
)
LOO = ("loo-signed",)
# axis -> what is measured along it -> its points
AXES: dict[str, dict[str, list[Point]]] = {
    "texts": {
        "check": [Point("check", texts=n) for n in TEXTS],
        "measure": [Point("measure", texts=n) for n in TEXTS],
    },
    "length": {
        "check": [Point("check", texts=32, length=n, validation=32) for n in LENGTHS],
        "measure": [Point("measure", texts=32, length=n, validation=32) for n in LENGTHS],
        "measure, leave-one-out": [Point("measure", texts=4, length=n, measures=LOO, validation=32) for n in LENGTHS],
    },
    "classes": {
        "check": [Point("check", classes=n, validation=64) for n in CLASSES],
        "measure": [Point("measure", classes=n, validation=64) for n in CLASSES],
        "measure, macro-f1": [Point("measure", classes=n, metric="macro-f1", validation=64) for n in CLASSES],
    },
}


# ------------------------------------------------------------------------------------------------ in a process


def prepare(folder: Path, points: list[Point]) -> None:
    """Make a run of a tiny encoder with random weights for each size of data, checked and not."""
    words = [f"w{number}" for number in range(WORDS)]
    for point in {point.data: point for point in points}.values():
        home = folder / point.data
        labels = [f"c{number:02}" for number in range(point.classes)]
        files = {part: str(home / f"{part}.jsonl") for part in ("train", "validation", "test")}
        spec = DataSpec(
            metric=point.metric, data=files["train"], validation_data=files["validation"], test_data=files["test"]
        )
        home.mkdir(parents=True)
        rows = {"train": 2 * point.classes, "validation": point.validation, "test": point.texts}
        for number, (part, count) in enumerate(rows.items()):
            random = np.random.default_rng([number, point.length, point.classes])
            with Path(files[part]).open("w") as file:
                for row in range(count):
                    text = " ".join(random.choice(words, point.length))
                    file.write(json.dumps({"text": text, "label": labels[row % point.classes]}) + "\n")
        small_classifier(words, labels, shape="tiny", max_length=512).save(home / "model")
        adopt(home / "run", str(home / "model"), spec, masked_before=True)
        shutil.copytree(home / "run", home / "checked")
        if any(other.job == "measure" and other.data == point.data for other in points):
            check(home / "checked")


def work(folder: Path, point: Point) -> None:
    """Do the job of a point on a copy of its run."""
    with tempfile.TemporaryDirectory(dir=folder) as copy:
        run = Path(copy) / "run"
        shutil.copytree(folder / point.data / ("run" if point.job == "check" else "checked"), run)
        if point.job == "check":
            check(run)
        else:
            measure(run, MeasureOptions(measures=point.measures, random_runs=1))


def memory(which: str) -> float:
    """Return the memory of this process in MB: as it is (`VmRSS`), or at most since `forget_peak` (`VmHWM`).

    Not `getrusage`: its peak begins with that of the process that started this one.
    """
    found = [line.split() for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(which)]
    return int(found[0][1]) / 1024


def forget_peak() -> None:
    """Let the peak begin anew from here."""
    Path("/proc/self/clear_refs").write_text("5")


def measure_point(folder: Path, point: Point) -> dict[str, float]:
    """Return the processor time of a job, the peak of the process and how much of it came with the jobs."""
    before = memory("VmRSS")
    work(folder, Point(point.job, texts=32, measures=point.measures))
    forget_peak()
    started = time.process_time()
    work(folder, point)
    return {"seconds": time.process_time() - started, "peak": memory("VmHWM"), "above": memory("VmHWM") - before}


# --------------------------------------------------------------------------------------------------- all of them


def apart(work: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401 (whatever it returns)
    """Return what a function returns in a new process, a copy of this one, which has loaded the libraries and no more.

    A process begun from nothing would spend longer on loading them than on most of the points.
    """

    def answer(pipe: Connection) -> None:
        pipe.send(work(*arguments))

    here, there = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=answer, args=(there,))
    process.start()
    there.close()
    try:
        return here.recv()
    except EOFError:
        raise SystemExit(f"{work.__name__} of {arguments[1:]} failed, as said above.") from None
    finally:
        process.join()


def exponent(sizes: list[float], values: list[float]) -> dict[str, float]:
    """Return the slope of the logarithms with Student's 95 % interval, and that between the two largest sizes."""
    x, y = np.log(sizes), np.log(values)
    fitted = stats.linregress(x, y)
    half = stats.t.ppf(0.975, len(x) - 2) * fitted.stderr
    last = (y[-1] - y[-2]) / (x[-1] - x[-2])
    return {"slope": float(fitted.slope), "low": float(fitted.slope - half), "high": float(fitted.slope + half),
            "last": float(last)}  # fmt: skip


def size_of(axis: str, point: Point) -> int:
    """Return how large a point is along an axis."""
    return int(getattr(point, axis))


def measured(axes: list[str], repeats: int, folder: Path) -> dict[str, Any]:
    """Measure every point, all of them in turn, `repeats` times; return the smallest time and peak of each."""
    points = list(dict.fromkeys(point for axis in axes for series in AXES[axis].values() for point in series))
    asked = [*points, *(Point(job, texts=32) for job in ("check", "measure"))]
    apart(prepare, folder, asked)
    often = [point for series in AXES["texts"].values() for point in series]
    best: dict[Point, dict[str, float]] = {}
    for turn in range(repeats):
        for number, point in enumerate(points):
            if turn % 2 and point not in often:
                continue
            found = apart(measure_point, folder, point)
            best[point] = {key: min(value, best.get(point, found)[key]) for key, value in found.items()}
            print(
                f"\r{turn * len(points) + number + 1} of {repeats * len(points)}", end="", file=sys.stderr, flush=True
            )
    print(file=sys.stderr)
    series = {}
    for axis in axes:
        for name, along in AXES[axis].items():
            sizes = [float(size_of(axis, point)) for point in along]
            columns = {key: [best[point][key] for point in along] for key in ("seconds", "peak", "above")}
            series[f"{name} / {axis}"] = {
                "sizes": sizes,
                **columns,
                "time exponent": exponent(sizes, columns["seconds"]),
                "memory exponent": exponent(sizes, columns["peak"]),
                "kB a unit": 1024 * float(stats.linregress(sizes, columns["peak"]).slope),
            }
    return series


def workers(folder: Path, repeats: int) -> dict[str, Any]:
    """Return the shortest wall time of a small suite with one worker and with two, and their ratio."""
    suite = folder / "growth.toml"
    suite.write_text(
        'models = ["tiny"]\nseeds = [0, 1]\nshards = 4\n[[tasks]]\ntask = "babi-1"\ntrain_rows = 200\n'
        "validation_rows = 100\ntest_rows = 40\n[training]\nepochs = 1\ncurriculum = false\n"
        '[measure]\nmeasures = ["ig-signed", "loo-signed"]\nrandom_runs = 2\n'
    )
    seconds: dict[int, list[float]] = {count: [] for count in WORKERS}
    for turn in range(repeats):
        for count in WORKERS:
            out, started = folder / f"suite-{turn}-{count}", time.perf_counter()
            command = ["bench-suite", str(suite), str(out), "--engine", "processes", "--workers", str(count),
                       "--no-estimate"]  # fmt: skip
            done = subprocess.run([sys.executable, "-m", "faithmeter", *command], capture_output=True, check=False)
            if done.returncode:
                raise SystemExit(done.stderr.decode()[-2000:])
            seconds[count].append(time.perf_counter() - started)
            shutil.rmtree(out)
    least = {count: min(found) for count, found in seconds.items()}
    return {"workers": list(WORKERS), "wall seconds": list(least.values()), "ratio": least[1] / least[2]}


def as_markdown(series: dict[str, Any], ratio: dict[str, Any] | None) -> str:
    """Return the tables: each point, and the exponents."""
    lines = []
    for name, found in series.items():
        lines += [f"| {name} | {' | '.join(f'{size:g}' for size in found['sizes'])} |"]
        lines += ["|---|" + "---|" * len(found["sizes"])]
        lines += [f"| processor seconds | {' | '.join(f'{value:.2f}' for value in found['seconds'])} |"]
        for key, words in (("peak", "peak of the process, MB"), ("above", "of it with the jobs, MB")):
            lines += [f"| {words} | {' | '.join(f'{value:.0f}' for value in found[key])} |"]
        lines += [""]
    lines += [
        "| growth | exponent of time | last | exponent of memory | last | kB a unit |",
        "|---|---|---|---|---|---|",
    ]
    for name, found in series.items():
        cells = []
        for kind in ("time exponent", "memory exponent"):
            fit = found[kind]
            cells += [f"{fit['slope']:.2f} ({fit['low']:.2f} to {fit['high']:.2f})", f"{fit['last']:.2f}"]
        lines += [f"| {name} | {' | '.join(cells)} | {found['kB a unit']:.1f} |"]
    if ratio is not None:
        walls = " and ".join(f"{value:.0f} s" for value in ratio["wall seconds"])
        lines += ["", f"A suite with 1 and 2 workers: {walls}, {ratio['ratio']:.2f} times as fast."]
    return "\n".join(lines)


def too_steep(series: dict[str, Any]) -> list[str]:
    """Return which exponents in the number of texts are above their limits."""
    limits = {"time exponent": TIME_LIMIT, "memory exponent": MEMORY_LIMIT}
    return [
        f"{name}: {kind} {found[kind]['slope']:.3f} is above {limit}"
        for name, found in series.items()
        if name.endswith("/ texts")
        for kind, limit in limits.items()
        if not math.isfinite(found[kind]["slope"]) or found[kind]["slope"] > limit
    ]


def main() -> None:
    """Measure, print and write; the exit code is 1 where an exponent in the number of texts is above its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=(*AXES, "workers"), action="append", help="an axis; all by default")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("build/scale.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    chosen = options.only or [*AXES, "workers"]
    with tempfile.TemporaryDirectory() as folder:
        axes = [axis for axis in AXES if axis in chosen]
        series = measured(axes, options.repeats, Path(folder)) if axes else {}
        ratio = workers(Path(folder), max(1, options.repeats // 2)) if "workers" in chosen else None
    print(as_markdown(series, ratio))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"series": series, "workers": ratio}, indent=2) + "\n", encoding="utf-8")
    steep = too_steep(series)
    if steep:
        raise SystemExit("\n".join(steep))


if __name__ == "__main__":
    main()
