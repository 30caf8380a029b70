"""A picture with all positions, from which DOT and TikZ are written."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tensornet_attn.draw.flatten import flatten
from tensornet_attn.draw.kept import NOTHING, Marks
from tensornet_attn.draw.layout import Layout, Rectangle, layout_of
from tensornet_attn.draw.looks import EDGES, NODE, NODES, SWATCH, frame_look, kinds, label_size, node_look, text_width
from tensornet_attn.draw.overlay import NONE, Overlay
from tensornet_attn.draw.scene import Edge, Frame, Scene, edges
from tensornet_attn.draw.themes import GROUND
from tensornet_attn.draw.words import plain
from tensornet_attn.graph.graph import Graph

WIDTH = 520.0  # maximum width of a line of parts, in points
HEAD = 22.0  # height of the title
SAMPLE, GAP, LINE = 13.0, 12.0, 20.0  # of the legend: size of a sample, gap between entries, line height


@dataclass(frozen=True)
class LegendEntry:
    """A sample of a legend, or its label, with position and look."""

    spot: Rectangle
    name: str
    label: str
    look: dict[str, str]


@dataclass(frozen=True)
class Picture:
    """A picture: y grows downwards from 0 below the title, and `height` excludes the title."""

    title: str
    scene: Scene
    layout: Layout
    legend: tuple[LegendEntry, ...]
    width: float
    height: float
    overlay: Overlay = NONE

    def frame_look(self, frame: Frame) -> dict[str, str]:
        """The attributes of a frame. In an overlay, a step without a fill has the ground colour, not that around it."""
        bare = self.overlay.fills and not frame.fill and frame.look != "term"
        return frame_look(replace(frame, fill=GROUND) if bare else frame)

    def edge_look(self, edge: Edge) -> dict[str, str]:
        """The attributes of a wire; an overlay can set its width by leg."""
        width = self.overlay.widths.get(self.scene.wires[edge.wire].leg.name) if edge.wire >= 0 else None
        return EDGES[edge.look] | ({} if width is None else {"penwidth": f"{width:.2g}"})


def picture_of(graph: Graph, title: str | None = None, kept: Marks = NOTHING, overlay: Overlay = NONE) -> Picture:
    """The picture of a diagram; `kept` has the marks of its steps."""
    scene, wires = edges(flatten(graph, kept, overlay))
    layout = layout_of(scene, wires, WIDTH)
    words = plain(title or graph.name)
    width = max(layout.width, text_width(words, NODE))
    legend = _legend(scene, overlay, width)
    below = legend[-1].spot.y + LINE / 2 if legend else 0.0
    legend = [LegendEntry(entry.spot.moved(0, layout.height), entry.name, entry.label, entry.look) for entry in legend]
    return Picture(words, scene, layout, tuple(legend), width, layout.height + below, overlay)


def _legend(scene: Scene, overlay: Overlay, width: float) -> list[LegendEntry]:
    """The legend: samples of the looks in the picture with labels, wrapped to the width."""
    entries, x, y = list[LegendEntry](), 0.0, LINE
    samples = [(words, node.id, node_look(node)) for words, node in kinds(scene.nodes, scene.frames)]
    samples += [(plain(words), f"o{i}", SWATCH | {"fillcolor": fill}) for i, (words, fill) in enumerate(overlay.legend)]
    for words, name, look in samples:
        label_width, label_height = label_size(words)
        if x and x + SAMPLE + 4 + label_width > width:
            x, y = 0.0, y + LINE
        entries.append(LegendEntry(Rectangle(x + SAMPLE / 2, y, SAMPLE, SAMPLE), name, "", look))
        entries.append(
            LegendEntry(
                Rectangle(x + SAMPLE + 4 + label_width / 2, y, label_width, label_height),
                f"{name}_",
                words,
                NODES["leg"],
            )
        )
        x += SAMPLE + 4 + label_width + GAP
    return entries
