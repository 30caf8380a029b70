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

RUNTIME = "tensornet_attn.runtime"
PLAIN = f"{RUNTIME}.plain"  # whose functions replace those of the same names in files that need only torch
FILES = ("*.py", "triton/configure.py", "triton/kernels/*.py")  # in `runtime`
BY_TRITON = (  # functions that Triton kernels replace, with the same arguments
    "decay_attention delta_rule expert_rows expert_sums gated_delta_rule gated_expert_sums linear_attention top_chosen "
    "top_entries weighted_total".split()
)


@dataclass(frozen=True)
class Item:
    """A top-level statement: source, global names that it reads, the op of a registration, and the module."""

    text: str
    reads: frozenset[str]
    owner: str | None = None
    module: str = ""


@cache
def library(plain: bool = False) -> dict[str, Item]:
    """All statements that can be copied, by name, in import order; a bare call has its text as name.

    `plain`: with the functions of `runtime/plain.py`, which need no registrations, in place of others.
    """
    if plain:
        forms = dict(items(_path(PLAIN).read_text(encoding="utf-8"), PLAIN))
        return {name: item for name, item in library().items() if item.owner not in forms} | forms
    folder = _path(RUNTIME).with_suffix("")
    paths = {_module(path.relative_to(folder)): path for pattern in FILES for path in sorted(folder.glob(pattern))}
    texts = {module: path.read_text(encoding="utf-8") for module, path in paths.items() if module != PLAIN}
    before = {module: [name for name in texts if f"from {name} import" in text] for module, text in texts.items()}
    found: dict[str, Item] = {}
    for module in TopologicalSorter(before).static_order():
        found |= dict(items(texts[module], module))
    return found


def _path(module: str) -> Path:
    return Path(__file__).resolve().parents[2].joinpath(*module.split(".")).with_suffix(".py")


def _module(path: Path) -> str:
    return ".".join([RUNTIME, *path.with_suffix("").parts])


def items(source: str, module: str = "") -> Iterator[tuple[str, Item]]:
    """Yields (name, item) for each top-level statement except imports and docstrings."""
    lines = source.split("\n")
    for node in ast.parse(source).body:
        text = "\n".join(lines[_first_line(node) - 1 : node.end_lineno])
        reads = names_read(text)
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name, Item(text, reads, _owner(node.decorator_list), module)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            yield ast.unparse(target), Item(text, reads, None, module)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield text, Item(text, reads, _owner([node.value]), module)


@lru_cache(1 << 12)
def names_read(text: str) -> frozenset[str]:
    """The global names that a text reads; names bound inside functions do not count.

    >>> sorted(names_read("def f(x):\\n    y = g(x)\\n    return y"))
    ['g']
    """
    todo, found = [symtable(text, "text", "exec")], set[str]()
    while todo:
        table = todo.pop()
        todo += table.get_children()
        outside = table.get_type() == "module"
        found |= {s.get_name() for s in table.get_symbols() if s.is_referenced() and (outside or s.is_global())}
    return frozenset(found)


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(part.lineno for part in decorators)])


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
    return frozenset().union(names(), *(item.reads for own in (False, True) for item in library(own).values()))


def imported(used: Iterable[str]) -> tuple[list[str], list[str]]:
    """The import lines for the used functions of the runtime, and the texts of functions written for this file only."""
    known, texts = library(), sorted(text for text in used if text not in library())
    wanted = {name for name in used if name in known}
    wanted |= {name for text in texts for _, item in items(text) for name in item.reads & known.keys()}
    by_module: dict[str, list[str]] = {}
    for name in sorted(wanted):
        by_module.setdefault(known[name].module, []).append(name)
    return [line for module in sorted(by_module) for line in _import(module, by_module[module])], texts


def _import(module: str, wanted: list[str]) -> list[str]:
    line = f"from {module} import {', '.join(wanted)}"
    rows = filled((f"{name}," for name in wanted), WIDTH - 4)
    return [line] if len(line) <= WIDTH else [f"from {module} import (", *(f"    {row}" for row in rows), ")"]


def carried(used: Iterable[str], plain: bool = False) -> list[str]:
    """The source texts of the used functions, their dependencies and their registrations, in the order of the library.

    `used`: names in the library, and texts of functions written for this file only, which come last. `plain`: see
    `library`.
    """
    known = library(plain)
    texts = sorted(text for text in used if text not in known)
    todo = [name for name in used if name in known]
    todo += sorted(name for text in texts for _, item in items(text) for name in item.reads & known.keys())
    wanted: set[str] = set()
    while todo:
        name = todo.pop()
        if name not in wanted:
            wanted.add(name)
            todo += sorted(known[name].reads & known.keys())
            todo += [key for key, item in known.items() if item.owner == name]
    return [item.text for name, item in known.items() if name in wanted] + texts
