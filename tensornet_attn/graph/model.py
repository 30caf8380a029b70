"""The checked diagram with its forms: canonical hash, text and networkx view. All names of the diagram stand here."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

from tensornet_attn.graph.canonical import graph_hash
from tensornet_attn.graph.diagram import Diagram
from tensornet_attn.graph.read_text import from_text
from tensornet_attn.graph.text import to_text
from tensornet_attn.graph.wires import to_networkx
from tensornet_attn.ir.steps import (
    Box,
    Contraction,
    Function,
    FusedAttention,
    Kernel,
    Loss,
    Seen,
    Step,
    Tensor,
    Term,
    Use,
    Visible,
)
from tensornet_attn.spec.sizes import Leg

__all__ = [
    "Box",
    "Contraction",
    "Function",
    "FusedAttention",
    "Graph",
    "Kernel",
    "Leg",
    "Loss",
    "Seen",
    "Step",
    "Tensor",
    "Term",
    "Use",
    "Visible",
    "body_graph",
]


class Graph(Diagram):
    """A checked diagram. Steps stand in an order in which each may be computed from what stands before it."""

    @cached_property
    def hash(self) -> str:
        """The hash of the canonical form: equal for graphs that differ in names and order alone."""
        return graph_hash(self)

    def to_text(self) -> str:
        """One line a leg, tensor and step; `Graph.from_text` reads it back to an equal graph."""
        return to_text(self)

    @classmethod
    def from_text(cls, text: str) -> Graph:
        """The graph of its text form. Raises InputError with the line."""
        return from_text(text, cls)

    def to_networkx(self) -> Any:
        """A networkx.MultiDiGraph of tensors, steps and the legs that join them."""
        return to_networkx(self)


def body_graph(graph: Graph, step: Step) -> Graph:
    """The steps of a kernel as a graph of their own; what they read from outside is given."""
    op = step.kernel
    assert op is not None
    outside = {use.name for part in op.body for use in part.op.uses} & graph.step.keys() - {*op.steps}
    given = tuple(Tensor(name, "input", graph.legs_of(name)) for name in sorted(outside))
    return replace(graph, tensors=graph.tensors + given, steps=op.body, output=step.name)
