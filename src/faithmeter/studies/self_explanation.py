"""Self-explanation: ask a prompted language model which words decided, and write its answers as scores to a file."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets

from faithmeter.data.batch import Ints
from faithmeter.errors import InputError
from faithmeter.importance.elsewhere import OF
from faithmeter.importance.named_words import named_words
from faithmeter.measuring.curves import require_target
from faithmeter.models.classifier import Classifier
from faithmeter.models.completion import complete
from faithmeter.models.prompt import CONTEXT, TEXT
from faithmeter.models.prompted import PromptedConfig
from faithmeter.progress import Reporter, Silent
from faithmeter.runs.run import Run
from faithmeter.runs.texts import encode
from faithmeter.studies.scores import chosen_rows, require_kind, store

ANSWER = "{answer}"
QUESTION = "\nKey words: "
NEW_TOKENS = 32


@dataclass(frozen=True)
class SelfExplanationOptions:
    """How the model is asked, about which texts; they are those that `measure` chooses with the same rows and seed.

    `question` is a template with slots {text} and {answer}, and perhaps {context}. By default it is the prompt of the
    run without its examples, answered, and then `QUESTION`. The answer is the word of the class that the model predicts
    (`target`), or of the true one. `new_tokens` is the length of what it may write.
    """

    question: str | None = None
    new_tokens: int = NEW_TOKENS
    target: str = "predicted"
    rows: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        require_target(self.target)
        if self.new_tokens < 1:
            raise InputError("An answer needs at least 1 new token.")
        for slot in (TEXT, ANSWER) if self.question is not None else ():
            if slot not in self.question:  # type: ignore[operator]
                raise InputError(
                    f"A question has slots {TEXT} and {ANSWER}, for the text and for the word of its class; this one "
                    f"has no {slot}: {self.question!r}."
                )


def self_explanation(
    path: str | Path,
    out: str | Path,
    options: SelfExplanationOptions | None = None,
    *,
    reporter: Reporter | None = None,
) -> Path:
    """Ask a prompted model about test texts, and write a line per word that it names: its characters and its score.

    A text of which it names no word has one line without them, and their share is reported. What it wrote is in the
    column `answer`.
    """
    run, out, options, reporter = Run(path), Path(out), options or SelfExplanationOptions(), reporter or Silent()
    require_kind(out)
    classifier, split = run.classifier(), run.data().test
    if classifier.model.config.model_type != PromptedConfig.model_type:
        raise InputError(
            f"{run.path} is no run of `faithmeter prompt`: only a prompted language model can say which words decided. "
            "Name a measure with --measure."
        )
    test = encode(classifier, split, "test", reporter)
    chosen = chosen_rows(test, options.rows, options.seed)
    asked = split.select(chosen.tolist())
    targets = asked["label"] if options.target == "gold" else _predicted(classifier, asked)
    words = [classifier.model.config.words[target] for target in targets]
    questions = _questions(classifier, asked, words, options.question)
    with reporter.bar("Asking", len(questions)) as advance:
        answers = complete(classifier, questions, options.new_tokens, progress=advance)
    lines, silent = _lines(classifier, asked, chosen, [classifier.labels[one] for one in targets], answers)
    store(lines, out)
    reporter.note(f"{silent} of {len(answers)} answers ({silent / len(answers):.0%}) name no word of their text.")
    return out


def _predicted(classifier: Classifier, asked: datasets.Dataset) -> list[int]:
    contexts = asked["context"] if "context" in asked.column_names else None
    return classifier.predict(classifier.encode(asked["text"], contexts)).argmax(dim=-1).tolist()


def _questions(classifier: Classifier, asked: datasets.Dataset, words: list[str], question: str | None) -> list[str]:
    """Return the question about each text, of which it shows as much as the classifier reads."""
    template = question or classifier.model.config.template + ANSWER + QUESTION
    found = []
    for row, word in zip(asked, words, strict=True):
        read = {"text": row["text"], "context": row.get("context") or ""}
        (encoding,) = classifier.encodings(row["text"], row.get("context"))
        for part, name in enumerate(OF) if encoding.overflowing else ():
            ends = [end for (_, end), of in zip(encoding.offsets, encoding.sequence_ids, strict=True) if of == part]
            read[name] = read[name][: max(ends, default=0)]
        found.append(_filled(template, {TEXT: read["text"], CONTEXT: read["context"], ANSWER: word}))
    return found


def _filled(template: str, slots: Mapping[str, str]) -> str:
    """Return the template with its slots filled at once: what fills one is not searched for others."""
    return re.sub("|".join(map(re.escape, slots)), lambda slot: slots[slot[0]], template)


def _lines(
    classifier: Classifier, asked: datasets.Dataset, chosen: Ints, labels: list[str], answers: list[str]
) -> tuple[list[dict[str, Any]], int]:
    """Return the lines of the file, and of how many texts no word is named."""
    lines, silent = list[dict[str, Any]](), 0
    for row, said, target, answer in zip(chosen.tolist(), asked, labels, answers, strict=True):
        both = classifier.both_texts and "context" in said
        spans = named_words([said[name] for name in (OF if both else OF[:1])], answer)
        silent += not spans
        for span in spans or (None,):
            start, end, score, part = span or (None, None, None, 0)
            of = {"of": OF[part]} if both else {}
            lines.append(
                {"row": row, "start": start, "end": end, "score": score, **of, "target": target, "answer": answer}
            )
    return lines, silent
