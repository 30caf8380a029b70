"""A picture with the place of everything in it, before it is written as DOT or TikZ."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tensornet_attn.draw.flatten import flatten
from tensornet_attn.draw.kept import NOTHING, Marks
from tensornet_attn.draw.layout import Layout, Spot, layout_of
from tensornet_attn.draw.looks import EDGES, NODE, NODES, SWATCH, frame_look, kinds, label_size, node_look, text_width
from tensornet_attn.draw.overlay import NONE, Overlay
from tensornet_attn.draw.scene import Edge, Frame, Scene, edges
from tensornet_attn.draw.themes import GROUND
from tensornet_attn.draw.words import plain
from tensornet_attn.graph.model import Graph

WIDTH = 520.0  # points that things may take side by side
HEAD = 22.0  # for the title
SAMPLE, GAP, LINE = 13.0, 12.0, 20.0  # of the legend: a sample, from one entry to the next, a line


@dataclass(frozen=True)
class Entry:
    """One sample of a legend, or its words: where it stands below the picture, and how it looks."""

    spot: Spot
    name: str
    label: str
    look: dict[str, str]


@dataclass(frozen=True)
class Picture:
    """What to draw: y grows downwards from 0 below the title; `height` is that of all below the title."""

    title: str
    scene: Scene
    layout: Layout
    legend: tuple[Entry, ...]
    width: float
    height: float
    overlay: Overlay = NONE

    def frame_look(self, frame: Frame) -> dict[str, str]:
        """The attributes of a frame; in an overlay, a step that has no fill of its own has not that around it."""
        bare = self.overlay.fills and not frame.fill and frame.look != "term"
        return frame_look(replace(frame, fill=GROUND) if bare else frame)

    def edge_look(self, edge: Edge) -> dict[str, str]:
        """The attributes of a wire; an overlay may say how wide those of its leg are."""
        width = self.overlay.widths.get(self.scene.wires[edge.wire].leg.name) if edge.wire >= 0 else None
        return EDGES[edge.look] | ({} if width is None else {"penwidth": f"{width:.2g}"})


def picture_of(graph: Graph, title: str | None = None, kept: Marks = NOTHING, overlay: Overlay = NONE) -> Picture:
    """The picture of a diagram; `kept`: marks of steps."""
    scene, wires = edges(flatten(graph, kept, overlay))
    layout = layout_of(scene, wires, WIDTH)
    words = plain(title or graph.name)
    width = max(layout.width, text_width(words, NODE))
    legend = _legend(scene, overlay, width)
    below = legend[-1].spot.y + LINE / 2 if legend else 0.0
    legend = [Entry(one.spot.moved(0, layout.height), one.name, one.label, one.look) for one in legend]
    return Picture(words, scene, layout, tuple(legend), width, layout.height + below, overlay)


def _legend(scene: Scene, overlay: Overlay, width: float) -> list[Entry]:
    """Samples of the looks that occur and their words, from the upper left corner, in as many lines as they need."""
    found, x, y = list[Entry](), 0.0, LINE
    samples = [(words, node.id, node_look(node)) for words, node in kinds(scene.nodes, scene.frames)]
    samples += [(plain(words), f"o{i}", SWATCH | {"fillcolor": fill}) for i, (words, fill) in enumerate(overlay.legend)]
    for words, name, look in samples:
        wide, high = label_size(words)
        if x and x + SAMPLE + 4 + wide > width:
            x, y = 0.0, y + LINE
        found.append(Entry(Spot(x + SAMPLE / 2, y, SAMPLE, SAMPLE), name, "", look))
        found.append(Entry(Spot(x + SAMPLE + 4 + wide / 2, y, wide, high), f"{name}_", words, NODES["leg"]))
        x += SAMPLE + 4 + wide + GAP
    return found
