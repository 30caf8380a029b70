"""The tile program of a region: what a kernel computes, as nodes over tiles of queries, keys and widths.

Every node is assigned once. Its `axes` say which sides its tile has: of query rows, of keys, of relative positions, of
a width (the legs that a score product sums or that a value carries, as one side), in this order; none: a number a
program.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import Any

from tensornet_attn.graph.model import Step, Use

Axes = tuple[str, ...]
ROWS = ("softmax", "normalize")  # nodes that divide by a sum over the keys


class Unfit(Exception):  # a reason, caught by the lowering that asked
    """Why a region is no tile program, as a part of a sentence."""


@dataclass(frozen=True, eq=False)
class Node:
    """One tile: how it is made, of what, its sides; `name`: what the diagram calls it.

    | op | tile |
    | --- | --- |
    | load | a part of an operand: data = (number of the operand, index of the tile) |
    | number | a coefficient: data = (tree,) |
    | noise, distance | made in the kernel: data = (operand, index, stream, std, always), () |
    | add, mul | elementwise; sides that an argument lacks are broadcast |
    | dot | a product of two that sums the side data = (axis,) |
    | sum, spread | summed along data = (axis,); broadcast to its sides |
    | map | text in `maps.py`: data = (function, ...), arguments may follow the tile |
    | most, among | the largest of its arguments; 1 / (how many equal the last) where the first equals the last |
    | shift, unshift | from relative positions to keys, and back: zeros where no key stands |
    | entry | of an operand the entries at the distance of query and key: data = (number of the operand, index, reach) |
    | bias | what the mask of the call adds: data = (index of the tile,) |
    | softmax, keep | exp(x - lse), x, where a mask allows it: data = (number of the mask, index of the tile) |
    | normalize | x / (sum of x along the row + eps), where a mask allows it: data = (..., ..., eps) |
    | inside | x, but zero after the last query and after the last key |
    | drop | dropout: data = (stream, tree) |
    | gradient, sums, inverse, total | in the backward: of the result, rows of sum(A dA), what rows are multiplied with
      that are normalized, an accumulator |
    """

    op: str
    args: tuple[Node, ...] = ()
    axes: Axes = ()
    name: str = ""
    data: tuple[Any, ...] = ()


@dataclass
class Nodes:
    """Makes nodes, equal ones once. `order`: that of axes."""

    order: Axes
    made: dict[Any, Node] = field(default_factory=dict)

    def node(
        self, op: str, args: Iterable[Node], axes: Iterable[str], name: str = "", data: tuple[Any, ...] = ()
    ) -> Node:
        args, found = tuple(args), frozenset(axes)
        sides = tuple(axis for axis in self.order if axis in found)
        key = (op, tuple(map(id, args)), sides, data)
        if key not in self.made:
            self.made[key] = Node(op, args, sides, name, data)
        return self.made[key]

    def add(self, terms: Iterable[Node], name: str = "") -> Node:
        terms = tuple(terms)
        return terms[0] if len(terms) == 1 else self.node("add", terms, (a for t in terms for a in t.axes), name)

    def mul(self, a: Node, b: Node, name: str = "") -> Node:
        return self.node("mul", (a, b), (*a.axes, *b.axes), name)

    def total(self, x: Node, wanted: Axes, name: str = "") -> Node:
        """x summed along the sides that are not wanted."""
        for axis in x.axes:
            if axis not in wanted:
                x = self.node("sum", (x,), set(x.axes) - {axis}, name, (axis,))
        return x

    def product(self, a: Node, b: Node, wanted: Axes, name: str = "") -> Node:
        """a b summed along the sides that are not wanted."""
        shared = [axis for axis in a.axes if axis in b.axes and axis not in wanted]
        own = [axis for axis in (*a.axes, *b.axes) if axis not in shared]
        if len(shared) == 1 and len(own) == len({*own}) == 2 and {*own} <= {*wanted}:
            if self.order.index(own[0]) > self.order.index(own[1]):
                a, b = b, a
            return self.node("dot", (a, b), own, name, (shared[0],))
        a, b = (self.total(x, (*wanted, *y.axes)) for x, y in ((a, b), (b, a)))
        return self.total(self.mul(a, b, name), wanted, name)

    def spread(self, x: Node, axes: Axes) -> Node:
        return x if x.axes == axes else self.node("spread", (x,), axes, x.name)


@dataclass(frozen=True)
class Operand:
    """What a program reads: legs of it that are one tile each (`heads`), and the sides of these tiles.

    `table`: the leg of distances, last of `axes`, of what is read by the distance of query and key.
    """

    use: Use
    heads: tuple[str, ...]
    axes: Axes
    table: str = ""


@dataclass(frozen=True)
class Exit:
    """Tile `index` of the result: the sum over keys of maps times values, for each pair (None: of the map alone).

    `log`: it is the log of the sum that rows of the only map, a softmax, are divided by.
    """

    index: tuple[int, ...]
    pairs: tuple[tuple[Node, Node | None], ...]
    log: bool = False


@dataclass(frozen=True)
class Program:
    """A region. `heads`: of each leg that is not inside of a tile, how many tiles a program has; the others are other
    programs. `whole`: those that a program has all tiles of. `widths`: the legs of each axis that is a width.

    `masks`: masks of boxes, as (left, right), the farthest key that may be seen before and after a query.
    """

    step: Step
    query: str
    key: str
    heads: dict[str, int]
    whole: frozenset[str]
    widths: dict[str, tuple[str, ...]]
    operands: tuple[Operand, ...]
    exits: tuple[Exit, ...]
    legs: tuple[str, ...]  # of the result: heads, query, width
    maps: tuple[Node, ...]
    masks: tuple[tuple[int | None, int | None], ...]
    others: tuple[str, ...]  # legs of a run-time mask beside query and key
    nodes: Nodes
    relative: tuple[str, ...] = ()  # the leg of relative positions: a side of tiles that are shifted to keys

    @property
    def axes(self) -> Axes:
        """The sides of a tile of the result."""
        return (self.query, *(axis for axis, legs in self.widths.items() if {*legs} & {*self.legs}))


def vanishes(node: Node) -> bool:
    """Whether a tile is zero where no mask lets a query look."""
    if node.op in (*ROWS, "keep"):
        return True
    if node.op in ("mul", "drop"):
        return any(vanishes(arg) for arg in node.args)
    return node.op == "add" and all(vanishes(arg) for arg in node.args)


def below(ends: Iterable[Node], known: Container[Node] = ()) -> list[Node]:
    """The nodes that some need, with them, each after what it needs; none that are known, nor what these need."""
    found: dict[Node, None] = {}
    todo = [(node, False) for node in reversed(list(ends))]
    while todo:
        node, ready = todo.pop()
        if ready:
            found[node] = None
        elif node not in found and node not in known:
            todo.append((node, True))
            todo += [(arg, False) for arg in reversed(node.args) if arg not in found]
    return list(found)
