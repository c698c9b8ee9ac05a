"""What measuring in 16 bits gains and changes on a run: time, ranks of tokens, ACU and RACU; one core, CPU time.

    python benchmarks/precision.py RUN --rows 60

RUN stays as it is: two copies of it are measured on the same texts, in float32 and in bfloat16. The difference of a
measure's ACU is paired by text, with a 95 % interval; ranks are compared on the unmasked texts. Printed as Markdown.
"""

import argparse
import shutil
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from scipy.stats import spearmanr
from timing import cpu_seconds, processor_name

from faithmeter import IMPORTANCE_MEASURES, MeasureOptions, Run, measure
from faithmeter.data.batch import Encoded, Ints
from faithmeter.models.classifier import Classifier
from faithmeter.progress import Silent
from faithmeter.runs.measurements import read_measurement
from faithmeter.runs.results import find
from faithmeter.runs.texts import encode
from faithmeter.statistics import mean_interval
from faithmeter.studies.measure import DTYPES, FLOAT32
from faithmeter.studies.until_certain import scores_on

MEASURES = ("loo-signed", "loo-abs", "lime", "kernel-shap", "grad-l2", "x-grad-signed")


def ranks_agree(classifier: Classifier, test: Encoded, rows: Ints, name: str, dtype: str) -> list[float]:
    """Return for each text the rank correlation of the tokens' importance in float32 and in another precision."""
    explain, found = IMPORTANCE_MEASURES[name].explain, []
    for kind in (FLOAT32, dtype):
        classifier.model.to(DTYPES[kind])
        batches = [test.batch([row]) for row in rows]
        found.append([explain(classifier, one, one.labels, 0)[one.maskable].float().numpy() for one in batches])
    classifier.model.to(torch.float32)
    return [float(spearmanr(one, other)[0]) for one, other in zip(*found, strict=True) if len(one) > 1]


def main() -> None:
    """Measure twice and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--rows", type=int, default=60)
    parser.add_argument("--dtype", default="bfloat16", choices=[name for name in DTYPES if name != FLOAT32])
    parser.add_argument("--measures", default=",".join(MEASURES))
    given = parser.parse_args()
    torch.set_num_threads(1)
    names = given.measures.split(",")
    print(f"{processor_name()}, {given.rows} texts, {given.dtype} against {FLOAT32}\n")
    with TemporaryDirectory() as folder:
        seconds, runs = dict[str, list[float]](), dict[str, Run]()
        for dtype in (FLOAT32, given.dtype):
            path = Path(folder) / dtype
            shutil.copytree(given.run, path, ignore=shutil.ignore_patterns("measurements", "observations*"))
            for name in names:
                asked = MeasureOptions(measures=(name,), rows=given.rows, dtype=dtype)
                seconds.setdefault(name, []).append(cpu_seconds(partial(measure, path, asked, workers=1)))
            runs[dtype] = Run(path)
        classifier = runs[FLOAT32].classifier()
        test = encode(classifier, runs[FLOAT32].data().test, "test", Silent())
        rows = read_measurement(runs[FLOAT32], "random.0", ("row",))["row"][:, 0]
        scores = {dtype: scores_on(run, test, names, rows) for dtype, run in runs.items()}
        print("| measure | times as fast | ranks of tokens agree, mean (least) | ACU | RACU | change of ACU |")
        print("|---|---|---|---|---|---|")
        for place, name in enumerate(names):
            agree = ranks_agree(classifier, test, rows, name, given.dtype)
            change = scores[given.dtype][:, place] - scores[FLOAT32][:, place]
            low, high = mean_interval(change) or (np.nan, np.nan)
            acu, racu = (
                " / ".join(f"{find(run.results, kind, measure=name)['value']:.3f}" for run in runs.values())
                for kind in ("acu", "racu")
            )
            print(
                f"| {name} | {seconds[name][0] / seconds[name][1]:.2f} | {np.mean(agree):.3f} ({min(agree):.3f}) | "
                f"{acu} | {racu} | {change.mean():+.4f} ({low:+.4f} to {high:+.4f}) |",
                flush=True,
            )


if __name__ == "__main__":
    main()
