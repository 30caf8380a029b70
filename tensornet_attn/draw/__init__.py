"""Pictures of diagrams as DOT, SVG, PNG, TikZ, Mermaid and text, in the style of the Tuformer paper.

Nodes are tensors. Tensors whose values change are round: trainable weights (filled), inputs (heavy outline), noise
(dashed) and state (double outline). Fixed tensors are square: frozen weights (filled) and constants (white). Core
tensors have a heavier outline. Wires are legs with their names and sizes. A frame is a step (dashed: softmax), and the
ball on its border marks the leg that a box acts along. Titles of frames name states and losses. Queries are on the
left, keys on the right. Output is deterministic.
"""

from tensornet_attn.draw.dot import to_dot
from tensornet_attn.draw.mermaid import to_mermaid
from tensornet_attn.draw.render import draw, to_png, to_svg
from tensornet_attn.draw.text import diagram_text as to_text
from tensornet_attn.draw.tikz import to_tikz

__all__ = ["draw", "to_dot", "to_mermaid", "to_png", "to_svg", "to_text", "to_tikz"]
