"""The functions that emitted code calls: imported from `runtime`, or copied from FILES with their dependencies.

Functions, classes and constants are copied by name. A registration, `@op.register_fake def ...` or a top-level call
such as `op.register_autograd(...)`, is copied with its op.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from graphlib import TopologicalSorter
from pathlib import Path
from symtable import symtable

from tensornet_attn.emit.wrap import WIDTH, filled

PACKAGE = "tensornet_attn"
PLAIN = "tensornet_attn.runtime.plain"  # whose functions replace those of the same names in files that need only torch
FILES = ("constants.py", "runtime/*.py", "runtime/triton/configure.py", "runtime/triton/kernels/*.py")
BY_TRITON = (  # functions that Triton kernels replace, with the same arguments
    "decay_attention delta_rule expert_rows expert_sums gated_delta_rule gated_expert_sums linear_attention top_chosen "
    "top_entries weighted_total".split()
)


@dataclass(frozen=True)
class Definition:
    """A top-level statement: source, global names that it reads, the op of a registration, and the module."""

    text: str
    reads: frozenset[str]
    owner: str | None = None
    module: str = ""


@cache
def library(plain: bool = False) -> dict[str, Definition]:
    """All statements that can be copied, by name, in import order; a bare call has its text as name.

    `plain`: with the functions of `runtime/plain.py`, which need no registrations, in place of others.
    """
    if plain:
        forms = dict(items(_path(PLAIN).read_text(encoding="utf-8"), PLAIN))
        return {name: statement for name, statement in library().items() if statement.owner not in forms} | forms
    folder = _path(PACKAGE).with_suffix("")
    paths = {_module(path.relative_to(folder)): path for pattern in FILES for path in sorted(folder.glob(pattern))}
    sources = {module: path.read_text(encoding="utf-8") for module, path in paths.items() if module != PLAIN}
    dependencies = {
        module: [name for name in sources if f"from {name} import" in source] for module, source in sources.items()
    }
    statements: dict[str, Definition] = {}
    for module in TopologicalSorter(dependencies).static_order():
        statements |= dict(items(sources[module], module))
    return statements


def _path(module: str) -> Path:
    return Path(__file__).resolve().parents[2].joinpath(*module.split(".")).with_suffix(".py")


def _module(path: Path) -> str:
    return ".".join([PACKAGE, *path.with_suffix("").parts])


def items(source: str, module: str = "") -> Iterator[tuple[str, Definition]]:
    """Yields (name, item) for each top-level statement except imports and docstrings."""
    lines = source.split("\n")
    for node in ast.parse(source).body:
        segment = "\n".join(lines[_first_line(node) - 1 : node.end_lineno])
        reads = names_read(segment)
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name, Definition(segment, reads, _owner(node.decorator_list), module)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            yield ast.unparse(target), Definition(segment, reads, None, module)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield segment, Definition(segment, reads, _owner([node.value]), module)


@lru_cache(1 << 12)
def names_read(code: str) -> frozenset[str]:
    """The global names that a text reads; names bound inside functions do not count.

    >>> sorted(names_read("def f(x):\\n    y = g(x)\\n    return y"))
    ['g']
    """
    tables, reads = [symtable(code, "text", "exec")], set[str]()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        outside = table.get_type() == "module"
        reads |= {
            symbol.get_name()
            for symbol in table.get_symbols()
            if symbol.is_referenced() and (outside or symbol.is_global())
        }
    return frozenset(reads)


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _owner(calls: list[ast.expr]) -> str | None:
    """The op of `op.register_fake` or `op.register_autograd(...)`."""
    for call in calls:
        function = call.func if isinstance(call, ast.Call) else call
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            return function.value.id if function.attr.startswith("register_") else None
    return None


def replaced(backend: str) -> dict[str, str]:
    """The functions of the runtime that a backend replaces, by name."""
    return {name: f"triton_{name}" for name in BY_TRITON} if backend == "triton" else {}


def names() -> frozenset[str]:
    """All names that emitted code may copy; local names avoid them."""
    return frozenset(name for name in (*library(), *library(plain=True)) if name.isidentifier())


@cache
def all_names() -> frozenset[str]:
    """All names that these functions read, such as `ValueError`; the class must not have one of them."""
    return frozenset().union(
        names(), *(statement.reads for plain in (False, True) for statement in library(plain).values())
    )


def imported(used: Iterable[str]) -> tuple[list[str], list[str]]:
    """The import lines for the used functions of the runtime, and the texts of functions written for this file only."""
    statements, written_here = library(), sorted(source for source in used if source not in library())
    wanted = {name for name in used if name in statements}
    wanted |= {
        name
        for source in written_here
        for _, statement in items(source)
        for name in statement.reads & statements.keys()
    }
    by_module: dict[str, list[str]] = {}
    for name in sorted(wanted):
        by_module.setdefault(statements[name].module, []).append(name)
    return [line for module in sorted(by_module) for line in _import(module, by_module[module])], written_here


def _import(module: str, wanted: list[str]) -> list[str]:
    line = f"from {module} import {', '.join(wanted)}"
    rows = filled((f"{name}," for name in wanted), WIDTH - 4)
    return [line] if len(line) <= WIDTH else [f"from {module} import (", *(f"    {row}" for row in rows), ")"]


def carried(used: Iterable[str], plain: bool = False) -> list[str]:
    """The source texts of the used functions, their dependencies and their registrations, in the order of the library.

    `used`: names in the library, and texts of functions written for this file only, which come last. `plain`: see
    `library`.
    """
    statements = library(plain)
    written_here = sorted(source for source in used if source not in statements)
    pending = [name for name in used if name in statements]
    pending += sorted(
        name
        for source in written_here
        for _, statement in items(source)
        for name in statement.reads & statements.keys()
    )
    wanted: set[str] = set()
    while pending:
        name = pending.pop()
        if name not in wanted:
            wanted.add(name)
            pending += sorted(statements[name].reads & statements.keys())
            pending += [key for key, statement in statements.items() if statement.owner == name]
    return [statement.text for name, statement in statements.items() if name in wanted] + written_here
