"""What the grid of the FMM paper costs: FLOPs counted on RoBERTa's shapes, and hours on GPUs and clusters from them.

    python benchmarks/grid_cost.py                  # the tables of docs/growth.md
    python benchmarks/grid_cost.py --lengths DIR    # the lengths of texts below, from files, by MiniLM's tokenizer

FLOPs are counted by torch (`torch.utils.flop_counter`) on faithmeter's own passes, of models of RoBERTa's width with
one layer and two, on texts of three lengths. Products grow linearly with the layers and as a parabola with the length,
so that says what every other size costs. How fast a GPU does them is not measured here, for no GPU was used: in 16 bits
it is the share of its peak that the paper's published hours on a V100 come to, stage by stage, taken to be the same on
any other; in float32, which those say nothing about, it is assumed (`FLOAT32_SHARE`).
"""

import argparse
import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from faithmeter.data.batch import Batch
from faithmeter.data.splits import as_text
from faithmeter.data.tables import read_rows
from faithmeter.data.tasks import TASKS
from faithmeter.importance.gradient import STEPS as IG_STEPS
from faithmeter.importance.table import IMPORTANCE_MEASURES
from faithmeter.masking import STEPS
from faithmeter.measuring.curves import walk_passes
from faithmeter.models.checkpoint import attention_implementation
from faithmeter.models.classifier import Classifier, load_classifier
from faithmeter.models.from_scratch import word_level_tokenizer
from faithmeter.models.sources import MINILM
from faithmeter.studies.suite.file import Suite, read_suite

# vendors' data sheets: peak TFLOP/s of float32 without tensor cores, and of 16-bit tensor cores without sparsity
GPUS = {
    "V100 SXM2 (the paper's)": (15.7, 125.0),
    "A100 80 GB": (19.5, 312.0),
    "H100 SXM": (67.0, 989.0),
    "RTX 4090": (82.6, 165.2),
    "L4": (30.3, 121.0),
    "T4": (8.1, 65.0),
}
REFERENCE = "V100 SXM2 (the paper's)"
FLOAT32_SHARE = 0.5  # of the peak: an assumption
CLUSTERS = (8, 64)
CLUSTER_OF = "A100 80 GB"
SHAPES = {"roberta-base": (12, 768, 12, 3072), "roberta-large": (24, 1024, 16, 4096)}  # layers, width, heads, inner
VOCABULARY = 50_265
COUNTED = (16, 48, 96)  # tokens of the texts that FLOPs are counted on
ODD = "boolq"  # whose published hours of leave-one-out and beam do not fit its lengths, see docs/growth.md
LEFT_OUT = (ODD, "imdb", "babi-3", "mimic-anemia", "mimic-diabetes")  # beam search was not feasible for the others
Rows = tuple[int, int, int]

# of the texts, from the shortest tenth to the longest: mean tokens, and mean tokens that can be masked (--lengths)
LENGTHS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "boolq": ((48, 69, 85, 99, 112, 127, 143, 164, 195, 279), (36, 57, 73, 87, 100, 114, 131, 151, 182, 266)),
    "cb": ((40, 52, 64, 71, 81, 90, 96, 115, 140, 221), (30, 42, 54, 61, 70, 73, 85, 104, 126, 209)),
    "cola": ((6, 8, 9, 9, 10, 11, 12, 14, 16, 22), (4, 6, 7, 7, 8, 9, 10, 12, 14, 20)),
    "imdb": ((82, 137, 160, 179, 205, 238, 283, 352, 467, 512), (80, 135, 158, 177, 203, 236, 281, 350, 465, 510)),
    "mrpc": ((32, 39, 44, 47, 51, 55, 59, 63, 67, 75), (14, 18, 21, 22, 24, 26, 29, 31, 33, 36)),
    "qnli": ((27, 33, 38, 42, 46, 50, 54, 60, 68, 93), (14, 20, 24, 27, 30, 34, 38, 44, 51, 75)),
    "rte": ((28, 36, 41, 46, 51, 56, 65, 82, 118, 165), (16, 24, 28, 32, 36, 41, 49, 66, 104, 151)),
    "snli": ((17, 20, 21, 23, 25, 27, 29, 32, 36, 44), (8, 10, 11, 12, 14, 15, 17, 20, 22, 29)),
    "sst2": ((10, 14, 17, 20, 23, 26, 29, 32, 37, 45), (8, 12, 15, 18, 21, 24, 27, 30, 35, 43)),
    "babi-1": ((19, 20, 32, 33, 44, 46, 57, 59, 70, 72), (12, 13, 25, 26, 37, 39, 50, 52, 63, 65)),
    "babi-2": ((38, 57, 71, 82, 93, 103, 115, 129, 147, 208), (30, 49, 63, 74, 85, 95, 107, 121, 139, 200)),
    "babi-3": ((81, 136, 181, 216, 252, 293, 346, 430, 502, 512), (70, 125, 170, 205, 241, 282, 335, 419, 491, 501)),
}  # fmt: skip
# tasks whose texts are not at hand: MNLI's are taken to be half as long again as SNLI's, QQP's as long, and MIMIC's
# notes to be cut at 512
ASSUMED = {"mnli": ("snli", 1.5), "qqp": ("snli", 1.0), "mimic-anemia": None, "mimic-diabetes": None}
# FMM Table 2: rows of train, validation and test
ROWS: dict[str, Rows] = {
    "boolq": (7542, 1885, 3270), "cb": (200, 50, 56), "cola": (6841, 1710, 1043), "imdb": (20000, 5000, 25000),
    "mimic-anemia": (4262, 729, 1243), "mimic-diabetes": (8066, 1573, 1729), "mnli": (314162, 78540, 9815),
    "mrpc": (2934, 734, 408), "qnli": (83794, 20949, 5463), "qqp": (291077, 72769, 40430), "rte": (1992, 498, 277),
    "snli": (549367, 9842, 9824), "sst2": (53879, 13470, 872), "babi-1": (8000, 2000, 1000),
    "babi-2": (8000, 2000, 1000), "babi-3": (8000, 2000, 1000),
}  # fmt: skip
# FMM Tables 6 and 9: minutes on a V100 for one seed, base and large, of training, the four gradients, the two
# integrated gradients, the two leave-one-outs, and beam search
STAGES = ("train", "gradient", "ig", "loo", "beam")
PUBLISHED: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "boolq": ((51, 18, 78, 32, 33), (123, 42, 217, 76, 82)), "cb": ((6, 4, 2, 18, 45), (12, 12, 8, 38, 129)),
    "cola": ((17, 8, 8, 18, 11), (33, 17, 18, 36, 19)), "imdb": ((104, 112, 823, 2990, 0), (242, 281, 2417, 8772, 0)),
    "mimic-anemia": ((48, 6, 46, 286, 0), (124, 22, 136, 839, 0)),
    "mimic-diabetes": ((94, 10, 64, 396, 0), (244, 26, 188, 1169, 0)),
    "mnli": ((399, 18, 70, 38, 344), (887, 40, 189, 92, 934)), "mrpc": ((12, 8, 6, 16, 14), (27, 16, 14, 34, 33)),
    "qnli": ((243, 14, 46, 34, 399), (552, 31, 127, 86, 1131)),
    "qqp": ((313, 44, 216, 72, 284), (712, 96, 596, 167, 672)), "rte": ((18, 8, 8, 20, 92), (43, 16, 18, 44, 266)),
    "snli": ((297, 20, 42, 24, 70), (638, 26, 113, 52, 158)), "sst2": ((79, 8, 8, 19, 18), (164, 16, 18, 38, 43)),
    "babi-1": ((27, 5, 8, 48, 54), (61, 16, 23, 98, 144)), "babi-2": ((50, 8, 20, 78, 1256), (125, 21, 58, 172, 3684)),
    "babi-3": ((103, 6, 36, 138, 0), (268, 18, 107, 396, 0)),
}  # fmt: skip


# ------------------------------------------------------------------------------------------------- counted FLOPs


def random_roberta(shape: str, layers: int) -> Classifier:
    """Return a RoBERTa of that width with random weights, and a tokenizer of a few words."""
    _, width, heads, inner = SHAPES[shape]
    tokenizer = word_level_tokenizer([f"w{number}" for number in range(9)], max_length=512)
    config = transformers.RobertaConfig(
        vocab_size=VOCABULARY, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=inner, max_position_embeddings=514, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    kind = transformers.RobertaForSequenceClassification
    config._attn_implementation = attention_implementation(kind)
    return Classifier(kind(config), tokenizer)


def fused_flops(states: tuple[int, ...], weight: tuple[int, ...], *_: object, **__: object) -> int:
    """Return the FLOPs of a fused linear layer, which torch's counter does not know."""
    return int(2 * np.prod(states) * weight[0])


def counted(work: Callable[[], object]) -> float:
    """Return the FLOPs of a call; attention as plain products, which the counter knows on any device."""
    known = {torch.ops.mkldnn._linear_pointwise: fused_flops}
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False, custom_mapping=known) as counter:
        work()
    return float(counter.get_total_flops())


def trained_on(classifier: Classifier, batch: Batch) -> None:
    """One step of training without the optimiser, whose work is small beside it."""
    classifier.model.train()
    torch.nn.functional.cross_entropy(classifier.logits(batch), batch.labels).backward()


def passes(classifier: Classifier, batch: Batch) -> dict[str, Callable[[], object]]:
    """Return what a grid is made of: a text through the model in each of the ways that jobs have."""
    first = torch.zeros(1, dtype=torch.long)

    def explained(name: str) -> Callable[[], object]:
        return partial(IMPORTANCE_MEASURES[name].explain, classifier, batch, batch.labels, 0)

    return {
        "predict": partial(classifier.predict_with_features, batch),
        "masked": partial(classifier.logits_of_masks, batch, first, batch.masked),
        "x-grad-signed": explained("x-grad-signed"),
        "grad-l1": explained("grad-l1"),
        "grad-l2": explained("grad-l2"),
        "train": partial(trained_on, classifier, batch),
    }


@dataclass(frozen=True)
class Flops:
    """FLOPs of a text of T tokens through a model, by the way it goes: a polynomial of T each."""

    of: Mapping[str, np.ndarray[Any, np.dtype[np.float64]]]

    def __call__(self, way: str, tokens: float) -> float:
        """Return the FLOPs of one text."""
        return float(np.polyval(self.of[way], tokens))


def flops_of(shape: str) -> Flops:
    """Count the FLOPs of one layer and of two, at three lengths; return those of the whole model at any length."""
    found: dict[int, dict[str, list[float]]] = {}
    for layers in (1, 2):
        classifier = random_roberta(shape, layers)
        for tokens in COUNTED:
            batch = classifier.encode([" ".join(["w0"] * (tokens - 2))]).batch([0])
            for way, work in passes(classifier, batch).items():
                found.setdefault(layers, {}).setdefault(way, []).append(counted(work))
    layers = SHAPES[shape][0]
    whole = {way: np.add(one, (layers - 1) * np.subtract(found[2][way], one)) for way, one in found[1].items()}
    return Flops({way: np.polyfit(COUNTED, values, 2) for way, values in whole.items()})


# -------------------------------------------------------------------------------------------------- the grid's work


def lengths_of(task: str) -> list[tuple[int, int]]:
    """Return tokens and maskable tokens of ten texts that stand for a task's."""
    like = ASSUMED.get(task, (task, 1.0))
    if like is None:
        return [(512, 510)] * 10
    return [
        (round(like[1] * tokens), round(like[1] * maskable)) for tokens, maskable in zip(*LENGTHS[like[0]], strict=True)
    ]


def explaining(name: str, flops: Flops, tokens: int, maskable: int, *, as_the_paper: bool) -> float:
    """Return the FLOPs of the explanations of a text on its masking walk.

    The paper's were computed by whole models, each measure for itself. Here the last layer is computed for the first
    position where the head reads nothing else, and an absolute form takes its first explanation from the signed one.
    """
    measure = IMPORTANCE_MEASURES[name]
    if name == "random":
        return 0.0
    if measure.family == "occlusion":
        found = flops("predict" if as_the_paper else "masked", tokens) * (walk_passes(measure, maskable) or 0.0)
        shared = (measure.passes or float)(maskable) * flops("masked", tokens)
    else:
        once = flops(name if name.startswith("grad") else "x-grad-signed", tokens)
        once *= IG_STEPS if name.startswith("ig") else 1
        found, shared = STEPS * once, once
    return found - (shared if measure.absolute_of and not as_the_paper else 0.0)


def job_flops(task: str, flops: Flops, suite: Suite) -> dict[str, float]:
    """Return the FLOPs of the jobs of one run: training, check, and each measure with its masking walk."""
    train, validation, test = ROWS[task]
    texts, options = lengths_of(task), suite.measured
    assert options is not None

    def mean(cost: Callable[[int, int], float]) -> float:
        return float(np.mean([cost(*text) for text in texts]))

    predict = mean(lambda tokens, _: flops("predict", tokens))
    epoch = train * mean(lambda tokens, _: flops("train", tokens)) + 2 * validation * predict  # masked and not
    jobs = {"train": TASKS[task].epochs * epoch}
    jobs["check"] = (min(suite.check_rows, validation) + test) * (STEPS + 1) * predict
    jobs["random"] = options.random_runs * test * (STEPS + 1) * predict
    for name in map(str, options.measures or ()):
        explained = mean(partial(explaining, name, flops, as_the_paper=False))
        jobs[name] = test * (explained + (STEPS + 1) * predict)
    return jobs


def stage_of(name: str) -> str:
    """Return the column of the published hours that a job belongs to."""
    if name in ("train", "beam"):
        return name
    return next((stage for stage in ("ig", "loo") if name.startswith(stage)), "gradient")


def reference_flops(task: str, flops: Flops, suite: Suite) -> dict[str, float]:
    """Return the FLOPs of what the paper's published minutes are of, by stage."""
    assert suite.measured is not None
    found = dict.fromkeys(STAGES, 0.0)
    found["train"] = job_flops(task, flops, suite)["train"]
    for name in map(str, suite.measured.measures or ()):
        work = np.mean([explaining(name, flops, *text, as_the_paper=True) for text in lengths_of(task)])
        found[stage_of(name)] += ROWS[task][2] * float(work)
    return found


def makespan(runs: Iterable[dict[str, float]], workers: int, shards: int) -> float:
    """Return when the last of the workers is done: trainings first, then check, then all shards of all measures.

    The dearest jobs that can be done come first; a run's jobs wait for its training and its check.
    """
    free = [0.0] * workers
    later: list[tuple[float, float]] = []  # when a shard can begin, and how long it takes
    for run in sorted(runs, key=lambda run: -run["train"] - run["check"]):
        ready = heapq.heappop(free) + run["train"] + run["check"]
        heapq.heappush(free, ready)
        later += [(ready, cost / shards) for name, cost in run.items() if name not in ("train", "check")] * shards
    waiting: list[float] = []
    later.sort(reverse=True)
    end = max(free)
    while later or waiting:
        now = heapq.heappop(free)
        if not waiting and later[-1][0] > now:
            now = later[-1][0]
        while later and later[-1][0] <= now:
            heapq.heappush(waiting, -later.pop()[1])
        done = now - heapq.heappop(waiting)
        end = max(end, done)
        heapq.heappush(free, done)
    return end


# --------------------------------------------------------------------------------------------------------- tables


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table as Markdown."""
    lines = [list(header), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def print_lengths(folder: Path) -> None:
    """Print the lengths of the texts of every task whose test split is in the folder."""
    classifier = load_classifier(MINILM, ("0", "1"), new_head=True, max_length=512)
    for name in ROWS:
        task = TASKS[name]
        part = task.splits.get("test", "test")
        file = next((folder / task.folder).glob(f"{part}.*"), None) if task.folder else None
        if file is None or name in ASSUMED:
            continue
        rows = [{task.renames.get(key, key): value for key, value in row.items()} for row in read_rows(file)]
        contexts = [as_text(row[task.context]) for row in rows] if task.context else None
        encoded = classifier.encode([as_text(row[task.text]) for row in rows], contexts)
        order = np.array_split(np.argsort(encoded.lengths, kind="stable"), 10)
        columns = (
            tuple(round(float(values[part].mean())) for part in order)
            for values in (encoded.lengths, encoded.maskable_counts())
        )
        print(f'    "{name}": ({", ".join(map(str, columns))}),')


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=Path, metavar="DIR", help="print the lengths of texts in files, and stop")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    if options.lengths is not None:
        print_lengths(options.lengths)
        return
    suite = read_suite("fmm")
    models = {name: flops_of(name) for name in SHAPES}

    print("FLOPs of a text of 128 tokens through the model\n")
    ways = list(models["roberta-base"].of)
    print(
        table(["model", *ways], [[n, *(f"{flops(w, 128) / 1e9:.1f} G" for w in ways)] for n, flops in models.items()])
    )

    print("Published hours of one seed, and what they come to\n")
    shares, lines = {}, []
    for at, (name, flops) in enumerate(models.items()):
        work, hours = dict.fromkeys(STAGES, 0.0), dict.fromkeys(STAGES, 0.0)
        for task in ROWS:
            for stage, minutes in zip(STAGES, PUBLISHED[task][at], strict=True):
                if minutes and task != ODD:
                    work[stage] += reference_flops(task, flops, suite)[stage]
                    hours[stage] += minutes / 60
        for stage in STAGES:
            rate = work[stage] / hours[stage] / 3600e12
            lines.append([name, stage, f"{hours[stage]:.1f}", f"{work[stage] / 1e18:.2f}", f"{rate:.1f}",
                          *(f"{100 * rate / peak:.0f} %" for peak in GPUS[REFERENCE])])  # fmt: skip
        shares[name] = {stage: work[stage] / hours[stage] / 3600e12 / GPUS[REFERENCE][1] for stage in STAGES}
    print(table(["model", "stage", "hours", "10^18 FLOP", "TFLOP/s", "of float32", "of 16-bit"], lines))

    seeds = len(suite.seeds)
    runs = {(task, name): job_flops(task, flops, suite) for name, flops in models.items() for task in ROWS}

    def kept(task: str, jobs: dict[str, float], everything: bool) -> dict[str, float]:
        return {name: cost for name, cost in jobs.items() if everything or name != "beam" or task not in LEFT_OUT}

    print(f"The grid of the suite `fmm`, {seeds} seeds: 10^18 FLOP\n")
    names = list(next(iter(runs.values())))
    lines = []
    for name in models:
        for everything in (False, True):
            chosen = [kept(task, jobs, everything) for (task, model), jobs in runs.items() if model == name]
            costs = [seeds * sum(jobs.get(job, 0.0) for jobs in chosen) for job in names]
            words = f"{name}, {'beam everywhere' if everything else 'beam on short texts'}"
            lines.append([words, *(f"{cost / 1e18:.1f}" for cost in costs), f"{sum(costs) / 1e18:.0f}"])
    print(table(["", *names, "sum"], lines))
    odd = {name: seeds * runs[ODD, name]["beam"] / 1e18 for name in models}
    print(f"Beam on {ODD} alone: {', '.join(f'{name} {cost:.0f}' for name, cost in odd.items())}\n")

    def hours(gpu: str, number: int, everything: bool) -> list[dict[str, float]]:
        """Return how long each job of each run takes, in float32 (0) or 16 bits (1)."""
        peak, timed = GPUS[gpu][number], []
        for (task, name), jobs in runs.items():
            share = shares[name] if number == 1 else dict.fromkeys(STAGES, FLOAT32_SHARE)
            chosen = kept(task, jobs, everything).items()
            timed += [{job: cost / (peak * share[stage_of(job)] * 3600e12) for job, cost in chosen}] * seeds
        return timed

    columns = [(number, everything) for everything in (False, True) for number in (1, 0)]
    print("GPU hours of it: both models, all seeds\n")
    lines = []
    for gpu in GPUS:
        sums = [sum(sum(jobs.values()) for jobs in hours(gpu, *column)) for column in columns]
        lines.append([gpu, *(f"{value:,.0f}" for value in sums)])
    print(table(["GPU", "16-bit", "float32", "beam everywhere, 16-bit", "beam everywhere, float32"], lines))

    print(f"Hours of it on a Ray cluster of {CLUSTER_OF}, {suite.shards} shards a measure, and how busy its GPUs are\n")
    lines = []
    for workers in CLUSTERS:
        cells = [str(workers)]
        for column in columns[:2]:
            timed = hours(CLUSTER_OF, *column)
            end = makespan(timed, workers, suite.shards)
            cells += [f"{end:,.0f}", f"{100 * sum(sum(jobs.values()) for jobs in timed) / workers / end:.0f} %"]
        lines.append(cells)
    print(table(["GPUs", "16-bit", "busy", "float32", "busy"], lines))


if __name__ == "__main__":
    main()
