"""Pictures of diagrams: DOT, SVG, PNG, TikZ, Mermaid and text, in the look of the Tuformer paper.

Nodes are tensors, round where something changes them (filled: trainable weights, heavy outline: inputs, dashed: noise,
doubled: state), square where nothing does (filled: frozen weights, white: constants); the core has a heavier outline.
Wires are legs with their names and sizes, a frame is a step (dashed: softmax), the ball on a box's border marks the leg
it acts along; what a state stores and losses say so. Queries stand on the left, keys on the right. The same graph gives
the same bytes.
"""

from tensornet_attn.draw.dot import to_dot
from tensornet_attn.draw.mermaid import to_mermaid
from tensornet_attn.draw.render import draw, to_png, to_svg
from tensornet_attn.draw.text import diagram_text as to_text
from tensornet_attn.draw.tikz import to_tikz

__all__ = ["draw", "to_dot", "to_mermaid", "to_png", "to_svg", "to_text", "to_tikz"]
