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
from tensornet_attn.tiles.program import ROWS, At, Node, Nodes, Program, Unfit, along_width, below, factored

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
    return _Blocks(program).gradients()


class Backward:
    """Accumulates gradients of nodes from their readers; `rules`: one per kind of node.

    `leaves`: (load, its gradient).
    """

    def __init__(self, nodes: Nodes, rules: Mapping[str, Rule]):
        self.nodes, self.pair, self.rules = nodes, nodes.pair, rules
        self.summands: dict[Node, list[Node]] = {}
        self.leaves: dict[Node, Node] = {}

    def give(self, node: Node, summand: Node, heads: tuple[str, ...] = ()) -> None:
        """Adds a part to the gradient of a node, summed over variables that it lacks; `heads`: those of its reader."""
        for variable in dict.fromkeys((*summand.heads, *heads)):
            if variable not in node.heads:
                summand = self.nodes.over(summand, variable, "add", f"d_{node.name or node.op}")
        self.summands.setdefault(node, []).append(summand)

    def gradient_of(self, node: Node) -> Node | None:
        if node not in self.summands:
            return None
        return self.nodes.add(self.summands[node], f"d_{node.name or node.op}")

    def back(self, node: Node, gradient: Node | None) -> None:
        """Passes the gradient d of a node to its arguments."""
        if gradient is None:
            return
        if node.op in ("load", "noise", "bias", "entry"):
            self.leaf(node, self.nodes.spread(gradient, node.axes))
        elif node.op not in _WITHOUT:
            self.rules[node.op](self, node, gradient)

    def leaf(self, node: Node, gradient: Node) -> None:
        """Adds to the gradient of an operand, or of the mask, for the index variables by which it was first read.

        Reads of a table at different places, which are their arguments, have gradients of their own.
        """
        index = next(datum for datum in node.data if isinstance(datum, At))
        key = node.op, node.data[0], node.args
        earlier = (leaf for leaf in self.leaves if (leaf.op, leaf.data[0], leaf.args) == key)
        if node.op == "bias":
            earlier = (leaf for leaf in self.leaves if leaf.op == "bias")
        first = next(earlier, None)
        if first is None:
            self.leaves[node] = gradient
            return
        first_index = next(datum for datum in first.data if isinstance(datum, At))
        self.leaves[first] = self.nodes.add(
            [self.leaves[first], self.nodes.renamed(gradient, dict(zip(index, first_index, strict=True)))]
        )

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

    def gradients(self) -> Gradients:
        exit_ = self.program.exit
        gradient = self.nodes.node("gradient", (), self.program.axes, "d", (exit_.index,))
        maps, values = exit_.maps, exit_.values
        if exit_.log:
            self.give_scores(maps, self.nodes.spread(gradient, self.pair))
        elif values is None:
            self.give(maps, self.nodes.spread(gradient, self.pair))
        else:
            self.give(maps, self.nodes.product(gradient, values, self.pair, f"d_{maps.name}"))
            self.give(values, self.nodes.product(maps, gradient, values.axes, f"d_{values.name}"))
        pair_axes = (self.pair, (self.program.query, *self.program.relative))
        nodes = below([*self.program.maps, maps, *([values] if values else [])])
        wide = [node for node in nodes if len(node.axes) == 2 and node.axes in pair_axes]
        narrow = [node for node in nodes if node not in wide]
        for node in reversed(wide):
            self.back(node, self.gradient_of(node))
        for node in reversed(narrow):
            if node in self.summands:
                self.back(node, self.whole(node))
        self.check(nodes)
        row_sums = tuple((node, self.maps[node]) for node in self.program.maps if node in self.maps)
        return Gradients(tuple(self.totals.items()), tuple(self.leaves.items()), row_sums)

    def check(self, nodes: list[Node]) -> None:
        """Raises Unfit unless one kernel computes the gradient of every tile of each operand."""
        _, key = self.pair
        read = {leaf.data[0] for leaf in self.leaves if leaf.op != "bias"}
        loaded = {node.data[0] for node in nodes if node.op == "load"}
        for number, operand in enumerate(self.program.operands):
            if number in loaded - read:
                raise Unfit(f"'{operand.use.name}' is read by no map")
        for leaf, gradient in self.leaves.items():
            for axis, sides in ((key, "keys"), *((leg, "relative positions") for leg in self.program.relative)):
                if axis not in leaf.axes and any(
                    axis in node.axes for node in below([gradient]) if node.op == "sum_over_blocks"
                ):
                    raise Unfit(f"'{leaf.name}' is combined with {sides} outside of maps")

    def divided(self, node: Node, gradient: Node) -> None:
        """Passes the gradient of a map to its scores."""
        attention_map = self.program.maps[node.data[0]]
        if node is not attention_map:  # read with other index variables: the whole gradient is needed at once
            self.give(
                attention_map, self.nodes.renamed(gradient, dict(zip(node.data[1], attention_map.data[1], strict=True)))
            )
            return
        if any(inner.op == "slope" for inner in below([gradient])):  # a slope can be infinite in hidden entries
            gradient = self.nodes.node("keep", (gradient, node.args[1]), node.axes, gradient.name)
        self.maps[node] = self.nodes.total(self.nodes.mul(node, gradient, "A_dA"), (self.program.query,))
        rows = self.nodes.node("sums", (), (self.program.query,), f"{node.name}_sums", node.data[:2])
        for sink in node.args[2:]:
            self.give_sink(node, sink, rows)
        self.give_scores(node, self.nodes.add([gradient, self.nodes.mul(self.minus, rows)]))

    def give_sink(self, node: Node, sink: Node, rows: Node) -> None:
        """Passes a gradient to the sink of a softmax: its share of each row times -sum(A dA)."""
        nodes, name, data = self.nodes, f"d_{sink.name}", node.data[:2]
        largest = nodes.node("largest", (), (self.program.query,), f"{node.name}_largest", data)
        statistic = nodes.node("statistic", (), (self.program.query,), f"{node.name}_rows", data)
        share = nodes.node("sink_share", (sink, largest, statistic), (self.program.query,), f"{sink.name}_share")
        self.give(sink, nodes.total(nodes.mul(self.minus, nodes.mul(share, rows), name), sink.axes, name))

    def give_scores(self, node: Node, gradient: Node) -> None:
        """Passes a gradient to the scores of a map, given the gradient of its logarithm."""
        arg, seen, *_ = node.args
        if node.op == "softmax":
            scores_gradient = self.nodes.mul(part_of(node, self.program), gradient, f"d_{arg.name}")
        else:
            rows = self.nodes.node("statistic", (), (self.program.query,), f"{node.name}_rows", node.data[:2])
            scores_gradient = self.nodes.node(
                "keep", (self.nodes.mul(gradient, rows), seen), node.axes, f"d_{arg.name}"
            )
        self.give(arg, scores_gradient)

    def whole(self, node: Node) -> Node:
        """The gradient of a node without both query and key side; parts of readers with both are accumulated."""
        summands = self.summands[node]
        looped = [summand for summand in summands if self.loops(summand)]
        if not looped:
            return self.nodes.add(summands)
        name = f"d_{node.name or node.op}"
        factors, rest = constant_factors(self.nodes.add(looped))
        total = self.nodes.node("sum_over_blocks", (), node.axes, name, (len(self.totals), At(rest.heads)))
        self.totals[total] = rest
        gradient = total
        for factor in reversed(factors):
            gradient = self.nodes.mul(factor, gradient, name)
        return self.nodes.add([gradient, *(summand for summand in summands if summand not in looped)])

    def loops(self, summand: Node) -> bool:
        """Whether a part belongs to one block of keys, or of queries, and must be summed over blocks."""
        return any(node.axes == self.pair for node in below([summand]))


def _add(backward: Backward, node: Node, gradient: Node) -> None:
    for arg in node.args:
        backward.give(arg, backward.nodes.total(gradient, arg.axes), node.heads)


def _mul(backward: Backward, node: Node, gradient: Node) -> None:
    a, b = node.args
    for left, right in ((a, b), (b, a)):
        if left.op != "number":
            backward.give(left, _times(backward, gradient, right, left))


def _times(backward: Backward, gradient: Node, factor: Node, of: Node) -> Node:
    """A gradient times a factor. Where masks hide the gradient, the factor may be infinite: they hide the product."""
    name = f"d_{of.name}"
    if gradient.op not in ("keep", "kept") or of.axes != backward.pair or not _overflows(factor):
        return backward.nodes.product(gradient, factor, of.axes, name)
    hidden, *seen = gradient.args
    return backward.nodes.node(
        gradient.op, (backward.nodes.mul(hidden, factor, name), *seen), of.axes, name, gradient.data
    )


def _overflows(node: Node) -> bool:
    """Whether a tile is a product of rows, or computed of one without a map that bounds it."""
    return node.op == "dot" or (node.op in ("mul", "add", "over", "view") and any(map(_overflows, node.args)))


def _sum(backward: Backward, node: Node, gradient: Node) -> None:
    backward.give(node.args[0], backward.nodes.spread(gradient, node.args[0].axes))


def _map(backward: Backward, node: Node, gradient: Node) -> None:
    x, *numbers = node.args
    backward.give(x, backward.nodes.node("slope", (x, node, gradient, *numbers), x.axes, f"d_{x.name}", node.data))


def _over(backward: Backward, node: Node, gradient: Node) -> None:
    (arg,), (_, how) = node.args, node.data
    if how == "add":
        backward.give(arg, gradient)
    elif how == "lse":
        exponent = backward.nodes.add([arg, backward.nodes.mul(backward.minus, node)])
        share = backward.nodes.node("map", (exponent,), exponent.axes, f"{arg.name}_share", ("exp",))
        backward.give(arg, backward.nodes.product(gradient, share, arg.axes))
    else:  # the maximum; equal maxima share the gradient
        equal = backward.nodes.node("equal", (arg, node), arg.axes, f"{arg.name}_equal")
        count = backward.nodes.over(equal, node.data[0], "add", f"{node.name}_equal")
        reciprocal = backward.nodes.node("map", (count,), count.axes, f"{node.name}_share", ("reciprocal",))
        backward.give(arg, backward.nodes.product(gradient, backward.nodes.mul(equal, reciprocal), arg.axes))


def _shift(backward: Backward, node: Node, gradient: Node) -> None:
    backward.give(
        node.args[0], backward.nodes.node("unshift", (gradient,), node.args[0].axes, f"d_{node.args[0].name}")
    )


def _hide(backward: Backward, node: Node, gradient: Node) -> None:
    x, seen = node.args
    backward.give(x, backward.nodes.node("keep", (gradient, seen), node.axes, f"d_{x.name}"))


def _again(backward: Backward, node: Node, gradient: Node) -> None:
    backward.give(
        node.args[0], backward.nodes.node(node.op, (gradient,), node.axes, f"d_{node.args[0].name}", node.data)
    )


def _running(backward: Backward, node: Node, gradient: Node) -> None:
    """A sum that runs along keys has a gradient that runs the other way."""
    (reverse,) = node.data
    backward.give(
        node.args[0], backward.nodes.node("running", (gradient,), node.axes, f"d_{node.args[0].name}", (not reverse,))
    )


def _between(backward: Backward, node: Node, gradient: Node) -> None:
    gradient = backward.nodes.spread(gradient, node.axes)
    backward.leaf(node, gradient)
    backward.give(
        node.args[0],
        backward.nodes.mul(gradient, backward.nodes.node("incline", node.args, node.axes, node.name, node.data)),
    )


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
    factors: list[Node] = []
    while True:
        number, rest = factored(node)
        if number is None:
            number, rest = along_width(node)
        if number is None:
            return factors, node
        factors.append(number)
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


def _linear(node: Node, attention_map: Node) -> bool:
    if node is attention_map:
        return True
    reads = [attention_map in below([arg]) for arg in node.args]
    if node.op == "mul" and reads.count(True) == 1:
        return _linear(node.args[reads.index(True)], attention_map)
    if node.op in ("drop", "keep") or (
        node.op == "over" and node.data[1] == "add" and node.data[0] not in attention_map.heads
    ):
        return _linear(node.args[0], attention_map)
    return node.op == "add" and all(reads) and all(_linear(arg, attention_map) for arg in node.args)
