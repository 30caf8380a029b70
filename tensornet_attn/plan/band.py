"""Softmax attention within a band, computed in blocks: which boxes allow it, why others do not, the graph that has it.

# A.of = Q K;  A = softmax over m of A.of, masked to a band;  y = A V Wo     ->     A.o = band(Q, K, V);  y = A.o Wo
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tensornet_attn.cost.band import Reach, reach_of
from tensornet_attn.cost.devices import Device
from tensornet_attn.graph.model import Contraction, Graph, Kernel, Step, Term, Use
from tensornet_attn.plan.fuse import Pattern, attention_pattern, result_legs, softmax_boxes, term_reading
from tensornet_attn.plan.lowering import Lowered
from tensornet_attn.spec.arithmetic import ONE

DEARER = 1.5  # times what a key costs in masked fused attention over all keys: what it costs in a block, on a CPU


def lower_band(graph: Graph, sizes: Mapping[str, int], device: Device) -> Lowered:
    """Every softmax box that sees a band only in blocks, where the keys that a block meets are few enough."""
    lowered, chosen, refused = graph, dict[str, str](), dict[str, tuple[str, ...]]()
    for box in softmax_boxes(graph):
        if not any(mask.arguments for mask in graph.masks(box)):
            continue  # no band and no window: nothing to say
        found, reach = attention_pattern(lowered, box), reach_of(graph, box)
        against = found if isinstance(found, str) else reason_against(reach, sizes[str(graph.key)])
        if isinstance(found, str) or reach is None or against:
            refused[box.name] = (against,)
        else:
            lowered = banded(lowered, found)
            chosen[f"{box.name}.o"] = (
                f"banded attention: blocks of {reach.block} queries meet {reach.span} keys each, other scores are "
                "never made"
            )
    return Lowered(lowered, chosen, refused)


def reason_against(reach: Reach | None, keys: int) -> str:
    """Why blocks do not pay at this number of keys; empty where they do."""
    if reach is None:
        return "how far a query sees depends on the length"
    if reach.left + reach.right < 0:
        return "its masks together let no query see a key"
    if DEARER * reach.span > keys:
        return (
            f"blocks of {reach.block:,} queries would meet {reach.span:,} keys each, and a key in a block costs "
            f"{DEARER} times one in fused attention over all {keys:,}"
        )
    return ""


def banded(graph: Graph, found: Pattern) -> Graph:
    """The graph with the box and its two products replaced by one kernel 'band'."""
    made, reader = _kernel(graph, found), found.reader
    assert isinstance(reader.op, Contraction)
    terms = list(reader.op.terms)
    terms[found.term] = term_reading(terms[found.term], found, Use(made.name, made.legs))
    steps: list[Step] = []
    for step in graph.steps:
        if step.name == reader.name:
            steps += [made, replace(step, op=Contraction(tuple(terms)))]
        elif step.name not in (found.scores.name, found.box.name):
            steps.append(step)
    return replace(graph, steps=tuple(steps))


def _kernel(graph: Graph, found: Pattern) -> Step:
    """The step `A.o`: scores, softmax, and the product of map and values alone."""
    name, legs = f"{found.box.name}.o", result_legs(found)
    read = Step(name, Contraction((Term(ONE, (Use(found.box.name, found.box.legs), found.value)),)), legs)
    outside = dict.fromkeys(use.name for use in (found.query, found.key, found.value))
    uses = tuple(Use(other, graph.legs_of(other)) for other in outside)
    return Step(name, Kernel("band", uses, (found.scores, found.box, read)), legs)
