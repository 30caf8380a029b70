"""The predicted time and memory of a schedule.

    forward                              max(FLOPs / rate, bytes / bandwidth) of each step
    backward of stored values            twice the forward
    backward with recomputation          three times the FLOPs, twice the bytes
    fused attention                      queries and keys, or values, are padded with zeros to one width

Steps within a block of queries move no data, because a block is sized to stay in a cache, except on a GPU, where torch
launches each one. If the device has a table of measured rates, `cost/seconds.py` prices each step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum

from tensornet_attn.cost.kernels import inside, traits_of
from tensornet_attn.cost.memory import peak
from tensornet_attn.cost.scene import SizedGraph
from tensornet_attn.cost.seconds import efficient, module_seconds, parts_of
from tensornet_attn.cost.target import Target
from tensornet_attn.cost.work import work_of
from tensornet_attn.graph.graph import Graph, Step
from tensornet_attn.graph.pairs import BATCH, split_products
from tensornet_attn.rewrite.duplicate import beside_output

KEEPS, AGAIN = (3, 3), (4, 3)  # FLOPs and bytes of forward and backward, as multiples of the forward's


@dataclass(frozen=True)
class PlanPrice:
    """The predicted time in seconds, the peak memory in bytes, and the step at the peak."""

    seconds: float
    bytes: int
    step: str


def price_of(schedule: Graph, sizes: Mapping[str, int], target: Target) -> PlanPrice:
    """The price of a schedule; `sizes`: the legs that are known at run time only."""
    at_peak = peak(scene_of(split_products(schedule), sizes, target), target.backward, target.device)
    seconds = time_of(schedule, sizes, target)
    seconds += module_seconds(target.device.rates, target.backward) if target.device.measured else 0.0
    return PlanPrice(seconds, target.bytes * at_peak.numbers, at_peak.step)


def time_of(schedule: Graph, sizes: Mapping[str, int], target: Target) -> float:
    """The seconds of a schedule. A forward alone, in evaluation, computes no states or losses."""
    scene = scene_of(split_products(schedule), sizes, target)
    skipped = set() if target.backward else beside_output(scene.graph)
    return fsum(time_of_step(scene, step, target) for step in scene.graph.steps if step.name not in skipped)


def time_of_step(scene: SizedGraph, step: Step, target: Target) -> float:
    """The seconds of a step, or of a kernel that is not yet in the graph."""
    if target.device.measured:
        rates, backward = target.device.rates, target.backward
        return efficient(parts_of(scene, step, rates, backward), rates, backward)
    learned = target.backward and step.name in scene.learned
    flops, bytes_ = (AGAIN if step.kernel and traits_of(step).again else KEEPS) if learned else (1, 1)
    device, launched = target.device, target.device.gpu and traits_of(step).stepwise
    scene, steps, seconds = *(inside(scene, step) if launched else (scene, [step])), 0.0
    for work in [work_of(scene, inner_step) for inner_step in steps]:
        moved, copied = (device.width * elements for elements in work.passes)
        seconds += device.seconds(
            device.time(flops * work.operations, bytes_ * moved) + device.time(0, bytes_ * copied)
        )
    return seconds


def scene_of(graph: Graph, sizes: Mapping[str, int], target: Target) -> SizedGraph:
    leg_sizes = {leg.name: leg.size for leg in graph.legs if leg.size is not None}
    leg_sizes |= {leg: size for leg, size in sizes.items() if leg != BATCH}
    return SizedGraph(graph, leg_sizes, target.batch, stepwise=target.device.gpu)
