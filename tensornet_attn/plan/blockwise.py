"""Blockwise computation: steps that are independent per query run on one block of queries at a time.

# A.of = Q K;  A = box of A.of;  y.p1 = A V;  y = y.p1 Wo     ->     y.p1 = rows(Q, K, V);  y = y.p1 Wo
"""

from __future__ import annotations

from dataclasses import replace
from math import inf, prod

from tensornet_attn.cost.sizes import human
from tensornet_attn.graph.model import Graph, Step
from tensornet_attn.plan.blocks import Group, groups_of, rows_of, steps_with
from tensornet_attn.plan.figures import duration
from tensornet_attn.plan.implementation import Context, Cost, Implementation, Lowered
from tensornet_attn.plan.order import split_best
from tensornet_attn.plan.price import scene_of, time_in_blocks, time_of_step

WORTH = 1.25  # accepted slowdown for storing no tensor of queries x keys
WORTH_ON_GPU = 1.34  # there products take most of the time, and recomputation takes 4 / 3 of their FLOPs
LITTLE = 2**26  # bytes of these tensors, at a length that was asked for, that measured rates store if that is faster
MUCH = 2**32  # bytes of these tensors that are stored for no gain of time, unless memory= allows them


class Blockwise(Implementation[Group]):
    """Groups of steps with query and key legs that no earlier row computes, if blocks save enough memory."""

    name, kind, opaque = "blocks of queries", "blockwise", True

    def unsupported(self, form: Group, context: Context) -> tuple[str, ...]:
        reason = form.reason or (None if context.always else too_small(form, context))
        return () if reason is None else (reason,)

    def cost(self, form: Group, context: Context) -> Cost | None:
        """The time of blocks, with recomputation in the backward, and that of the separate steps."""
        if context.always:
            return None
        scene, target = scene_of(form.graph, context.sizes, context.target), context.target
        parts = dict.fromkeys(part for body in form.bodies for part in body)
        kept = sum(time_of_step(scene, part, target) for part in parts)
        again = sum(time_in_blocks(scene, one, target) for one in form.kernels)
        pairs = {leg for leg in (form.graph.query, form.graph.key) if leg}
        stored = sum(target.bytes * scene.elements(part) for part in parts if pairs <= {*part.legs})
        worth = WORTH_ON_GPU if target.device.gpu else WORTH
        if target.device.measured and target.n is not None and stored <= LITTLE:
            worth = 1.0
        any_length = target.device.measured and target.n is None  # small layers are called with long sequences too
        worth = inf if target.memory is None and (any_length or stored > MUCH) else worth
        but = "with recomputation in the backward, they would take"
        why = f"which saves {human(stored)}B of {form.graph.query} x {form.graph.key} elements"
        return Cost(
            again, kept, lambda time, digits: duration(target.device.seconds(int(time)), digits), but, worth, why
        )

    def lowered(self, graph: Graph, context: Context) -> Lowered:
        split, _ = split_best(graph, context.sizes, context.device)
        chosen, refused, costs, removed = dict[str, str](), dict[str, tuple[str, ...]](), dict[str, str](), set[str]()
        made: dict[str, Step] = {}
        for group in groups_of(split, context.sizes):
            reasons, cost = self.judged(group, context)
            if reasons:
                refused |= {name: reasons for name in group.steps if not split.step[name].nested}
                continue
            removed |= group.steps | group.spread
            made |= {step.name: step for step in group.kernels}
            for step in group.kernels:
                query, keys = (context.sizes[str(leg)] for leg in (graph.query, graph.key))
                count = min(rows_of(split, step, keys, context.device), query)
                rows = f"blockwise: {count} queries at a time, recomputed in the backward"
                chosen[step.name] = f"{rows}, without a tensor of {graph.query} x {graph.key} elements"
                costs |= {} if cost is None else {step.name: str(cost)}
        return Lowered(replace(graph, steps=tuple(steps_with(graph, split, made, removed))), chosen, refused, costs)


BLOCKWISE = Blockwise()


def too_small(group: Group, context: Context) -> str | None:
    """Why blocks do not pay off: they save no more elements than their operands have. None if they do."""
    known = {leg.name: leg.size or context.sizes[leg.name] for leg in group.graph.legs}
    inside = dict.fromkeys(part for body in group.bodies for part in body[:-1])
    spared = sum(prod(known[leg] for leg in step.legs) for step in inside)
    kept = sum(prod(known[leg] for leg in use.legs) for use in {use for one in group.kernels for use in one.op.uses})
    return None if spared > kept else f"blocks would save {spared:,} elements, no more than the {kept:,} of operands"
