"""A tile program with factors outside of products: sum over d of (P Q) K   ->   P (sum over d of Q K).

A number P that has index variables which neither Q nor K has would take a product for each of their values; the
printers of C++ compute one product and multiply its entries. Gradients are those of the program as it is then.
"""

from __future__ import annotations

from dataclasses import replace

from tensornet_attn.tiles.model import Node, Nodes, Program


def with_factors_outside(program: Program) -> Program:
    """The program, with factors outside of products where that saves products."""
    found = _Rewriting(program.nodes)
    exit_ = program.exit
    maps = tuple(map(found.of, program.maps))
    values = None if exit_.values is None else found.of(exit_.values)
    moved = replace(exit_, maps=found.of(exit_.maps), values=values)
    return replace(program, exit=moved, maps=maps, nodes=found.nodes) if found.saves else program


class _Rewriting:
    """Copies of nodes, among nodes of their own."""

    def __init__(self, nodes: Nodes):
        self.nodes = Nodes(nodes.order, nodes.taken, nodes.dynamic, dict(nodes.sizes))
        self.made: dict[Node, Node] = {}
        self.saves = False

    def of(self, node: Node) -> Node:
        if node not in self.made:
            args = tuple(map(self.of, node.args))
            factors, inner = list[Node](), list[Node]()
            if node.op == "dot":
                parts = [_split(arg, other) for arg, other in (args, args[::-1])]
                factors = [factor for factor, _ in parts if factor is not None]
                inner = [rest for _, rest in parts]
            found = self.nodes.node(node.op, inner if factors else args, node.axes, node.name, node.data)
            for factor in factors:
                found = self.nodes.mul(factor, found, node.name)
                self.saves = True
            self.made[node] = found
        return self.made[node]


def _split(node: Node, other: Node) -> tuple[Node | None, Node]:
    """(a number with variables that the other factors of a product lack, the rest); (None, node) if there is none."""
    if node.op == "mul":
        for number, rest in (node.args, node.args[::-1]):
            if not number.axes and number.op != "number" and {*number.heads} - {*rest.heads, *other.heads}:
                return number, rest
    return None, node
