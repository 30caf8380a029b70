"""Sums over keys that all queries read alike: one row stands for all of them, in calls without a mask."""

from __future__ import annotations

from tensornet_attn.graph.diagram import producer_of
from tensornet_attn.graph.graph import Graph, Step, Use, cached
from tensornet_attn.graph.recurrence import ONES, Recurrence, sums_keys
from tensornet_attn.ops import OPS


@cached
def one_row(graph: Graph) -> frozenset[str]:
    """The steps with one row for all queries."""
    return frozenset[str]().union(*(narrow_after(graph, step) for step in graph.steps))


def narrow_after(graph: Graph, step: Step) -> set[str]:
    """The steps with one row for all queries because a sum has; empty if it is none or needs a row for each query.

    What depends on no query but through the sum has one row too; it may be read by products, elementwise maps and sums
    over other legs. A product that keeps the query leg broadcasts it to the rows of its other operand.
    """
    parts, query = step.form, graph.query
    if not isinstance(parts, Recurrence) or not sums_keys(step):
        return set()
    if parts.causal(graph) or not all(_alike(graph, use) for term in parts.terms for use in term.query):
        return set()
    narrow = {step.name}
    for reader in graph.steps:
        narrow_uses = [use for use in reader.uses if use.name in narrow]
        if not narrow_uses:
            continue
        if not all(query in use.legs for use in narrow_uses):  # read along another leg
            return set()
        box, uses = reader.box, [use for use in reader.uses if query in use.legs]
        fits = reader.contraction is not None
        if box is not None:  # what scales by random numbers draws them for each query
            kind = OPS[box.kind]
            fits = box.leg != query if kind.is_sum else kind.elementwise and not kind.scales
        if query not in reader.legs or not fits:
            return set()
        if all(use.name in narrow for use in uses):
            narrow.add(reader.name)
    return set() if narrow & {*graph.results} else narrow


def _alike(graph: Graph, use: Use) -> bool:
    """Whether a query side is the same for all queries: ones, what has no query leg, or a product of these."""
    producer = producer_of(graph, use)
    factors = producer.uses if producer is not None and producer.contraction is not None else (use,)
    return all(graph.query not in factor.legs or is_ones(graph, factor.name) for factor in factors)


def is_ones(graph: Graph, name: str) -> bool:
    """Whether a tensor is a constant of ones."""
    leaf = graph.tensor.get(name)
    return leaf is not None and leaf.role == "constant" and leaf.init == ONES
