"""Looks and sizes of each kind of node, frame and wire. Kinds differ in shape and line style, not only in colour.

Tensors whose values change are round: inputs (heavy outline), trainable weights (grey), noise (dashed), state (double
outline). Fixed tensors are square: constants (white), frozen weights (grey). Core tensors have a heavier outline and
bold labels. Sizes are in points; text widths are those of Helvetica, with a margin for substitute fonts.
"""

from __future__ import annotations

from collections.abc import Iterable

from tensornet_attn.draw.kept import LEGEND
from tensornet_attn.draw.scene import Frame, SceneNode
from tensornet_attn.draw.words import KINDS

FONT = "Helvetica"
KEPT = {"penwidth": "2.6", "color": "#1b7f4d"}
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
    "kept": {"shape": "box", "style": "filled,rounded", **KEPT},
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
SWATCH = {"shape": "box", "style": "filled,rounded", "color": PALE}  # a fill, in legends


def node_look(node: SceneNode) -> dict[str, str]:
    core = CORE | (TRAINED_CORE if node.look == "weight" else {}) if node.core else {}
    return {**NODES[node.look], **core}


def frame_look(frame: Frame) -> dict[str, str]:
    """The attributes of a frame. Frames in the decoding cache have a heavier outline; overlays fill frames."""
    look = {**FRAMES[frame.look], **(KEPT if frame.kept else {})}
    return {**look, "style": f"filled,{look['style']}", "fillcolor": frame.fill} if frame.fill else look


def kinds(nodes: Iterable[SceneNode], frames: Iterable[Frame] = ()) -> list[tuple[str, SceneNode]]:
    """The kinds of tensors in a picture, with a label and a sample node for each, in a fixed order.

    If frames are marked as kept, the last entry explains the mark.
    """
    held = list(nodes)
    looks = {node.look for node in held}
    samples = [(words, SceneNode(f"k{look}", look, "", None, ())) for look, words in KINDS.items() if look in looks]
    cores = {node.look for node in held if node.core}
    samples += [("core", SceneNode(f"kcore{look}", look, "", None, (), core=True)) for look in KINDS if look in cores]
    if any(frame.kept for frame in frames):
        samples.append((LEGEND, SceneNode("kkept", "kept", "", None, ())))
    return samples


ROOM = 1.12  # DejaVu Sans, a common substitute, is wider
LINE = 1.2  # line height, in font sizes
# Character widths in thousandths of the font size, from Helvetica's metrics file.
_WIDTHS = {
    191: "'",
    222: "ijl",
    260: "|",
    278: " !,./:;I[]\\ft",
    333: "()-`r",
    334: "{}",
    355: '"',
    389: "*",
    469: "^",
    500: "Jcksvxyz",
    584: "+<=>~\N{MINUS SIGN}",
    611: "FTZ",
    667: "&ABEKPSVXY",
    722: "CDHNRUw",
    778: "GOQ",
    833: "Mm",
    889: "%",
    944: "W",
    1015: "@",
}
_WIDTH = {character: width for width, characters in _WIDTHS.items() for character in characters}
_DIGIT = 556  # digits and the other lower-case letters
_OTHER = 1000  # other alphabets


def text_width(text: str, size: float) -> float:
    """The width of a line of text in points, for a font size in points."""
    return sum(_WIDTH.get(c, _DIGIT if c.isascii() else _OTHER) for c in text) * size * ROOM / 1000


NODE = 12.0  # font sizes
LEG = 10.0
TITLE = {"softmax": 11.0, "box": 11.0, "step": 11.0, "part": 11.0, "term": 11.0}
ROUND = 30.0
SQUARE = 26.0
SMALL = {"plus": 20.0, "ones": 18.0, "point": 5.0, "port": 7.0, "pass": 0.0, "open": 0.0}
FLAT = {"step": 20.0, "rule": 26.0, "tap": 17.0, "number": 20.0}
DOUBLED = {"state": 8.0, "step": 8.0}  # added by the outer outline
FIXED = ("constant", "frozen")  # square

Size = tuple[float, float]


def node_size(node: SceneNode) -> Size:
    """Width and height of a node by its look and label."""
    wide, high = _inner_size(node)
    return wide + DOUBLED.get(node.look, 0.0), high + DOUBLED.get(node.look, 0.0)


def _inner_size(node: SceneNode) -> Size:
    if node.look in SMALL:
        return SMALL[node.look], SMALL[node.look]
    if node.look == "leg":
        return label_size(node.label)
    wide = text_width(node.label, NODE)
    if node.look in FLAT:
        high = FLAT[node.look]
        return max(high, wide + 10), high
    if node.look in FIXED:
        return max(SQUARE, wide + 10), SQUARE
    return (ROUND, ROUND) if wide <= ROUND - 8 else (wide + 18, ROUND)


def label_size(label: str) -> Size:
    return text_width(label, LEG), LEG * LINE


def title_size(frame: Frame) -> Size:
    size = TITLE[frame.look]
    return max((text_width(words, size) for words in frame.words), default=0.0), len(frame.words) * size * LINE
