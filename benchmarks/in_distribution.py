"""Level and power of the in-distribution test: a masked and a plain model, fresh rows, five resplits.

    python benchmarks/in_distribution.py FOLDER                  # bAbI-1, small encoder
    python benchmarks/in_distribution.py FOLDER --data-dir DIR   # SST2, MiniLM, with the files of DIR/sst2

FOLDER holds the runs babi-masked-SEED and babi-plain-SEED, which are trained where missing, or sst2-masked-SEED and
sst2-plain-SEED, which `masked_performance.py` trains. Fresh rows are rows that no training saw.

Printed for every masking ratio, in per cent of fresh rows with p ≤ .05:
level    random masking of the masked model: `calibrated` at the rows' own ratio, `outside` (that, and atypical among
         rows of any ratio), and the `paper` form
power    a plain model's masked rows against its own unmasked rows; random words in place of mask tokens
verdict  in how many of the resplits the whole split is rejected (at its ratio, and outside)
"""

import argparse
import dataclasses
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
import transformers

from faithmeter import DataSpec, Run, TrainingOptions, train
from faithmeter.data.babi import generate
from faithmeter.data.batch import Encoded
from faithmeter.data.splits import load_splits
from faithmeter.in_distribution.masf import MaSF, fit_calibrated, fit_paper, masked_at_random, step_features
from faithmeter.in_distribution.verdict import dataset_verdict
from faithmeter.masking import random_stream
from faithmeter.models.classifier import Classifier
from faithmeter.training.strategy import masked_copy

STEPS = range(11)
WORDS, TESTED = 91, 92  # purposes of random streams
Table = dict[str, list[list[float]]]


def babi(folder: Path, seed: int, rows: int) -> tuple[Classifier, Classifier, list[str], list[str] | None]:
    """Return the masked and the plain model, trained first if they are not there, and fresh stories and questions."""
    for strategy in ("masked", "plain"):
        path = folder / f"babi-{strategy}-{seed}"
        if not path.exists():
            train(path, DataSpec(task="babi-1"), "small", TrainingOptions(strategy=strategy, seed=seed))
    masked, plain = (Run(folder / f"babi-{strategy}-{seed}").classifier() for strategy in ("masked", "plain"))
    stories = generate(1, rows, seed=1000 + seed)
    return masked, plain, [" ".join(row["context"]) for row in stories], [row["question"] for row in stories]


def sst2(
    folder: Path, seed: int, rows: int, data_dir: str
) -> tuple[Classifier, Classifier, list[str], list[str] | None]:
    """Return the masked and the plain model, and sentences of the validation split that picked no epoch of theirs."""
    runs = [Run(folder / f"sst2-{strategy}-{seed}") for strategy in ("masked", "plain")]
    seen = set(runs[0].data().validation["text"])
    every = load_splits(DataSpec(task="sst2", data_dir=data_dir)).validation["text"]
    texts = [text for text in every if text not in seen]
    chosen = random_stream(0, TESTED, len(texts)).permutation(len(texts))[:rows]
    return runs[0].classifier(), runs[1].classifier(), [texts[i] for i in chosen], None


def random_words(classifier: Classifier, encoded: Encoded) -> Encoded:
    """Return the split with random words where tokens are masked."""
    words = np.setdiff1d(np.arange(len(classifier.tokenizer)), classifier.tokenizer.all_special_ids)
    drawn = random_stream(0, WORDS).choice(words, size=len(encoded.ids))
    return dataclasses.replace(encoded, ids=np.where(encoded.masked, drawn, encoded.ids), masked=encoded.masked & False)


def add(table: Table, name: str, masf: MaSF, features: torch.Tensor, lengths: torch.Tensor, step: int) -> None:
    """Judge one split and note the shares of rows below 5 % and the verdict."""
    own, outside = masf.p_values(features, lengths, torch.arange(len(features)), step)
    table[name][-1].append(float((own <= 0.05).double().mean()))
    if masf.form == "paper":
        return
    verdict = dataset_verdict(masf, own, outside, lengths, step)
    table[f"{name}, verdict"][-1].append(float(verdict.random.rejected))
    if masf.anywhere:
        table[f"{name}, outside"][-1].append(float((outside <= 0.05).double().mean()))
        table[f"{name}, verdict outside"][-1].append(float(verdict.anywhere.rejected))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data-dir", help="judge MiniLM on SST2 of this folder instead of bAbI")
    parser.add_argument("--seed", type=int, default=0, help="model seed")
    parser.add_argument("--rows", type=int, default=2000, help="validation rows")
    parser.add_argument("--fresh", type=int, default=1000, help="tested rows")
    parser.add_argument("--resplits", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    wanted = options.rows + options.fresh
    if options.data_dir is None:
        masked, plain, texts, questions = babi(options.folder, options.seed, wanted)
    else:
        masked, plain, texts, questions = sst2(options.folder, options.seed, wanted, options.data_dir)
    encoded = masked.encode(texts, questions)
    lengths = torch.from_numpy(encoded.lengths)
    features = list(step_features(masked, encoded, seed=TESTED))
    words = [masked.features(random_words(masked, masked_at_random(encoded, k, (0, TESTED)))) for k in STEPS]
    plain_features = list(step_features(plain, plain.encode(texts, questions), seed=TESTED))
    as_in_training = masked.features(masked_copy(encoded, mask_context=False, seed=0))
    as_in_training[::2] = features[0][::2]  # half of a mini-batch is not masked
    table: Table = defaultdict(list)
    for resplit in range(options.resplits):
        order = torch.from_numpy(random_stream(resplit, TESTED).permutation(len(texts)))
        reference, fresh = order[: options.rows], order[options.rows :]
        calibrated = fit_calibrated((f[reference] for f in features), lengths[reference], seed=resplit)
        own_unmasked = fit_calibrated([plain_features[0][reference]], lengths[reference], steps=1, seed=resplit)
        tests = (
            ("calibrated, level", calibrated, features),
            ("paper, level", fit_paper(as_in_training[reference]), features),
            ("random words, power", calibrated, words),
            ("plain model, power", own_unmasked, plain_features),
        )
        for name, _, _ in tests:
            for suffix in ("", ", outside", ", verdict", ", verdict outside"):
                table[name + suffix].append([])
        for name, masf, tested in tests:
            for step in STEPS:
                add(table, name, masf, tested[step][fresh], lengths[fresh], step)
    print(f"{'masking ratio':40}" + "".join(f"{10 * step:6}" for step in STEPS))
    for name, resplits in table.items():
        if resplits[0]:
            print(f"{name:40}" + "".join(f"{100 * share:6.1f}" for share in np.mean(resplits, axis=0)))


if __name__ == "__main__":
    main()
