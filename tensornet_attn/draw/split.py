"""Which steps are drawn on their own: those used more than once, unless so small that each use gets a copy."""

from __future__ import annotations

from collections import Counter

from tensornet_attn.graph.model import Graph, Step

COPY = 2  # nodes that may be drawn again at each use
PICTURE = 64  # nodes of one connected picture
DEPTH = 16  # steps drawn inside one another


def drawn_apart(graph: Graph) -> frozenset[str]:
    """Names of the steps that get a picture of their own; so every step is drawn once, or is small."""
    uses = Counter(use.name for _, use in graph.uses())
    roots = graph.results
    nodes: dict[str, int] = {}
    depth: dict[str, int] = {}
    for step in graph.steps:
        nodes[step.name], depth[step.name] = _nodes(step, nodes), _depth(step, depth)
        times = uses[step.name] + (step.name in roots)
        many = times > 1 and nodes[step.name] > COPY
        if many or nodes[step.name] > PICTURE or depth[step.name] >= DEPTH:
            nodes[step.name], depth[step.name] = 1, 0
    return frozenset(name for name, count in nodes.items() if depth[name] == 0)


def _nodes(step: Step, known: dict[str, int]) -> int:
    return max(1, sum(known.get(use.name, 1) for use in step.op.uses))


def _depth(step: Step, known: dict[str, int]) -> int:
    return 1 + max((known.get(use.name, 0) for use in step.op.uses), default=0)
