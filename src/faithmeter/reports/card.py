"""The model card, in the format of model hubs, with what was measured on the model."""

from faithmeter.files import write_bytes
from faithmeter.masking import MASK
from faithmeter.models.lora import WEIGHTS
from faithmeter.models.operators import OPERATORS
from faithmeter.problems import CLASSES, LABELS, NUMBER
from faithmeter.reports import sentences
from faithmeter.reports.evidence import conclusion, evidence
from faithmeter.reports.formats import as_markdown, plain
from faithmeter.reports.parts import Table
from faithmeter.reports.ranked import ranked_table
from faithmeter.runs.commands import shown_path
from faithmeter.runs.results import measures, rows_of
from faithmeter.runs.run import Run, RunConfig
from faithmeter.training.config import OPTIMIZERS
from faithmeter.training.strategy import STRATEGIES

HEADER = """---
library_name: {library}
pipeline_tag: text-classification
tags:
- faithfulness-measurable
- interpretability
- faithmeter
---"""


def model_card(run: Run) -> str:
    """Return the model card of a run: its training, check and measurements, as far as they exist."""
    config, rows = run.config, run.results
    adapted = config.training is not None and config.training.lora
    header = HEADER.format(library="peft" if adapted else "transformers")
    parts = [header, f"# {plain(config.subject)}", _what_it_is(config), *([_what_is_stored(run)] if adapted else [])]
    performance = [row for row in rows if row["kind"] == "performance"]
    if performance:
        cells = [[f"{100 * row['masking_ratio']:.0f} %", f"{row['value']:.3f}"] for row in performance]
        cells += [[config.problem.blind, f"{row['value']:.3f}"] for row in rows if row["kind"] == "majority"]
        table = Table("performance", "", ("tokens masked at random", f"test {config.metric}"), cells)
        parts += ["## Performance", as_markdown(table)]
    if rows_of(rows, "check_p_value"):
        lines = [f"- **{title}:** {sentence}" for title, sentence in evidence(rows, sentences.recommended(rows))]
        parts += ["## What the verdict rests on", "\n".join([conclusion(rows), "", *lines])]
    if measures(rows):
        parts += ["## Which explanation to use", " ".join(sentences.verdict(rows)), as_markdown(ranked_table(rows))]
        parts += [f"- Careful: {caution}" for caution in sentences.cautions(rows, None)]
    pair = "[text], [context]" if config.data.resolved().context is not None else "[text]"
    parts += [
        "## How to explain with it",
        *([doubted] if (doubted := sentences.doubt(rows)) else []),
        "\n".join(
            [
                "```python",
                "from faithmeter import explain_texts, load_classifier",
                "",
                f'classifier = load_classifier("THIS_MODEL", {list(config.labels)!r})',
                f'print(explain_texts(classifier, {pair}, measure="{run.measure_to_use}")[0])',
                "```",
            ]
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _what_it_is(config: RunConfig) -> str:
    outputs = ", ".join(map(plain, config.labels))
    if config.prompt is not None:
        asked = plain(repr(config.prompt["template"]))
        words = ", ".join(map(plain, config.prompt["words"]))
        return (
            f"A prompted language model, {plain(shown_path(config.model))}, as a text classifier (classes: "
            f"{outputs}). Its template is {asked}, with {config.prompt['shots']} answered examples before it; its "
            f"words are {words}; calibration: {config.prompt['calibration']}. Nothing was trained."
        )
    kind = {
        CLASSES: f"A text classifier (classes: {outputs})",
        LABELS: f"A text classifier that gives several labels at once (labels: {outputs}; a sigmoid each)",
        NUMBER: f"A model that answers a text with a number ({outputs})",
    }[config.problem.name]
    if config.training is None:
        return f"{kind}, trained elsewhere and judged by faithmeter."
    how = config.training
    makes, optimizer = STRATEGIES[how.strategy].makes, OPTIMIZERS[how.optimizer]
    return (
        f"{kind}, {makes}. Trained from {plain(shown_path(config.model))} with {optimizer}, "
        f"learning rate {how.learning_rate:g}, batches of {how.batch_size}, {how.epochs} epochs, seed {how.seed}"
        + (f", with {' and '.join(how.robust)} training." if how.robust else ".")
        + (" Guidance had the loss of an earlier version, which flattened attention." if how.guided_formerly else "")
        + (" It was taught its own answers to unmasked texts, and no labels." if how.own_answers else "")
        + ("" if how.operator == MASK else f" Tokens were removed by {how.operator}: {_uncapitalised(how.operator)}")
    )


def _uncapitalised(operator: str) -> str:
    does = OPERATORS[operator].does
    return does[0].lower() + does[1:]


def _what_is_stored(run: Run) -> str:
    """Return what an adapter consists of, and how large it is."""
    how = run.config.training
    assert how is not None
    stored = (run.model_folder / WEIGHTS).stat().st_size / 1e6
    return (
        f"This folder holds a LoRA adapter of {stored:.1f} MB (rank {how.lora_rank}, alpha {how.lora_alpha:g}): "
        f"low-rank updates, the head, and the embedding of the mask token. The base, "
        f"{plain(shown_path(run.config.model))}, is unchanged, was frozen in {how.dtype}, and is needed to load it; "
        "`AutoPeftModelForSequenceClassification` of peft loads both."
    )


def store_card(run: Run) -> None:
    """Write what is known of the run's model into its folder, as a model card."""
    write_bytes(run.model_folder / "README.md", model_card(run).encode())
