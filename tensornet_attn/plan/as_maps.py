"""Sums over the keys that queries read along a feature leg, as maps that linear attention computes."""

from __future__ import annotations

from tensornet_attn.graph.graph import Graph
from tensornet_attn.graph.recurrence import sums
from tensornet_attn.kernels.implementation import Context, Lowered, Rewriting
from tensornet_attn.kernels.linear import LINEAR
from tensornet_attn.rewrite.reads import as_map


def sums_as_maps(graph: Graph, context: Context) -> Lowered:
    """Turns each sum over keys that queries read along a feature leg into a map, if linear attention accepts it."""
    with_maps = graph
    for box in sums(graph):
        trial = as_map(with_maps, with_maps.step[box.name])
        if trial is not None:
            with_maps = trial if LINEAR.takes(trial, f"{box.name}.map", context) else with_maps
    return Lowered(with_maps)


SUMS = Rewriting("sums as maps", sums_as_maps)
