"""The gradients of a tile program: its nodes read backwards, every rule a function of one kind of node.

What has query rows, or neither side, is summed over keys by a program of query rows; what has keys is summed over
queries by a program of keys; what has relative positions by a program of pairs that are about as far apart. Where a
softmax A = exp(x - lse) is read, its scores have dx = A (dA - sum(A dA)); where A = x / (sum of x + eps),
dx = (dA - sum(A dA)) / (sum of x + eps). The log of the sum that a softmax divides by has dx = A dlog.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from tensornet_attn.plan.tiles.model import ROWS, Node, Nodes, Program, Unfit, along_width, below, factored
from tensornet_attn.spec.arithmetic import ONE, Negative, Number

FEW = 4  # parts of a gradient that are added at once


@dataclass(frozen=True)
class Gradients:
    """`totals`: accumulators, each with what is added to it for each block of keys (of queries, where it has keys).

    `leaves`: (what was loaded, its gradient). `maps`: of each map the rows of A dA, summed over the keys of a block.
    `scores`: the gradients of what the maps are made of.
    """

    totals: tuple[tuple[Node, Node], ...]
    leaves: tuple[tuple[Node, Node], ...]
    maps: tuple[Node, ...]
    scores: tuple[Node, ...]


def gradients(program: Program) -> Gradients:
    """The gradients of everything that a program loads."""
    return _Backward(program, program.nodes).found()


class _Backward:
    def __init__(self, program: Program, nodes: Nodes):
        self.program, self.nodes = program, nodes
        self.pair = (program.query, program.key)
        self.parts: dict[Node, list[Node]] = {}
        self.totals: dict[Node, Node] = {}
        self.leaves: dict[Node, Node] = {}
        self.maps: dict[Node, Node] = {}
        self.scores: list[Node] = []

    def found(self) -> Gradients:
        ends = []
        for number, exit_ in enumerate(self.program.exits):
            d = self.nodes.node("gradient", (), self.program.axes, "_".join(["d", *map(str, exit_.index)]), (number,))
            for maps, values in exit_.pairs:
                ends += [maps] if values is None else [maps, values]
                if exit_.log:
                    self.give_scores(maps, self.nodes.spread(d, self.pair))
                    continue
                self.give(
                    maps,
                    self.nodes.product(d, values, self.pair, f"d_{maps.name}")
                    if values
                    else self.nodes.spread(d, self.pair),
                )
                if values is not None:
                    self.give(values, self.nodes.product(maps, d, values.axes, f"d_{values.name}"))
        both = (self.pair, (self.program.query, *self.program.relative))
        wide = [node for node in below(ends) if len(node.axes) == 2 and node.axes in both]
        narrow = [node for node in below(ends) if node not in wide]
        for node in reversed(wide):
            self.back(node, self.own(node))
        for node in reversed(narrow):
            if node in self.parts:
                self.back(node, self.whole(node))
        self.check()
        kept = tuple(self.maps[node] for node in self.program.maps if node in self.maps)
        return Gradients(tuple(self.totals.items()), tuple(self.leaves.items()), kept, tuple(self.scores))

    def check(self) -> None:
        """Every tile of an operand has its gradient, from one kernel. Raises Unfit."""
        _, key = self.pair
        for number, operand in enumerate(self.program.operands):
            leaves = [leaf for leaf in self.leaves if leaf.op != "bias" and leaf.data[0] == number]
            if len(leaves) != prod(self.program.heads[leg] for leg in operand.heads):
                raise Unfit(f"only a part of '{operand.use.name}' is read")
        for leaf, d in self.leaves.items():
            for axis, told in ((key, "keys"), *((leg, "relative positions") for leg in self.program.relative)):
                if axis not in leaf.axes and any(axis in one.axes for one in below([d]) if one.op == "sum_over_blocks"):
                    raise Unfit(f"'{leaf.name}' is read beside {told}, and not by maps")

    def give(self, node: Node, part: Node) -> None:
        self.parts.setdefault(node, []).append(part)

    def give_scores(self, node: Node, d: Node) -> None:
        """Gives what a map is made of its gradients, from that of the log of what the map is."""
        for arg in node.args:
            name = f"d_{arg.name}"
            if node.op == "softmax":
                found = self.nodes.mul(part_of(node, arg, self.program), d, name)
            else:
                place = self.program.maps.index(node)
                inverse = self.nodes.node("inverse", (), (self.program.query,), f"{node.name}_inverse", (place,))
                found = self.nodes.node("keep", (self.nodes.mul(d, inverse),), node.axes, name, node.data[:2])
            self.scores.append(found)
            self.give(arg, found)

    def own(self, node: Node) -> Node | None:
        if node not in self.parts:
            return None
        first, *more = self.parts[node]
        if len(more) < FEW:
            return self.nodes.add((first, *more), f"d_{node.name or node.op}")
        for part in more:  # so that a part is added as soon as it is there, and not held
            first = self.nodes.add((first, part), f"d_{node.name or node.op}")
        return first

    def whole(self, node: Node) -> Node:
        """The gradient of what has no more than one of queries and keys: what its readers of both give is a total."""
        parts = self.parts[node]
        inside = [part for part in parts if self.loops(part)]
        if not inside:
            return self.nodes.add(parts)
        name = f"d_{node.name or node.op}"
        total = self.nodes.node("sum_over_blocks", (), node.axes, name, (len(self.totals),))
        factors, self.totals[total] = constant_factors(self.nodes.add(inside))
        whole = total
        for factor in reversed(factors):
            whole = self.nodes.mul(factor, whole, name)
        return self.nodes.add([whole, *(part for part in parts if part not in inside)])

    def loops(self, part: Node) -> bool:
        """Whether a part is of one block of keys, or of queries, and has to be added to those of the others."""
        return any(one.axes == self.pair for one in below([part]))

    def back(self, node: Node, d: Node | None) -> None:
        """Gives every argument of a node its part."""
        if d is None:
            return
        if node.op in ("load", "noise", "bias", "entry"):
            self.leaves[node] = self.nodes.spread(d, node.axes)
        elif node.op in ROWS:
            if any(part.op == "slope" for part in below([d])):  # which may be infinite where nothing is seen
                d = self.nodes.node("keep", (d,), node.axes, d.name, node.data[:2])
            self.maps[node] = self.nodes.total(self.nodes.mul(node, d, "A_dA"), (self.program.query,))
            rows = self.nodes.node(
                "sums", (), (self.program.query,), f"{node.name}_sums", (self.program.maps.index(node),)
            )
            self.give_scores(node, self.nodes.add([d, self.nodes.mul(self.minus, rows)]))
        elif node.op not in ("number", "distance"):
            _RULES[node.op](self, node, d)

    @property
    def minus(self) -> Node:
        return self.nodes.node("number", (), (), "", (Negative(ONE),))


def _add(back: _Backward, node: Node, d: Node) -> None:
    for arg in node.args:
        back.give(arg, back.nodes.total(d, arg.axes))


def _mul(back: _Backward, node: Node, d: Node) -> None:
    a, b = node.args
    for x, other in ((a, b), (b, a)):
        if x.op != "number":
            back.give(x, back.nodes.product(d, other, x.axes, f"d_{x.name}"))


def _sum(back: _Backward, node: Node, d: Node) -> None:
    back.give(node.args[0], back.nodes.spread(d, node.args[0].axes))


def _map(back: _Backward, node: Node, d: Node) -> None:
    x, *numbers = node.args
    back.give(x, back.nodes.node("slope", (x, node, d, *numbers), x.axes, f"d_{x.name}", node.data))


def _lse(back: _Backward, node: Node, d: Node) -> None:
    for arg in node.args:
        rest = back.nodes.add([arg, back.nodes.mul(back.minus, node)])
        share = back.nodes.node("map", (rest,), rest.axes, f"{arg.name}_share", ("exp",))
        back.give(arg, back.nodes.product(d, share, arg.axes))


def _max(back: _Backward, node: Node, d: Node) -> None:
    for arg in node.args:
        share = back.nodes.node("argmax_share", (arg, node, *node.args), node.axes, f"{arg.name}_share")
        back.give(arg, back.nodes.product(d, share, arg.axes))


def _shift(back: _Backward, node: Node, d: Node) -> None:
    back.give(node.args[0], back.nodes.node("unshift", (d,), node.args[0].axes, f"d_{node.args[0].name}"))


def _hide(back: _Backward, node: Node, d: Node) -> None:
    seen, _ = node.data
    back.give(node.args[0], back.nodes.node("hide", (d,), node.axes, f"d_{node.args[0].name}", (seen, Number(0))))


def _again(back: _Backward, node: Node, d: Node) -> None:
    back.give(node.args[0], back.nodes.node(node.op, (d,), node.axes, f"d_{node.args[0].name}", node.data))


_RULES: dict[str, Callable[[_Backward, Node, Node], None]] = {
    "add": _add,
    "spread": _add,
    "mul": _mul,
    "dot": _mul,
    "sum": _sum,
    "map": _map,
    "lse": _lse,
    "max": _max,
    "shift": _shift,
    "keep": _again,
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


def part_of(node: Node, arg: Node, program: Program) -> Node:
    """What an argument of a softmax adds to it: all, where there is no other."""
    if len(node.args) == 1:
        return node
    return program.nodes.node("part", (arg,), node.axes, node.name, (*node.data, program.maps.index(node)))


def one_map(node: Node, program: Program) -> Node | None:
    """The only map that a node reads, and is linear in, without other terms; None where there is no such map."""
    maps = [one for one in below([node]) if one in program.maps]
    return maps[0] if len(maps) == 1 and _linear(node, maps[0]) else None


def _linear(node: Node, one: Node) -> bool:
    if node is one:
        return True
    reads = [one in below([arg]) for arg in node.args]
    if node.op == "mul" and reads.count(True) == 1:
        return _linear(node.args[reads.index(True)], one)
    if node.op in ("drop", "keep"):
        return _linear(node.args[0], one)
    return node.op == "add" and all(reads) and all(_linear(arg, one) for arg in node.args)
