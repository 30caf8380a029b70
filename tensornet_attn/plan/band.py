"""Banded softmax attention, computed in blocks: the boxes that allow it, the reasons against others, the lowering.

# A.of = Q K;  A = softmax over m of A.of, masked to a band;  y = A V Wo     ->     A.o = band(Q, K, V);  y = A.o Wo
"""

from __future__ import annotations

from dataclasses import dataclass

from tensornet_attn.cost.band import Band, Reach, reach_of
from tensornet_attn.graph.attention import Attention, Softmax, attentions
from tensornet_attn.graph.model import Contraction, FusedAttention, Graph, Kernel, Step, Term, Use
from tensornet_attn.graph.recurrence import CAUSAL
from tensornet_attn.ir.arithmetic import ONE
from tensornet_attn.plan.fuse import operation, placed, result_legs, softmaxes
from tensornet_attn.plan.implementation import Context, Cost, Lowered, OfBoxes

DEARER = 1.5  # cost of a key in a block relative to a key in masked fused attention over all keys, on a CPU


@dataclass(frozen=True)
class Masked:
    """A softmax box with masks that bound distances; `op`: the box as fused attention, or why it cannot be fused."""

    attention: Attention
    op: FusedAttention | str
    reach: Reach | None


class Banded(OfBoxes[Masked]):
    """Softmax boxes whose queries see a band of keys, computed in blocks if a block reads few enough keys."""

    name, kind, alone = "banded attention", "band", True

    def places(self, graph: Graph) -> list[str]:
        return softmaxes(graph)

    def form(self, graph: Graph, place: str) -> Masked | None:
        found = attentions(graph)[place]
        if not isinstance(found.weighting, Softmax) or all(mask == CAUSAL for mask in found.masks):
            return None  # no softmax, or no mask that bounds a distance
        return Masked(found, operation(found), reach_of(graph, found.box))

    def unsupported(self, form: Masked, context: Context) -> tuple[str, ...]:
        if isinstance(form.op, str):
            return (form.op,)
        if form.reach is None:
            return ("its masks do not bound the distance of visible keys",)
        nothing = form.reach.left + form.reach.right < 0 and not form.reach.prefix
        return ("its masks together hide every key",) if nothing else ()

    def cost(self, form: Masked, context: Context) -> Cost:
        """The number of keys that each query reads, weighted by the higher cost of a key in a block."""
        reach, keys = form.reach, context.sizes[str(form.attention.graph.key)]
        assert reach is not None

        but = f"blocks of {reach.block:,} queries would read {reach.span:,} keys each, and a key in a block costs"
        but += f" {DEARER} times as much as in fused attention:"
        return Cost(DEARER * reach.span, keys, lambda count, digits: f"the cost of {count:,.0f} keys", but)

    def lower(self, form: Masked, context: Context) -> Lowered:
        """Replaces the box and its two products by one kernel."""
        found, op, reach = form.attention, form.op, form.reach
        assert not isinstance(op, str)
        assert reach is not None
        name, legs = f"{found.box.name}.o", result_legs(op)
        product = Contraction((Term(ONE, (Use(found.box.name, found.box.legs), op.value)),))
        body = (found.graph.step[found.of.name], found.box, Step(name, product, legs))
        uses = (Use(use, found.graph.legs_of(use)) for use in dict.fromkeys(use.name for use in op.uses))
        step = Step(name, Kernel(self.kind, tuple(uses), body, Band(op, reach)), legs)
        prefix = f", including the first {reach.prefix}" if reach.prefix else ""
        blocks = f"blocks of {reach.block} queries read {reach.span} keys each{prefix}; other scores are never computed"
        return Lowered(placed(found, step), {name: f"{self.name}: {blocks}"})


BAND = Banded()
