"""Time and memory of the main commands on a large file; exit code 1 if one needs more than 2 GB.

    python benchmarks/large_file.py                          # a csv of 1,000,000 rows of 20 words, 180 MB
    python benchmarks/large_file.py --rows 100000 --keep DIR

`train` learns from 2,000 of the rows for one epoch, with the tiniest model, and `check` and `measure --rows 200`
follow: all of the file is read, ordered and split by each. `all texts tokenised` is what a training on all rows begins
with; the training itself is not run here. Each is a process of its own. Time is the processor's; the peak is that of
the whole process, including libraries.
"""

import argparse
import csv
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

LIMIT = 2.0  # GB
FEW = ("--train-rows", "2000", "--validation-rows", "2000", "--test-rows", "2000")
TOKENISED = """
import sys
from faithmeter.data.splits import DataSpec, load_splits
from faithmeter.progress import Silent
from faithmeter.runs.texts import encode
from faithmeter.training.start import fresh_classifier
splits = load_splits(DataSpec(data=sys.argv[1]))
classifier = fresh_classifier("tiny", splits, seed=0, max_length=512)
kept = [encode(classifier, getattr(splits, part), part, Silent()) for part in ("train", "validation", "test")]
splits.fingerprint
"""


def write_table(path: Path, rows: int) -> None:
    """Write texts of 20 words, one of which tells the label."""
    draw, words = random.Random(0), [f"word{number}" for number in range(3000)]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for _ in range(rows):
            good, text = draw.random() < 0.5, draw.choices(words, k=19)
            text.insert(draw.randrange(20), "good" if good else "bad")
            writer.writerow([" ".join(text), "positive" if good else "negative"])


def measured(command: Sequence[str]) -> tuple[float, float]:
    """Return the processor seconds and the peak in GB of a command, which must succeed."""
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} ended with code {os.waitstatus_to_exitcode(status)}.")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1e6


def main() -> None:
    """Write the file, run the commands, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--keep", type=Path, help="A folder for the file and the run.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        data, run = folder / "large.csv", folder / "run"
        if not data.exists():
            write_table(data, options.rows)
        start = ("-m", "faithmeter")
        training = ("--model", "tiny", "--epochs", "1", "--no-curriculum", *FEW)
        jobs = {
            "train, 2,000 texts": (*start, "train", str(run), "--data", str(data), *training),
            "check": (*start, "check", str(run)),
            "measure --rows 200": (*start, "measure", str(run), "--rows", "200", "--workers", "1"),
            "all texts tokenised": ("-c", TOKENISED, str(data)),
        }
        print(f"{data.stat().st_size / 1e6:.0f} MB, {options.rows:,} rows")
        peaks = []
        for name, command in jobs.items():
            seconds, peak = measured(command)
            peaks.append(peak)
            print(f"{name:24} {seconds:7.1f} s {peak:6.2f} GB", flush=True)
    sys.exit(max(peaks) > LIMIT)


if __name__ == "__main__":
    main()
