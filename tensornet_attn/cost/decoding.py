"""The cheapest results from which others can be made again: what a decoding cache keeps of each position."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from tensornet_attn.graph.model import Graph

LAST = 1 << 40  # floats that no cut takes while another is left


def cheapest(graph: Graph, wanted: list[str], before: Callable[[str], list[str]]) -> list[str]:
    """The results of fewest numbers a position from which all that is wanted can be made again: a minimum cut.

    `before`: what a result is made of, position by position; empty for an input, and where only the whole past could
    give it again. Inputs are kept where they are wanted themselves, and else what is made of them.
    """
    import networkx

    net, waiting, seen = networkx.DiGraph(), list(wanted), set[str]()
    net.add_edges_from(((name, "out"), "queries") for name in wanted)
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        made_of, floats = before(name), prod(graph.leg[leg].size or 1 for leg in graph.legs_of(name))
        if not made_of:
            net.add_edge("past", (name, "in"))
            floats = floats if name in wanted or name in graph.step else LAST
        net.add_edge((name, "in"), (name, "out"), capacity=floats)
        net.add_edges_from(((one, "out"), (name, "in")) for one in made_of)
        waiting += made_of
    _, (past, _) = networkx.minimum_cut(net, "past", "queries")
    return [name for name in seen if (name, "in") in past and (name, "out") not in past]
