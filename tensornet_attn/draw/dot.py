"""A picture as DOT source with the place of everything in it, so that Graphviz draws and does not lay out."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from tensornet_attn.draw.flatten import flatten
from tensornet_attn.draw.kept import NOTHING, Marks
from tensornet_attn.draw.layout import Layout, Spot, layout_of
from tensornet_attn.draw.looks import (
    DOUBLED,
    EDGES,
    FONT,
    LEG,
    NODE,
    NODES,
    TITLE,
    frame_look,
    kinds,
    label_size,
    node_look,
    text_width,
)
from tensornet_attn.draw.scene import Edge, Scene, edges
from tensornet_attn.draw.words import plain
from tensornet_attn.errors import MissingPartError
from tensornet_attn.graph.model import Graph

WIDTH = 520.0  # points that things may take side by side
HEAD = 22.0  # for the title
SAMPLE, GAP, LINE = 13.0, 12.0, 20.0  # of the legend: a sample, from one entry to the next, a line
_GRAPH = {
    "layout": "nop2",  # Graphviz takes the places as they stand here
    "outputorder": "edgesfirst",
    "bgcolor": "white",  # pages may be dark
    "fontname": FONT,
    "fontsize": f"{NODE:g}",
}
_NODE = {"fontname": FONT, "fontsize": f"{NODE:g}", "shape": "ellipse", "style": "filled", "fillcolor": "white"}
_EDGE = {"penwidth": "1.2"}


def to_dot(
    graph: Graph,
    title: str | None = None,
    about: str | None = None,
    kept: Marks = NOTHING,
    dots: int | None = None,
) -> str:
    """DOT source of a diagram; `kept`: marks of steps; `dots` per inch are set for pictures made of pixels.

    Raises MissingPartError where the graphviz package is not installed.
    """
    graphviz = graphviz_module()
    scene, wires = edges(flatten(graph, kept))
    layout = layout_of(scene, wires, WIDTH)
    words = plain(title or graph.name)
    width = max(layout.width, text_width(words, NODE))
    legend = _legend(scene, width)
    below = legend[-1][0].y + LINE / 2 if legend else 0.0
    dot = graphviz.Graph(graph.name, graph_attr=dict(_GRAPH), node_attr=dict(_NODE), edge_attr=dict(_EDGE))
    writer = _Writer(dot, layout, HEAD + layout.height + below)
    dot.attr(label=graphviz.escape(words), lp=writer.at(width / 2, -HEAD / 2))
    if about:
        dot.attr(comment=graphviz.escape(plain(about)))
    if dots:
        dot.attr(dpi=str(dots))
    writer.frames(scene, None, dot)
    writer.wires()
    for spot, name, label, look in legend:
        writer.node(dot, name, label, look, spot.moved(0, layout.height), "legend")
    return str(dot.source)


def _legend(scene: Scene, width: float) -> list[tuple[Spot, str, str, dict[str, str]]]:
    """Samples of the looks that occur and their words, from the upper left corner, in as many lines as they need."""
    entries, x, y = list[tuple[Spot, str, str, dict[str, str]]](), 0.0, LINE
    for words, node in kinds(scene.nodes, scene.frames):
        wide, high = label_size(words)
        if x and x + SAMPLE + 4 + wide > width:
            x, y = 0.0, y + LINE
        entries.append((Spot(x + SAMPLE / 2, y, SAMPLE, SAMPLE), node.id, "", node_look(node)))
        entries.append((Spot(x + SAMPLE + 4 + wide / 2, y, wide, high), f"{node.id}_", words, NODES["leg"]))
        x += SAMPLE + 4 + wide + GAP
    return entries


def graphviz_module() -> Any:
    """The graphviz package. Raises MissingPartError."""
    try:
        import graphviz
    except ImportError:
        raise MissingPartError("drawing needs the graphviz package: `pip install graphviz`.") from None
    return graphviz


class _Writer:
    """Writes what has a place; in DOT, y grows upwards."""

    def __init__(self, dot: Any, layout: Layout, height: float):
        self.dot, self.layout, self.height = dot, layout, height
        self.escape = graphviz_module().escape
        self.joined: dict[str, dict[str, None]] = defaultdict(dict)  # the names of what ends at each node
        for curve in layout.curves:
            for end in (curve.tail, curve.head):
                self.joined[end][self.name(curve.edge)] = None

    def at(self, x: float, y: float) -> str:
        return f"{x:.1f},{self.height - HEAD - y:.1f}"

    def name(self, edge: Edge) -> str:
        """A name for all pieces of a wire, or of a bond."""
        return f"w{edge.wire}" if edge.wire >= 0 else f"b{edge.tail}"

    def frames(self, scene: Scene, parent: str | None, within: Any) -> None:
        for node in scene.held[parent]:
            kind = " ".join([node.look, *(self.joined[node.id] if node.look == "leg" else ())])
            self.node(within, node.id, node.label, node_look(node), self.layout.nodes[node.id], kind)
        for frame in scene.inner[parent]:
            spot = self.layout.frames[frame.id]
            low = self.at(spot.x - spot.width / 2, spot.bottom)
            high = self.at(spot.x + spot.width / 2, spot.top)
            with within.subgraph(name=f"cluster_{frame.id}") as cluster:
                cluster.attr(bb=f"{low},{high}", **frame_look(frame))
                cluster.attr(label=self.escape("\n".join(frame.words)), fontsize=f"{TITLE[frame.look]:g}")
                cluster.attr(**{"class": f"frame {frame.look}"})
                if frame.id in self.layout.titles:
                    title = self.layout.titles[frame.id]
                    cluster.attr(lp=self.at(title.x, title.y), **_size(title.width, title.height, "l"))
                self.frames(scene, frame.id, cluster)

    def node(self, within: Any, name: str, label: str, look: dict[str, str], spot: Spot, kind: str) -> None:
        fixed = {"fixedsize": "true"} if look.get("shape") != "plain" else {"fontsize": f"{LEG:g}"}
        outer = DOUBLED["state"] if look.get("peripheries") == "2" else 0.0
        place = {"pos": self.at(spot.x, spot.y), **_size(spot.width - outer, spot.height - outer)}
        within.node(name, **{"label": self.escape(label), **look, **place, **fixed, "class": kind})

    def wires(self) -> None:
        for name, (spot, edge) in self.layout.labels.items():
            self.node(self.dot, name, edge.label, NODES["leg"], spot, f"leg {self.name(edge)}")
        for curve in self.layout.curves:
            points = " ".join(self.at(x, y) for x, y in curve.points)
            look = EDGES[curve.edge.look]
            self.dot.edge(curve.tail, curve.head, pos=points, **look, **{"class": self.name(curve.edge)})


def _size(width: float, height: float, prefix: str = "") -> dict[str, str]:
    return {f"{prefix}width": f"{width / 72:.4f}", f"{prefix}height": f"{height / 72:.4f}"}
