"""What can be chosen, for the help: the names in the package's tables, read from their source.

To import a table is to load torch, which takes seconds, and a help text should be there at once. A table is a constant
of a module: names, rows whose first argument is a name, or a dictionary of either. A new row appears by itself.
"""

import ast
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def either(table: str) -> str:
    """Return the names of a table, of which one is chosen: `a, b or c`."""
    *first, last = names_in(table)
    return f"{', '.join(first)} or {last}" if first else last


def several(table: str) -> str:
    """Return the names of a table, of which several can be chosen."""
    return f"{', '.join(names_in(table))}; several with commas"


@cache
def names_in(table: str) -> tuple[str, ...]:
    """Return the names in a table of the package, such as `training.strategy.STRATEGIES`, in its order."""
    module, _, name = table.rpartition(".")
    for node in _parsed(module).body:
        if isinstance(node, ast.ImportFrom) and name in (alias.asname or alias.name for alias in node.names):
            original = next(alias.name for alias in node.names if (alias.asname or alias.name) == name)
            return names_in(f"{node.module}.{original}".removeprefix("faithmeter."))
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name) and target.id == name:
                    return _names(node.value, module)
                unpacked = [ast.unparse(part) for part in target.elts] if isinstance(target, ast.Tuple) else []
                if name in unpacked:
                    return (_names(node.value, module)[unpacked.index(name)],)
    raise LookupError(f"there is no table {table}")


def _names(value: ast.expr, module: str) -> tuple[str, ...]:
    """Return the names that an expression stands for: its own, or those of what it is made of."""
    match value:
        case ast.Constant(value=str(name)):
            return (name,)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return tuple(name for part in parts for name in _names(part, module))
        case ast.Dict(keys=keys):
            return tuple(name for key in keys if key is not None for name in _names(key, module))
        case ast.DictComp(generators=[ast.comprehension(iter=rows, ifs=[])]):  # {row.name: row for row in TABLE}
            return _names(rows, module)
        case ast.Starred(value=table) | ast.Call(args=[table, *_]):  # a row, or a MappingProxyType of a table
            return _names(table, module)
        case ast.Name(id=name):
            return names_in(f"{module}.{name}")
    raise LookupError(f"{module} has a table that cannot be read without importing it: {ast.unparse(value)[:80]}")


@cache
def _parsed(module: str) -> ast.Module:
    path = PACKAGE.joinpath(*module.split("."))
    return ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8"))
