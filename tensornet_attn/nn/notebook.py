"""The notebook display of a compiled design: picture, plan and cost."""

from __future__ import annotations

from html import escape

from tensornet_attn.draw.render import to_svg
from tensornet_attn.draw.text import diagram_text
from tensornet_attn.errors import MissingPartError
from tensornet_attn.plan.decoding import priced
from tensornet_attn.plan.model import Plan


def html_of(plan: Plan, about: str) -> str:
    """Returns an HTML fragment. The cost is for the lengths of the plan."""
    graph, lengths = plan.graph, dict(plan.lengths)
    queries, keys = (lengths.get(str(leg)) for leg in (graph.query, graph.key))
    target = plan.target
    cost = priced(graph, plan.schedule, queries, keys, target.batch, target.dtype)
    parts = [_picture(plan, about), f"<pre>{escape(plan.explain())}</pre>", f"<pre>{escape(cost.to_text())}</pre>"]
    return f"<div>{''.join(parts)}</div>"


def _picture(plan: Plan, about: str) -> str:
    """The diagram as SVG, or as text if Graphviz is not installed."""
    try:
        return to_svg(plan.graph, plan.graph.name, about or None)
    except MissingPartError:
        return f"<pre>{escape(diagram_text(plan.graph, plan.graph.name, about or None))}</pre>"
