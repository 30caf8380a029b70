"""The seconds of the steps that only one of two graphs has."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import fsum, inf

from tensornet_attn.cost.blocks import LEAST
from tensornet_attn.cost.devices import DEVICES
from tensornet_attn.cost.price import scene_of, time_of_step
from tensornet_attn.cost.target import Target
from tensornet_attn.graph.graph import Graph, cached
from tensornet_attn.kernels.blocks import groups_of
from tensornet_attn.kernels.implementation import Context, FormCost
from tensornet_attn.kernels.tiles import TRITON

TIE = 1.1  # within the error of predictions, what gains with the length is taken
GAINS = "as near as predictions are: it gains with the length"
Sizes = tuple[tuple[str, int], ...]


def compared(
    graph: Graph,
    other_graph: Graph,
    context: Context,
    but: str,
    worth: float = 1,
    once: bool = False,
) -> FormCost:
    """The seconds of the steps that only one of two graphs has, at measured rates and in the best orders of products.

    They are rates of the device or, if it has none, of the shipped table, whose ratios of implementations then count.
    Steps with values of queries x keys count as blocks of queries where they can be computed in blocks; with measured
    rates of the device and a length that was asked for, only if this takes less time. A GPU, which no table describes,
    has its own prices, and so have fewer queries than a block has: they read everything `once`. `worth`: the first
    graph is taken up to this multiple of the seconds of the other.
    """
    once = once or context.device.gpu or context.backend == "triton" or context.sizes[graph.query] < LEAST
    rates, sizes = once or context.device.measured, tuple(context.sizes.items())
    target = context.target if rates else replace(context.target, device=DEVICES["cpu"], n=None)
    split, other_split = context.split(graph), context.split(other_graph)
    tiled = context.backend == "triton"
    seconds = _without(split, other_split, sizes, target, once, tiled)
    other_seconds = _without(other_split, split, sizes, target, once, tiled)
    return FormCost(seconds, other_seconds, but, worth, GAINS, "" if rates else "cpu")


@cached
def _without(graph: Graph, other_graph: Graph, sizes: Sizes, target: Target, once: bool, tiled: bool) -> float:
    """The seconds of the steps of a primitive graph that the other one lacks. `tiled`: in kernels of Triton."""
    time = partial(time_of_step, scene_of(graph, dict(sizes), target), target=target)
    names, total = {step.name for step in graph.steps if other_graph.step.get(step.name) != step}, 0.0
    for group in groups_of(graph, dict(sizes)) if tiled or not once else ():
        if group.steps & names and group.reason is None:
            members = {*group.steps, *group.spread, *(step.name for step in group.kernels)}
            stored = target.device.measured and target.n is not None
            apart = fsum(time(graph.step[name]) for name in members) if stored else inf
            in_blocks = [
                step if not tiled or TRITON.reason(group, step) else TRITON.as_kernel(step) for step in group.kernels
            ]
            total += min(fsum(map(time, in_blocks)), apart)
            names -= members
    return total + fsum(time(graph.step[name]) for name in names)
