"""How each kind of node, frame and wire looks; kinds differ in shape and line, not in colour alone.

Round is what changes: inputs (heavy outline), trainable weights (grey), noise (dashed), state (doubled). Square is what
does not: constants (white), frozen weights (grey). A core tensor has a heavier outline and bold letters as well.
"""

from __future__ import annotations

from collections.abc import Iterable

from tensornet_attn.draw.metrics import FONT
from tensornet_attn.draw.scene import Node
from tensornet_attn.draw.words import KINDS

GREY, WHITE, PALE = "#dddddd", "white", "#888888"
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
