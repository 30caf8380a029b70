"""Which modules ask an operation for its kind: `ops/`, the language and the two forms; others ask OPS what they need.

A module asks where it compares `.kind` with names of kinds, looks a kind up in a table of them, its own or that of
another module, or asks `isinstance` of an operation, in place of `Step.box`, `Step.contraction` and `Step.kernel`.
The tables of kernels are the places where a kind of kernel answers.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tensornet_attn.kernels import KERNELS
from tensornet_attn.ops import OPS

NAME = "tensornet_attn"
PACKAGE = Path(__file__).resolve().parents[2] / NAME
KINDS = {*OPS, *KERNELS} - {"attention", "native"}  # measured rates have these words too
OPERATIONS = {"Box", "Contraction", "Kernel", *(type(one).__name__ for one in OPS.values())}
MAY = ("ir/", "ops/", "spec/", "graph/attention.py", "graph/recurrence.py")
TABLES = ("kernels/", "plan/implementations.py")


def names_in(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def kinds_in(node: ast.AST) -> set[str]:
    """The kinds among the words of texts: a table may be one text that is split."""
    texts = (part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str))
    return {word for text in texts for word in text.split()} & KINDS


@dataclass
class Assigned:
    """A name that something is assigned to: whether that names kinds, is a `.kind`, and the names in it."""

    name: str
    kinds: bool
    alias: bool
    names: set[str]


class Module:
    """A module: its nodes, what it assigns, in functions as well, and imports: (module, name there, name here)."""

    def __init__(self, text: str) -> None:
        self.nodes = [*ast.walk(ast.parse(text))]
        self.assigned = [Assigned(*one) for node in self.nodes for one in assignments(node)]
        found = (node for node in self.nodes if isinstance(node, ast.ImportFrom))
        self.imported = [(node.module or "", one.name, one.asname or one.name) for node in found for one in node.names]

    def tables(self, others: Mapping[str, set[str]]) -> set[str]:
        """The names that stand for tables of kinds, or for something made of one; `others`: those of other modules."""
        found = {here for module, name, here in self.imported if name in others.get(module, ())}
        found |= {one.name for one in self.assigned if one.kinds}
        while True:
            new = {one.name for one in self.assigned if one.names & found} - found
            if not new:
                return found
            found |= new


def assignments(node: ast.AST) -> Iterator[tuple[str, bool, bool, set[str]]]:
    """What a statement assigns, that of tuples one by one."""
    if not isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) or node.value is None:
        return
    for target in node.targets if isinstance(node, ast.Assign) else (node.target,):
        pairs = [(target, node.value)]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = [*zip(target.elts, node.value.elts, strict=False)]
        for name, value in pairs:
            if isinstance(name, ast.Name):
                alias = isinstance(value, ast.Attribute) and value.attr == "kind"
                yield name.id, bool(kinds_in(value)), alias, names_in(value)


def asks(module: Module, others: Mapping[str, set[str]]) -> Iterator[tuple[int, str]]:
    """(line, text) of everything that asks for a kind."""
    tables, aliases = module.tables(others), {one.name for one in module.assigned if one.alias}

    def is_kind(node: ast.AST) -> bool:
        return node.attr == "kind" if isinstance(node, ast.Attribute) else bool(names_in(node) & aliases)

    def lists(node: ast.AST) -> bool:
        return bool(kinds_in(node) or names_in(node) & tables)

    for node in module.nodes:
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            found = any(map(is_kind, sides)) and any(lists(side) for side in sides if not is_kind(side))
        elif isinstance(node, ast.Match):
            found = is_kind(node.subject)
        elif isinstance(node, ast.Subscript):
            found = is_kind(node.slice) and lists(node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            found = bool(names_in(node.args[1]) & OPERATIONS)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            found = lists(node.func.value) and any(map(is_kind, node.args))
        else:
            continue
        if found:
            yield node.lineno, ast.unparse(node)


def test_modules_ask_operations_and_not_their_kinds() -> None:
    modules = {path.relative_to(PACKAGE).as_posix(): Module(path.read_text()) for path in PACKAGE.rglob("*.py")}
    named = {name: ".".join([NAME, *Path(name).with_suffix("").parts]).removesuffix(".__init__") for name in modules}
    tables: dict[str, set[str]] = {}
    while True:  # a table may have gone through several modules
        found = {named[name]: module.tables(tables) for name, module in modules.items() if not name.startswith(TABLES)}
        if found == tables:
            break
        tables = found
    places = {name: [*asks(module, tables)] for name, module in modules.items() if not name.startswith(MAY)}
    assert {name: own for name, own in places.items() if own} == {}


OTHERS = {"other": {"TABLE"}}


@pytest.mark.parametrize(
    "text",
    [
        'a.kind == "softmax"',
        'step.op.kind not in ("normalize", "keep")',
        'kind = box.kind\nkind == "map"',
        'box, kind = step.box, step.box.kind\nif kind in ("map", "rope"): pass',
        'TABLE = {"rope": 1}\nTABLE.get(box.kind)',
        'TABLE = {"rope": 1}\nTABLE[box.kind]',
        'TABLE = {"rope"}\nbox.kind in TABLE',
        'TABLE = frozenset("rope dropout".split())\nbox.kind in TABLE',
        'SOME = ("rope",)\nMORE = (*SOME, "dropout")\nbox.kind in MORE',
        "from other import TABLE\nbox.kind in TABLE",
        "from other import TABLE as KNOWN\nbox.kind in KNOWN",
        "match box.kind:\n    case _: pass",
        "isinstance(step.op, Box)",
        "isinstance(step.op, Box | Kernel)",
        "isinstance(OPS[box.kind], SoftmaxOperation)",
    ],
)
def test_what_asks_is_found(text: str) -> None:
    assert [*asks(Module(text), OTHERS)]


@pytest.mark.parametrize(
    "text",
    [
        'leg.kind == "query"',
        "OPS[box.kind].masked",
        "isinstance(value, str)",
        "from other import KERNELS\nKERNELS[step.kernel.kind]",
    ],
)
def test_what_does_not_ask_is_not_found(text: str) -> None:
    assert not [*asks(Module(text), OTHERS)]
