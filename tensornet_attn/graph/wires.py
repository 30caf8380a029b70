"""The wires of a step: each connects the uses of tensors that share a leg.

A wire is a line of the drawn diagram. Leg names are local to a step, and legs of one name that are summed in different
terms are different wires.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensornet_attn.graph.diagram import Diagram
from tensornet_attn.ir.steps import Step, Tensor, Use

WHOLE = 0  # the part of a wire that is not local to a term


@dataclass(frozen=True)
class Wire:
    """A leg of a step; `part` is the number of the term that sums it, from 1, or WHOLE."""

    leg: str
    part: int = WHOLE


@dataclass(frozen=True)
class Joint:
    """A use in a step: its role (`factor` in a product), the number of its term (WHOLE outside of sums), its wires."""

    role: str
    part: int
    use: Use
    wires: tuple[Wire, ...]


def joints(step: Step) -> tuple[Joint, ...]:
    """The uses of a step in the order written."""
    if step.contraction is not None:
        parts = [(part, use) for part, term in enumerate(step.contraction.terms, 1) for use in term.factors]
        return tuple(_joint("factor", part, use, step.legs, part) for part, use in parts)
    if step.box is not None:
        return tuple(_joint(role, WHOLE, use, use.legs) for role, use in step.box.operands)
    op = step.attention
    if op is None:
        return tuple(_joint("operand", WHOLE, use, use.legs) for use in step.op.uses)
    scores = [_joint(role, WHOLE, use, op.scores, 1) for role, use in (("query", op.query), ("key", op.key))]
    sink = [] if op.sink is None else [_joint("sink", WHOLE, op.sink, op.sink.legs)]
    return (*scores, _joint("value", WHOLE, op.value, op.value.legs), *sink)


def wires(step: Step) -> tuple[Wire, ...]:
    """The wires of a step: those of its result first, then the others in the order written."""
    own = [Wire(leg) for leg in step.legs]
    named = [Wire(leg) for leg in marks(step)]
    used = [wire for joint in joints(step) for wire in joint.wires]
    return tuple(dict.fromkeys((*own, *used, *named)))


def marks(step: Step) -> dict[str, str]:
    """The roles of legs in a box: `over` its leg, `to` the second leg of rope and rel_shift, `part` of a joined leg."""
    if step.attention is not None:
        return dict.fromkeys(step.attention.scores, "score") | {step.attention.leg: "over"}
    if step.box is None:
        return {}
    ends = ((step.box.leg, "over"), (step.box.other, "to"))
    parts = {leg: f"part {place}" for place, leg in enumerate(step.box.parts)}
    return {leg: mark for leg, mark in ends if leg is not None} | parts


def _joint(role: str, part: int, use: Use, kept: tuple[str, ...], inside: int = WHOLE) -> Joint:
    """A use whose legs in `kept` are wires of the whole step and whose other legs are wires of the part `inside`."""
    return Joint(role, part, use, tuple(Wire(leg, WHOLE if leg in kept else inside) for leg in use.legs))


if TYPE_CHECKING:
    import networkx


def to_networkx(graph: Diagram) -> networkx.MultiDiGraph:
    """The diagram as a directed bipartite multigraph, from the inputs to the output.

    `view.graph` has name, output, causal and losses (name: step). Nodes, by `kind`:

    - `tensor` (`role`: input, weight, constant, noise or state) and `step` (`role`: sum, the box's kind, or
      attention), with their names in the design. They have `legs` and `sizes` (None at run time); steps also `output`.
    - `wire`, named `STEP:LEG`: a leg of a step, with `leg`, `size` and `summed` (whether the step's result lacks it).
      A leg that one of several terms sums is `STEP:LEG.TERM`, with terms counted from 1. A tensor without legs has
      the wire `STEP:NAME[]`.

    Edges lead from a tensor to each wire of its uses (`label`: the leg as the tensor declares it, `role`: factor, of,
    by, query, ..., `use`: the number of the use in the step, from 0), and from a wire to its step. All edges have a
    `label`. Tensors that share a head leg are the predecessors of its wire:

    >>> import tensornet_attn as ta
    >>> view = to_networkx(ta.build(ta.load("mhsa")))
    >>> sorted(view.predecessors("A.of:h")), view.nodes["A.of:h"]["size"]
    (['K', 'Q'], 8)
    """
    import networkx as nx

    losses = {loss.name: loss.step for loss in graph.losses}
    view = nx.MultiDiGraph(name=graph.name, output=graph.output, causal=graph.causal, losses=losses)
    for tensor in graph.tensors:
        view.add_node(tensor.name, kind="tensor", role=tensor.role, **_legs(graph, tensor))
    for step in graph.steps:
        output = step.name == graph.output
        view.add_node(step.name, kind="step", role=_role(step), output=output, **_legs(graph, step))
        for wire in wires(step):
            summed = wire.part != WHOLE or wire.leg not in step.legs
            view.add_node(_name(step, wire), kind="wire", leg=wire.leg, size=graph.leg[wire.leg].size, summed=summed)
            view.add_edge(_name(step, wire), step.name, label=wire.leg)
        for place, joint in enumerate(joints(step)):
            _use(view, graph, step, place, joint)
    return view


def _legs(graph: Diagram, node: Tensor | Step) -> dict[str, object]:
    return {"legs": node.legs, "sizes": tuple(graph.leg[leg].size for leg in node.legs)}


def _role(step: Step) -> str:
    named = step.box or step.kernel
    return named.kind if named is not None else "attention" if step.attention is not None else "sum"


def _name(step: Step, wire: Wire) -> str:
    """`A.of:d`; with the term's number if another term may sum a leg of the same name."""
    several = step.contraction is not None and len(step.contraction.terms) > 1
    inside = step.attention is not None or several
    return f"{step.name}:{wire.leg}{f'.{wire.part}' if wire.part != WHOLE and inside else ''}"


def _use(view: networkx.MultiDiGraph, graph: Diagram, step: Step, place: int, joint: Joint) -> None:
    name = joint.use.name
    for leg, wire in zip(graph.legs_of(name), joint.wires, strict=True):
        view.add_edge(name, _name(step, wire), label=leg, role=joint.role, use=place)
    if not joint.wires:
        scalar = f"{step.name}:{name}[]"
        if scalar not in view:
            view.add_node(scalar, kind="wire", leg=None, size=1, summed=False)
            view.add_edge(scalar, step.name, label="")
        view.add_edge(name, scalar, label="", role=joint.role, use=place)
