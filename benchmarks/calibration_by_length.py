"""Level of the in-distribution test by length of text, and its power, fitted on 50 to 2,000 texts; many resplits.

    python benchmarks/calibration_by_length.py FOLDER                  # bAbI-1, small encoder
    python benchmarks/calibration_by_length.py FOLDER --data-dir DIR   # SST2, MiniLM, with the files of DIR/sst2

FOLDER holds the runs of `in_distribution.py`, which are trained where missing (bAbI) or come from
`masked_performance.py` (SST2). Features are computed once; each resplit draws other texts to fit on and to test, cut
between stories.

Printed, in per cent of texts with p ≤ .05, mean over resplits and in brackets their standard deviation:
level    random masking of the masked model, in each fifth of length and in all: calibrated together, as before
         (`one group`), in three groups of length, and in five (the default)
power    random words in place of masks, and a plain model's masked texts against its own unmasked ones, with each
outside  unmasked texts judged at other ratios: the larger of own and mixture, as before, and the largest of all
behaves  what the masked and the plain model do with everything masked
"""

import argparse
from collections import defaultdict
from pathlib import Path
from unittest import mock

import numpy as np
import torch
import transformers
from in_distribution import TESTED, babi, sst2
from torch import Tensor

from faithmeter import Run
from faithmeter.in_distribution import masf
from faithmeter.in_distribution.behaviour import all_masked
from faithmeter.in_distribution.masf import LEVEL, MaSF, fit_calibrated, masked_at_random, step_features
from faithmeter.in_distribution.power import random_words
from faithmeter.masking import random_stream
from faithmeter.models.classifier import Classifier

STEPS = (0, 1, 5, 10)
FIFTHS = 5
GROUPS = (1, 3, 5)
Table = dict[tuple[str, str], list[list[float]]]


def share(p_values: Tensor) -> float:
    """Return the per cent of p-values at or below 5 %."""
    return 100 * float((p_values <= LEVEL).double().mean())


def fitted(features: list[Tensor], lengths: Tensor, groups: Tensor, seed: int, count: int) -> MaSF:
    """Return the test calibrated in at most `count` groups of length."""
    with mock.patch.object(masf, "LENGTH_GROUPS", count):
        return fit_calibrated(features, lengths, steps=len(features), seed=seed, groups=groups)


def resplit(number: int, size: int, tested: int, lengths: Tensor, sources: Tensor) -> tuple[Tensor, Tensor]:
    """Return the texts to fit on and those to test, no story in both."""
    order = random_stream(number, TESTED).permutation(int(sources.max()) + 1)
    rows = torch.from_numpy(np.argsort(np.argsort(order)[sources.numpy()], kind="stable"))
    return rows[:size], rows[-min(tested, len(lengths) - size) :]


def by_fifth(p_values: Tensor, fifths: Tensor) -> list[float]:
    """Return the shares at or below 5 % in every fifth of length, and in all."""
    return [share(p_values[fifths == fifth]) for fifth in range(FIFTHS)] + [share(p_values)]


def level_and_power(
    data: dict[str, list[Tensor]], lengths: Tensor, sources: Tensor, sizes: list[int], resplits: int, tested: int
) -> None:
    """Print level by fifth of length, and power, for each number of validation texts."""
    edges = torch.quantile(lengths.double(), torch.tensor([0.2, 0.4, 0.6, 0.8], dtype=torch.float64))
    fifths = torch.bucketize(lengths.double(), edges)
    for size in sizes:
        table: Table = defaultdict(list)
        for number in range(resplits):
            fit, fresh = resplit(number, size, tested, lengths, sources)
            rows = torch.arange(len(fresh))

            def judged(
                test: MaSF, features: Tensor, step: int, fresh: Tensor = fresh, rows: Tensor = rows
            ) -> list[float]:
                return by_fifth(test.p_values(features[fresh], lengths[fresh], rows, step)[0], fifths[fresh])

            for count in GROUPS:
                name = f"{count} group{'s' if count > 1 else ''}"
                test = fitted([f[fit] for f in data["masked"]], lengths[fit], sources[fit], number, count)
                plain = fitted([data["plain"][0][fit]], lengths[fit], sources[fit], number, count)
                for at, step in enumerate(STEPS):
                    table[f"level, {10 * step} %", name].append(judged(test, data["masked"][at], at))
                    if step:
                        table[f"words, {10 * step} %", name].append(judged(test, data["words"][at], at))
                        table[f"plain, {10 * step} %", name].append(judged(plain, data["plain"][at], at))
        print(f"\n{size} validation texts, {resplits} resplits, {tested} tested texts: fifths of length, and all")
        for (what, name), found in sorted(table.items()):
            cells = zip(np.mean(found, axis=0), np.std(found, axis=0), strict=True)
            print(f"| {what} | {name} | " + " | ".join(f"{mean:.1f} ({std:.1f})" for mean, std in cells) + " |")


def outside(classifier: Classifier, lengths: Tensor, sources: Tensor, encoded: object, size: int) -> None:
    """Print how many unmasked texts are called out-of-distribution at other ratios, by the old rule and the new."""
    fit, fresh = resplit(0, size, 1000, lengths, sources)
    features = list(step_features(classifier, encoded, seed=TESTED))  # type: ignore[arg-type]
    test = fit_calibrated((f[fit] for f in features), lengths[fit], groups=sources[fit])
    table = test.p_value_table(features[0][fresh], lengths[fresh], torch.arange(len(fresh)))
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
    parser.add_argument("--sizes", default="50,100,300,2000", help="validation texts")
    parser.add_argument("--resplits", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if options.data_dir is None:
        masked, plain, texts, questions = babi(options.folder, options.seed, options.rows)
    else:
        masked, plain, texts, questions = sst2(options.folder, options.seed, options.rows, options.data_dir)
    encoded = masked.encode(texts, questions)
    lengths, sources = torch.from_numpy(encoded.lengths), torch.from_numpy(encoded.sources())
    at_random = [masked_at_random(encoded, step, (0, TESTED)) for step in STEPS]
    data = {
        "masked": [masked.features(split) for split in at_random],
        "words": [masked.features(random_words(masked, split)) for split in at_random],
        "plain": [plain.features(split) for split in at_random],
    }
    sizes = [int(size) for size in options.sizes.split(",")]
    level_and_power(data, lengths, sources, sizes, options.resplits, options.tested)
    outside(masked, lengths, sources, encoded, max(sizes))
    task = "babi" if options.data_dir is None else "sst2"
    for strategy, classifier in (("masked", masked), ("plain", plain)):
        run = Run(options.folder / f"{task}-{strategy}-{options.seed}")
        splits = run.data()
        contexts = splits.test["context"] if "context" in splits.test.column_names else None
        test = classifier.encode(splits.test["text"], contexts, splits.test["label"])
        print(strategy, all_masked(classifier, test, splits.train["label"], run.config.metric))


if __name__ == "__main__":
    main()
