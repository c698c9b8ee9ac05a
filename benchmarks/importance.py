"""Speed of importance measures against other libraries and hand-written loops, and of empirical CDFs; one core.

    python benchmarks/importance.py                                  # everything: about half an hour
    python benchmarks/importance.py --cases loo,x-grad --rounds 5    # some of it

Each round runs every contestant once, in turn, and takes CPU time, so that a busy machine disturbs all alike. Printed
are medians of the rounds' ratios with the smallest and the largest, against the contestant that is fastest there.
faithmeter runs three times in each round: with the way of passing that it chooses by measuring, and with the linear
layers of oneDNN and of torch forced. Needs captum; interpreto, lime and shap take part where they are installed.
"""

import argparse
import gzip
import json
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import rivals
import torch
import transformers
from timing import cpu_seconds, matmul_peaks, processor_name
from torch import Tensor

from faithmeter.data.batch import Batch, Encoded
from faithmeter.data.splits import DataSpec, load_splits
from faithmeter.importance.table import IMPORTANCE_MEASURES
from faithmeter.in_distribution.p_values import counts, sorted_columns
from faithmeter.models.classifier import Classifier, load_classifier
from faithmeter.models.fast import choice
from faithmeter.models.fast.options import AUTO, PassOptions

SENTENCES = Path(__file__).resolve().parents[2] / "shared" / "data" / "sst2" / "validation.jsonl.gz"
Seconds = dict[str, list[float]]


@dataclass(frozen=True)
class Case:
    """A measure on some texts, its contestants, and the ratio to the best of them that is aimed at."""

    measure: str
    line: float
    contestants: Callable[[], rivals.Contestants]
    texts: Callable[[list[str]], list[str]] = lambda texts: texts
    pairs: bool = False
    base: bool = False  # a random model of RoBERTa-base's shape in place of MiniLM
    share: float | None = None  # of the better matmul peak that is aimed at
    also: Mapping[str, Callable[[], rivals.Contestants]] = field(default_factory=dict)


def few(texts: list[str]) -> list[str]:
    """Return a sixth of the texts: for measures of 200 passes a text, and for large models."""
    return texts[: -(-len(texts) // 6)]


def joined(count: int) -> Callable[[list[str]], list[str]]:
    """Return one text out of so many."""
    return lambda texts: [" ".join(texts[:count])]


CASES = {
    "loo": Case("loo-signed", 1.25, rivals.of_leave_one_out, share=0.80),
    "loo, 160 tokens": Case("loo-signed", 1.15, lambda: rivals.of_leave_one_out((1024,), (4, 8)), joined(10)),
    "loo, 400 tokens": Case("loo-signed", 1.15, lambda: rivals.of_leave_one_out((2048,), (4,)), joined(19)),
    "loo, pairs": Case("loo-signed", 1.25, lambda: rivals.of_leave_one_out((1024,), (32,)), pairs=True),
    "loo, RoBERTa's shape": Case("loo-signed", 1.25, rivals.of_leave_one_out, few, base=True, share=0.90),
    "ig": Case("ig-signed", 1.15, rivals.of_integrated_gradients),
    "x-grad": Case("x-grad-signed", 1.3, rivals.of_input_times_gradient),
    "grad-l1": Case("grad-l1", 1.3, partial(rivals.of_gradient_norm, 1)),
    "grad-l2": Case("grad-l2", 1.3, partial(rivals.of_gradient_norm, 2)),
    "lime": Case("lime", 1.3, rivals.of_lime, few),
    "kernel-shap": Case("kernel-shap", 1.3, rivals.of_kernel_shap, few),
}
WAYS = (AUTO, "onednn", "torch")  # of faithmeter's own passes


def explain(name: str, classifier: Classifier, encoded: Encoded) -> Tensor:
    """Explain all rows with one of our measures."""
    batch = encoded.batch(range(len(encoded)))
    return IMPORTANCE_MEASURES[name].explain(classifier, batch, batch.labels, 0)


def needed_operations(classifier: Classifier, encoded: Encoded) -> float:
    """Count the products that leave-one-out cannot do without: in the last layer only the first token's answer."""
    config = classifier.model.config
    d, ffn, full = config.hidden_size, config.intermediate_size, config.num_hidden_layers - 1
    total = 0.0
    for row, length in enumerate(encoded.lengths.tolist()):
        span = slice(encoded.offsets[row], encoded.offsets[row + 1])
        layer = length * 2 * (4 * d * d + 2 * d * ffn) + 4 * length * length * d
        last = length * 2 * 2 * d * d + 2 * (2 * d * d + 2 * d * ffn) + 4 * length * d
        total += (1 + int(encoded.maskable[span].sum())) * (full * layer + last + 2 * d * d)
    return total


def base_shaped(classifier: Classifier) -> Classifier:
    """Return a random model of RoBERTa-base's shape that reads the same tokens."""
    config = transformers.RobertaConfig(vocab_size=len(classifier.tokenizer), pad_token_id=0, num_labels=2)
    model = transformers.RobertaForSequenceClassification._from_config(config, attn_implementation="sdpa")
    return Classifier(model.eval(), classifier.tokenizer)


def sentences(file: Path) -> list[str]:
    """Return the sentences of a file, or film reviews from their package where there is no such file."""
    if not file.exists():
        return list(load_splits(DataSpec(task="rotten-tomatoes")).test["text"])
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [json.loads(line)["sentence"] for line in lines]


# -------------------------------------------------------------------------------------------------------------- cases


def measured(case: Case, classifier: Classifier, texts: list[str], rounds: int) -> dict[str, Any]:
    """Run a case; return the figures of it, with the processor seconds of every contestant."""
    texts = case.texts(texts)
    contexts = texts[::-1] if case.pairs else None
    encoded = classifier.encode(texts, contexts)
    ours = {way: _computing(classifier, way) for way in WAYS}
    contestants: dict[str, Callable[[], object]] = {
        f"faithmeter, {way}": partial(explain, case.measure, one, encoded) for way, one in ours.items()
    }
    for name, rival in case.contestants().items():
        if not (case.pairs and "interpreto" in name):  # which is given texts
            contestants[name] = partial(rival, classifier, encoded, texts)
    chosen = _choose(ours[AUTO], case.measure, encoded)
    seconds: Seconds = {name: [] for name in contestants}
    peaks: dict[str, list[float]] = {}
    for _ in range(rounds):
        for library, peak in matmul_peaks().items():
            peaks.setdefault(library, []).append(peak)
        for name, work in contestants.items():
            seconds[name].append(cpu_seconds(work))
    others = [name for name in seconds if not name.startswith("faithmeter")]
    best = min(others, key=lambda name: statistics.median(seconds[name]))
    better = max(peaks.values(), key=statistics.median)
    found: dict[str, Any] = {
        "chosen": chosen,
        "best contestant": best,
        "line": case.line,
        "times faster": {way: _ratios(seconds[best], seconds[f"faithmeter, {way}"]) for way in WAYS},
        "peaks, GFLOP/s": {library: round(statistics.median(each) / 1e9, 1) for library, each in peaks.items()},
        "seconds": {name: _spread(each) for name, each in seconds.items()},
    }
    forced = min((seconds[f"faithmeter, {way}"] for way in WAYS[1:]), key=statistics.median)
    found["the choice takes, of the best way forced"] = _ratios(seconds[f"faithmeter, {AUTO}"], forced)
    if case.measure == "loo-signed":
        operations = needed_operations(classifier, encoded)
        found["share of the better peak"] = {
            way: _spread([operations / s / p for s, p in zip(seconds[f"faithmeter, {way}"], better, strict=True)])
            for way in WAYS
        }
        found["share aimed at"] = case.share
        found["needed GFLOP"] = round(operations / 1e9, 1)
    return found


def _computing(classifier: Classifier, way: str) -> Classifier:
    return Classifier(classifier.model, classifier.tokenizer, passes=PassOptions(way))


def _choose(classifier: Classifier, measure: str, encoded: Encoded) -> str:
    """Let the trials run, as they do once enough has passed; return what they chose."""
    kind = choice.FORWARD if measure in ("loo-signed", "lime", "kernel-shap") else choice.GRADIENT
    classifier.choice.passed[kind] = 10**9
    explain(measure, classifier, encoded)
    return choice.in_words(classifier.choice.way(kind))


def _ratios(slow: list[float], fast: list[float]) -> list[float]:
    return _spread([s / f for s, f in zip(slow, fast, strict=True)])


def _spread(values: list[float]) -> list[float]:
    """Return the median, the smallest and the largest."""
    return [round(each, 3) for each in (statistics.median(values), min(values), max(values))]


def show(name: str, found: dict[str, Any]) -> None:
    """Print the figures of a case."""
    print(f"\n{name}: best of the others: {found['best contestant']}; chosen: {found['chosen']}")
    for way, (median, low, high) in found["times faster"].items():
        print(f"  faithmeter, {way:7s} {median:5.2f} times as fast ({low:.2f} to {high:.2f}); aimed at {found['line']}")
    median, low, high = found["the choice takes, of the best way forced"]
    print(f"  the choice takes {median:.3f} of the time of the best way forced ({low:.3f} to {high:.3f})")
    if "share of the better peak" in found:
        shares = ", ".join(f"{way} {each[0]:.2f}" for way, each in found["share of the better peak"].items())
        print(f"  share of the better peak: {shares}; aimed at {found['share aimed at']}; {found['peaks, GFLOP/s']}")
    for one, each in found["seconds"].items():
        print(f"    {one:32s} {each[0]:8.2f} s ({each[1]:.2f} to {each[2]:.2f})")


# ------------------------------------------------------------------------------------------------------- beam and CDFs


class Counted:
    """A classifier that counts its maskings and the tokens of the texts that they are of."""

    def __init__(self, classifier: Classifier) -> None:
        self.classifier, self.count, self.tokens = classifier, 0, 0

    def __getattr__(self, name: str) -> object:
        return getattr(self.classifier, name)

    def logits_of_masks(self, batch: Batch, rows: Tensor, masked: Tensor) -> Tensor:
        """Count, and do as the classifier does."""
        self.count += len(rows)
        self.tokens += int(batch.attention_mask.sum(dim=1)[rows].sum())
        return self.classifier.logits_of_masks(batch, rows, masked)


def reference_evaluations(encoded: Encoded, width: int = 10) -> int:
    """Return how many maskings a beam search evaluates that does not look whether two states meet in one set."""
    total = 0
    for row in range(len(encoded)):
        states, left = 1, int(encoded.maskable[encoded.offsets[row] : encoded.offsets[row + 1]].sum())
        while left:
            total += states * left
            states, left = min(width, states * left), left - 1
    return total


def broadcast_cdf(reference: Tensor, values: Tensor) -> None:
    """Count how many reference rows are smaller and how many no larger, by comparing all with all."""
    for some in values.split(8):
        (reference[None] < some[:, None]).sum(dim=1)
        (reference[None] <= some[:, None]).sum(dim=1)


def searched_cdf(reference: Tensor, values: Tensor) -> None:
    """Sort, then search."""
    counts(sorted_columns(reference), values.movedim(0, -1))


def the_rest(classifier: Classifier, texts: list[str], rounds: int) -> dict[str, Any]:
    """Compare beam search with leave-one-out, per masked token, and empirical CDFs with comparing all with all."""
    work = {"beam": classifier.encode(sorted(texts, key=len)[len(texts) // 2 :][:2]), "loo": classifier.encode(texts)}
    counted = {"beam": Counted(classifier), "loo": Counted(classifier)}
    explain("beam", counted["beam"], work["beam"])  # type: ignore[arg-type]
    explain("loo-signed", counted["loo"], work["loo"])  # type: ignore[arg-type]
    reference, values = (torch.randn(1000, 7, 384, generator=torch.manual_seed(seed)) for seed in (0, 1))
    seconds: Seconds = {"beam": [], "loo": [], "cdf": [], "all with all": []}
    for _ in range(rounds):
        seconds["beam"].append(cpu_seconds(lambda: explain("beam", classifier, work["beam"])))
        seconds["loo"].append(cpu_seconds(lambda: explain("loo-signed", classifier, work["loo"])))
        seconds["cdf"].append(cpu_seconds(lambda: searched_cdf(reference, values)))
        seconds["all with all"].append(cpu_seconds(lambda: broadcast_cdf(reference, values)))
    per_token = {name: [each / counted[name].tokens for each in seconds[name]] for name in counted}
    evaluated = counted["beam"].count / reference_evaluations(work["beam"])
    return {
        "beam, cost of a masked token against leave-one-out's": _ratios(per_token["beam"], per_token["loo"]),
        "beam, evaluations against a search that repeats sets": round(evaluated, 2),
        "empirical CDFs, times faster than comparing all with all": _ratios(seconds["all with all"], seconds["cdf"]),
    }


def main() -> None:
    """Print and store the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=24, help="SST2 sentences to explain")
    parser.add_argument("--rounds", type=int, default=3, help="rounds to take medians over")
    parser.add_argument(
        "--cases", help=f"some of: {'; '.join(CASES)}; separated by semicolons", default=";".join(CASES)
    )
    parser.add_argument("--data", type=Path, default=SENTENCES, help="a gzipped jsonl file with the column `sentence`")
    parser.add_argument(
        "--store", type=Path, default=Path(__file__).with_suffix(".json"), help="where figures are kept"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    texts = sentences(options.data)[: options.sentences]
    classifier = load_classifier("minilm", ("negative", "positive"), new_head=True)
    classifier.model.eval()
    stored: dict[str, Any] = {"processor": processor_name(), "torch": torch.__version__, "left out": rivals.missing()}
    print("\n".join(f"{name}: {value}" for name, value in stored.items()))
    with TemporaryDirectory() as folder:
        choice.cache_folder = lambda: Path(folder)  # so that every run measures for itself
        for name in options.cases.split(";"):
            case = CASES[name.strip()]
            stored[name] = measured(case, base_shaped(classifier) if case.base else classifier, texts, options.rounds)
            show(name, stored[name])
            options.store.write_text(json.dumps(stored, indent=2) + "\n")
        if options.cases == ";".join(CASES):
            stored |= the_rest(classifier, texts, options.rounds)
            print("\n".join(f"{name}: {value}" for name, value in stored.items() if name not in CASES))
    options.store.write_text(json.dumps(stored, indent=2) + "\n")


if __name__ == "__main__":
    main()
