"""Which modules ask an operation for its kind: `ops/`, the language and the data itself; others ask OPS what they need.

A module asks where it compares `.kind` with names of kinds, looks a kind up in a table of its own, or asks
`isinstance` of an operation, in place of `Step.box`, `Step.contraction`, `Step.kernel` and `Step.attention`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensornet_attn.ops import OPS

PACKAGE = Path(__file__).resolve().parents[2] / "tensornet_attn"
KINDS = {*OPS, "band", "blockwise", "experts", "join", "linear", "states", "sums", "tiles"}
OPERATIONS = {"FusedAttention", "Box", "Contraction", "Kernel"}
MAY = ("ir/", "ops/", "spec/", "graph/attention.py", "graph/recurrence.py")


def names_in(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def kinds_in(node: ast.AST) -> set[str]:
    found = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)}
    return found & KINDS


def is_kind(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "kind"


def asks(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, text) of everything that asks for a kind."""
    tables = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and kinds_in(node.value)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }

    def lists(node: ast.AST) -> bool:
        return bool(kinds_in(node) or names_in(node) & tables)

    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            found = any(map(is_kind, sides)) and any(map(lists, sides))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            found = bool(names_in(node.args[1]) & OPERATIONS)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            found = lists(node.func.value) and any(map(is_kind, node.args))
        else:
            continue
        if found:
            yield node.lineno, ast.unparse(node)


def test_modules_ask_operations_and_not_their_kinds() -> None:
    trees = {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}
    found = {name: [*asks(tree)] for name, tree in trees.items() if not name.startswith(MAY)}
    assert {name: places for name, places in found.items() if places} == {}


@pytest.mark.parametrize(
    "text",
    [
        'a.kind == "softmax"',
        'step.op.kind not in ("normalize", "keep")',
        'TABLE = {"rope": 1}\nTABLE.get(box.kind)',
        'TABLE = {"rope"}\nbox.kind in TABLE',
        "isinstance(step.op, Box)",
        "isinstance(step.op, FusedAttention | Kernel)",
    ],
)
def test_what_asks_is_found(text: str) -> None:
    assert [*asks(ast.parse(text))]


@pytest.mark.parametrize("text", ['leg.kind == "query"', "OPS[box.kind].masked", "isinstance(value, str)"])
def test_what_does_not_ask_is_not_found(text: str) -> None:
    assert not [*asks(ast.parse(text))]
