"""The tile program of a block of query rows that sees whole rows of keys, and its gradients.

The sides of its tiles are the query leg, the key leg and relative positions; every other leg is an index variable with
the same name. Since rows are whole, each box of the language is one node, which is printed as outside of blocks:

| op | tile |
| --- | --- |
| constant | a constant that is computed per block: data = (its name, its index) |
| box | a box of the language: data = (its step, the index of its result, legs that the result lacks) |
| drawn, dropped | which entries of (x) a dropout keeps: data = (its step); x with these entries, of (x, drawn) |
| view | its argument under other names of legs: data = (the old names, the new names) |
| spread | its argument broadcast along legs that it lacks: data = (these legs) |
| box_grad | of (result or operand of a box, gradient), the gradient of the operand: data = (its step, empty); that of
  another operand, a number per row: data = (its step, the role of the operand, the index of the rows) |
| kept | of (gradient), its entries that the masks of a box leave visible: data = (the step of the box) |
| pull | of (gradient, operands), the gradient of an operand of a box: data = (its step, its number, its index) |
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tensornet_attn.graph.graph import Box, Graph, Step, Use
from tensornet_attn.ir.arithmetic import ONE
from tensornet_attn.ir.steps import within, without
from tensornet_attn.ops import MAPS, OPS
from tensornet_attn.tiles.derive import RULES, Backward
from tensornet_attn.tiles.legs import made_inside, unbounded
from tensornet_attn.tiles.program import At, Axes, Node, Nodes, below
from tensornet_attn.tiles.steps import BoxTiles, Index, Steps


@dataclass(frozen=True)
class RowsProgram:
    """`values`: the node of every step. `drawn`: dropout nodes in the order of drawing, in forward and backward."""

    graph: Graph
    nodes: Nodes
    result: Node
    values: dict[str, Node]

    @property
    def drawn(self) -> list[Node]:
        return [node for node in below([self.result]) if node.op == "drawn"]

    @property
    def pair(self) -> Axes:
        return self.nodes.pair


def rows_program(graph: Graph) -> RowsProgram:
    """The program of a graph whose output has query rows."""
    places = tuple(leg.name for leg in graph.legs if unbounded(graph, leg.name))
    nodes = Nodes((graph.query, str(graph.key), *places), dynamic=True)
    for leg in graph.legs:
        if leg.name not in nodes.order:
            nodes.variable(leg.name, leg.size or 1)
    return _Rows(graph, nodes).program()


@dataclass
class _Rows(Steps):
    graph: Graph
    nodes: Nodes
    values: dict[str, Node] = field(default_factory=dict)

    def program(self) -> RowsProgram:
        for step in self.graph.steps:
            self.values[step.name] = self.filled(self.tile(step, {}), step.legs)
        return RowsProgram(self.graph, self.nodes, self.values[self.graph.output], self.values)

    def axes(self, legs: Iterable[str]) -> Axes:
        wanted = {*legs}
        return within(self.nodes.order, wanted)

    def index_of(self, legs: Iterable[str]) -> At:
        wanted = {*legs}
        return At(leg for leg in self.nodes.sizes if leg in wanted)

    def filled(self, x: Node, legs: tuple[str, ...]) -> Node:
        """x, broadcast to some legs."""
        if {*legs} == {*x.heads, *x.axes}:
            return x
        return self.nodes.node("spread", (x,), self.axes(legs), x.name, (self.index_of(legs),))

    def use(self, use: Use, index: Index) -> Node:
        tile = self.values[use.name] if use.name in self.graph.step else self.leaf(use.name)
        legs = self.graph.legs_of(use.name)
        pairs = [(old, new) for old, new in zip(legs, use.legs, strict=True) if old != new]
        if not pairs:
            return tile
        old, new = zip(*pairs, strict=True)
        return self.nodes.node("view", (tile,), tile.axes, tile.name, (old, At(new)))

    def leaf(self, name: str) -> Node:
        tensor = self.graph.tensor[name]
        per_block = tensor.role == "constant" and made_inside(self.graph, Use(name, tensor.legs))
        data = (name, self.index_of(tensor.legs))
        return self.nodes.node("constant" if per_block else "load", (), self.axes(tensor.legs), name, data)

    def indices(self, legs: Iterable[str], index: Index) -> dict[str, str]:
        return {leg: leg for leg in self.index_of(legs)}

    def box(self, step: Step, box: Box, index: Index) -> Node:
        operation, leg = OPS[box.kind], str(box.leg)
        args, numbers = [self.use(use, index) for use in box.uses], dict(box.numbers)
        if operation.scales:
            entries = self.nodes.node("drawn", args, args[0].axes, f"{step.name}_entries", (step,))
            return self.nodes.node("dropped", (args[0], entries), args[0].axes, step.name)
        if operation.linear and operation.reduces and leg in self.nodes.sizes:  # masks do not apply
            summed: Node | None = operation.tile_along(BoxTiles(self, step, index, leg, leg), step, box)
            if summed is not None:
                return summed
        if "scale" in numbers:
            args[0] = self.nodes.scaled(args[0], numbers["scale"], f"{step.name}.of")
            step = replace(step, op=replace(box, numbers=tuple((numbers | {"scale": ONE}).items())))
        reduced = within(without(box.acting, *step.legs), self.nodes.sizes)
        data = (step, self.index_of(step.legs), reduced)
        return self.nodes.node("box", args, self.axes(step.legs), step.name, data)


def rows_gradients(program: RowsProgram) -> list[tuple[Node, Node]]:
    """(load, or mask of the call; its gradient): see `Backward.leaf`."""
    nodes, result = program.nodes, program.result
    backward = Backward(nodes, RULES | _RULES)
    backward.give(result, nodes.node("gradient", (), result.axes, "gradient", (At(result.heads),)))
    for node in reversed(below([result])):
        backward.back(node, backward.gradient_of(node))
    return list(backward.leaves.items())


def _box(backward: Backward, node: Node, gradient: Node) -> None:
    step, box, x = node.data[0], node.data[0].op, node.args[0]
    name, operation = f"d_{x.name}", OPS[box.kind]
    if box.function is not None and MAPS[box.function.name].torch_slope:
        saved = node if MAPS[box.function.name].saves == "result" else x
        backward.give(x, backward.nodes.node("slope", (saved, gradient), x.axes, name, (box.function.name,)))
        return
    if operation.only_hides:
        if {*x.heads} - {*gradient.heads}:  # a mask of the call may differ between them
            gradient = backward.nodes.node("spread", (gradient,), x.axes, gradient.name, (At(x.heads),))
        x_gradient = backward.nodes.node("kept", (gradient,), x.axes, name, (step,))
    elif operation.gradient:
        saved = node if operation.saves[0] == "result" else x
        x_gradient = backward.nodes.node("box_grad", (saved, gradient), x.axes, name, (step, ""))
        for arg, (role, _) in [*zip(node.args, box.operands, strict=True)][1:]:
            axes = [axis for axis in x.axes if axis != box.leg]
            heads = At(head for head in x.heads if head != box.leg)
            rows = backward.nodes.node("box_grad", (saved, gradient), axes, f"d_{arg.name}", (step, role, heads))
            backward.give(arg, backward.nodes.total(rows, arg.axes))
    else:
        x_gradient = _pull(backward, node, gradient, 0)
        for number, (role, use) in enumerate(box.operands):
            if use not in box.uses[:number] and number and role not in operation.without_gradient:
                backward.give(node.args[number], _pull(backward, node, gradient, number))
    backward.give(x, x_gradient)
    adds_mask = operation.masked and operation.takes_float_mask
    if box.leg == backward.pair[1] and adds_mask and {*backward.pair} <= {*x.axes}:
        backward.leaves[backward.nodes.node("bias", (), x.axes, "mask", (step, At(x.heads)))] = x_gradient


def _pull(backward: Backward, node: Node, gradient: Node, number: int) -> Node:
    """The gradient of operand i of a box."""
    x = node.args[number]
    return backward.nodes.node(
        "pull", (gradient, *node.args), x.axes, f"d_{x.name}", (node.data[0], number, At(x.heads))
    )


def _dropped(backward: Backward, node: Node, gradient: Node) -> None:
    x, entries = node.args
    backward.give(x, backward.nodes.node("dropped", (gradient, entries), node.axes, f"d_{x.name}"))


def _view(backward: Backward, node: Node, gradient: Node) -> None:
    pairs = [(new, old) for old, new in zip(*node.data, strict=True) if new in gradient.heads]
    if pairs:
        new, old = zip(*pairs, strict=True)
        gradient = backward.nodes.node("view", (gradient,), node.axes, f"d_{node.name}", (new, At(old)))
    backward.give(node.args[0], gradient)


_RULES = {"box": _box, "dropped": _dropped, "view": _view}
