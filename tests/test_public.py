"""The public names, and the layers of the package: each imports only from those before it."""

import ast
import functools
import subprocess
import sys
from importlib import import_module
from inspect import ismodule
from pathlib import Path

import faithmeter

PACKAGE = Path(faithmeter.__file__).parent
# a package imports only from those before it: see docs/architecture.md
LAYERS = (
    "errors", "progress", "files", "masking", "statistics", "problems", "performance", "data", "models", "importance",
    "in_distribution", "measuring", "explaining", "training", "attacks", "judges", "runs", "reports", "studies", "web",
    "cli",
)  # fmt: skip
FLAT = 9  # files that lie beside the packages


def test_the_public_names_are_these():
    assert set(faithmeter.__all__) == {
        "IMPORTANCE_MEASURES", "AuditOptions", "Batch", "Classifier", "DataSpec",
        "EngineOptions", "ExplainOptions", "bench_suite",
        "Explanation", "ImportanceMeasure", "InputError", "MaSF", "MeasureOptions", "Result", "RoarOptions",
        "Run", "Task", "TrainingOptions", "adopt", "as_run", "audit", "check",
        "SelectOptions", "select", "transfer", "attack", "explain",
        "explain_texts", "load_classifier", "measure",
        "pool", "report", "resume", "roar", "train",
    }  # fmt: skip
    assert all(hasattr(faithmeter, name) for name in faithmeter.__all__)
    assert {name for names in faithmeter._MODULES.values() for name in names} == set(faithmeter.__all__)


def test_no_public_name_is_hidden_by_a_module_of_the_same_name():
    for module in faithmeter._MODULES:
        import_module(f"faithmeter.{module}")
    assert not [name for name in faithmeter.__all__ if ismodule(getattr(faithmeter, name))]


def test_the_help_is_there_without_loading_torch():
    code = (
        "import sys\nfrom faithmeter.cli.main import main\n"
        "for asked in (['--help'], ['train', '--help'], ['audit', '--help']):\n"
        "    sys.argv = ['faithmeter', *asked]\n"
        "    try:\n        main()\n    except SystemExit as end:\n        assert not end.code\n"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def modules() -> dict[str, ast.Module]:
    """Every module by its name below the package, such as `runs.run`, and what is in it."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def imported(tree: ast.Module) -> set[str]:
    """What a module imports of the package, at its top or later."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.removeprefix("faithmeter.") for name in found if name.startswith("faithmeter.")}


def test_a_package_imports_only_from_packages_before_it():
    here = {name: tree for name, tree in modules().items() if name not in ("__init__", "__main__")}
    assert {name.split(".")[0] for name in here} == set(LAYERS)
    layer = LAYERS.index
    wrong = [
        f"{name} imports {other}"
        for name, tree in here.items()
        for other in imported(tree)
        if other.split(".")[0] in LAYERS and layer(other.split(".")[0]) > layer(name.split(".")[0])
    ]
    assert not wrong


def test_no_chain_of_imports_is_longer_than_fifteen_modules():
    """From `__main__` down; what only types name does not count."""
    every = {name: tree for name, tree in modules().items() if name != "__init__"}

    def at_run_time(tree: ast.Module) -> ast.Module:
        return ast.Module([one for one in tree.body if "TYPE_CHECKING" not in ast.dump(one)[:120]], [])

    @functools.cache
    def chain(name: str) -> int:
        found = imported(at_run_time(every[name]))
        below = {other if other in every else other.rpartition(".")[0] for other in found} & every.keys()
        return 1 + max((chain(other) for other in below - {name}), default=0)

    assert max(map(chain, every)) <= 15


def test_few_files_lie_flat():
    assert len(list(PACKAGE.glob("*.py"))) <= FLAT


def test_no_function_is_longer_than_a_screen():
    long = {
        f"{name}.{node.name}": lines
        for name, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := node.end_lineno - node.body[0].lineno + 1) > 60  # a command's options are its signature
    }
    assert not long
