"""A lowering: one way to compute parts of a diagram. Each finds its places in a graph, and says why not elsewhere.

Some make several steps one kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tensornet_attn.cost.devices import Device
from tensornet_attn.graph.model import Graph, Kernel, Step, Use


@dataclass(frozen=True)
class Lowered:
    """A graph after a lowering: what was chosen, by the step it makes, and why not, by the box it left alone."""

    graph: Graph
    chosen: dict[str, str] = field(default_factory=dict)
    refused: dict[str, tuple[str, ...]] = field(default_factory=dict)


Lower = Callable[[Graph, Mapping[str, int], Device], Lowered]  # graph, sizes of all legs in the workload, device


def kernel(kind: str, graph: Graph, before: Sequence[Step], body: Sequence[Step], form: object) -> Kernel:
    """A kernel of these steps, which read the graph and what is made `before`."""
    own, made = {step.name for step in body}, {step.name: step.legs for step in before}
    names = dict.fromkeys(use.name for step in body for use in step.op.uses if use.name not in own)
    uses = tuple(Use(name, made[name] if name in made else graph.legs_of(name)) for name in names)
    return Kernel(kind, uses, tuple(body), form)
