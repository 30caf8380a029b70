"""Finds the attention map of a layer, if all keys reach the output through one map."""

from __future__ import annotations

from tensornet_attn.graph.attention import Reader, behind, readers_of
from tensornet_attn.graph.model import Graph


def map_of(graph: Graph) -> Reader | None:
    """The attention map in its product with the values. Returns None if the output also sums keys elsewhere."""
    found = [
        reader
        for step in graph.steps
        if {graph.query, graph.key} <= {*step.legs}
        for reader in readers_of(graph, step.name)
        if reader.term is not None and reader.values and graph.key not in reader.step.legs
    ]
    alone = len({one.use.name for one in found}) == 1 and summing(graph) == {found[0].step.name}
    return found[0] if alone else None


def summing(graph: Graph) -> set[str]:
    """The steps that the output depends on and that reduce the key leg."""
    used = behind(graph, [graph.output])
    takes = {step.name for step in graph.steps if any(graph.key in use.legs for use in step.op.uses)}
    return {step.name for step in graph.steps if step.name in used & takes and graph.key not in step.legs}
