"""Sums over the keys of products of a part of queries and one of keys: one cumulative sum of the keys' part.

# since.of = one[n] gate[m];  since = sum over the visible m of since.of     ->     since = one times a cumulative sum
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from tensornet_attn.cost.devices import Device
from tensornet_attn.graph.model import Box, Contraction, Graph, Kernel, Step, Use
from tensornet_attn.plan.linear import CAUSAL, Pattern, canonical, outside
from tensornet_attn.plan.lowering import Lowered

CUMSUM = "cumulative sums"
DESCRIPTION = {True: "a cumulative sum over the keys", False: "a sum over the keys, once for all queries"}


def lower_cumsum(graph: Graph, sizes: Mapping[str, int], device: Device) -> Lowered:
    """Every sum over keys that allows it: it takes no more operations than the scores at any length."""
    lowered, chosen = graph, dict[str, str]()
    for step in graph.steps:
        if _fits(lowered, step):
            lowered, chosen[step.name] = summed(lowered, step), DESCRIPTION[CAUSAL in graph.masks(step)]
    return Lowered(lowered, chosen)


def _fits(graph: Graph, step: Step) -> bool:
    """Whether a step sums over keys what is a product of sides in each term, and is read nowhere else."""
    if not (graph.masked(step) and isinstance(step.op, Box) and step.op.kind == "sum"):
        return False
    of, uses = step.op.operand("of"), Counter(use.name for _, use in graph.uses())
    scores = graph.step.get(of.name)
    if scores is None or not isinstance(scores.op, Contraction) or of.legs != scores.legs:
        return False
    pair, kept = {graph.query, graph.key}, graph.results
    apart = all(not pair <= {*use.legs} for use in scores.op.uses) and {*graph.masks(step)} <= {CAUSAL}
    whole = pair <= {*of.legs} <= pair | {leg for use in scores.op.uses for leg in use.legs}
    return apart and whole and uses[of.name] == 1 and of.name not in kept


def summed(graph: Graph, step: Step) -> Graph:
    """The graph with a box and what it sums as one kernel."""
    scores, before = graph.step[step.op.operand("of").name], list[Step]()  # type: ignore[union-attr]
    unsummed = replace(step, legs=scores.legs)
    own = canonical(graph, Pattern(scores, unsummed, step, 0, Use(step.name, ())), before)
    body = (own, step)
    kernel = replace(step, op=Kernel("sums", outside(graph, before, body), body))
    steps = [part for one in graph.steps for part in ([*before, kernel] if one == step else [one])]
    return replace(graph, steps=tuple(one for one in steps if one.name != scores.name))
