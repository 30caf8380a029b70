"""Maps of the online softmax: row sums and row maxima are updated block by block."""

from __future__ import annotations

from tensornet_attn.emit.triton.kernel import INSIDE, KernelText
from tensornet_attn.emit.triton.nodes import scores_of
from tensornet_attn.tiles.loops import Statement
from tensornet_attn.tiles.model import Node


def online_map(text: KernelText, node: Node, found: Statement) -> Statement:
    """The statement of a map before division by its row sums, which are accumulated online."""
    (x, seen), number = (text.scope.instead.get(arg, arg) for arg in node.args[:2]), node.data[0]
    total = text.scope.carried[f"l_i_{number}"]
    if node.op == "normalize":
        found.carried = (total,)

        def normalize() -> list[str]:
            value = f"where_visible({text.scope.ref(x, node.axes)}, {text.scope.ref(seen, node.axes)}, edge, 0.0)"
            rows = f"tl.sum({text.scope.ref(node, node.axes)}, 1)"
            return [*text.let(node, INSIDE, value), *text.assign(total, rows, adds=True)]

        found.lines = normalize
        return found
    most = text.scope.carried[f"m_i_{number}"]
    found.carried, found.makes = (most, total), (node, text.alpha(node))

    def softmax() -> list[str]:
        given = f"{scores_of(text.scope, node)}, {text.entry(most)}, {text.entry(total)}"
        return several(text, found, f"online({given})", node)

    found.lines = softmax
    return found


def highest(text: KernelText, node: Node, found: Statement) -> Statement:
    """The statement of the running row maximum of a map that sums over a variable, and of the rescaling factor."""
    most, (scores,) = text.scope.carried[f"m_i_{node.data[0]}"], node.args
    found.carried, found.makes = (most,), (text.alpha(node), node)

    def lines() -> list[str]:
        rows = f"higher(tl.max({text.scope.ref(scores, scores.axes)}, 1), 1.0, MASK, {text.entry(most)})"
        return [*several(text, found, rows, node), *text.assign(most, text.scope.ref(node, node.axes))]

    found.lines = lines
    return found


def several(text: KernelText, one: Statement, value: str, node: Node) -> list[str]:
    """The line of a call that returns what a statement makes, followed by what it carries."""
    made = [(text.names[own, INSIDE], bool(text.dims[own, INSIDE])) for own in one.makes]
    names = [(name, f"{name}_own" if held else name, held) for name, held in made]
    carried = one.carried if node.op == "softmax" else ()
    names += [(f"{own.name}_next", f"{own.name}_own" if own.dims else own.name, bool(own.dims)) for own in carried]
    line = f"{', '.join(target for _, target, _ in names)} = {value}  # {' '.join(node.axes)}"
    return [line, *(f"{name} += ({target},)" for name, target, held in names if held)]
