"""What a training starts from: the model before it learns, and the settings that suit it."""

import itertools
from collections.abc import Sequence

from faithmeter.data.splits import Splits
from faithmeter.data.tasks import Task
from faithmeter.errors import InputError
from faithmeter.models.bilstm import BILSTM
from faithmeter.models.checkpoint import same_classes, start_head_at
from faithmeter.models.classifier import Classifier, load_classifier, outputs_of
from faithmeter.models.from_scratch import FROM_SCRATCH, SHAPES, bilstm_classifier, small_classifier
from faithmeter.models.lora import Lora
from faithmeter.problems import CLASSES, NUMBER, PROBLEMS, require_classes
from faithmeter.training.config import TrainingConfig

# batch size and epochs of BiLSTM-attention by task (Madsen et al., 2022, Table 4). bAbI is given 100 epochs there and
# is learnt in 20.
BILSTM_SETTINGS = {"snli": (128, 25), "babi": (50, 20), "other": (32, 8)}

LORA_LEARNING_RATE = 5e-4  # of RoBERTa-base on SST-2 in Hu et al. (2022), Table 9


def training_defaults(model: str, task: Task, *, lora: bool | None = None) -> TrainingConfig:
    """Return the papers' settings, or those that a small transformer learns with from scratch, or an adapter."""
    if lora and model not in FROM_SCRATCH:
        return TrainingConfig(epochs=task.epochs, learning_rate=LORA_LEARNING_RATE, lora=True)
    if model in SHAPES:
        short_first = PROBLEMS[task.problem].right is not None  # the curriculum goes on where answers are right
        return TrainingConfig(epochs=3, learning_rate=1e-3, batch_size=32, clip=1.0, curriculum=short_first)
    if model == BILSTM:
        family = task.name.split("-")[0]
        batch_size, epochs = BILSTM_SETTINGS.get(family, BILSTM_SETTINGS["other"])
        return TrainingConfig(
            epochs=epochs,
            optimizer="amsgrad",
            learning_rate=1e-3,
            batch_size=batch_size,
            weight_decay=1e-5,
            betas=(0.9, 0.999),
            warmup=0.0,
        )
    return TrainingConfig(epochs=task.epochs)


def require_trainable(config: TrainingConfig, task: Task) -> None:
    """Refuse a training that the task's answers do not allow."""
    if config.robust:
        require_classes(PROBLEMS[task.problem], "Robust training")
    if config.curriculum and PROBLEMS[task.problem].right is None:
        raise InputError(
            "The curriculum goes on to longer texts when answers are right, and a number is only nearer or farther: "
            "leave out --curriculum."
        )


def with_classes_of(model: str, splits: Splits) -> tuple[Splits, list[str]]:
    """Return the splits with the class numbers of a trained classifier, and notes about its head."""
    problem = splits.task.problem
    classes = None if model in FROM_SCRATCH else outputs_of(model, problem)
    if classes is None:
        return splits, []
    fitting = splits.in_order_of(classes)
    if fitting is not None:
        return fitting, [f"The model is a classifier: it keeps its head and {problem} ({', '.join(fitting.labels)})."]
    return splits, [
        f"The model's {problem} ({', '.join(classes)}) are not those of the data ({', '.join(splits.labels)}): "
        "it learns a new head."
    ]


def answers_already(model: str, labels: Sequence[str]) -> bool:
    """Whether a model has a trained head for these classes."""
    classes = None if model in FROM_SCRATCH else outputs_of(model, CLASSES)
    return classes is not None and same_classes(classes, labels)


def fresh_classifier(
    model: str,
    splits: Splits,
    *,
    seed: int,
    max_length: int,
    vectors: str | None = None,
    lora: Lora | None = None,
) -> Classifier:
    """Return the model before training; `seed` initialises the weights that it lacks, and those of an adapter."""
    classifier = _fresh(model, splits, seed, max_length, vectors, lora)
    classifier.both_texts = splits.task.both_texts
    return classifier


def _fresh(
    model: str, splits: Splits, seed: int, max_length: int, vectors: str | None, lora: Lora | None
) -> Classifier:
    if vectors is not None and model != BILSTM:
        raise InputError(f"Word vectors are only for the model {BILSTM!r}, which has word embeddings; not for {model}.")
    problem = PROBLEMS[splits.task.problem]
    if model not in FROM_SCRATCH:
        classifier = load_classifier(
            model,
            splits.labels,
            problem=problem.name,
            new_head=True,
            seed=seed,
            max_length=max_length,
            lora=lora,
        )
    elif lora is not None:
        raise InputError(f"--lora adapts a pretrained model, and {model!r} is trained from scratch: name another.")
    else:
        classifier = _from_scratch(model, splits, seed, max_length, vectors)
        if problem.name != CLASSES:
            classifier.model.config.problem_type = problem.problem_type
    if problem.name == NUMBER and (model in FROM_SCRATCH or outputs_of(model, NUMBER) is None):
        start_head_at(classifier.model, [row[0] for row in splits.train["label"]])
    return classifier


def _from_scratch(model: str, splits: Splits, seed: int, max_length: int, vectors: str | None) -> Classifier:
    pairs = "context" in splits.train.column_names
    texts = itertools.chain(splits.train["text"], splits.train["context"] if pairs else ())
    if model in SHAPES:
        return small_classifier(texts, splits.labels, shape=model, seed=seed, max_length=max_length)
    return bilstm_classifier(texts, splits.labels, pairs=pairs, vectors=vectors, seed=seed, max_length=max_length)
