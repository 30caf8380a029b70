"""Overlays that show the plan or the cost in a picture, by frame colours, wire widths and a legend."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log2

from tensornet_attn.cost.report import Cost
from tensornet_attn.draw.themes import REGIONS, SHARES
from tensornet_attn.graph.graph import Graph
from tensornet_attn.plan.plan import Plan, Region

BOUNDS = (0.01, 0.1, 0.3, 0.6)  # shares of the work between two fills


@dataclass(frozen=True)
class Overlay:
    """By step name, the fill and additional title lines of its frame; by leg name, the width of its wires."""

    fills: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    legend: tuple[tuple[str, str], ...] = ()  # words, fill
    widths: Mapping[str, float] = field(default_factory=dict)


NONE = Overlay()


def plan_overlay(plan: Plan) -> Overlay:
    """Colours the regions of a plan by implementation, with a legend."""
    region_of = {step.name: region for step in plan.graph.steps if (region := _region(plan, step.name)) is not None}
    implementations = list(dict.fromkeys(_way(region, plan.backend) for region in region_of.values()))
    fill = {implementation: REGIONS[index % len(REGIONS)] for index, implementation in enumerate(implementations)}
    fills = {step: fill[_way(region, plan.backend)] for step, region in region_of.items()}
    return Overlay(fills, legend=tuple((implementation, fill[implementation]) for implementation in implementations))


def _region(plan: Plan, step: str) -> Region | None:
    """The region that computes a step: if there are several, the last, which returns the result.

    A nested step without a region belongs to the region of its box.
    """
    named = [region for region in plan.regions if region.name == step]
    within = [region for region in plan.regions if step in region.steps]
    parts = [region for region in plan.regions if region.name.startswith(f"{step}.")]
    region = next(iter([*named, *within[-1:], *parts[-1:]]), None)
    outer = step.rpartition(".")[0]
    return _region(plan, outer) if region is None and outer else region


def _way(region: Region, backend: str) -> str:
    """The name of a region's implementation, without figures and reasons."""
    implementation = re.split("[:,;]", region.chosen)[0]
    return implementation if region.backend == backend else f"{implementation}, on {region.backend}"


def cost_overlay(graph: Graph, cost: Cost, sizes: Mapping[str, int]) -> Overlay:
    """Colours steps by their share of the work as written, and scales wires with leg sizes.

    Work is the FLOPs of products and elementwise operations. The work of steps without a frame counts for their box.
    """
    work: dict[str, int] = defaultdict(int)
    for row in cost.steps:
        work[_framed(graph, row.step)] += row.flops + row.elementwise
    total = sum(work.values()) or 1
    fills, words = {}, {}
    for step, step_work in work.items():
        fills[step] = SHARES[sum(step_work >= bound * total for bound in BOUNDS)]
        words[step] = (f"{100 * step_work / total:.1f} % of the work",)
    bounds = ["less than 1 %", "1 % or more", "10 % or more", "30 % or more", "60 % or more"]
    used = [(bound, fill) for bound, fill in zip(bounds, SHARES, strict=True) if fill in fills.values()]
    widths = {leg: 0.6 + 0.35 * log2(max(1, size)) for leg, size in sizes.items()}
    return Overlay(fills, words, tuple(used), widths)


def _framed(graph: Graph, name: str) -> str:
    """The step whose frame contains a step: itself, or the box that a step without a frame is nested in."""
    while name in graph.step and graph.step[name].nested and graph.step[name].box is None:
        name = next(step.name for step in graph.steps if any(use.name == name for use in step.uses))
    return name
