"""Requirements on a plan: linear memory (no tensor with both a query and a key leg), and the requested backend."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tensornet_attn.cost.kernels import steps_of, traits_of
from tensornet_attn.errors import InputError
from tensornet_attn.graph.diagram import operation_of
from tensornet_attn.graph.graph import Graph, Step
from tensornet_attn.graph.pairs import split_products
from tensornet_attn.kernels import KERNELS
from tensornet_attn.plan.plan import Plan, Region
from tensornet_attn.tiles.legs import quadratic


def quadratic_parts(schedule: Graph, backward: bool) -> Iterator[tuple[str, str]]:
    """(name, description) of each tensor with both a query and a key leg that a schedule stores outside blocks."""
    graph = split_products(schedule)
    for step in graph.steps:
        if quadratic(graph, step.legs):
            yield step.name, f"a tensor [{' '.join(step.legs)}]"
        yield from ((steps_of(step)[-1], what) for what in traits_of(step).pairs_stored(graph, step, backward))


def against_linear(plan: Plan) -> str:
    """A violation of linear memory in a plan, one with rejected lowerings if there is one; empty if there is none."""
    regions = {region.name: region for region in plan.regions}
    stored = [(plan.region_of(step), what) for step, what in quadratic_parts(plan.schedule, plan.target.backward)]
    reasoned = {name for name, _ in stored if name in regions and regions[name].refused}
    for name, what in sorted(stored, key=lambda tensor: tensor[0] not in reasoned)[:1]:
        region = regions.get(name)
        against = [f"not {low.name}: {reason}" for low in (region.refused if region else ()) for reason in low.against]
        why = "; ".join(against) or (region.chosen if region else "no lowering fits")
        return f"region '{name}' creates {what}: {why}"
    return ""


def backend_of(step: Step, requested: str) -> str:
    """The backend that a step of the schedule runs on; inductor runs opaque kernels on torch."""
    kernel = KERNELS.get(step.kernel.kind) if step.kernel else None
    if requested == "triton":
        return (
            "triton"
            if operation_of(step).on_triton or (kernel is not None and kernel.on_triton(step.form))
            else "torch"
        )
    if requested == "cpp":
        return "cpp" if step.kernel is not None and step.kernel.cpp else "torch"
    return "torch" if requested == "inductor" and kernel is not None and kernel.opaque else requested


def strictly(name: str, regions: Iterable[Region], requested: str) -> None:
    """Raises InputError if a region runs on another backend than the requested one.

    With Triton or C++, plain products and boxes stay on torch: these have kernels for everything else.
    """
    kernels_only = requested in ("triton", "cpp")
    elsewhere = [region for region in regions if region.backend != requested and not (kernels_only and region.plain)]
    for region in sorted(elsewhere, key=lambda region: not region.refused)[:1]:  # one that says why, if any does
        raise InputError(
            f"{name}: strict, but region '{region.name}' runs on '{region.backend}' instead of '{requested}': "
            f"{region.chosen}. Use backend '{region.backend}', or omit strict."
        )
