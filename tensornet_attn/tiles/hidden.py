"""Hidden entries in a region: the boxes `hide` in its body, and where their tiles are visible."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from tensornet_attn.graph.graph import Box, Function, Graph, Kernel, Step, body_graph
from tensornet_attn.rewrite.hidden import hiding
from tensornet_attn.tiles.program import At, Node, Nodes, Unfit

Look = Callable[[tuple[Function, ...], At], Node]
New = Callable[[list[str]], dict[str, str]]


def with_hiding(graph: Graph, step: Step) -> Kernel:
    """The kernel of a step, with a body in which hidden entries have no effect."""
    assert step.kernel is not None
    return replace(step.kernel, body=hiding(body_graph(graph, step), blocks=True).steps)


def where_seen(nodes: Nodes, box: Box, index: Mapping[str, str], look: Look, new: New) -> Node:
    """Where a tile of a box `hide` is visible: to all readers of one of its groups; an empty group sees everything.

    `look`: where masks of the design and the call leave pairs visible; `new`: new index variables. Raises Unfit.
    """
    pair, seen = nodes.pair, dict[Node, None]()
    for group in sorted(box.seen, key=repr):
        views = [(visible.masks, visible.legs) for visible in sorted(group, key=repr)]
        if any(legs is None for _, legs in views):
            raise Unfit("the visibility of a tile of queries and keys depends on keys only")
        missing = new([mask_leg for _, legs in views for mask_leg, leg in legs or () if leg is None])
        tiles = [
            look(
                masks,
                At(missing.get(mask_leg, "") if leg is None else index.get(leg, "") for mask_leg, leg in legs or ()),
            )
            for masks, legs in views
        ]
        tile = nodes.node("both", tiles, pair) if len(tiles) != 1 else tiles[0]
        for variable in filter(tile.heads.__contains__, missing.values()):
            tile = nodes.over(tile, variable, "any")
        seen[tile] = None
    return nodes.node("either", seen, pair) if len(seen) > 1 else next(iter(seen))
