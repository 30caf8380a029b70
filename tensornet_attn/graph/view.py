"""A graph as a networkx graph: tensors and steps on one side, wires (legs that are glued) on the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensornet_attn.graph.diagram import Diagram
from tensornet_attn.graph.wires import WHOLE, Joint, Wire, joints, wires
from tensornet_attn.ir.steps import Step, Tensor

if TYPE_CHECKING:
    import networkx


def to_networkx(graph: Diagram) -> networkx.MultiDiGraph:
    """The diagram as a directed bipartite multigraph, from the inputs to the output.

    `view.graph` has name, output, causal and losses (name: step). Nodes, by `kind`:

    - `tensor` (`role`: input, weight, constant, noise or state) and `step` (`role`: sum, the box's kind, or
      attention), called as in the design; `legs` and `sizes` (None at run time) in order, for steps `output` as well.
    - `wire`, called `STEP:LEG`: a leg of a step and all that is glued to it there. `leg`, `size`, and `summed` (whether
      the step's result lacks it). A leg summed in one term of several is `STEP:LEG.TERM`, terms counted from 1. A
      tensor without legs hangs on a wire without one, `STEP:NAME[]`.

    Edges lead from a tensor to each wire that a use of it hangs on (`label`: the leg as the tensor declares it, `role`:
    factor, of, by, query, ..., `use`: the number of the use in the step, from 0), and from a wire to its step. All
    edges have a `label`. Tensors that share a head leg are the predecessors of its wire:

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
    """`A.of:d`; with the term's number where another term may sum a leg of that name too."""
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
