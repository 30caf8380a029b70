"""The gradients of a tile program: reverse-mode differentiation of its nodes, with one rule per kind of node.

Gradients of tiles with query rows, or with neither side, are summed over keys by a program of query rows; those of
tiles with keys are summed over queries by a program of keys; those of relative positions by a program of pairs at
similar distances. A softmax A = exp(x) / sum of exp(x) has dx = A (dA - sum(A dA)); A = x / (sum of x + eps) has
dx = (dA - sum(A dA)) / (sum of x + eps). The log of the sum that a softmax divides by has dx = A dlog.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tensornet_attn.ir.arithmetic import ONE, Negative
from tensornet_attn.tiles.model import ROWS, At, Node, Nodes, Program, Unfit, along_width, below, factored

Rule = Callable[[Any, Node, Node], None]  # passes the gradient of a node to its arguments


@dataclass(frozen=True)
class Gradients:
    """`totals`: accumulators, each with the summand of a block of keys (of queries, if the accumulator has keys).

    `leaves`: (load, its gradient). `maps`: (map, its row sums of A dA over the keys of a block).
    """

    totals: tuple[tuple[Node, Node], ...]
    leaves: tuple[tuple[Node, Node], ...]
    maps: tuple[tuple[Node, Node], ...]


def gradients(program: Program) -> Gradients:
    """The gradients of everything that a program loads."""
    return _Blocks(program).found()


class Backward:
    """Accumulates gradients of nodes from their readers; `rules`: one per kind of node.

    `leaves`: (load, its gradient).
    """

    def __init__(self, nodes: Nodes, rules: Mapping[str, Rule]):
        self.nodes, self.pair, self.rules = nodes, nodes.pair, rules
        self.parts: dict[Node, list[Node]] = {}
        self.leaves: dict[Node, Node] = {}

    def give(self, node: Node, part: Node, heads: tuple[str, ...] = ()) -> None:
        """Adds a part to the gradient of a node, summed over variables that it lacks; `heads`: those of its reader."""
        for variable in dict.fromkeys((*part.heads, *heads)):
            if variable not in node.heads:
                part = self.nodes.over(part, variable, "add", f"d_{node.name or node.op}")
        self.parts.setdefault(node, []).append(part)

    def own(self, node: Node) -> Node | None:
        if node not in self.parts:
            return None
        return self.nodes.add(self.parts[node], f"d_{node.name or node.op}")

    def back(self, node: Node, d: Node | None) -> None:
        """Passes the gradient d of a node to its arguments."""
        if d is None:
            return
        if node.op in ("load", "noise", "bias", "entry"):
            self.leaf(node, self.nodes.spread(d, node.axes))
        elif node.op not in _WITHOUT:
            self.rules[node.op](self, node, d)

    def leaf(self, node: Node, d: Node) -> None:
        """Adds to the gradient of an operand, or of the mask, for the index variables by which it was first read.

        Reads of a table at different places, which are their arguments, have gradients of their own.
        """
        at = next(value for value in node.data if isinstance(value, At))
        key = node.op, node.data[0], node.args
        same = (other for other in self.leaves if (other.op, other.data[0], other.args) == key)
        if node.op == "bias":
            same = (other for other in self.leaves if other.op == "bias")
        one = next(same, None)
        if one is None:
            self.leaves[node] = d
            return
        own = next(value for value in one.data if isinstance(value, At))
        self.leaves[one] = self.nodes.add([self.leaves[one], self.nodes.renamed(d, dict(zip(at, own, strict=True)))])

    @property
    def minus(self) -> Node:
        return self.nodes.number(Negative(ONE))


class _Blocks(Backward):
    """Gradients of a program that reads one block of keys, or of queries, at a time."""

    def __init__(self, program: Program):
        super().__init__(program.nodes, RULES | dict.fromkeys(ROWS, _Blocks.divided))
        self.program = program
        self.totals: dict[Node, Node] = {}
        self.maps: dict[Node, Node] = {}

    def found(self) -> Gradients:
        exit_ = self.program.exit
        d = self.nodes.node("gradient", (), self.program.axes, "d", (exit_.index,))
        maps, values = exit_.maps, exit_.values
        if exit_.log:
            self.give_scores(maps, self.nodes.spread(d, self.pair))
        elif values is None:
            self.give(maps, self.nodes.spread(d, self.pair))
        else:
            self.give(maps, self.nodes.product(d, values, self.pair, f"d_{maps.name}"))
            self.give(values, self.nodes.product(maps, d, values.axes, f"d_{values.name}"))
        both = (self.pair, (self.program.query, *self.program.relative))
        every = below([*self.program.maps, maps, *([values] if values else [])])
        wide = [node for node in every if len(node.axes) == 2 and node.axes in both]
        narrow = [node for node in every if node not in wide]
        for node in reversed(wide):
            self.back(node, self.own(node))
        for node in reversed(narrow):
            if node in self.parts:
                self.back(node, self.whole(node))
        self.check(every)
        kept = tuple((node, self.maps[node]) for node in self.program.maps if node in self.maps)
        return Gradients(tuple(self.totals.items()), tuple(self.leaves.items()), kept)

    def check(self, every: list[Node]) -> None:
        """Raises Unfit unless one kernel computes the gradient of every tile of each operand."""
        _, key = self.pair
        read = {leaf.data[0] for leaf in self.leaves if leaf.op != "bias"}
        loaded = {node.data[0] for node in every if node.op == "load"}
        for number, operand in enumerate(self.program.operands):
            if number in loaded - read:
                raise Unfit(f"'{operand.use.name}' is read by no map")
        for leaf, d in self.leaves.items():
            for axis, other in ((key, "keys"), *((leg, "relative positions") for leg in self.program.relative)):
                if axis not in leaf.axes and any(axis in one.axes for one in below([d]) if one.op == "sum_over_blocks"):
                    raise Unfit(f"'{leaf.name}' is combined with {other} outside of maps")

    def divided(self, node: Node, d: Node) -> None:
        """Passes the gradient of a map to its scores."""
        one = self.program.maps[node.data[0]]
        if node is not one:  # read with other index variables: the whole gradient is needed at once
            self.give(one, self.nodes.renamed(d, dict(zip(node.data[1], one.data[1], strict=True))))
            return
        if any(part.op == "slope" for part in below([d])):  # a slope can be infinite in hidden entries
            d = self.nodes.node("keep", (d, node.args[1]), node.axes, d.name)
        self.maps[node] = self.nodes.total(self.nodes.mul(node, d, "A_dA"), (self.program.query,))
        rows = self.nodes.node("sums", (), (self.program.query,), f"{node.name}_sums", node.data[:2])
        for sink in node.args[2:]:
            self.give_sink(node, sink, rows)
        self.give_scores(node, self.nodes.add([d, self.nodes.mul(self.minus, rows)]))

    def give_sink(self, node: Node, sink: Node, rows: Node) -> None:
        """Passes a gradient to the sink of a softmax: its share of each row times -sum(A dA)."""
        nodes, name, data = self.nodes, f"d_{sink.name}", node.data[:2]
        largest = nodes.node("largest", (), (self.program.query,), f"{node.name}_largest", data)
        whole = nodes.node("statistic", (), (self.program.query,), f"{node.name}_rows", data)
        share = nodes.node("sink_share", (sink, largest, whole), (self.program.query,), f"{sink.name}_share")
        self.give(sink, nodes.total(nodes.mul(self.minus, nodes.mul(share, rows), name), sink.axes, name))

    def give_scores(self, node: Node, d: Node) -> None:
        """Passes a gradient to the scores of a map, given the gradient of its logarithm."""
        arg, seen, *_ = node.args
        if node.op == "softmax":
            found = self.nodes.mul(part_of(node, self.program), d, f"d_{arg.name}")
        else:
            rows = self.nodes.node("statistic", (), (self.program.query,), f"{node.name}_rows", node.data[:2])
            found = self.nodes.node("keep", (self.nodes.mul(d, rows), seen), node.axes, f"d_{arg.name}")
        self.give(arg, found)

    def whole(self, node: Node) -> Node:
        """The gradient of a node without both query and key side; parts of readers with both are accumulated."""
        parts = self.parts[node]
        inside = [part for part in parts if self.loops(part)]
        if not inside:
            return self.nodes.add(parts)
        name = f"d_{node.name or node.op}"
        factors, rest = constant_factors(self.nodes.add(inside))
        total = self.nodes.node("sum_over_blocks", (), node.axes, name, (len(self.totals), At(rest.heads)))
        self.totals[total] = rest
        whole = total
        for factor in reversed(factors):
            whole = self.nodes.mul(factor, whole, name)
        return self.nodes.add([whole, *(part for part in parts if part not in inside)])

    def loops(self, part: Node) -> bool:
        """Whether a part belongs to one block of keys, or of queries, and must be summed over blocks."""
        return any(one.axes == self.pair for one in below([part]))


def _add(back: Backward, node: Node, d: Node) -> None:
    for arg in node.args:
        back.give(arg, back.nodes.total(d, arg.axes), node.heads)


def _mul(back: Backward, node: Node, d: Node) -> None:
    a, b = node.args
    for x, other in ((a, b), (b, a)):
        if x.op != "number":
            back.give(x, back.nodes.product(d, other, x.axes, f"d_{x.name}"))


def _sum(back: Backward, node: Node, d: Node) -> None:
    back.give(node.args[0], back.nodes.spread(d, node.args[0].axes))


def _map(back: Backward, node: Node, d: Node) -> None:
    x, *numbers = node.args
    back.give(x, back.nodes.node("slope", (x, node, d, *numbers), x.axes, f"d_{x.name}", node.data))


def _over(back: Backward, node: Node, d: Node) -> None:
    (arg,), (_, how) = node.args, node.data
    if how == "add":
        back.give(arg, d)
    elif how == "lse":
        rest = back.nodes.add([arg, back.nodes.mul(back.minus, node)])
        share = back.nodes.node("map", (rest,), rest.axes, f"{arg.name}_share", ("exp",))
        back.give(arg, back.nodes.product(d, share, arg.axes))
    else:  # the maximum; equal maxima share the gradient
        equal = back.nodes.node("equal", (arg, node), arg.axes, f"{arg.name}_equal")
        count = back.nodes.over(equal, node.data[0], "add", f"{node.name}_equal")
        one = back.nodes.node("map", (count,), count.axes, f"{node.name}_share", ("reciprocal",))
        back.give(arg, back.nodes.product(d, back.nodes.mul(equal, one), arg.axes))


def _shift(back: Backward, node: Node, d: Node) -> None:
    back.give(node.args[0], back.nodes.node("unshift", (d,), node.args[0].axes, f"d_{node.args[0].name}"))


def _hide(back: Backward, node: Node, d: Node) -> None:
    x, seen = node.args
    back.give(x, back.nodes.node("keep", (d, seen), node.axes, f"d_{x.name}"))


def _again(back: Backward, node: Node, d: Node) -> None:
    back.give(node.args[0], back.nodes.node(node.op, (d,), node.axes, f"d_{node.args[0].name}", node.data))


def _running(back: Backward, node: Node, d: Node) -> None:
    """A sum that runs along keys has a gradient that runs the other way."""
    (reverse,) = node.data
    back.give(node.args[0], back.nodes.node("running", (d,), node.axes, f"d_{node.args[0].name}", (not reverse,)))


def _between(back: Backward, node: Node, d: Node) -> None:
    d = back.nodes.spread(d, node.axes)
    back.leaf(node, d)
    back.give(node.args[0], back.nodes.mul(d, back.nodes.node("incline", node.args, node.axes, node.name, node.data)))


_WITHOUT = ("number", "distance", "constant", "drawn", "visible", "both", "either")  # nodes without a gradient
RULES: dict[str, Rule] = {
    "add": _add,
    "spread": _add,
    "mul": _mul,
    "dot": _mul,
    "sum": _sum,
    "map": _map,
    "over": _over,
    "shift": _shift,
    "keep": _hide,
    "hide": _hide,
    "inside": _again,
    "drop": _again,
    "running": _running,
    "between": _between,
}


def constant_factors(node: Node) -> tuple[list[Node], Node]:
    """The factors of a tile that are the same for every block, and the remaining tile."""
    found: list[Node] = []
    while True:
        number, rest = factored(node)
        if number is None:
            number, rest = along_width(node)
        if number is None:
            return found, node
        found.append(number)
        node = rest


def part_of(node: Node, program: Program) -> Node:
    """The summand of a softmax for one value of the variable that it sums over; the softmax itself if there is none."""
    if not node.data[2]:
        return node
    return program.divided(node).args[0]


def one_map(program: Program) -> Node | None:
    """The only map of the result, if each tile reads one tile of it linearly and without other terms; otherwise None.

    A tile of the result that sums over tiles of a map reads several tiles.
    """
    exit_ = program.exit
    maps = [node for node in below([exit_.maps]) if node.op in ROWS]
    if len(maps) != 1 or {*exit_.summed} & {*maps[0].heads} or not _linear(exit_.maps, maps[0]):
        return None
    return maps[0]


def _linear(node: Node, one: Node) -> bool:
    if node is one:
        return True
    reads = [one in below([arg]) for arg in node.args]
    if node.op == "mul" and reads.count(True) == 1:
        return _linear(node.args[reads.index(True)], one)
    if node.op in ("drop", "keep") or (node.op == "over" and node.data[1] == "add" and node.data[0] not in one.heads):
        return _linear(node.args[0], one)
    return node.op == "add" and all(reads) and all(_linear(arg, one) for arg in node.args)
