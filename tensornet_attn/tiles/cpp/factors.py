"""A tile program with factors outside of products: sum over d of (P Q) K   ->   P (sum over d of Q K).

A number P that has index variables which neither Q nor K has would take a product for each of their values; the
printers of C++ compute one product and multiply its entries. Gradients are those of the program as it is then.
"""

from __future__ import annotations

from dataclasses import replace

from tensornet_attn.tiles.program import Node, Nodes, Program


def with_factors_outside(program: Program) -> Program:
    """The program, with factors outside of products where that saves products."""
    return _Factors(program.nodes).all_of(program)


class Copies:
    """A program, rewritten: copies of its nodes, among nodes of their own."""

    def __init__(self, nodes: Nodes):
        self.nodes = Nodes(nodes.order, nodes.taken, nodes.dynamic, dict(nodes.sizes))
        self.copies: dict[Node, Node] = {}
        self.changes = False

    def all_of(self, program: Program) -> Program:
        exit_ = program.exit
        maps = tuple(map(self.of, program.maps))
        values = None if exit_.values is None else self.of(exit_.values)
        moved = replace(exit_, maps=self.of(exit_.maps), values=values)
        return replace(program, exit=moved, maps=maps, nodes=self.nodes) if self.changes else program

    def of(self, node: Node) -> Node:
        if node not in self.copies:
            args = tuple(map(self.of, node.args))
            replacement = self.changed(node, args)
            self.changes |= replacement is not None
            self.copies[node] = replacement or self.nodes.node(node.op, args, node.axes, node.name, node.data)
        return self.copies[node]

    def changed(self, node: Node, args: tuple[Node, ...]) -> Node | None:
        """What a node becomes, of new arguments; None if it stays."""
        raise NotImplementedError


class _Factors(Copies):
    def changed(self, node: Node, args: tuple[Node, ...]) -> Node | None:
        if node.op != "dot":
            return None
        splits = [_split(arg, other_arg) for arg, other_arg in (args, args[::-1])]
        factors = [factor for factor, _ in splits if factor is not None]
        product = self.nodes.node(node.op, [rest for _, rest in splits], node.axes, node.name, node.data)
        for factor in factors:
            product = self.nodes.mul(factor, product, node.name)
        return product if factors else None


def _split(node: Node, cofactor: Node) -> tuple[Node | None, Node]:
    """(a number with variables that the other factors of a product lack, the rest); (None, node) if there is none."""
    if node.op == "mul":
        for number, rest in (node.args, node.args[::-1]):
            if not number.axes and number.op != "number" and {*number.heads} - {*rest.heads, *cofactor.heads}:
                return number, rest
    return None, node
