"""Requirements on a plan: linear memory (no tensor with both a query and a key leg), and the requested backend."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tensornet_attn.errors import InputError
from tensornet_attn.graph.model import FusedAttention, Graph, Step
from tensornet_attn.graph.pairs import split_products
from tensornet_attn.graph.recurrence import CAUSAL, erases
from tensornet_attn.ir.arithmetic import evaluate
from tensornet_attn.kernels import KERNELS
from tensornet_attn.plan.model import Plan, Region
from tensornet_attn.tiles.legs import quadratic


def quadratic_parts(schedule: Graph, backward: bool) -> Iterator[tuple[str, str]]:
    """(name, description) of each tensor with both a query and a key leg that a schedule stores outside blocks."""
    graph = split_products(schedule)
    for step in graph.steps:
        if step.attention:
            yield from ((step.attention.steps[-1], what) for what in _in_attention(graph, step.attention, backward))
        elif quadratic(graph, step.legs):
            yield step.name, f"a tensor [{' '.join(step.legs)}]"


def _in_attention(graph: Graph, op: FusedAttention, backward: bool) -> Iterator[str]:
    """The tensors of queries x keys that fused attention still creates."""
    masks = (*op.masks, CAUSAL) if graph.causal and CAUSAL not in op.masks else op.masks
    if masks and (masks != (CAUSAL,) or op.beside):
        yield f"the mask [{graph.query} {op.leg}] of fused attention"
    if backward and evaluate(op.dropout, graph.values) != 0:
        yield "all scores, which PyTorch's fused attention needs for dropout on a CPU"


def against_linear(plan: Plan) -> str:
    """The first violation of linear memory in a plan, with the rejected lowerings; empty if there is none."""
    for part, what in quadratic_parts(plan.schedule, plan.target.backward):
        name = plan.region_of(part)
        region = next((region for region in plan.regions if region.name == name), None)
        against = [f"not {low.name}: {reason}" for low in (region.refused if region else ()) for reason in low.against]
        return (
            f"region '{name}' creates {what}: {'; '.join(against) or (region.chosen if region else 'no lowering fits')}"
        )
    return ""


def backend_of(step: Step, asked: str) -> str:
    """The backend that a step of the schedule runs on; inductor runs opaque kernels on torch."""
    own = KERNELS.get(step.kernel.kind) if step.kernel else None
    if asked == "triton":
        return "triton" if erases(step) or (own is not None and own.on_triton(step.form)) else "torch"
    if asked == "cpp":
        return "cpp" if step.kernel is not None and step.kernel.cpp else "torch"
    return "torch" if asked == "inductor" and own is not None and own.opaque else asked


def strictly(name: str, regions: Iterable[Region], asked: str) -> None:
    """Raises InputError if a region runs on another backend than the requested one.

    With Triton or C++, plain products and boxes stay on torch: these have kernels for everything else.
    """
    for region in regions:
        if region.backend != asked and not (asked in ("triton", "cpp") and region.plain):
            raise InputError(
                f"{name}: strict, but region '{region.name}' runs on '{region.backend}' instead of '{asked}': "
                f"{region.chosen}. Use backend '{region.backend}', or omit strict."
            )
