"""Level of the in-distribution test by length of text, and its power, fitted on 50 to 2,000 texts; many resplits.

    python benchmarks/calibration_by_length.py FOLDER                  # bAbI-1, small encoder
    python benchmarks/calibration_by_length.py FOLDER --data-dir DIR   # SST2, MiniLM, with the files of DIR/sst2

FOLDER holds the runs of `in_distribution.py`, which are trained where missing (bAbI) or come from
`masked_performance.py` (SST2). Features are computed once; each resplit draws other texts to fit on and to test, cut
between stories.

Printed as Markdown, in per cent of texts with p ≤ .05, mean over resplits and in brackets their standard deviation, in
every fifth of length and in all:
level    random masking of the masked model
words    random words in place of masks
plain    a plain model's masked texts against its own unmasked ones
each with all texts calibrated together, as before, and by length. Then unmasked texts judged at other ratios, by the
larger of own and mixture, as before, and by the largest of all; and what both models do with everything masked.
"""

import argparse
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import transformers
from in_distribution import TESTED, babi, sst2
from torch import Tensor

from faithmeter import Run
from faithmeter.data.batch import Encoded
from faithmeter.in_distribution.behaviour import all_masked
from faithmeter.in_distribution.masf import MaSF, fit_calibrated, masked_at_random, step_features
from faithmeter.in_distribution.power import random_words
from faithmeter.masking import random_stream
from faithmeter.models.classifier import Classifier
from faithmeter.progress import Silent
from faithmeter.runs.texts import encode
from faithmeter.statistics import LEVEL

FIFTHS = 5


def share(p_values: Tensor) -> float:
    """Return the per cent of p-values at or below 5 %."""
    return 100 * float((p_values <= LEVEL).double().mean())


def together(test: MaSF) -> MaSF:
    """Return the test with all its texts calibrated together."""
    references = [
        replace(one, atypicality=one.atypicality.sort().values, sizes=one.sizes.sum()[None])
        for (one,) in test.references
    ]
    return replace(test, references=tuple((one,) for one in references), length_edges=())


def resplit(number: int, size: int, tested: int, sources: Tensor) -> tuple[Tensor, Tensor]:
    """Return the texts to fit on and those to test, no story in both."""
    order = random_stream(number, TESTED).permutation(int(sources.max()) + 1)
    rows = torch.from_numpy(np.argsort(np.argsort(order)[sources.numpy()], kind="stable"))
    before, after = rows[:size], rows[size:]
    return before, after[~torch.isin(sources[after], sources[before])][:tested]


def table_of(
    data: dict[str, list[Tensor]], lengths: Tensor, sources: Tensor, size: int, options: argparse.Namespace
) -> dict[tuple[str, str], list[list[float]]]:
    """Return the shares in every fifth of length and in all, a line a resplit."""
    edges = torch.quantile(lengths.double(), torch.arange(1, FIFTHS, dtype=torch.float64) / FIFTHS)
    fifths = torch.bucketize(lengths.double(), edges)
    table: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
    for number in range(options.resplits):
        fit, fresh = resplit(number, size, options.tested, sources)
        given = {"seed": number, "groups": sources[fit]}
        masked = fit_calibrated((f[fit] for f in data["masked"]), lengths[fit], steps=len(options.steps), **given)
        plain = fit_calibrated([data["plain"][0][fit]], lengths[fit], steps=1, **given)
        for at, step in enumerate(options.steps):
            own = replace(masked, references=(masked.references[at],), anywhere=())
            tests = [("level", own, "masked")]
            tests += [("words", own, "words"), ("plain", plain, "plain")] if step else []
            for what, test, texts in tests:
                for name, asked in (("together", together(test)), ("by length", test)):
                    features, rows = data[texts][at][fresh], torch.arange(len(fresh))
                    p_values = asked.p_values(features, lengths[fresh], rows, 0)[0]
                    shares = [share(p_values[fifths[fresh] == fifth]) for fifth in range(FIFTHS)]
                    table[f"{what}, {10 * step} %", name].append([*shares, share(p_values)])
    return table


def print_outside(classifier: Classifier, encoded: Encoded, size: int, tested: int) -> None:
    """Print how many unmasked texts are called out-of-distribution at other ratios, by the old rule and the new."""
    lengths, sources = torch.from_numpy(encoded.lengths), torch.from_numpy(encoded.sources())
    fit, fresh = resplit(0, size, tested, sources)
    features = (step[fit] for step in step_features(classifier, encoded, seed=TESTED))
    test = fit_calibrated(features, lengths[fit], groups=sources[fit])
    table = test.p_value_table(classifier.features(encoded)[fresh], lengths[fresh], torch.arange(len(fresh)))
    print("\n| unmasked texts judged at | larger of own and mixture | largest of all |\n|---|---|---|")
    for step in range(2, 9):
        print(
            f"| {10 * step} % | {share(torch.maximum(table[step], table[-1])):.1f} | {share(table.amax(dim=0)):.1f} |"
        )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data-dir", help="judge MiniLM on SST2 of this folder instead of bAbI")
    parser.add_argument("--seed", type=int, default=0, help="model seed")
    parser.add_argument("--rows", type=int, default=4000, help="texts in all")
    parser.add_argument("--tested", type=int, default=1000, help="tested texts in each resplit")
    parser.add_argument("--sizes", type=int, nargs="+", default=[50, 100, 300, 2000], help="validation texts")
    parser.add_argument("--steps", type=int, nargs="+", default=[0, 1, 5, 10], help="masking steps, from 0 on")
    parser.add_argument("--resplits", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if options.data_dir is None:
        masked, plain, texts, questions = babi(options.folder, options.seed, options.rows)
    else:
        masked, plain, texts, questions = sst2(options.folder, options.seed, options.rows, options.data_dir)
    task = "babi" if options.data_dir is None else "sst2"
    for strategy, classifier in (("masked", masked), ("plain", plain)):
        run = Run(options.folder / f"{task}-{strategy}-{options.seed}")
        splits = run.data()
        test = encode(classifier, splits.test, "test", Silent())
        print(strategy, all_masked(classifier, test, splits.train["label"], run.config.metric), flush=True)
    encoded = masked.encode(texts, questions)
    lengths, sources = torch.from_numpy(encoded.lengths), torch.from_numpy(encoded.sources())
    at_random = [masked_at_random(encoded, step, (0, TESTED)) for step in options.steps]
    data = {
        "masked": [masked.features(split) for split in at_random],
        "words": [masked.features(random_words(masked, split)) for split in at_random],
        "plain": [plain.features(split) for split in at_random],
    }
    print("\n| validation texts | texts | calibrated | shortest | 2nd | 3rd | 4th | longest | all |")
    print("|---|---|---|---|---|---|---|---|---|")
    for size in options.sizes:
        for (what, name), found in table_of(data, lengths, sources, size, options).items():
            cells = zip(np.mean(found, axis=0), np.std(found, axis=0), strict=True)
            shown = " | ".join(f"{mean:.1f} ({spread:.1f})" for mean, spread in cells)
            print(f"| {size} | {what} | {name} | {shown} |", flush=True)
    print_outside(masked, encoded, max(options.sizes), options.tested)


if __name__ == "__main__":
    main()
