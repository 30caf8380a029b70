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
from functools import partial
from math import fsum

from tensornet_attn.constants import STRETCH
from tensornet_attn.cost.devices import Device
from tensornet_attn.cost.kernels import cost_of, inside
from tensornet_attn.cost.memory import moved, peak
from tensornet_attn.cost.scene import SizedGraph
from tensornet_attn.cost.seconds import module_seconds, seconds_of
from tensornet_attn.cost.shapes import between
from tensornet_attn.cost.target import Target
from tensornet_attn.cost.work import elementwise, macs
from tensornet_attn.graph.graph import Graph, Step
from tensornet_attn.graph.pairs import BATCH, split_products
from tensornet_attn.graph.recurrence import erases
from tensornet_attn.rewrite.duplicate import beside_output

KEEPS, AGAIN = (3, 3), (4, 3)  # FLOPs and bytes of forward and backward, as multiples of the forward's
DELTA = 4


@dataclass(frozen=True)
class PlanPrice:
    """The predicted time in seconds, the peak memory in bytes, and the step at the peak."""

    seconds: float
    bytes: int
    step: str


def price_of(schedule: Graph, sizes: Mapping[str, int], target: Target) -> PlanPrice:
    """The price of a schedule; `sizes`: the legs that are known at run time only."""
    at_peak = peak(scene_of(split_products(schedule), sizes, target), target.backward, partial(scratch, target.device))
    seconds = time_of(schedule, sizes, target)
    seconds += module_seconds(target.device.rates, target.backward) if target.device.measured else 0.0
    return PlanPrice(seconds, target.bytes * at_peak.numbers, at_peak.step)


def time_of(schedule: Graph, sizes: Mapping[str, int], target: Target) -> float:
    """The seconds of a schedule. A forward alone, in evaluation, computes no states or losses."""
    scene = scene_of(split_products(schedule), sizes, target)
    skipped = set() if target.backward else beside_output(scene.graph)
    return fsum(time_of_step(scene, step, target) for step in scene.graph.steps if step.name not in skipped)


def scratch(device: Device, scene: SizedGraph, step: Step) -> tuple[int, int]:
    """Elements of temporary memory of a step, forward and backward, as measured on a CPU.

    Usually one copy of the largest operand in another layout. Fused attention expands keys and values to the heads
    that they lack; its backward does so for their gradients too. The delta rule stores `DELTA` copies of all
    operands, in chunks. A block of queries stores all its values with a query leg. Linear attention in chunks
    copies all operands, and computes a stretch of chunks at a time.
    """
    of_kernel = cost_of(step).scratch(scene, step, device)
    if of_kernel is not None:
        return of_kernel
    if erases(step):
        operands = sum(scene.elements(use) for use in step.uses)
        return DELTA * operands, 2 * DELTA * operands
    if scene.view(step):
        return 0, 0
    read = [scene.stored[use.name] for use in step.uses]
    chunked, largest = sum(min(elements, STRETCH) for elements in between(scene, step)), max(read, default=0)
    return sum(read) + chunked if chunked else largest, largest


def time_of_step(scene: SizedGraph, step: Step, target: Target) -> float:
    """The seconds of a step, or of a kernel that is not yet in the graph."""
    if target.device.measured:
        return seconds_of(scene, step, target.device.rates, target.backward)
    learned = target.backward and step.name in scene.learned
    flops, bytes_ = (AGAIN if step.kernel and cost_of(step).again else KEEPS) if learned else (1, 1)

    def seconds(scene: SizedGraph, step: Step) -> float:
        work = round(cost_of(step).filled(scene, step) * (2 * macs(scene, step) + elementwise(scene, step)))
        moves = target.device.width * (moved(scene, step) + cost_of(step).padding(scene, step))
        copied = target.device.width * cost_of(step).copied(scene, step)
        time = target.device.time(flops * work, bytes_ * moves) + target.device.time(0, bytes_ * copied)
        return target.device.seconds(time)

    if target.device.gpu and cost_of(step).stepwise:
        inner_scene, inner_steps = inside(scene, step)
        return sum(seconds(inner_scene, inner) for inner in inner_steps)
    return seconds(scene, step)


def scene_of(graph: Graph, sizes: Mapping[str, int], target: Target) -> SizedGraph:
    leg_sizes = {leg.name: leg.size for leg in graph.legs if leg.size is not None}
    leg_sizes |= {leg: size for leg, size in sizes.items() if leg != BATCH}
    return SizedGraph(graph, leg_sizes, target.batch, stepwise=target.device.gpu)
