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
from tensornet_attn.tiles.cpp.values import Values, mapped
from tensornet_attn.tiles.loops import Loop, Loops, Statement, placed, shared
from tensornet_attn.tiles.model import Node, Unfit, below

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
class Row(Statement):
    """A statement of each row i: `lines` are inside of the loop over rows."""


@dataclass(eq=False)
class SumRow(Row):
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
class Pass(Values):
    """What one loop over blocks of keys makes. `ends`: statements whose reads it needs.

    `stored`: the nodes whose tiles a later pass reads; `given`: those of the pass before.
    """

    names: set[str] = field(default_factory=set)
    fading: Node | None = None  # a map whose weights may be 0 for a whole block, which leaves out what reads it
    ends: list[Statement] = field(default_factory=list)
    stored: set[Node] = field(default_factory=set)
    given: dict[Node, str] = field(default_factory=dict)
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
        if node in self.stored or node in self.given:
            return "stored_wide" if wide else "stored_tile"
        return "WIDE" if wide else "TILE"

    def columns(self, node: Node) -> str:
        """The size of a row."""
        return "SPAN" if node.axes == self.wide else "KEYS"

    # which nodes are made

    def needed(self) -> list[Node]:
        """The nodes that the ends depend on."""
        return below([node for one in self.ends for node in one.reads], self.given, self.instead)

    def build(self) -> list[Loop | Statement]:
        needed = self.needed()
        for node in needed:
            for arg in map(self.other, node.args):
                self.readers.setdefault(arg, []).append(node)
        for one in self.ends:
            one.reads = tuple(map(self.other, one.reads))
            for node in one.reads:
                self.readers.setdefault(node, []).append(one)
        self.kept = {node for node in needed if self.is_made(node)} | {*self.given}
        for node in needed:
            if node in self.kept:
                self.make(node)
        for one in self.ends:
            if isinstance(one, SumRow) and one.of is not None:
                one.unrolled = self.unrollable(one.of, one.heads, needed)
                one.heads = tuple(variable for variable in one.heads if variable != one.unrolled)
            self.exact[one] = one.reads
            one.reads = tuple(dict.fromkeys(self.sources(one.reads)))
            self.statements.append(one)
        self.after_fading()
        for one in self.statements:
            one.levels = self.most(self.args_of(one))
        self.order_statements()
        loops = self.loops(self.variable_order())
        self.name_all(loops)
        return loops

    def after_fading(self) -> None:
        """Puts what a fading map does not need behind it."""
        if self.fading is not None and self.fading in self.kept:
            before = {*below([self.fading], self.given, self.instead)}
            first = [one for one in self.statements if before & {*one.makes}]
            rest = [one for one in self.statements if one not in first]
            for one in rest:
                one.reads = (*one.reads, self.fading)
            self.statements = [*first, *rest]

    def loops(self, order: list[str]) -> list[Loop | Statement]:
        return Loops(order, lambda one, node: (node, 0)).of(self.statements)

    def args_of(self, one: Statement) -> Iterable[Node]:
        """What a statement reads, as nodes of the program."""
        return self.exact[one] if one in self.exact else map(self.other, one.makes[0].args)

    def most(self, nodes: Iterable[Node]) -> dict[str, int]:
        """How many sums over each variable stand on the way to some nodes."""
        found: dict[str, int] = {}
        for node in nodes:
            for variable, level in self.level(self.other(node)).items():
                found[variable] = max(level, found.get(variable, 0))
        return found

    def level(self, node: Node) -> dict[str, int]:
        if node not in self.levels:
            found = {} if node in self.given else self.most(node.args)
            variable = node.data[0] if node.op == "over" else node.data[2] if node.op == "softmax" else ""
            if variable and node not in self.given:
                found[variable] = 1 + found.get(variable, 0)
            self.levels[node] = found
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
        if any(isinstance(one, Statement) and not isinstance(one, Row) for one in readers):
            return True  # a product reads it
        if any(isinstance(one, Node) and one.op == "dot" for one in readers):
            return True
        if node.op == "over" and not self.inlined_sum(node):
            return True
        if self.loads(node) <= CHEAP:
            return False
        often = any(isinstance(one, Node) and {*one.heads} - {*node.heads} for one in readers)
        if often and node.op in ("softened", "map", "slope", "over"):
            return True  # read for each value of a variable that it lacks
        single = node.op in ("mul", "spread", "keep", "inside") and sum(a.axes == self.pair for a in node.args) <= 1
        return len(readers) > 1 and not (single and len(readers) <= 2 and node.op != "mul")

    def unrollable(self, node: Node, heads: tuple[str, ...], needed: list[Node]) -> str:
        """A variable for all of whose values what an expression reads is at hand, so that one loop can sum them."""
        at_once = {variable: self.at_once(variable, needed) for variable in heads}
        for variable in sorted(heads, key=lambda variable: -self.program.nodes.sizes[variable]):
            reads = [one for one in self.sources([node]) if variable in one.heads]
            if reads and self.program.nodes.sizes[variable] <= UNROLLED and {*reads} <= at_once[variable]:
                return variable
        return ""

    def at_once(self, variable: str, needed: list[Node]) -> set[Node]:
        """Nodes that are made for all values of a variable before something else is."""
        sums = [node for node in needed if node.op == "over" and node.data[0] == variable and self.inlined_sum(node)]
        found = {one for node in sums for one in self.sources(node.args)}
        return found | {node for node in self.given if variable in node.heads}

    def loads(self, node: Node) -> float:
        """How many tiles an expression of quick operations reads; infinite if it has others."""
        node = self.other(node)
        if node.axes not in (self.pair, self.wide):
            return 0
        if node in self.given or node.op in ("dot", "softmax", "normalize", "noise", "running"):
            return 1
        quick = node.op in ("map", "slope") and not SLOW & {*re.findall(r"\w+", mapped(node, [*"xydab"]))}
        if quick or node.op in ("add", "mul", "spread", "inside", "bias", "distance"):
            return sum(map(self.loads, node.args))
        return inf

    def inlined_sum(self, node: Node) -> bool:
        """Whether a sum over a variable stands inside of its reader: what it reads is held, and is no more than it."""
        variable, _ = node.data
        if self.program.nodes.sizes[variable] > UNROLLED or node.args[0].op == "dot":
            return False
        heavy = [one for one in self.leaves(node.args[0]) if one.axes == self.pair]
        held = max((self.program.tiles(one.heads) for one in heavy if variable in one.heads), default=0)
        return held <= self.program.tiles(node.heads)

    def leaves(self, node: Node) -> Iterator[Node]:
        """The products, maps and smaller tiles that an expression is made of."""
        node = self.other(node)
        if (
            node in self.given
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
        one: Statement
        if node.op == "over" and not self.inlined_sum(node):
            if args[0].op == "dot" and args[0] not in self.kept:
                raise Unfit("a sum of products")
            one = Row(args[0].heads, reads, list, (node,), over=node.data[0], how=node.data[1])
        elif node.op == "dot":
            one = Statement(node.heads, reads, list, (node,))
        else:
            one = Row(node.heads, reads, list, (node,))
            if node.op == "softmax":
                one.makes = (node, self.alpha(node))
        self.statements.append(one)

    def alpha(self, node: Node) -> Node:
        """What earlier sums over keys of a map are multiplied by, as its largest score grows."""
        return self.program.nodes.node("alpha", (), (self.program.query,), "alpha", node.data[:2])

    def order_statements(self) -> None:
        """Products and rows in turn, as few turns as possible; sums of variables count as they go."""
        maker = {node: one for one in self.statements for node in one.makes}
        stage: dict[Statement, int] = {}
        for one in self.statements:
            own = isinstance(one, Row)
            found = 1 if own else 0
            for node in one.reads:
                if node in maker:
                    before = stage[maker[node]]
                    found = max(found, before if before % 2 == own else before + 1)
            stage[one] = found
        self.statements.sort(key=lambda one: stage[one])

    def variable_order(self) -> list[str]:
        """The order of the loops over variables that takes the least memory."""
        used = {variable for one in self.statements for variable in one.heads}
        own = [variable for variable in self.program.nodes.sizes if variable in used]
        best, least = own, -1
        for order in islice(permutations(own), ORDERS):
            self.name_all(self.loops([*order]))
            price = sum(one.count * (1 if one.size in ("KEYS", "SPAN") else 1000) for one in self.buffers.values())
            if least < 0 or price < least:
                best, least = [*order], price
        return best

    # names and buffers

    def name_all(self, loops: list[Loop | Statement]) -> None:
        """Names what is made, and says which variables count its tiles: those of loops that not all readers share."""
        placed(loops, ())
        self.name, self.dims, self.rows, self.buffers = {}, {}, set(), {}
        for node, name in self.given.items():
            self.name[node], self.dims[node] = name, node.heads
        group = row_groups(loops)
        readers: dict[Node, list[Statement]] = {}
        for one in self.statements:
            for node in one.reads:
                readers.setdefault(node, []).append(one)
        taken = {*self.names, *self.given.values()}
        for one in self.statements:
            for node in one.makes:
                if node.op == "alpha":
                    self.dims[node] = ()
                    continue
                name = fresh(node, taken)
                paths = [other.path for other in readers.get(node, ())]
                kept = min((shared(one.known, path) for path in paths), default=len(one.known))
                dims = (*(loop.variable for loop in one.known[kept:]), *one.inner)
                dims = node.heads if node in self.stored else dims
                self.name[node], self.dims[node] = name, dims
                count = prod(self.program.nodes.sizes[variable] for variable in dims)
                near = (isinstance(other, Row) and group[other] == group.get(one) for other in readers.get(node, ()))
                if isinstance(one, Row) and node not in self.stored and all(near):
                    self.rows.add(node)
                    self.buffers[name] = Buffer(count, self.columns(node))
                else:
                    self.buffers[name] = Buffer(count, self.unit(node), node in self.stored)

    def tile(self, node: Node, env: Env) -> str:
        """The address of a tile."""
        name, place = self.name[node], self.flat(self.dims[node], env)
        return name if place == "0" else f"{name} + {place} * {self.unit(node)}"

    def row(self, node: Node, env: Env) -> str:
        name, place, columns = self.name[node], self.flat(self.dims[node], env), self.columns(node)
        if node in self.rows:
            return name if place == "0" else f"{name} + {place} * {columns}"
        return f"{name} + i * {columns}" if place == "0" else f"{name} + {place} * {self.unit(node)} + i * {columns}"


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
    found: dict[Statement, int] = {}
    number = [0]

    def walk(items: Iterable[Loop | Statement]) -> None:
        for item in items:
            if is_rows(item):
                for one in [item] if isinstance(item, Statement) else item.statements():
                    found[one] = number[0]
                continue
            number[0] += 1
            if isinstance(item, Loop):
                walk(item.items)
                number[0] += 1
            else:
                found[item] = -number[0]

    walk(items)
    return found


def is_rows(item: Loop | Statement) -> bool:
    """Whether all of an item stands in a loop over rows."""
    return isinstance(item, Row) if isinstance(item, Statement) else all(is_rows(one) for one in item.items)
