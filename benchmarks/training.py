"""Speed of prediction and training against plain use of transformers, on MiniLM and real reviews, one core.

Each round runs every contestant once, in turn, and takes CPU time, so that a busy machine disturbs all alike; the
median of the rounds' ratios is printed. Run with `make bench`.
"""

import json
import statistics
import tempfile
from pathlib import Path

import torch
import transformers
from timing import cpu_seconds, matmul_peaks

from faithmeter import DataSpec, load_classifier
from faithmeter.data.splits import load_splits
from faithmeter.training.config import TrainingConfig
from faithmeter.training.loop import fine_tune

ROUNDS, TRAIN_ROWS, TEST_ROWS, BATCH = 3, 256, 512, 16


def main() -> None:
    """Print and store the ratios."""
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    splits = load_splits(DataSpec(task="rotten-tomatoes", train_rows=TRAIN_ROWS, test_rows=TEST_ROWS))
    classifier = load_classifier("minilm", splits.labels, new_head=True)
    texts = list(splits.test["text"])
    test = classifier.encode(texts)
    train = classifier.encode(splits.train["text"], labels=splits.train["label"])
    few = classifier.encode(splits.validation["text"][:16], labels=splits.validation["label"][:16])
    pipeline = transformers.pipeline(
        "text-classification", model=classifier.model.eval(), tokenizer=classifier.tokenizer
    )
    rows = [
        {**classifier.tokenizer(text), "labels": label} for text, label in zip(*_columns(splits.train), strict=True)
    ]

    def our_training() -> None:
        fresh = load_classifier("minilm", splits.labels, new_head=True)
        with tempfile.TemporaryDirectory() as folder:
            config = TrainingConfig(epochs=1, strategy="plain", batch_size=BATCH)
            fine_tune(fresh, train, few, config, metric="accuracy", checkpoints=Path(folder) / "checkpoints")

    def trainer() -> None:
        fresh = load_classifier("minilm", splits.labels, new_head=True)
        with tempfile.TemporaryDirectory() as folder:
            arguments = transformers.TrainingArguments(
                folder, num_train_epochs=1, per_device_train_batch_size=BATCH, save_strategy="epoch", report_to=[],
                disable_tqdm=True, use_cpu=True, logging_strategy="no",
            )  # fmt: skip
            transformers.Trainer(
                fresh.model, arguments, train_dataset=rows,
                data_collator=transformers.DataCollatorWithPadding(fresh.tokenizer),
            ).train()  # fmt: skip

    contestants = {
        "predict": lambda: classifier.predict(test),
        "pipeline, one by one": lambda: list(pipeline(texts)),
        "pipeline, batches of 32": lambda: list(pipeline(texts, batch_size=32)),
        "train": our_training,
        "Trainer": trainer,
    }
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(ROUNDS):
        for name, work in contestants.items():
            seconds[name].append(cpu_seconds(work))
    body = sum(p.numel() for name, p in classifier.model.named_parameters() if "embeddings" not in name)
    flops = 2 * body * int(test.lengths.sum())
    result = {
        "predict, times faster than a pipeline one by one": _ratio(seconds["pipeline, one by one"], seconds["predict"]),
        "predict, times faster than a pipeline in batches": _ratio(
            seconds["pipeline, batches of 32"], seconds["predict"]
        ),
        "train, times faster than Trainer, checkpoint included": _ratio(seconds["Trainer"], seconds["train"]),
        "predict, share of the better matmul peak": round(
            flops / statistics.median(seconds["predict"]) / max(matmul_peaks().values()), 2
        ),
    }
    for name, value in result.items():
        print(f"{name}: {value}")
    Path("benchmarks/training.json").write_text(json.dumps(result, indent=2) + "\n")


def _columns(split: object) -> tuple[list[str], list[int]]:
    return list(split["text"]), list(split["label"])  # type: ignore[index]


def _ratio(slow: list[float], fast: list[float]) -> float:
    return round(statistics.median(s / f for s, f in zip(slow, fast, strict=True)), 2)


if __name__ == "__main__":
    main()
