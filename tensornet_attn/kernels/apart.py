"""The seconds of the steps that only one of two graphs has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

from tensornet_attn.cost.blocks import LEAST
from tensornet_attn.cost.order import split_best
from tensornet_attn.cost.price import scene_of, time_of
from tensornet_attn.cost.seconds import seconds_of
from tensornet_attn.cost.target import Target
from tensornet_attn.graph.graph import Graph, Step
from tensornet_attn.kernels.blocks import groups_of


def seconds_apart(graph: Graph, other_graph: Graph, sizes: Mapping[str, int], target: Target) -> tuple[float, float]:
    """The seconds of the steps that only one of two graphs has, at measured rates and in the best orders of products.

    They are rates of the device or, if it has none, of the shipped table, whose ratios of implementations then count.
    Steps with values of queries x keys count as blocks of queries where they can be computed in blocks; with measured
    rates of the device and a length that was asked for, only if this takes less time. A GPU, which no table describes,
    has its own prices, and so have fewer queries than a block has: they read everything once.
    """
    split, other_split = (
        split_best(candidate, sizes, target.device, target.device.width)[0] for candidate in (graph, other_graph)
    )
    if _reads_once(graph, sizes, target):
        first, second = (target.device.seconds(time_of(candidate, sizes, target)) for candidate in (split, other_split))
        return first, second
    return _without(split, other_split, sizes, target), _without(other_split, split, sizes, target)


def where_of(graph: Graph, sizes: Mapping[str, int], target: Target) -> str:
    """The device whose rates `seconds_apart` uses; empty if it is the target's."""
    return "" if target.device.measured or _reads_once(graph, sizes, target) else "cpu"


def _reads_once(graph: Graph, sizes: Mapping[str, int], target: Target) -> bool:
    return target.device.gpu or sizes[str(graph.query)] < LEAST


def _without(graph: Graph, other_graph: Graph, sizes: Mapping[str, int], target: Target) -> float:
    """The seconds of the steps of a primitive graph that the other one lacks."""
    scene, steps = scene_of(graph, sizes, target), [step for step in graph.steps if step not in other_graph.steps]

    def seconds(counted: Iterable[Step]) -> float:
        return sum(seconds_of(scene, step, target.device.rates, target.backward) for step in counted)

    names, total = {step.name for step in steps}, 0.0
    for group in groups_of(graph, sizes):
        if group.steps & names and group.reason is None:
            members = {*group.steps, *group.spread, *(step.name for step in group.kernels)}
            stored = target.device.measured and target.n is not None
            apart = seconds(step for step in graph.steps if step.name in members) if stored else inf
            total += min(seconds(group.kernels), apart)
            names -= members
    return total + seconds(step for step in steps if step.name in names)
