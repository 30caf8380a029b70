"""The picture of which designs contain which others, from general (left) to special (right), as in Tuformer's fig. 6.

Designs that contain each other at suitable sizes share a box. Edges that follow from other edges are omitted. Dashed
edges hold only for causal designs.
"""

from __future__ import annotations

from typing import Any

import networkx as nx

from tensornet_attn.draw.dot import graphviz_module
from tensornet_attn.draw.looks import FONT
from tensornet_attn.draw.render import layout

_NODE = {"shape": "box", "style": "rounded,filled", "fontname": FONT, "fontsize": "11", "margin": "0.12,0.06"}
_GRAPH = {"fontname": FONT, "fontsize": "11", "nodesep": "0.1", "ranksep": "0.6", "rankdir": "LR"}
_FILLS = ("#eeeeee", "#f9cb9c", "#cfe2f3", "#d9ead3", "#fff2cc", "#ead1dc")  # one per family, in order of appearance


def lattice_picture(lattice: Any, form: str) -> bytes:
    """The bytes of a file: svg, png, dot or txt. Raises MissingPartError."""
    if form == "txt":
        return lattice_text(lattice).encode()
    source = lattice_source(lattice, 144 if form == "png" else None)
    if form == "dot":
        return source.encode()
    drawn = layout(source, form)
    return drawn[drawn.index(b"<svg") :] if form == "svg" else drawn


def lattice_text(lattice: Any) -> str:
    """One line per design, with the designs that it contains directly."""
    names = [name for name in sorted(lattice) if lattice.out_degree(name)]
    width, lines = max(map(len, names), default=0), []
    for name in names:
        words = [
            f"{special} (both causal)" if edge.get("causal") else special
            for special, edge in sorted(lattice[name].items())
        ]
        lines.append(f"{name:<{width}}  contains  {', '.join(words)}\n")
    return "".join(lines) or "no design contains it, and 'contains' in its file names none.\n"


def lattice_source(lattice: Any, dots: int | None = None) -> str:
    """DOT text without the designs that have no relations."""
    boxes = nx.condensation(lattice.subgraph([name for name in lattice if lattice.degree(name)]))
    reduced = nx.transitive_reduction(boxes)
    dot = graphviz_module().Digraph("lattice", graph_attr=dict(_GRAPH), node_attr=dict(_NODE))
    if dots:
        dot.attr(dpi=str(dots))
    families = list(dict.fromkeys(lattice.nodes[name].get("family", "") for name in sorted(lattice)))
    for box, held in boxes.nodes(data="members"):
        members = sorted(held)
        lines = [", ".join(members[start : start + 3]) for start in range(0, len(members), 3)]
        member_families = [lattice.nodes[name].get("family", "") for name in members]
        fill = _FILLS[families.index(max(sorted(set(member_families)), key=member_families.count)) % len(_FILLS)]
        dot.node(str(box), label="\n".join(lines), fillcolor=fill, penwidth="1.6" if len(members) > 1 else "1")
    for general, special in sorted(reduced.edges):
        dot.edge(str(general), str(special), style="dashed" if _causal(lattice, boxes, general, special) else "solid")
    return str(dot.source)


def _causal(lattice: Any, boxes: Any, general: int, special: int) -> bool:
    """Whether all edges from one box to the other hold only for causal designs."""
    pairs = [(a, b) for a in boxes.nodes[general]["members"] for b in boxes.nodes[special]["members"]]
    return all(lattice.edges[pair].get("causal") for pair in pairs if lattice.has_edge(*pair))
