"""Maps of the online softmax: row sums and row maxima are updated block by block."""

from __future__ import annotations

from tensornet_attn.emit.triton.kernel import INSIDE, KernelText
from tensornet_attn.emit.triton.nodes import scores_of
from tensornet_attn.tiles.loops import Statement
from tensornet_attn.tiles.program import Node


def online_map(kernel: KernelText, node: Node, statement: Statement) -> Statement:
    """The statement of a map before division by its row sums, which are accumulated online."""
    (x, seen), number = (kernel.scope.instead.get(arg, arg) for arg in node.args[:2]), node.data[0]
    row_sum = kernel.scope.carried[f"l_i_{number}"]
    if node.op == "normalize":
        statement.carried = (row_sum,)

        def normalize() -> list[str]:
            masked = f"where_visible({kernel.scope.ref(x, node.axes)}, {kernel.scope.ref(seen, node.axes)}, edge, 0.0)"
            block_sums = f"tl.sum({kernel.scope.ref(node)}, 1)"
            return [*kernel.let(node, INSIDE, masked), *kernel.assign(row_sum, block_sums, adds=True)]

        statement.lines = normalize
        return statement
    row_max = kernel.scope.carried[f"m_i_{number}"]
    statement.carried, statement.makes = (row_max, row_sum), (node, kernel.alpha(node))

    def softmax() -> list[str]:
        arguments = f"{scores_of(kernel.scope, node)}, {kernel.entry(row_max)}, {kernel.entry(row_sum)}"
        return several(kernel, statement, f"online({arguments})", node)

    statement.lines = softmax
    return statement


def highest(kernel: KernelText, node: Node, statement: Statement) -> Statement:
    """The statement of the running row maximum of a map that sums over a variable, and of the rescaling factor."""
    row_max, (scores,) = kernel.scope.carried[f"m_i_{node.data[0]}"], node.args
    statement.carried, statement.makes = (row_max,), (kernel.alpha(node), node)

    def lines() -> list[str]:
        maxima = f"higher(tl.max({kernel.scope.ref(scores)}, 1), 1.0, MASK, {kernel.entry(row_max)})"
        return [*several(kernel, statement, maxima, node), *kernel.assign(row_max, kernel.scope.ref(node))]

    statement.lines = lines
    return statement


def several(kernel: KernelText, statement: Statement, call: str, node: Node) -> list[str]:
    """The line of a call that returns what a statement makes, followed by what it carries."""
    makes = [(kernel.names[made_node, INSIDE], bool(kernel.dims[made_node, INSIDE])) for made_node in statement.makes]
    names = [(name, f"{name}_own" if is_tuple else name, is_tuple) for name, is_tuple in makes]
    carried = statement.carried if node.op == "softmax" else ()
    names += [
        (
            f"{accumulator.name}_next",
            f"{accumulator.name}_own" if accumulator.dims else accumulator.name,
            bool(accumulator.dims),
        )
        for accumulator in carried
    ]
    line = f"{', '.join(target for _, target, _ in names)} = {call}  # {' '.join(node.axes)}"
    return [line, *(f"{name} += ({target},)" for name, target, is_tuple in names if is_tuple)]
