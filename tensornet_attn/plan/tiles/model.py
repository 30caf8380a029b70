"""The tile program of a region: what a kernel computes, as nodes over tiles of queries, keys and widths.

Every node is assigned once. Its `axes` say which sides its tile has: of query rows, of keys, of relative positions, of
a width (the legs that a score product sums or that a value carries, as one side), in this order; none: a number a
program.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
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
    | max, argmax_share | the largest of its arguments; 1 / (how many equal the last) where the first equals the last |
    | shift, unshift | from relative positions to keys, and back: zeros where no key stands |
    | entry | of an operand the entries at the distance of query and key: data = (number of the operand, index, reach) |
    | bias | what the mask of the call adds: data = (index of the tile,) |
    | softmax | the sum of exp(x - lse) of its arguments, where a mask allows it: data = (number of the mask, index of
      the tile) |
    | part | of a softmax of several arguments what one adds: data = (..., ..., number of the map) |
    | keep | x where a mask allows it: data as of a softmax |
    | hide | x where any of some groups of masks allows it, a number elsewhere: data = (groups, each of data as of a
      softmax, the number) |
    | normalize | x / (sum of x along the row + eps), where a mask allows it: data = (..., ..., eps) |
    | inside | x, but zero after the last query and after the last key |
    | drop | dropout: data = (stream, tree) |
    | gradient, sums, inverse, sum_over_blocks | in the backward: of the result, rows of sum(A dA), what rows are multiplied with
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
        """The sum of terms; of multiples of one number the multiple of a sum."""
        terms = tuple(terms)
        if len(terms) == 1:
            return terms[0]
        numbers, rests = zip(*map(factored, terms), strict=True)
        if numbers[0] is not None and len({*numbers}) == 1:
            return self.mul(numbers[0], self.add(rests, name), name)
        return self.node("add", terms, (a for t in terms for a in t.axes), name)

    def mul(self, a: Node, b: Node, name: str = "") -> Node:
        """a b. Numbers leave products and sums along sides, and stand first: what is summed has less to do."""
        if b.op == "number":
            a, b = b, a
        if a.op != "number":
            for x, other in ((a, b), (b, a)):
                number, rest = factored(x)
                if number is not None:
                    return self.mul(number, self.mul(rest, other, name), name)
        return self.node("mul", (a, b), (*a.axes, *b.axes), name)

    def total(self, x: Node, wanted: Axes, name: str = "") -> Node:
        """x summed along the sides that are not wanted, along keys first: threads have parts of rows."""
        number, rest = factored(x)
        if number is not None:
            return self.mul(number, self.total(rest, wanted, name), name)
        for axis in reversed(x.axes):
            if axis not in wanted:
                x = self.node("sum", (x,), set(x.axes) - {axis}, name, (axis,))
        return x

    def product(self, a: Node, b: Node, wanted: Axes, name: str = "") -> Node:
        """a b summed along the sides that are not wanted. What all rows are multiplied with leaves sums of rows."""
        for x, other in ((a, b), (b, a)):
            number, rest = factored(x)
            if number is not None:
                return self.mul(number, self.product(rest, other, wanted, name), name)
            row, rest = along_width(x)
            if row is not None and {*row.axes} <= {*wanted} - {*other.axes}:
                return self.mul(row, self.product(rest, other, wanted, name), name)
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
    def pair(self) -> Axes:
        return (self.query, self.key)

    @property
    def axes(self) -> Axes:
        """The sides of a tile of the result."""
        return (self.query, *(axis for axis, legs in self.widths.items() if {*legs} & {*self.legs}))


def factored(node: Node) -> tuple[Node | None, Node]:
    """(the number that a tile is a multiple of, of what); None where it is no multiple."""
    if node.op == "mul" and node.args[0].op == "number":
        number, rest = node.args
        return number, rest
    return None, node


def along_width(node: Node) -> tuple[Node | None, Node]:
    """(what all rows of a tile of rows x width are multiplied with, the rest); None where there is no such factor."""
    if node.op == "mul" and len(node.axes) == 2:
        for row, rest in (node.args, node.args[::-1]):
            if row.op == "load" and row.axes == node.axes[1:] and rest.axes == node.axes:
                return row, rest
    return None, node


def scale_of(scores: Node) -> Node | None:
    """The number that is left to a softmax, of scores to which a mask of the call is added last: see `softened`."""
    if scores.op == "add" and [arg.op for arg in scores.args[1:]] == ["bias"]:
        return factored(scores.args[0])[0]
    return None


def vanishes(node: Node) -> bool:
    """Whether a tile is zero where no mask lets a query look."""
    if node.op in (*ROWS, "keep"):
        return True
    if node.op in ("mul", "drop"):
        return any(vanishes(arg) for arg in node.args)
    return node.op == "add" and all(vanishes(arg) for arg in node.args)


def below(ends: Iterable[Node], known: Container[Node] = (), instead: Mapping[Node, Node] | None = None) -> list[Node]:
    """The nodes that some need, with them, each after what it needs; none that are known, nor what these need.

    `instead`: nodes that others stand for.
    """
    found, other = dict[Node, None](), instead or {}
    todo = [(other.get(node, node), False) for node in reversed(list(ends))]
    while todo:
        node, ready = todo.pop()
        if ready:
            found[node] = None
        elif node not in found and node not in known:
            todo.append((node, True))
            todo += [(other.get(arg, arg), False) for arg in reversed(node.args) if other.get(arg, arg) not in found]
    return list(found)
