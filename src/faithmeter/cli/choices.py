"""The choices that --help lists: the names in the package's tables, read from their source.

Importing a table would load torch, which takes seconds, and --help should be immediate. A table is a constant of a
module: names, rows whose first argument is a name, a dictionary of either, or the rows of another table that have a
flag. A new row appears automatically.
"""

import ast
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
Row = tuple[str, frozenset[str]]  # a name, and the flags that are true of it


def either(table: str) -> str:
    """Return the names of a table, of which one is chosen: `a, b or c`."""
    *first, last = names_in(table)
    return f"{', '.join(first)} or {last}" if first else last


def several(table: str) -> str:
    """Return the names of a table, of which several can be chosen."""
    return f"{', '.join(names_in(table))}; several with commas"


def names_in(table: str) -> tuple[str, ...]:
    """Return the names in a table of the package, such as `training.strategy.STRATEGIES`, in its order."""
    return tuple(name for name, _ in _table(table))


@cache
def _table(table: str) -> tuple[Row, ...]:
    module, _, name = table.rpartition(".")
    for node in _parsed(module).body:
        if isinstance(node, ast.ImportFrom) and name in (alias.asname or alias.name for alias in node.names):
            original = next(alias.name for alias in node.names if (alias.asname or alias.name) == name)
            return _table(f"{node.module}.{original}".removeprefix("faithmeter."))
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name) and target.id == name:
                    return _rows(node.value, module)
                unpacked = [ast.unparse(part) for part in target.elts] if isinstance(target, ast.Tuple) else []
                if name in unpacked:
                    return (_rows(node.value, module)[unpacked.index(name)],)
    raise LookupError(f"there is no table {table}")


def _rows(value: ast.expr, module: str) -> tuple[Row, ...]:
    """Return the rows that an expression stands for: its own, or those of what it is made of."""
    match value:
        case ast.Constant(value=str(name)):
            return ((name, frozenset()),)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return tuple(row for part in parts for row in _rows(part, module))
        case ast.Dict(keys=keys):
            return tuple(row for key in keys if key is not None for row in _rows(key, module))
        case ast.Starred(value=table):
            return _rows(table, module)
        case ast.Call(args=[first, *_], keywords=keywords):  # a row, or a MappingProxyType or tuple of a table
            true = {
                str(word.arg) for word in keywords if isinstance(word.value, ast.Constant) and word.value.value is True
            }
            return tuple((name, flags | true) for name, flags in _rows(first, module))
        case ast.DictComp(generators=[rows]) | ast.GeneratorExp(generators=[rows]):  # row.name for row in TABLE
            return tuple(row for row in _rows(rows.iter, module) if all(_holds(test, row) for test in rows.ifs))
        case ast.Name(id=name):
            return _table(f"{module}.{name}")
    raise LookupError(f"{module} has a table that cannot be read without importing it: {ast.unparse(value)[:80]}")


def _holds(test: ast.expr, row: Row) -> bool:
    """Whether a row is one of those that a table is cut down to: `if row.flag`, or `if not row.flag`."""
    match test:
        case ast.Attribute(attr=flag):
            return flag in row[1]
        case ast.UnaryOp(op=ast.Not(), operand=ast.Attribute(attr=flag)):
            return flag not in row[1]
    raise LookupError(f"a table cannot be cut down by {ast.unparse(test)} without importing it")


@cache
def _parsed(module: str) -> ast.Module:
    path = PACKAGE.joinpath(*module.split("."))
    return ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8"))
