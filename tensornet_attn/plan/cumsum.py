"""Sums over the keys of products of a part of queries and one of keys: one cumulative sum of the keys' part.

# since.of = one[n] gate[m];  since = sum over the visible m of since.of     ->     since = one times a cumulative sum
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tensornet_attn.cost.devices import Device
from tensornet_attn.graph.model import Graph, Step
from tensornet_attn.graph.recurrence import Recurrence, cumulative, sums
from tensornet_attn.plan.linear import canonical, featured, written
from tensornet_attn.plan.lowering import Lowered, kernel
from tensornet_attn.rewrite.change import with_steps

CUMSUM = "cumulative sums"
DESCRIPTION = {True: "a cumulative sum over the keys", False: "a sum over the keys, once for all queries"}


def lower_cumsum(graph: Graph, sizes: Mapping[str, int], device: Device) -> Lowered:
    """Every sum over keys that allows it: it takes no more operations than the scores at any length."""
    lowered, chosen = graph, dict[str, str]()
    for step in sums(graph):
        found = cumulative(lowered, step)
        if isinstance(found, Recurrence) and not found.decays:
            lowered, chosen[step.name] = summed(lowered, found), DESCRIPTION[found.causal(graph)]
    return Lowered(lowered, chosen)


def summed(graph: Graph, found: Recurrence) -> Graph:
    """The graph with a box and what it sums as one kernel."""
    step, before = found.box, list[Step]()
    assert step.box is not None
    of = step.box.operand("of")
    terms = canonical(graph, found, of.legs, before)
    body = (written(of.name, terms, of.legs), step)
    form = replace(found, terms=tuple(featured(found, term) for term in terms))
    made = replace(step, op=kernel("sums", graph, before, body, form))
    return with_steps(graph, {of.name: [], step.name: [*before, made]})
