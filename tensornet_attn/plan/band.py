"""Softmax attention within a band, computed in blocks: which boxes allow it, why others do not, the graph that has it.

# A.of = Q K;  A = softmax over m of A.of, masked to a band;  y = A V Wo     ->     A.o = band(Q, K, V);  y = A.o Wo
"""

from __future__ import annotations

from collections.abc import Mapping

from tensornet_attn.cost.band import Band, Reach, reach_of
from tensornet_attn.cost.devices import Device
from tensornet_attn.graph.attention import Attention, attentions
from tensornet_attn.graph.model import Attention as FusedAttention
from tensornet_attn.graph.model import Contraction, Graph, Kernel, Step, Term, Use
from tensornet_attn.ir.arithmetic import ONE
from tensornet_attn.plan.fuse import operation, placed, result_legs, softmaxes
from tensornet_attn.plan.lowering import Lowered

DEARER = 1.5  # times what a key costs in masked fused attention over all keys: what it costs in a block, on a CPU


def lower_band(graph: Graph, sizes: Mapping[str, int], device: Device) -> Lowered:
    """Every softmax box that sees a band only in blocks, where the keys that a block meets are few enough."""
    lowered, chosen, refused = graph, dict[str, str](), dict[str, tuple[str, ...]]()
    for box in softmaxes(graph):
        found = attentions(lowered)[box]
        if not any(mask.arguments for mask in found.masks):
            continue  # no band and no window: nothing to say
        op, reach = operation(found), reach_of(graph, found.box)
        against = op if isinstance(op, str) else reason_against(reach, sizes[str(graph.key)])
        if isinstance(op, str) or reach is None or against:
            refused[box] = (against,)
        else:
            lowered = banded(found, op, reach)
            chosen[f"{box}.o"] = (
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


def banded(found: Attention, op: FusedAttention, reach: Reach) -> Graph:
    """The graph with the box and its two products replaced by one kernel 'band'."""
    name, legs = f"{found.box.name}.o", result_legs(op)
    product = Contraction((Term(ONE, (Use(found.box.name, found.box.legs), op.value)),))
    body = (found.graph.step[found.of.name], found.box, Step(name, product, legs))
    uses = (Use(use, found.graph.legs_of(use)) for use in dict.fromkeys(use.name for use in op.uses))
    return placed(found, Step(name, Kernel("band", tuple(uses), body, Band(op, reach)), legs))
