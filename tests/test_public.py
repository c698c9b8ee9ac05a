"""The public names, and the order of the rooms: a file imports only from files above it."""

import ast
import subprocess
import sys
from importlib import import_module
from inspect import ismodule
from pathlib import Path

import faithmeter

PACKAGE = Path(faithmeter.__file__).parent
# the order of the house: see docs/architecture.md
ROOMS = (
    "errors", "files", "heat_map", "progress", "masking", "statistics", "performance", "babi", "tables", "labels",
    "tasks",
    "data", "batch", "passes", "last_layer", "fused_linear", "bilstm", "t5_encoder", "reading", "special_tokens",
    "model_source", "checkpoint", "borrowing", "padding", "classifier", "units", "attacks.words", "attacks.neighbours",
    "attacks.kinds", "attacks.order", "attacks.search", "attacks", "word_vectors", "from_scratch", "training.strategy",
    "training.config", "training.curriculum", "training.checkpoint", "training.robust", "training.loop", "training",
    "importance.at_embeddings", "importance.gradient", "importance.completeness", "importance.deep_lift",
    "importance.occlusion", "importance.attention", "importance.beam", "importance.search", "importance.chance",
    "importance.surrogate", "importance.ensemble", "importance", "in_distribution.p_values", "in_distribution.masf",
    "in_distribution.verdict",
    "in_distribution", "faithfulness", "faithfulness.curves", "faithfulness.roar", "faithfulness.synthetic", "judges",
    "judges.ranking", "judges.maskings", "judges.ground_truth", "judges.erasure", "judges.selection", "judges.fidelity",
    "judges.drift", "judges.rationales", "judges.known_token", "judges.randomisation", "judges.agreement",
    "judges.adversarial", "judges.battery", "explanation", "results", "run", "settings", "roar_run", "workers",
    "ray_engine", "small_curve", "reports", "reports.figures", "reports.words", "reports.formats", "reports.parts",
    "reports.attack",
    "reports.drift", "reports.agreement", "reports.audit", "reports.select", "reports.transfer", "reports.comparison",
    "reports.content", "reports.card", "reports.page", "reports.roar", "web", "web.desk", "web.app",
    "jobs.audit_summary", "jobs.repeating", "jobs.summarising", "jobs.training", "jobs.adopting", "jobs.checking",
    "jobs.estimating",
    "jobs.measuring", "jobs.attacking", "jobs.auditing", "jobs.explaining", "jobs.reporting", "jobs.roar_summary",
    "jobs.roaring", "jobs.selecting", "jobs.transferring", "jobs.synthetic", "jobs.scaling", "jobs.comparing",
    "jobs.suite_file", "jobs.suite_graph", "jobs.suite_estimate", "jobs.suiting", "jobs.serving", "jobs", "__init__",
    "printing", "command_options", "train_command", "attack_command", "audit_command", "roar_command", "scale_command",
    "compare_command", "select_command", "transfer_command", "suite_command", "cli",
)  # fmt: skip


def test_the_public_names_are_these():
    assert set(faithmeter.__all__) == {
        "IMPORTANCE_MEASURES", "METRICS", "TASKS", "Attack", "AuditOptions", "Batch", "Classifier", "DataSpec",
        "Encoded", "EngineOptions", "bench_suite",
        "Explanation", "ImportanceMeasure", "InputError", "MaSF", "MeasureOptions", "Result", "RoarOptions", "RoarRun",
        "Run", "Splits", "Task", "TrainingConfig", "TrainingOptions", "adopt", "as_measure", "audit", "check",
        "SelectOptions", "select", "transfer", "attack", "attack_texts",
        "explain", "explain_texts", "fine_tune", "load_classifier", "load_splits", "majority_performance", "measure",
        "pool", "report", "resume", "roar", "bilstm_classifier", "small_classifier", "train",
    }  # fmt: skip
    assert all(hasattr(faithmeter, name) for name in faithmeter.__all__)
    assert {name for names in faithmeter._ROOMS.values() for name in names} == set(faithmeter.__all__)


def test_no_public_name_is_hidden_by_a_room_of_the_same_name():
    for room in faithmeter._ROOMS:
        import_module(f"faithmeter.{room}")
    assert not [name for name in faithmeter.__all__ if ismodule(getattr(faithmeter, name))]


def test_the_help_is_there_without_loading_torch():
    code = "import sys, faithmeter.cli; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def rooms_in_the_tree() -> dict[str, Path]:
    rooms = {}
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        rooms[name.removesuffix(".__init__")] = path
    return rooms


def imported(path: Path) -> set[str]:
    """The rooms that a file imports from."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    rooms = {name.removeprefix("faithmeter.") for name in found if name.startswith("faithmeter.")}
    return rooms & set(ROOMS)


def test_every_room_is_in_the_order():
    assert set(rooms_in_the_tree()) == set(ROOMS)


def test_a_room_imports_only_from_rooms_above_it():
    wrong = [
        f"{room} imports {other}"
        for room, path in rooms_in_the_tree().items()
        for other in imported(path)
        # `from faithmeter.training import checkpoint` names the package as the way to its own room
        if ROOMS.index(other) >= ROOMS.index(room) and not room.startswith(f"{other}.")
    ]
    assert not wrong
