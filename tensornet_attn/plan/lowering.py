"""A lowering: one way to compute parts of a diagram. Each finds its places in a graph, and says why not elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tensornet_attn.cost.devices import Device
from tensornet_attn.graph.model import Graph


@dataclass(frozen=True)
class Lowered:
    """A graph after a lowering: what was chosen, by the step it makes, and why not, by the box it left alone."""

    graph: Graph
    chosen: dict[str, str] = field(default_factory=dict)
    refused: dict[str, tuple[str, ...]] = field(default_factory=dict)


Lower = Callable[[Graph, Mapping[str, int], Device], Lowered]  # graph, sizes of all legs in the workload, device
