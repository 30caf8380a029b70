"""Pictures of diagrams: DOT, SVG, PNG, Mermaid and text, in the look of the Tuformer paper.

Nodes are tensors, round where something changes them (filled: trainable weights, heavy outline: inputs, dashed: noise,
doubled: state), square where nothing does (filled: frozen weights, white: constants); the core has a heavier outline.
Wires are legs with their names and sizes, a frame is a step (dashed: softmax), the ball on a box's border marks the leg
it acts along; what a state stores and losses say so. Queries stand on the left, keys on the right. The same graph gives
the same bytes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensornet_attn.graph.model import Graph

__all__ = ["draw", "to_dot", "to_mermaid", "to_png", "to_svg", "to_text"]


def to_dot(graph: Graph, *, title: str | None = None, about: str | None = None) -> str:
    """DOT source of a diagram. Raises MissingPartError where the graphviz package is not installed."""
    from tensornet_attn.draw.dot import dot_source

    return dot_source(graph, title, about)


def to_mermaid(graph: Graph, *, title: str | None = None, about: str | None = None) -> str:
    """Mermaid flowchart text of a diagram."""
    from tensornet_attn.draw.mermaid import mermaid_source

    return mermaid_source(graph, title, about)


def to_text(graph: Graph, *, title: str | None = None, about: str | None = None) -> str:
    """A diagram as text: legs, tensors, then one line a step, such as `Q[n h d] = x[n f] Wq[f h d]`."""
    from tensornet_attn.draw.text import diagram_text

    return diagram_text(graph, title, about)


def to_svg(graph: Graph, *, title: str | None = None, about: str | None = None) -> str:
    """SVG of a diagram, with title and description. Raises MissingPartError where no Graphviz is installed."""
    from tensornet_attn.draw.render import svg_text

    return svg_text(graph, title, about)


def to_png(graph: Graph, *, title: str | None = None) -> bytes:
    """PNG of a diagram. Raises MissingPartError where no Graphviz is installed."""
    from tensornet_attn.draw.render import png_bytes

    return png_bytes(graph, title)


def draw(
    graph: Graph,
    path: str | os.PathLike[str],
    format: str | None = None,
    *,
    title: str | None = None,
    about: str | None = None,
) -> Path:
    """Writes a picture and returns its path.

    The suffix chooses svg, png, dot, mmd (Mermaid) or txt; `format` overrides it. The file appears whole or not at
    all. Raises InputError for an unknown format or a place that cannot be written, MissingPartError where SVG or PNG
    is asked for and no Graphviz is installed.
    """
    from tensornet_attn.draw.write import write

    return write(graph, path, format, title, about)
