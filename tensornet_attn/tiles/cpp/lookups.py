"""A tile program with lookups instead of sums over hats: what lies between neighbouring entries of a table.

    sum over p of relu(1 - |x - i[p]|) z[n p], where i is 0, 1, 2, ...   ->   between: (1 - w) z[n low] + w z[n low + 1]

low is the largest whole number up to x, and w is x - low; beyond its ends, the table is zero. The sum takes some
operations for each p, the lookup some for two of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from tensornet_attn.graph.graph import Graph
from tensornet_attn.ir.arithmetic import Number, evaluate
from tensornet_attn.tiles.cpp.factors import Copies
from tensornet_attn.tiles.program import At, Node, Program

LONGEST = 64  # entries of a table: it has a copy in each block, in a row as long as the shortest one of keys


def with_lookups(graph: Graph, program: Program) -> Program:
    """The program, with lookups instead of sums over hats."""
    return _Lookups(graph, program).all_of(program)


class _Lookups(Copies):
    def __init__(self, graph: Graph, program: Program):
        super().__init__(program.nodes)
        self.graph, self.program = graph, program

    def changed(self, node: Node, args: tuple[Node, ...]) -> Node | None:
        if node.op != "over" or node.data[1] != "add" or self.nodes.sizes[node.data[0]] > LONGEST:
            return None
        variable, (inner,) = node.data[0], args
        for hat, table in (inner.args, inner.args[::-1]) if inner.op == "mul" else ():
            is_table = table.op == "load" and table.axes == (self.program.query,) and variable in table.heads
            x = self.under_hat(hat, variable) if is_table else None
            if x is not None and x.axes == node.axes == self.program.pair:
                number, index = table.data
                outer = At("" if head == variable else head for head in index)
                data = (number, outer, index.index(variable), self.nodes.sizes[variable])
                return self.nodes.node("between", (x,), node.axes, node.name, data)
        return None

    def under_hat(self, hat: Node, variable: str) -> Node | None:
        """x of relu(1 - |x - i|), where i counts the values of the variable."""
        hat_terms = self.coefficients(hat.args[0]) if hat.op == "map" and hat.data == ("relu",) else {}
        magnitude = next((node for node in hat_terms if node is not None), None)
        if (
            magnitude is None
            or hat_terms != {None: 1, magnitude: -1}
            or (magnitude.op, magnitude.data) != ("map", ("abs",))
        ):
            return None
        distance = self.coefficients(magnitude.args[0])
        indices = [node for node in distance if node is not None and self.counts(node, variable)]
        if len(indices) != 1 or abs(sign := distance.pop(indices[0])) != 1 or not distance:
            return None
        if any(node is not None and variable in node.heads for node in distance):
            return None
        return self.nodes.add([self.times(node, -sign * number) for node, number in distance.items()], magnitude.name)

    def times(self, node: Node | None, number: float) -> Node:
        factor = Number(number)
        return self.nodes.number(factor) if node is None else self.nodes.scaled(node, factor, node.name)

    def coefficients(self, node: Node) -> dict[Node | None, float]:
        """The terms of a sum with their coefficients; None: the number."""
        coefficients: dict[Node | None, float] = {}
        for term, number in self.terms(node, 1):
            coefficients[term] = number + coefficients.get(term, 0)
        return coefficients

    def terms(self, node: Node, times: float) -> Iterator[tuple[Node | None, float]]:
        if node.op == "number":
            yield None, times * float(evaluate(node.data[0], self.graph.values))
        elif node.op == "add":
            for arg in node.args:
                yield from self.terms(arg, times)
        elif node.op == "mul" and node.args[0].op == "number":
            (_, number), *_ = self.terms(node.args[0], times)
            yield from self.terms(node.args[1], number)
        else:
            yield node, times

    def counts(self, node: Node, variable: str) -> bool:
        """Whether a tile is the index of a variable: the constant 0, 1, 2, ..."""
        if node.op != "load" or node.axes or node.heads != (variable,):
            return False
        tensor = self.graph.tensor.get(self.program.operands[node.data[0]].use.name)
        return (
            tensor is not None and tensor.role == "constant" and tensor.init is not None and tensor.init.name == "index"
        )
