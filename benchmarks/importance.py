"""Speed of importance measures and of empirical CDFs against captum and naive formulas, on MiniLM and SST2, one core.

Each round runs every contestant once, in turn, and takes CPU time, so that a busy machine disturbs all alike; the
median of the rounds' ratios is printed. Needs captum (`pip install captum --no-deps`).
"""

import argparse
import gzip
import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import transformers
from captum.attr import FeatureAblation, IntegratedGradients, KernelShap, Lime
from timing import cpu_seconds, matmul_peak
from torch import Tensor

from faithmeter.data.batch import Batch, Encoded
from faithmeter.data.splits import DataSpec, load_splits
from faithmeter.importance.surrogate import SAMPLES
from faithmeter.importance.table import IMPORTANCE_MEASURES
from faithmeter.in_distribution.p_values import counts, sorted_columns
from faithmeter.models.classifier import Classifier, load_classifier

Result = dict[str, object]
SENTENCES = Path(__file__).resolve().parents[2] / "shared" / "data" / "sst2" / "validation.jsonl.gz"


def explain(name: str, classifier: Classifier, encoded: Encoded) -> Tensor:
    """Explain all rows with one of our measures."""
    batch = encoded.batch(range(len(encoded)))
    return IMPORTANCE_MEASURES[name].explain(classifier, batch, batch.labels, 0)


def sorted_batches(encoded: Encoded, rows: int) -> list[Batch]:
    """Return the rows in batches of so many, of like length: what a careful user of captum would do."""
    order = sorted(range(len(encoded)), key=lambda row: -int(encoded.lengths[row]))
    return [encoded.batch(order[i : i + rows]) for i in range(0, len(order), rows)]


def model_of_ids(classifier: Classifier, ids: Tensor, attention: Tensor, types: Tensor | None) -> Tensor:
    """Return the logits as captum asks for them."""
    extra = {} if types is None else {"token_type_ids": types}
    return classifier.model(input_ids=ids, attention_mask=attention, **extra).logits


def captum_ablation(classifier: Classifier, encoded: Encoded, rows: int, variants: int) -> None:
    """Leave-one-out by captum, on batches of `rows` texts and `variants` maskings at once."""
    for batch in sorted_batches(encoded, rows):
        FeatureAblation(partial(model_of_ids, classifier)).attribute(
            batch.input_ids,
            baselines=classifier.mask_token_id,
            target=batch.labels,
            additional_forward_args=(batch.attention_mask, batch.token_type_ids),
            perturbations_per_eval=variants,
        )


def captum_surrogate(kind: type[Lime], classifier: Classifier, encoded: Encoded, variants: int) -> None:
    """LIME or KernelSHAP by captum, which explains one text at a time; `variants` of its 200 maskings at once."""
    for batch in sorted_batches(encoded, 1):
        kind(partial(model_of_ids, classifier)).attribute(
            batch.input_ids,
            baselines=classifier.mask_token_id,
            target=batch.labels,
            additional_forward_args=(batch.attention_mask, batch.token_type_ids),
            n_samples=SAMPLES,
            perturbations_per_eval=variants,
        )


def captum_integrated(classifier: Classifier, encoded: Encoded, rows: int) -> None:
    """Integrated gradients by captum, 20 steps, on batches of `rows` texts."""

    def forward(embeddings: Tensor, attention: Tensor, types: Tensor | None) -> Tensor:
        extra = {} if types is None else {"token_type_ids": types}
        return classifier.model(inputs_embeds=embeddings, attention_mask=attention, **extra).logits

    lookup = classifier.model.get_input_embeddings()
    for batch in sorted_batches(encoded, rows):
        IntegratedGradients(forward).attribute(
            lookup(batch.input_ids).detach(),
            target=batch.labels,
            additional_forward_args=(batch.attention_mask, batch.token_type_ids),
            n_steps=20,
            method="riemann_right",
        )


def one_hot_norm(classifier: Classifier, encoded: Encoded, order: int, rows: int = 8) -> None:
    """Take the norm over the vocabulary of d logit / d one-hot, literally."""
    words = classifier.model.get_input_embeddings().weight
    for batch in sorted_batches(encoded, rows):
        one_hot = torch.nn.functional.one_hot(batch.input_ids, len(words)).float().requires_grad_()
        logits = classifier.model(
            inputs_embeds=one_hot @ words, attention_mask=batch.attention_mask, token_type_ids=batch.token_type_ids
        ).logits
        logits.gather(1, batch.labels[:, None]).sum().backward()
        one_hot.grad.norm(p=order, dim=-1)
        classifier.model.zero_grad(set_to_none=True)


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


def evaluations_of(name: str, classifier: Classifier, encoded: Encoded) -> tuple[int, int]:
    """Return how many maskings a measure evaluates, and of how many tokens."""
    counted = Counted(classifier)
    explain(name, counted, encoded)  # type: ignore[arg-type]
    return counted.count, counted.tokens


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
    for few in values.split(8):
        (reference[None] < few[:, None]).sum(dim=1)
        (reference[None] <= few[:, None]).sum(dim=1)


def searched_cdf(reference: Tensor, values: Tensor) -> None:
    """Sort, then search."""
    counts(sorted_columns(reference), values.movedim(0, -1))


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


def main() -> None:
    """Print and store the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=int, default=64, help="SST2 sentences to explain")
    parser.add_argument("--rounds", type=int, default=3, help="rounds to take medians over")
    parser.add_argument("--surrogates", action="store_true", help="LIME and KernelSHAP only")
    parser.add_argument("--data", type=Path, default=SENTENCES, help="a gzipped jsonl file with the column `sentence`")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    texts = sentences(options.data)[: options.sentences]
    classifier = load_classifier("minilm", ("negative", "positive"), new_head=True)
    classifier.model.eval()
    encoded = classifier.encode(texts)
    stored = surrogates(classifier, classifier.encode(texts[: -(-len(texts) // 8)]), options.rounds)
    if not options.surrogates:
        stored |= everything_else(classifier, encoded, texts, options.rounds)
    for name, value in stored.items():
        if not isinstance(value, dict):
            print(f"{name}: {value}")
    Path(__file__).with_suffix(".json").write_text(json.dumps(stored, indent=2) + "\n")


def surrogates(classifier: Classifier, encoded: Encoded, rounds: int) -> Result:
    """Compare LIME and KernelSHAP with captum's, on an eighth of the sentences: each takes 200 passes a sentence."""
    kinds = {"lime": Lime, "kernel-shap": KernelShap}
    contestants: dict[str, Callable[[], object]] = {}
    for name, kind in kinds.items():
        contestants[name] = partial(explain, name, classifier, encoded)
        contestants[f"captum {name}"] = partial(captum_surrogate, kind, classifier, encoded, 1)
        for variants in (8, 32, 100):
            work = partial(captum_surrogate, kind, classifier, encoded, variants)
            contestants[f"captum {name}, best: {variants} at once"] = work
    seconds, _ = timed(contestants, rounds)
    result: Result = {}
    for name in kinds:
        result[f"{name}, times faster than captum's default"] = ratio(seconds, f"captum {name}", name)
        result[f"{name}, times faster than captum's best"] = ratio(seconds, f"captum {name}, best", name)
    return {**result, "seconds of surrogates": medians(seconds)}


def timed(contestants: dict[str, Callable[[], object]], rounds: int) -> tuple[dict[str, list[float]], list[float]]:
    """Return the seconds of every contestant in every round, and the machine's own peak in each round."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    peaks = []
    for _ in range(rounds):
        peaks.append(matmul_peak())
        for name, work in contestants.items():
            seconds[name].append(cpu_seconds(work))
    return seconds, peaks


def medians(seconds: dict[str, list[float]]) -> dict[str, float]:
    """Return the median of each contestant."""
    return {name: round(statistics.median(of_it), 2) for name, of_it in seconds.items()}


def everything_else(classifier: Classifier, encoded: Encoded, texts: list[str], rounds: int) -> Result:
    """Compare the other measures, and empirical CDFs."""
    long = classifier.encode([" ".join(texts[:10])])  # 183 tokens
    beamed = classifier.encode(sorted(texts, key=len)[len(texts) // 2 :][:2])
    beam_count, beam_tokens = evaluations_of("beam", classifier, beamed)
    _, loo_tokens = evaluations_of("loo-signed", classifier, encoded)
    reference, values = (torch.randn(1000, 7, 384, generator=torch.manual_seed(seed)) for seed in (0, 1))
    base = base_shaped(classifier)
    few = base.encode(texts[:2])
    contestants: dict[str, Callable[[], object]] = {
        "loo": lambda: explain("loo-signed", classifier, encoded),
        "captum loo": lambda: captum_ablation(classifier, encoded, 1, 1),
        "captum loo, best: all of a text": lambda: captum_ablation(classifier, encoded, 1, 64),
        "captum loo, best: 32 of a text": lambda: captum_ablation(classifier, encoded, 1, 32),
        "captum loo, best: 8 texts": lambda: captum_ablation(classifier, encoded, 8, 4),
        "ig": lambda: explain("ig-signed", classifier, encoded),
        "captum ig, best: text by text": lambda: captum_integrated(classifier, encoded, 1),
        "captum ig, best: 2 texts": lambda: captum_integrated(classifier, encoded, 2),
        "grad-l1": lambda: explain("grad-l1", classifier, encoded),
        "one-hot l1": lambda: one_hot_norm(classifier, encoded, 1),
        "grad-l2": lambda: explain("grad-l2", classifier, encoded),
        "one-hot l2": lambda: one_hot_norm(classifier, encoded, 2),
        "long loo": lambda: explain("loo-signed", classifier, long),
        "captum long loo, best: 4": lambda: captum_ablation(classifier, long, 1, 4),
        "captum long loo, best: 8": lambda: captum_ablation(classifier, long, 1, 8),
        "captum long loo, best: 16": lambda: captum_ablation(classifier, long, 1, 16),
        "base loo": lambda: explain("loo-signed", base, few),
        "beam": lambda: explain("beam", classifier, beamed),
        "cdf": lambda: searched_cdf(reference, values),
        "broadcast cdf": lambda: broadcast_cdf(reference, values),
    }
    seconds, peaks = timed(contestants, rounds)
    result: Result = {
        "leave-one-out, times faster than captum's default": ratio(seconds, "captum loo", "loo"),
        "leave-one-out, times faster than captum's best": ratio(seconds, "captum loo, best", "loo"),
        "leave-one-out on a long text, times faster than captum's best": ratio(
            seconds, "captum long loo, best", "long loo"
        ),
        "the same, were all needed products made at the matmul peak": bound(
            needed_operations(classifier, long), best_of(seconds, "captum long loo, best"), peaks
        ),
        "integrated gradient, times faster than captum's best": ratio(seconds, "captum ig, best", "ig"),
        "grad-l1, times faster than the one-hot norm": ratio(seconds, "one-hot l1", "grad-l1"),
        "grad-l2, times faster than the one-hot norm": ratio(seconds, "one-hot l2", "grad-l2"),
        "leave-one-out, share of the matmul peak": share(needed_operations(classifier, encoded), seconds["loo"], peaks),
        "the same, of RoBERTa-base's shape": share(needed_operations(base, few), seconds["base loo"], peaks),
    }
    per_token = [(b / beam_tokens) / (f / loo_tokens) for b, f in zip(seconds["beam"], seconds["loo"], strict=True)]
    result |= {
        "beam, cost of a masked token against leave-one-out's": round(statistics.median(per_token), 2),
        "beam, evaluations against a search that repeats sets": round(beam_count / reference_evaluations(beamed), 2),
        "empirical CDFs, times faster than comparing all with all": ratio(seconds, "broadcast cdf", "cdf"),
    }
    return {**result, "seconds": medians(seconds)}


def best_of(seconds: dict[str, list[float]], slow: str) -> list[float]:
    """Return the seconds of each round; of several settings `slow: ...` the fastest stands for all."""
    settings = [s for name, s in seconds.items() if name == slow or name.startswith(f"{slow}:")]
    return min(settings, key=statistics.median)


def ratio(seconds: dict[str, list[float]], slow: str, fast: str) -> float:
    """Return the median ratio of the rounds."""
    return round(statistics.median(s / f for s, f in zip(best_of(seconds, slow), seconds[fast], strict=True)), 2)


def bound(operations: float, seconds: list[float], peaks: list[float]) -> float:
    """Return how many times faster than `seconds` the operations would be at the peak of the same round."""
    return round(statistics.median(s / (operations / p) for s, p in zip(seconds, peaks, strict=True)), 2)


def share(operations: float, seconds: list[float], peaks: list[float]) -> float:
    """Return the median share of the peak measured in the same round."""
    return round(statistics.median(operations / s / p for s, p in zip(seconds, peaks, strict=True)), 2)


if __name__ == "__main__":
    main()
