"""The gradients of a tile program: its nodes read backwards, every rule a function of one kind of node.

What has query rows, or neither side, is summed over keys by a program of query rows; what has keys is summed over
queries by a program of keys; what has relative positions by a program of pairs that are about as far apart. Where a
softmax A = exp(x - lse) is read, its scores have dx = A (dA - sum(A dA)); where A = x / (sum of x + eps),
dx = (dA - sum(A dA)) / (sum of x + eps). The log of the sum that a softmax divides by has dx = A dlog.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tensornet_attn.ir.arithmetic import ONE, Negative
from tensornet_attn.tiles.model import ROWS, At, Node, Nodes, Program, Unfit, along_width, below, factored

Rule = Callable[[Any, Node, Node], None]  # what a node gives its arguments, of its gradient


@dataclass(frozen=True)
class Gradients:
    """`totals`: accumulators, each with what is added to it for each block of keys (of queries, where it has keys).

    `leaves`: (what was loaded, its gradient). `maps`: (a map, its rows of A dA, summed over the keys of a block).
    """

    totals: tuple[tuple[Node, Node], ...]
    leaves: tuple[tuple[Node, Node], ...]
    maps: tuple[tuple[Node, Node], ...]


def gradients(program: Program) -> Gradients:
    """The gradients of everything that a program loads."""
    return _Blocks(program).found()


class Backward:
    """What nodes are given by their readers; `rules`: one for each kind of node.

    `leaves`: (what was loaded, its gradient).
    """

    def __init__(self, nodes: Nodes, rules: Mapping[str, Rule]):
        self.nodes, self.pair, self.rules = nodes, nodes.pair, rules
        self.parts: dict[Node, list[Node]] = {}
        self.leaves: dict[Node, Node] = {}

    def give(self, node: Node, part: Node, heads: tuple[str, ...] = ()) -> None:
        """Adds a part to the gradient of a node, added up over the variables that it lacks; `heads`: of its reader."""
        for variable in dict.fromkeys((*part.heads, *heads)):
            if variable not in node.heads:
                part = self.nodes.over(part, variable, "add", f"d_{node.name or node.op}")
        self.parts.setdefault(node, []).append(part)

    def own(self, node: Node) -> Node | None:
        if node not in self.parts:
            return None
        return self.nodes.add(self.parts[node], f"d_{node.name or node.op}")

    def back(self, node: Node, d: Node | None) -> None:
        """Gives every argument of a node its part."""
        if d is None:
            return
        if node.op in ("load", "noise", "bias", "entry"):
            self.leaf(node, self.nodes.spread(d, node.axes))
        elif node.op not in _WITHOUT:
            self.rules[node.op](self, node, d)

    def leaf(self, node: Node, d: Node) -> None:
        """Adds to the gradient of an operand, or of the mask, under the variables by which it was first read."""
        at = next(value for value in node.data if isinstance(value, At))
        same = (other for other in self.leaves if (other.op, other.data[0]) == (node.op, node.data[0]))
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
    """Of programs that see a block of the keys, or of the queries, at a time."""

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
        self.check()
        kept = tuple((node, self.maps[node]) for node in self.program.maps if node in self.maps)
        return Gradients(tuple(self.totals.items()), tuple(self.leaves.items()), kept)

    def check(self) -> None:
        """Every tile of an operand has its gradient, from one kernel. Raises Unfit."""
        _, key = self.pair
        read = {leaf.data[0] for leaf in self.leaves if leaf.op != "bias"}
        for number, operand in enumerate(self.program.operands):
            if number not in read:
                raise Unfit(f"'{operand.use.name}' is read by no map")
        for leaf, d in self.leaves.items():
            for axis, told in ((key, "keys"), *((leg, "relative positions") for leg in self.program.relative)):
                if axis not in leaf.axes and any(axis in one.axes for one in below([d]) if one.op == "sum_over_blocks"):
                    raise Unfit(f"'{leaf.name}' is read beside {told}, and not by maps")

    def divided(self, node: Node, d: Node) -> None:
        """Gives what a map is made of its part."""
        one = self.program.maps[node.data[0]]
        if node is not one:  # read with other variables: all of its gradient is needed at once
            self.give(one, self.nodes.renamed(d, dict(zip(node.data[1], one.data[1], strict=True))))
            return
        if any(part.op == "slope" for part in below([d])):  # which may be infinite where nothing is seen
            d = self.nodes.node("keep", (d, node.args[1]), node.axes, d.name)
        self.maps[node] = self.nodes.total(self.nodes.mul(node, d, "A_dA"), (self.program.query,))
        rows = self.nodes.node("sums", (), (self.program.query,), f"{node.name}_sums", node.data[:2])
        for sink in node.args[2:]:
            self.give_sink(node, sink, rows)
        self.give_scores(node, self.nodes.add([d, self.nodes.mul(self.minus, rows)]))

    def give_sink(self, node: Node, sink: Node, rows: Node) -> None:
        """Gives what is added to the sum of each row its part: what it takes of the row times -sum(A dA)."""
        nodes, name = self.nodes, f"d_{sink.name}"
        whole = nodes.node("statistic", (), (self.program.query,), f"{node.name}_rows", node.data[:2])
        less = nodes.add([whole, nodes.mul(self.minus, sink)])  # never below zero, but where there is no query
        less = nodes.node("map", (less,), less.axes, name, ("relu",))
        less = nodes.mul(self.minus, less)
        share = nodes.node("map", (less,), less.axes, name, ("exp",))
        self.give(sink, nodes.total(nodes.mul(self.minus, nodes.mul(share, rows), name), sink.axes, name))

    def give_scores(self, node: Node, d: Node) -> None:
        """Gives what a map is made of its gradients, from that of the log of what the map is."""
        arg, seen, *_ = node.args
        if node.op == "softmax":
            found = self.nodes.mul(part_of(node, self.program), d, f"d_{arg.name}")
        else:
            rows = self.nodes.node("statistic", (), (self.program.query,), f"{node.name}_rows", node.data[:2])
            found = self.nodes.node("keep", (self.nodes.mul(d, rows), seen), node.axes, f"d_{arg.name}")
        self.give(arg, found)

    def whole(self, node: Node) -> Node:
        """The gradient of what has no more than one of queries and keys: what its readers of both give is a total."""
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
        """Whether a part is of one block of keys, or of queries, and has to be added to those of the others."""
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
    else:  # the largest, of several alike a share each
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
}


def constant_factors(node: Node) -> tuple[list[Node], Node]:
    """The factors of a tile that are the same for every block, and the rest."""
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
    """What one value of the variable that a softmax sums over adds to it: all, where there is none."""
    if not node.data[2]:
        return node
    return program.divided(node).args[0]


def one_map(program: Program) -> Node | None:
    """The only map that each tile of the result reads, and is linear in, without other terms; None where there is none.

    A tile of the result that is a sum over tiles of a map reads several.
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
