"""Softmax attention within a band, computed in blocks: which boxes allow it, why others do not, the graph that has it.

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

DEARER = 1.5  # times what a key costs in masked fused attention over all keys: what it costs in a block, on a CPU


@dataclass(frozen=True)
class Masked:
    """A softmax box with masks that have lengths; `op`: as fused attention, or why it is none."""

    attention: Attention
    op: FusedAttention | str
    reach: Reach | None


class Banded(OfBoxes[Masked]):
    """Every softmax box that sees a band only in blocks, where the keys that a block meets are few enough."""

    name, kind, alone = "banded attention", "band", True

    def places(self, graph: Graph) -> list[str]:
        return softmaxes(graph)

    def form(self, graph: Graph, place: str) -> Masked | None:
        found = attentions(graph)[place]
        if not isinstance(found.weighting, Softmax) or all(mask == CAUSAL for mask in found.masks):
            return None  # no softmax, or no mask with a length: nothing to say
        return Masked(found, operation(found), reach_of(graph, found.box))

    def unsupported(self, form: Masked, context: Context) -> tuple[str, ...]:
        if isinstance(form.op, str):
            return (form.op,)
        if form.reach is None:
            return ("its masks let a query see keys however far away",)
        nothing = form.reach.left + form.reach.right < 0 and not form.reach.prefix
        return ("its masks together let no query see a key",) if nothing else ()

    def cost(self, form: Masked, context: Context) -> Cost:
        """Keys that a query meets, as dear as in a block."""
        reach, keys = form.reach, context.sizes[str(form.attention.graph.key)]
        assert reach is not None

        but = f"blocks of {reach.block:,} queries would meet {reach.span:,} keys each, and a key in a block costs"
        but += f" {DEARER} times one in fused attention:"
        return Cost(DEARER * reach.span, keys, lambda count, digits: f"the cost of {count:,.0f} keys", but)

    def lower(self, form: Masked, context: Context) -> Lowered:
        """The box and its two products are replaced by one kernel."""
        found, op, reach = form.attention, form.op, form.reach
        assert not isinstance(op, str)
        assert reach is not None
        name, legs = f"{found.box.name}.o", result_legs(op)
        product = Contraction((Term(ONE, (Use(found.box.name, found.box.legs), op.value)),))
        body = (found.graph.step[found.of.name], found.box, Step(name, product, legs))
        uses = (Use(use, found.graph.legs_of(use)) for use in dict.fromkeys(use.name for use in op.uses))
        step = Step(name, Kernel(self.kind, tuple(uses), body, Band(op, reach)), legs)
        prefix = f", the first {reach.prefix} among them" if reach.prefix else ""
        blocks = f"blocks of {reach.block} queries meet {reach.span} keys each{prefix}, other scores are never made"
        return Lowered(placed(found, step), {name: f"{self.name}: {blocks}"})


BAND = Banded()
