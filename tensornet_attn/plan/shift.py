"""Products with tables of relative positions: the product with the table is shifted, not the table of each pair."""

from __future__ import annotations

from tensornet_attn.graph.graph import Graph
from tensornet_attn.kernels.apart import compared
from tensornet_attn.kernels.implementation import Context, Lowered, Rewriting
from tensornet_attn.rewrite.engine import everywhere
from tensornet_attn.rewrite.shift import SHIFT


def shifted_products(graph: Graph, context: Context) -> Lowered:
    """Shifts all products with tables of relative positions, if this takes less time than shifting the tables."""
    shifted, trace = everywhere(graph, (SHIFT,))
    if not trace:
        return Lowered(graph)
    tables = [step.name for step in graph.steps if step.name not in shifted.step]
    cost = compared(shifted, graph, context, "it would take")
    if not cost.pays:
        return Lowered(graph, refused=dict.fromkeys(tables, (f"{cost.but} {cost}",)))
    return Lowered(shifted, dict.fromkeys(tables, "shifted after the product"))


SHIFTED = Rewriting(SHIFT.name, shifted_products)
