"""Regions of queries x keys as C++ kernels, for a CPU: the tile programs of Triton, in other text."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from tensornet_attn.cost.sizes import human
from tensornet_attn.graph.model import Graph, Step
from tensornet_attn.plan.blocks import Group
from tensornet_attn.plan.blockwise import too_small
from tensornet_attn.plan.figures import duration, instead
from tensornet_attn.plan.implementation import Context
from tensornet_attn.plan.model import Plan
from tensornet_attn.plan.price import price_of
from tensornet_attn.plan.triton import Tiles
from tensornet_attn.tiles.cpp.saved import seconds_again, seconds_saved, width_of
from tensornet_attn.tiles.cpp.source import Region, biased_region_of, region_of
from tensornet_attn.tiles.model import Program


class Native(Tiles):
    """Groups of steps with values of queries x keys that C++ can compute, where blocks save enough memory."""

    name, kind = "C++ kernels", "native"

    def fit(self, graph: Graph, step: Step) -> Program:
        return _region(graph, step).program

    def unsupported(self, form: Group, context: Context) -> tuple[str, ...]:
        reason = None if context.always else too_small(form, context)
        return () if reason is None else (reason,)

    def describe(self, graph: Graph, step: Step, context: Context) -> str:
        made, target = _region(graph, step), context.target
        if not made.saved or not target.backward or target.linear_memory:
            return super().describe(graph, step, context)
        pairs = target.batch * prod(map(made.places.programs_of, made.programs))
        for side, block in zip(made.program.pair, made.block, strict=True):
            pairs *= -(-context.sizes[side] // block) * block
        many = {node: pairs * made.program.tiles(node.heads) for node in made.saved}
        again = sum(seconds_again(width_of(graph, made.program, node)) * many[node] for node in many)
        price = instead(seconds_saved() * sum(many.values()), again, duration)
        names = ", ".join(f"'{name}'" for name in dict.fromkeys(node.name for node in many))
        limit = "a quarter of the free memory" if target.memory is None else "the limit"
        return (
            f"{self.name}; training saves the products {names}, {human(target.bytes * sum(many.values()))}B, "
            f"if they fit into {limit}: {price} to compute them again"
        )

    def on_triton(self, form: object) -> bool:
        return False

    def in_cpp(self, graph: Graph, step: Step) -> bool:
        return True


NATIVE = Native()


def memory_of_kernels(plan: Plan) -> int | None:
    """The bytes that each kernel may store or save for its backward: what the limit leaves beyond the predicted peak.

    None without a limit: then a call takes a part of what is free.
    """
    target = plan.target
    own = [step for step in plan.schedule.steps if step.kernel is not None and step.kernel.kind == NATIVE.kind]
    if not own or target.memory is None:
        return None
    return max(0, target.memory - price_of(plan.schedule, target.sizes(plan.graph), target).bytes) // len(own)


@lru_cache(64)
def _region(graph: Graph, step: Step) -> Region:
    """The C++ of a kernel, of which that for float masks can be printed too. Raises Unfit."""
    region = region_of(graph, step)
    biased_region_of(graph, step, region)
    return region
