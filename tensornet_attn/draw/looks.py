"""How each kind of node, frame and wire looks; kinds differ in shape and line, not in colour alone.

Round is what changes: inputs (heavy outline), trainable weights (grey), noise (dashed), state (doubled). Square is what
does not: constants (white), frozen weights (grey). A core tensor has a heavier outline and bold letters as well. The
legend is a line below a picture with the looks that occur.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tensornet_attn.draw.layout import Spot
from tensornet_attn.draw.scene import Node, Scene
from tensornet_attn.draw.sizes import FONT, label_size
from tensornet_attn.draw.words import KINDS

GREY, PALE = "#dddddd", "#888888"
NODES: dict[str, dict[str, str]] = {
    "input": {"penwidth": "2.4"},
    "weight": {"fillcolor": GREY},
    "frozen": {"shape": "box", "fillcolor": GREY},
    "constant": {"shape": "box"},
    "noise": {"style": "filled,dashed"},
    "state": {"peripheries": "2"},
    "step": {"shape": "box", "style": "filled,rounded", "peripheries": "2"},
    "number": {"shape": "box", "color": PALE},
    "ones": {"shape": "box"},
    "plus": {"fontsize": "14"},
    "rule": {"shape": "box", "style": "filled,rounded"},
    "tap": {"shape": "box", "style": "filled,rounded", "color": PALE},
    "port": {"fillcolor": "black", "label": ""},
    "point": {"fillcolor": "black", "label": ""},
    "pass": {"style": "invis", "label": ""},
    "open": {"style": "invis", "label": ""},
    "leg": {"shape": "plain", "style": ""},
}
CORE = {"penwidth": "2.8", "fontname": f"{FONT}-Bold", "color": "#b45f06"}
TRAINED_CORE = {"fillcolor": "#f6b26b"}
FRAMES: dict[str, dict[str, str]] = {
    "softmax": {"style": "dashed", "penwidth": "1.4", "color": "black"},
    "box": {"style": "rounded", "penwidth": "1.2", "color": "black"},
    "step": {"style": "rounded", "penwidth": "0.6", "color": PALE},
    "part": {"style": "solid", "penwidth": "0.6", "color": PALE},
    "term": {"style": "dotted", "penwidth": "1.0", "color": PALE},
}
EDGES: dict[str, dict[str, str]] = {"wire": {}, "arm": {}, "bond": {"penwidth": "3", "color": "#777777"}}


def node_look(node: Node) -> dict[str, str]:
    """The attributes of a node."""
    core = CORE | (TRAINED_CORE if node.look == "weight" else {}) if node.core else {}
    return {**NODES[node.look], **core}


def kinds(nodes: Iterable[Node]) -> list[tuple[str, Node]]:
    """The kinds of tensors in a picture, each with what it is called and a node of its look, in a fixed order."""
    held = list(nodes)
    looks = {node.look for node in held}
    found = [(words, Node(f"k{look}", look, "", None, ())) for look, words in KINDS.items() if look in looks]
    cores = {node.look for node in held if node.core}
    found += [("core", Node(f"kcore{look}", look, "", None, (), core=True)) for look in KINDS if look in cores]
    return found


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
