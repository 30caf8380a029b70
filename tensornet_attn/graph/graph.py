"""The checked diagram with its canonical hash and text form. Exports all classes of a diagram."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import cached_property, wraps
from typing import Concatenate, ParamSpec, TypeVar

from tensornet_attn.graph.canonical import graph_hash
from tensornet_attn.graph.diagram import Diagram
from tensornet_attn.graph.text import to_text
from tensornet_attn.ir.steps import (
    Box,
    Contraction,
    Function,
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
    "cached",
]

View = TypeVar("View")
Arguments = ParamSpec("Arguments")


class Graph(Diagram):
    """A checked diagram. Each step uses only tensors and earlier steps."""

    @cached_property
    def _python_hash(self) -> int:
        return super().__hash__()

    def __hash__(self) -> int:
        return self._python_hash

    def __getstate__(self) -> dict[str, object]:
        """The fields: hashes differ between processes."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def hash(self) -> str:
        """The hash of the canonical form. Graphs that differ only in names and order have equal hashes."""
        return graph_hash(self)

    def to_text(self) -> str:
        """The graph as text, with a line for each leg, tensor and step."""
        return to_text(self)


def cached(
    view: Callable[Concatenate[Graph, Arguments], View],
) -> Callable[Concatenate[Graph, Arguments], View]:
    """Caches a view on its graph, by its arguments and the function that this returns: two views may have one name."""

    @wraps(view)
    def viewed(graph: Graph, /, *arguments: Arguments.args, **options: Arguments.kwargs) -> View:
        views: dict[object, View] = graph.__dict__.setdefault("views", {})
        key = (viewed, *arguments, *options.items())
        if key not in views:
            views[key] = view(graph, *arguments, **options)
        return views[key]

    return viewed


@cached
def body_graph(graph: Graph, step: Step) -> Graph:
    """The steps of a kernel as a separate graph, with the outside steps that they read as inputs."""
    op = step.kernel
    assert op is not None
    outside = {use.name for inner in op.body for use in inner.uses} & graph.step.keys() - {*op.steps}
    inputs = tuple(Tensor(name, "input", graph.legs_of(name)) for name in sorted(outside))
    return replace(graph, tensors=graph.tensors + inputs, steps=op.body, output=step.name)
