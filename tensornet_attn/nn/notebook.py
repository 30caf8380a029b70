"""The notebook display of a compiled design: picture, plan and cost."""

from __future__ import annotations

from html import escape

from tensornet_attn.draw.render import to_svg
from tensornet_attn.draw.text import diagram_text
from tensornet_attn.errors import MissingPartError
from tensornet_attn.plan.decoding import priced
from tensornet_attn.plan.plan import Plan


def html_of(plan: Plan, about: str) -> str:
    """Returns an HTML fragment. The cost is for the lengths of the plan."""
    graph, lengths = plan.graph, dict(plan.lengths)
    queries, keys = (lengths.get(str(leg)) for leg in (graph.query, graph.key))
    target = plan.target
    cost = priced(graph, plan.schedule, queries, keys, target.batch, target.dtype)
    try:
        picture = to_svg(graph, graph.name, about or None)
    except MissingPartError:  # Graphviz is not installed
        picture = f"<pre>{escape(diagram_text(graph, graph.name, about or None))}</pre>"
    return f"<div>{picture}<pre>{escape(plan.explain())}</pre><pre>{escape(cost.to_text())}</pre></div>"
