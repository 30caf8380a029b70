"""What the looks in a picture mean: a line below it, of those that occur."""

from __future__ import annotations

from dataclasses import dataclass

from tensornet_attn.draw.looks import kinds
from tensornet_attn.draw.places import Spot
from tensornet_attn.draw.scene import Node, Scene
from tensornet_attn.draw.sizes import label_size

SAMPLE = 13.0
GAP = 12.0
LINE = 20.0


@dataclass(frozen=True)
class Legend:
    """Entries are a sample's place, its words with theirs, and the node it shows; all from the upper left corner."""

    height: float
    entries: tuple[tuple[Spot, tuple[str, Spot], Node], ...]


def legend_of(scene: Scene, width: float) -> Legend:
    """The legend of a picture, in as many lines as it needs at a width."""
    entries, x, y = [], 0.0, LINE
    for words, node in kinds(scene.nodes):
        wide, high = label_size(words)
        if x and x + SAMPLE + 4 + wide > width:
            x, y = 0.0, y + LINE
        sample = Spot(x + SAMPLE / 2, y, SAMPLE, SAMPLE)
        entries.append((sample, (words, Spot(x + SAMPLE + 4 + wide / 2, y, wide, high)), node))
        x += SAMPLE + 4 + wide + GAP
    return Legend(y + LINE / 2 if entries else 0.0, tuple(entries))
