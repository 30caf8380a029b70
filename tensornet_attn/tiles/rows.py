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

from tensornet_attn.graph.model import Box, Graph, Step, Use
from tensornet_attn.ir.arithmetic import ONE
from tensornet_attn.ops import MAPS, OPS
from tensornet_attn.tiles.derive import RULES, Backward
from tensornet_attn.tiles.legs import made_inside, unbounded
from tensornet_attn.tiles.model import At, Axes, Node, Nodes, below
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
    nodes = Nodes((str(graph.query), str(graph.key), *places), dynamic=True)
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
        own = {*legs}
        return tuple(axis for axis in self.nodes.order if axis in own)

    def place(self, legs: Iterable[str]) -> At:
        own = {*legs}
        return At(leg for leg in self.nodes.sizes if leg in own)

    def filled(self, x: Node, legs: tuple[str, ...]) -> Node:
        """x, broadcast to some legs."""
        if {*legs} == {*x.heads, *x.axes}:
            return x
        return self.nodes.node("spread", (x,), self.axes(legs), x.name, (self.place(legs),))

    def use(self, use: Use, index: Index) -> Node:
        found = self.values[use.name] if use.name in self.graph.step else self.leaf(use.name)
        own = self.graph.legs_of(use.name)
        pairs = [(old, new) for old, new in zip(own, use.legs, strict=True) if old != new]
        if not pairs:
            return found
        old, new = zip(*pairs, strict=True)
        return self.nodes.node("view", (found,), found.axes, found.name, (old, At(new)))

    def leaf(self, name: str) -> Node:
        tensor = self.graph.tensor[name]
        made = tensor.role == "constant" and made_inside(self.graph, Use(name, tensor.legs))
        data = (name, self.place(tensor.legs))
        return self.nodes.node("constant" if made else "load", (), self.axes(tensor.legs), name, data)

    def indices(self, legs: Iterable[str], index: Index) -> dict[str, str]:
        return {leg: leg for leg in self.place(legs)}

    def box(self, step: Step, box: Box, index: Index) -> Node:
        own, leg = OPS[box.kind], str(box.leg)
        args, numbers = [self.use(use, index) for use in box.uses], dict(box.numbers)
        if own.scales:
            entries = self.nodes.node("drawn", args, args[0].axes, f"{step.name}_entries", (step,))
            return self.nodes.node("dropped", (args[0], entries), args[0].axes, step.name)
        if own.linear and own.reduces and leg in self.nodes.sizes:  # masks do not apply
            found: Node | None = own.tile_along(BoxTiles(self, step, index, leg, leg), step, box)
            if found is not None:
                return found
        if "scale" in numbers:
            args[0] = self.nodes.scaled(args[0], numbers["scale"], f"{step.name}.of")
            step = replace(step, op=replace(box, numbers=tuple((numbers | {"scale": ONE}).items())))
        gone = tuple(one for one in box.acting if one in self.nodes.sizes and one not in step.legs)
        data = (step, self.place(step.legs), gone)
        return self.nodes.node("box", args, self.axes(step.legs), step.name, data)


def rows_gradients(program: RowsProgram) -> list[tuple[Node, Node]]:
    """(load, or mask of the call; its gradient): see `Backward.leaf`."""
    nodes, result = program.nodes, program.result
    back = Backward(nodes, RULES | _RULES)
    back.give(result, nodes.node("gradient", (), result.axes, "gradient", (At(result.heads),)))
    for node in reversed(below([result])):
        back.back(node, back.own(node))
    return list(back.leaves.items())


def _box(back: Backward, node: Node, d: Node) -> None:
    step, box, x = node.data[0], node.data[0].op, node.args[0]
    name, own = f"d_{x.name}", OPS[box.kind]
    if box.function is not None and MAPS[box.function.name].torch_slope:
        known = node if MAPS[box.function.name].saves == "result" else x
        back.give(x, back.nodes.node("slope", (known, d), x.axes, name, (box.function.name,)))
        return
    if own.only_hides:
        found = back.nodes.node("kept", (d,), x.axes, name, (step,))
    elif own.gradient:
        known = node if own.saves[0] == "result" else x
        found = back.nodes.node("box_grad", (known, d), x.axes, name, (step, ""))
        for arg, (role, _) in [*zip(node.args, box.operands, strict=True)][1:]:
            axes = [axis for axis in x.axes if axis != box.leg]
            heads = At(head for head in x.heads if head != box.leg)
            rows = back.nodes.node("box_grad", (known, d), axes, f"d_{arg.name}", (step, role, heads))
            back.give(arg, back.nodes.total(rows, arg.axes))
    else:
        found = _pull(back, node, d, 0)
        for i, (role, use) in enumerate(box.operands):
            if use not in box.uses[:i] and i and role not in own.without_gradient:
                back.give(node.args[i], _pull(back, node, d, i))
    back.give(x, found)
    adds_mask = own.masked and own.takes_float_mask
    if box.leg == back.pair[1] and adds_mask and {*back.pair} <= {*x.axes}:
        back.leaves[back.nodes.node("bias", (), x.axes, "mask", (step, At(x.heads)))] = found


def _pull(back: Backward, node: Node, d: Node, i: int) -> Node:
    """The gradient of operand i of a box."""
    x = node.args[i]
    return back.nodes.node("pull", (d, *node.args), x.axes, f"d_{x.name}", (node.data[0], i, At(x.heads)))


def _dropped(back: Backward, node: Node, d: Node) -> None:
    x, entries = node.args
    back.give(x, back.nodes.node("dropped", (d, entries), node.axes, f"d_{x.name}"))


def _view(back: Backward, node: Node, d: Node) -> None:
    pairs = [(new, old) for old, new in zip(*node.data, strict=True) if new in d.heads]
    if pairs:
        new, old = zip(*pairs, strict=True)
        d = back.nodes.node("view", (d,), node.axes, f"d_{node.name}", (new, At(old)))
    back.give(node.args[0], d)


_RULES = {"box": _box, "dropped": _dropped, "view": _view}
