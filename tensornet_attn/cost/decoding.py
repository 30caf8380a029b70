"""The cheapest results from which others can be recomputed: what a decoding cache stores per position."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from tensornet_attn.graph.diagram import size_of
from tensornet_attn.graph.graph import Graph

LAST = 1 << 40  # the capacity of an edge that is cut only if no other cut exists


def cheapest(graph: Graph, wanted: list[str], before: Callable[[str], list[str]]) -> list[str]:
    """The results with the fewest elements per position from which all of `wanted` can be recomputed: a minimum cut.

    `before`: the operands of a result, position by position; empty for an input, and for a result that needs the whole
    past. An input is stored only if it is wanted itself; otherwise results of it are stored.
    """
    import networkx

    net, waiting, seen = networkx.DiGraph(), list(wanted), set[str]()
    net.add_edges_from(((name, "out"), "queries") for name in wanted)
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        operands, floats = before(name), prod(size_of(graph, leg) or 1 for leg in graph.legs_of(name))
        if not operands:
            net.add_edge("past", (name, "in"))
            floats = floats if name in wanted or name in graph.step else LAST
        net.add_edge((name, "in"), (name, "out"), capacity=floats)
        net.add_edges_from(((operand, "out"), (name, "in")) for operand in operands)
        waiting += operands
    _, (past, _) = networkx.minimum_cut(net, "past", "queries")
    return [name for name in seen if (name, "in") in past and (name, "out") not in past]
