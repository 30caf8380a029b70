"""Writes a picture as DOT source with all positions, so that Graphviz only draws it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from tensornet_attn.draw.kept import NOTHING, Marks
from tensornet_attn.draw.layout import Rectangle
from tensornet_attn.draw.looks import DOUBLED, FONT, LEG, NODE, NODES, TITLE, node_look
from tensornet_attn.draw.overlay import NONE, Overlay
from tensornet_attn.draw.picture import HEAD, Picture, picture_of
from tensornet_attn.draw.scene import Edge
from tensornet_attn.draw.themes import GROUND, LIGHT, Theme
from tensornet_attn.draw.words import plain
from tensornet_attn.errors import MissingPartError
from tensornet_attn.graph.graph import Graph

_GRAPH = {
    "layout": "nop2",  # Graphviz uses the positions in the source
    "outputorder": "edgesfirst",
    "bgcolor": GROUND,  # for dark pages
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
    *,
    theme: Theme = LIGHT,
    overlay: Overlay = NONE,
) -> str:
    """The DOT source of a diagram. Raises MissingPartError without the graphviz package.

    `kept`: marks of steps, from `kept_marks`. `dots`: dots per inch, for PNG. `overlay`: the plan or the cost.
    """
    graphviz = graphviz_module()
    picture = picture_of(graph, title, kept, overlay)
    attributes = (
        {**_GRAPH, "bgcolor": theme.ground, **theme.defaults("fontcolor")},
        {**theme.of(_NODE), **theme.defaults("color", "fontcolor")},
        {**_EDGE, **theme.defaults("color")},
    )
    dot = graphviz.Graph(graph.name, graph_attr=attributes[0], node_attr=attributes[1], edge_attr=attributes[2])
    writer = _DotWriter(dot, picture, theme)
    dot.attr(label=graphviz.escape(picture.title), lp=writer.at(picture.width / 2, -HEAD / 2))
    if about:
        dot.attr(comment=graphviz.escape(plain(about)))
    if dots:
        dot.attr(dpi=str(dots))
    writer.frames(None, dot)
    writer.wires()
    for entry in picture.legend:
        writer.node(dot, entry.name, entry.label, entry.look, entry.spot, "legend")
    return str(dot.source)


def graphviz_module() -> Any:
    """The graphviz package. Raises MissingPartError."""
    try:
        import graphviz
    except ImportError:
        raise MissingPartError("drawing needs the graphviz package: `pip install graphviz`.") from None
    return graphviz


class _DotWriter:
    """Writes frames, nodes and wires. In DOT, y grows upwards."""

    def __init__(self, dot: Any, picture: Picture, theme: Theme):
        self.dot, self.picture, self.theme = dot, picture, theme
        self.scene, self.layout = picture.scene, picture.layout
        self.escape = graphviz_module().escape
        self.joined: dict[str, dict[str, None]] = defaultdict(dict)  # names of the wires that end at each node
        for curve in self.layout.curves:
            for end in (curve.tail, curve.head):
                self.joined[end][self.name(curve.edge)] = None

    def at(self, x: float, y: float) -> str:
        return f"{x:.1f},{self.picture.height - y:.1f}"

    def name(self, edge: Edge) -> str:
        """The common name of all segments of a wire or a bond."""
        return f"w{edge.wire}" if edge.wire >= 0 else f"b{edge.tail}"

    def frames(self, parent: str | None, within: Any) -> None:
        for node in self.scene.held[parent]:
            kind = " ".join([node.look, *(self.joined[node.id] if node.look == "leg" else ())])
            self.node(within, node.id, node.label, node_look(node), self.layout.nodes[node.id], kind)
        for frame in self.scene.inner[parent]:
            spot = self.layout.frames[frame.id]
            low = self.at(spot.x - spot.width / 2, spot.bottom)
            high = self.at(spot.x + spot.width / 2, spot.top)
            with within.subgraph(name=f"cluster_{frame.id}") as cluster:
                cluster.attr(bb=f"{low},{high}", **self.theme.of(self.picture.frame_look(frame)))
                cluster.attr(label=self.escape("\n".join(frame.words)), fontsize=f"{TITLE[frame.look]:g}")
                cluster.attr(**{"class": f"frame {frame.look}"})
                if frame.look == "term" and self.picture.overlay.fills:
                    cluster.attr(bgcolor="transparent")  # the default is the ground colour
                if frame.id in self.layout.titles:
                    title = self.layout.titles[frame.id]
                    cluster.attr(lp=self.at(title.x, title.y), **_size(title.width, title.height, "l"))
                self.frames(frame.id, cluster)

    def node(self, within: Any, name: str, label: str, look: dict[str, str], spot: Rectangle, kind: str) -> None:
        fixed = {"fixedsize": "true"} if look.get("shape") != "plain" else {"fontsize": f"{LEG:g}"}
        outer = DOUBLED["state"] if look.get("peripheries") == "2" else 0.0
        position = {"pos": self.at(spot.x, spot.y), **_size(spot.width - outer, spot.height - outer)}
        within.node(name, **{"label": self.escape(label), **self.theme.of(look), **position, **fixed, "class": kind})

    def wires(self) -> None:
        for name, (spot, edge) in self.layout.labels.items():
            self.node(self.dot, name, edge.label, NODES["leg"], spot, f"leg {self.name(edge)}")
        for curve in self.layout.curves:
            points = " ".join(self.at(x, y) for x, y in curve.points)
            look = self.theme.of(self.picture.edge_look(curve.edge))
            self.dot.edge(curve.tail, curve.head, pos=points, **look, **{"class": self.name(curve.edge)})


def _size(width: float, height: float, prefix: str = "") -> dict[str, str]:
    return {f"{prefix}width": f"{width / 72:.4f}", f"{prefix}height": f"{height / 72:.4f}"}
