"""Hidden entries in a region: the boxes `hide` in its body, and where their tiles are visible."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from tensornet_attn.graph.model import Box, Function, Graph, Kernel, Step, body_graph
from tensornet_attn.rewrite.hidden import hiding
from tensornet_attn.tiles.model import At, Node, Nodes, Unfit

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
    pair, found = nodes.pair, dict[Node, None]()
    for every in sorted(box.seen, key=repr):
        views = [(visible.masks, visible.legs) for visible in sorted(every, key=repr)]
        if any(legs is None for _, legs in views):
            raise Unfit("the visibility of a tile of queries and keys depends on keys only")
        missing = new([own for _, legs in views for own, leg in legs or () if leg is None])
        group = [
            look(masks, At(missing.get(own, "") if leg is None else index.get(leg, "") for own, leg in legs or ()))
            for masks, legs in views
        ]
        one = nodes.node("both", group, pair) if len(group) != 1 else group[0]
        for variable in {*missing.values()} & {*one.heads}:
            one = nodes.over(one, variable, "any")
        found[one] = None
    return nodes.node("either", found, pair) if len(found) > 1 else next(iter(found))
