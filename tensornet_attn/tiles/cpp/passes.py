"""A pass of a C++ kernel over blocks of keys: what it makes for a block of queries x keys, in which loops and buffers.

Products are calls of BLAS, into tiles; what is elementwise between them is one loop over rows, in which a value that no
product reads is a row of its own. A sum over an index variable stands inside of what reads it, or is a tile to which
each value of the variable is added, whichever holds fewer tiles. A later pass reads stored tiles of the pass before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice, permutations
from math import inf, prod

from tensornet_attn.tiles.cpp.places import Env
from tensornet_attn.tiles.cpp.values import PassExpressions, mapped
from tensornet_attn.tiles.loops import Loop, Loops, Statement, placed, shared
from tensornet_attn.tiles.program import Node, Unfit, below

UNROLLED = 16  # values of a variable whose sum stands inside of an expression
ORDERS = 24  # orders of the loops over variables that are compared
INLINE = ("visible", "both", "either", "bias", "distance", "entry", "load")  # nodes that never have a tile
CHEAP = 2  # tiles that an expression reads which is not worth a tile of its own
SLOW = frozenset("exp_of log sqrt sin cos erf power_of".split())  # functions that take more than a few instructions
MADE = (
    "dot",
    "softmax",
    "normalize",
    "unshift",
    "noise",
    "running",
    "between",
    "incline",
)  # nodes that always have a tile or a row


@dataclass(eq=False)
class RowStatement(Statement):
    """A statement of each row i: `lines` are inside of the loop over rows."""


@dataclass(eq=False)
class SumRow(RowStatement):
    """Sums of rows of a node; `unrolled`: a variable whose values share one loop over keys."""

    of: Node | None = None
    unrolled: str = ""


@dataclass(frozen=True)
class Buffer:
    """Tiles or rows of a node: how many, the size of each, and whether they are kept for all blocks of keys."""

    count: int
    size: str
    stored: bool = False


@dataclass
class Pass(PassExpressions):
    """What one loop over blocks of keys makes. `ends`: statements whose reads it needs.

    `stored`: the nodes whose tiles a later pass reads; `from_earlier_pass`: those of the pass before.
    """

    names: set[str] = field(default_factory=set)
    fading: Node | None = None  # a map whose weights may be 0 for a whole block, which leaves out what reads it
    ends: list[Statement] = field(default_factory=list)
    stored: set[Node] = field(default_factory=set)
    from_earlier_pass: dict[Node, str] = field(default_factory=dict)
    statements: list[Statement] = field(default_factory=list)
    readers: dict[Node, list[Node | Statement]] = field(default_factory=dict)
    name: dict[Node, str] = field(default_factory=dict)
    dims: dict[Node, tuple[str, ...]] = field(default_factory=dict)
    rows: set[Node] = field(default_factory=set)  # that are rows, not tiles
    buffers: dict[str, Buffer] = field(default_factory=dict)
    exact: dict[Statement, tuple[Node, ...]] = field(default_factory=dict)
    levels: dict[Node, dict[str, int]] = field(default_factory=dict)

    def unit(self, node: Node) -> str:
        """The size of a tile; stored ones have as many rows as a block of the call."""
        wide = node.axes == self.wide
        if node in self.stored or node in self.from_earlier_pass:
            return "stored_wide" if wide else "stored_tile"
        return "WIDE" if wide else "TILE"

    def columns(self, node: Node) -> str:
        """The size of a row."""
        return "SPAN" if node.axes == self.wide else "KEYS"

    # which nodes are made

    def needed(self) -> list[Node]:
        """The nodes that the ends depend on."""
        return below(
            [node for statement in self.ends for node in statement.reads], self.from_earlier_pass, self.instead
        )

    def build(self) -> list[Loop | Statement]:
        needed = self.needed()
        for node in needed:
            for arg in map(self.other, node.args):
                self.readers.setdefault(arg, []).append(node)
        for statement in self.ends:
            statement.reads = tuple(map(self.other, statement.reads))
            for node in statement.reads:
                self.readers.setdefault(node, []).append(statement)
        self.kept = {node for node in needed if self.is_made(node)} | {*self.from_earlier_pass}
        for node in needed:
            if node in self.kept:
                self.make(node)
        for statement in self.ends:
            if isinstance(statement, SumRow) and statement.of is not None:
                statement.unrolled = self.unrollable(statement.of, statement.heads, needed)
                statement.heads = tuple(variable for variable in statement.heads if variable != statement.unrolled)
            self.exact[statement] = statement.reads
            statement.reads = tuple(dict.fromkeys(self.sources(statement.reads)))
            self.statements.append(statement)
        self.after_fading()
        for statement in self.statements:
            statement.levels = self.most(self.args_of(statement))
        self.order_statements()
        loops = self.loops(self.variable_order())
        self.name_all(loops)
        return loops

    def after_fading(self) -> None:
        """Puts what a fading map does not need behind it."""
        if self.fading is not None and self.fading in self.kept:
            fading_inputs = {*below([self.fading], self.from_earlier_pass, self.instead)}
            first = [statement for statement in self.statements if fading_inputs & {*statement.makes}]
            rest = [statement for statement in self.statements if statement not in first]
            for statement in rest:
                statement.reads = (*statement.reads, self.fading)
            self.statements = [*first, *rest]

    def loops(self, order: list[str]) -> list[Loop | Statement]:
        return Loops(order, lambda statement, node: (node, 0)).of(self.statements)

    def args_of(self, statement: Statement) -> Iterable[Node]:
        """What a statement reads, as nodes of the program."""
        return self.exact[statement] if statement in self.exact else map(self.other, statement.makes[0].args)

    def most(self, nodes: Iterable[Node]) -> dict[str, int]:
        """How many sums over each variable stand on the way to some nodes."""
        levels: dict[str, int] = {}
        for node in nodes:
            for variable, level in self.level(self.other(node)).items():
                levels[variable] = max(level, levels.get(variable, 0))
        return levels

    def level(self, node: Node) -> dict[str, int]:
        if node not in self.levels:
            levels = {} if node in self.from_earlier_pass else self.most(node.args)
            variable = node.data[0] if node.op == "over" else node.data[2] if node.op == "softmax" else ""
            if variable and node not in self.from_earlier_pass:
                levels[variable] = 1 + levels.get(variable, 0)
            self.levels[node] = levels
        return self.levels[node]

    def is_made(self, node: Node) -> bool:
        """Whether a node of queries x keys has a tile or a row of its own."""
        if (
            node.axes not in (self.pair, self.wide)
            or node.op in INLINE
            or (node.op == "over" and node.data[1] == "any")
        ):
            return False
        if node.op in MADE or node in self.stored or node is self.fading:
            return True
        readers = self.readers.get(node, [])
        if any(isinstance(reader, Statement) and not isinstance(reader, RowStatement) for reader in readers):
            return True  # a product reads it
        if any(isinstance(reader, Node) and reader.op == "dot" for reader in readers):
            return True
        if node.op == "over" and not self.inlined_sum(node):
            return True
        if self.loads(node) <= CHEAP:
            return False
        often = any(isinstance(reader, Node) and {*reader.heads} - {*node.heads} for reader in readers)
        if often and node.op in ("softened", "map", "slope", "over"):
            return True  # read for each value of a variable that it lacks
        single = node.op in ("mul", "spread", "keep", "inside") and sum(arg.axes == self.pair for arg in node.args) <= 1
        return len(readers) > 1 and not (single and len(readers) <= 2 and node.op != "mul")

    def unrollable(self, node: Node, heads: tuple[str, ...], needed: list[Node]) -> str:
        """A variable for all of whose values what an expression reads is at hand, so that one loop can sum them."""
        at_once = {variable: self.at_once(variable, needed) for variable in heads}
        for variable in sorted(heads, key=lambda variable: -self.program.sizes[variable]):
            reads = [source for source in self.sources([node]) if variable in source.heads]
            if reads and self.program.sizes[variable] <= UNROLLED and {*reads} <= at_once[variable]:
                return variable
        return ""

    def at_once(self, variable: str, needed: list[Node]) -> set[Node]:
        """Nodes that are made for all values of a variable before something else is."""
        sums = [node for node in needed if node.op == "over" and node.data[0] == variable and self.inlined_sum(node)]
        sources = {source for node in sums for source in self.sources(node.args)}
        return sources | {node for node in self.from_earlier_pass if variable in node.heads}

    def loads(self, node: Node) -> float:
        """How many tiles an expression of quick operations reads; infinite if it has others."""
        node = self.other(node)
        if node.axes not in (self.pair, self.wide):
            return 0
        if node in self.from_earlier_pass or node.op in ("dot", "softmax", "normalize", "noise", "running"):
            return 1
        quick = node.op in ("map", "slope") and not SLOW & {*re.findall(r"\w+", mapped(node, [*"xydab"]))}
        if quick or node.op in ("add", "mul", "spread", "inside", "bias", "distance"):
            return sum(map(self.loads, node.args))
        return inf

    def inlined_sum(self, node: Node) -> bool:
        """Whether a sum over a variable stands inside of its reader: what it reads is held, and is no more than it."""
        variable, _ = node.data
        if self.program.sizes[variable] > UNROLLED or node.args[0].op == "dot":
            return False
        heavy = [leaf for leaf in self.leaves(node.args[0]) if leaf.axes == self.pair]
        held = max((self.program.tiles(leaf.heads) for leaf in heavy if variable in leaf.heads), default=0)
        return held <= self.program.tiles(node.heads)

    def leaves(self, node: Node) -> Iterator[Node]:
        """The products, maps and smaller tiles that an expression is made of."""
        node = self.other(node)
        if (
            node in self.from_earlier_pass
            or node.op in ("dot", "softmax", "normalize", "softened", "running")
            or node.axes not in (self.pair, self.wide)
        ):
            yield node
        else:
            for arg in node.args:
                yield from self.leaves(arg)

    def sources(self, nodes: Iterable[Node]) -> Iterator[Node]:
        """Made nodes that an expression of these reads."""
        for node in map(self.other, nodes):
            if node in self.kept or node.op == "alpha":
                yield node
            else:
                yield from self.sources(node.args)

    def make(self, node: Node) -> None:
        args = tuple(map(self.other, node.args))
        reads = tuple(dict.fromkeys(self.sources(args)))
        statement: Statement
        if node.op == "over" and not self.inlined_sum(node):
            if args[0].op == "dot" and args[0] not in self.kept:
                raise Unfit("a sum of products")
            statement = RowStatement(args[0].heads, reads, list, (node,), over=node.data[0], how=node.data[1])
        elif node.op == "dot":
            statement = Statement(node.heads, reads, list, (node,))
        else:
            statement = RowStatement(node.heads, reads, list, (node,))
            if node.op == "softmax":
                statement.makes = (node, self.alpha(node))
        self.statements.append(statement)

    def alpha(self, node: Node) -> Node:
        """What earlier sums over keys of a map are multiplied by, as its largest score grows."""
        return self.program.nodes.node("alpha", (), (self.program.query,), "alpha", node.data[:2])

    def order_statements(self) -> None:
        """Products and rows in turn, as few turns as possible; sums of variables count as they go."""
        maker = {node: statement for statement in self.statements for node in statement.makes}
        stage: dict[Statement, int] = {}
        for statement in self.statements:
            is_row = isinstance(statement, RowStatement)
            turn = 1 if is_row else 0
            for node in statement.reads:
                if node in maker:
                    earlier = stage[maker[node]]
                    turn = max(turn, earlier if earlier % 2 == is_row else earlier + 1)
            stage[statement] = turn
        self.statements.sort(key=lambda statement: stage[statement])

    def variable_order(self) -> list[str]:
        """The order of the loops over variables that takes the least memory."""
        used = {variable for statement in self.statements for variable in statement.heads}
        variables = [variable for variable in self.program.sizes if variable in used]
        best, least = variables, -1
        for order in islice(permutations(variables), ORDERS):
            self.name_all(self.loops([*order]))
            price = sum(
                buffer.count * (1 if buffer.size in ("KEYS", "SPAN") else 1000) for buffer in self.buffers.values()
            )
            if least < 0 or price < least:
                best, least = [*order], price
        return best

    # names and buffers

    def name_all(self, loops: list[Loop | Statement]) -> None:
        """Names what is made, and says which variables count its tiles: those of loops that not all readers share."""
        placed(loops, ())
        self.name, self.dims, self.rows, self.buffers = {}, {}, set(), {}
        for node, name in self.from_earlier_pass.items():
            self.name[node], self.dims[node] = name, node.heads
        group = row_groups(loops)
        readers: dict[Node, list[Statement]] = {}
        for statement in self.statements:
            for node in statement.reads:
                readers.setdefault(node, []).append(statement)
        taken = {*self.names, *self.from_earlier_pass.values()}
        for statement in self.statements:
            for node in statement.makes:
                if node.op == "alpha":
                    self.dims[node] = ()
                    continue
                name = fresh(node, taken)
                paths = [reader.path for reader in readers.get(node, ())]
                depth = min(
                    (shared(statement.result_loops, path) for path in paths), default=len(statement.result_loops)
                )
                dims = (*(loop.variable for loop in statement.result_loops[depth:]), *statement.inner)
                dims = node.heads if node in self.stored else dims
                self.name[node], self.dims[node] = name, dims
                count = prod(self.program.sizes[variable] for variable in dims)
                same_row_loop = (
                    isinstance(reader, RowStatement) and group[reader] == group.get(statement)
                    for reader in readers.get(node, ())
                )
                if isinstance(statement, RowStatement) and node not in self.stored and all(same_row_loop):
                    self.rows.add(node)
                    self.buffers[name] = Buffer(count, self.columns(node))
                else:
                    self.buffers[name] = Buffer(count, self.unit(node), node in self.stored)

    def tile(self, node: Node, env: Env) -> str:
        """The address of a tile."""
        name, number = self.name[node], self.flat(self.dims[node], env)
        return name if number == "0" else f"{name} + {number} * {self.unit(node)}"

    def row(self, node: Node, env: Env) -> str:
        name, number, columns = self.name[node], self.flat(self.dims[node], env), self.columns(node)
        if node in self.rows:
            return name if number == "0" else f"{name} + {number} * {columns}"
        return f"{name} + i * {columns}" if number == "0" else f"{name} + {number} * {self.unit(node)} + i * {columns}"


def fresh(node: Node, taken: set[str]) -> str:
    """A new name after the diagram; names of index variables and operands begin in another way."""
    wish = re.sub(r"\W", "_", (node.name or node.op).replace(".of", "_scores"))
    name, number = f"tile_{wish}", 1
    while name in taken:
        number += 1
        name = f"tile{number}_{wish}"
    taken.add(name)
    return name


def row_groups(items: Iterable[Loop | Statement]) -> dict[Statement, int]:
    """The loop over rows that each statement stands in, by number; products have none of them alike."""
    groups: dict[Statement, int] = {}
    number = [0]

    def walk(items: Iterable[Loop | Statement]) -> None:
        for child in items:
            if is_rows(child):
                for statement in [child] if isinstance(child, Statement) else child.statements():
                    groups[statement] = number[0]
                continue
            number[0] += 1
            if isinstance(child, Loop):
                walk(child.items)
                number[0] += 1
            else:
                groups[child] = -number[0]

    walk(items)
    return groups


def is_rows(branch: Loop | Statement) -> bool:
    """Whether all of an item stands in a loop over rows."""
    return (
        isinstance(branch, RowStatement)
        if isinstance(branch, Statement)
        else all(is_rows(child) for child in branch.items)
    )
