"""A lower bound for a pass, from its plan: operations, bytes, and the time for them at the measured rates.

operations   2 per multiply-add of the plan; three times as many with a backward, because each product has two
             gradients. Recomputation in kernels, elementwise operations and pairs of positions that causal attention
             hides are not counted
exponentials of softmaxes and of maps that take as long, in the forward
bytes        inputs, weights and output once; with a backward, inputs and weights are read again, the gradient of the
             output is read, and the gradients of inputs and weights are written
floor        the longer of arithmetic and moving bytes: operations at the rate of products of their shape, plus
             exponentials at their rate; bytes at the rate of a copy

The module also predicts the memory of tensors over pairs of positions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from tensornet_attn import compiler
from tensornet_attn.bench.case import FORWARD, Case
from tensornet_attn.bench.machine import Rates
from tensornet_attn.cost.products import Shape
from tensornet_attn.cost.scene import SizedGraph
from tensornet_attn.cost.sizes import dtype_bytes, sizes_at
from tensornet_attn.cost.target import target_from
from tensornet_attn.cost.work import work_of
from tensornet_attn.graph import Graph
from tensornet_attn.graph.diagram import on_pairs
from tensornet_attn.graph.graph import Step
from tensornet_attn.graph.pairs import split_products

SAVED = 4  # copies of a pair tensor that autograd saves without fused operations
AT_ONCE = 3  # copies alive during a step: operand, masked operand, result


@dataclass(frozen=True)
class PassFloor:
    """FLOPs, bytes, exponentials, and their minimum seconds at the measured rates (None if rates were not measured)."""

    flops: int
    bytes: int
    floor: float | None = None
    exponentials: int = 0


def model_of(case: Case, kind: str, backend: str, rates: Rates | None) -> PassFloor:
    """The model of a pass in the plan of our backend."""
    plan = compiler.plan_of(case.graph, backend, target_from(**case.wanted(kind)))
    flops, moved = flops_of(plan.schedule, case, kind), bytes_of(case, kind)
    work, exps = shapes_of(plan.schedule, case, kind)
    return PassFloor(flops, moved, None if rates is None else rates.floor(flops, moved, work, exps), exps)


def scene_of(schedule: Graph, case: Case) -> SizedGraph:
    graph = split_products(schedule)
    return SizedGraph(graph, sizes_at(graph, case.lengths), case.batch)


def flops_of(schedule: Graph, case: Case, kind: str) -> int:
    """The FLOPs of the products of a schedule, over the whole batch."""
    scene, total = scene_of(schedule, case), 0
    for step in scene.graph.steps:
        batch = scene.batch_of(step)
        step_products = work_of(scene, step).products.items()
        pairs = sum(count * int(scene.size(legs) * visible_share(scene, legs)) for legs, count in step_products)
        total += 2 * _times(scene, step, kind) * batch * pairs
    return total


def shapes_of(schedule: Graph, case: Case, kind: str) -> tuple[list[tuple[Shape, float]], int]:
    """The FLOPs of a schedule by shape, and its exponentials, over the whole batch."""
    scene, work, exps = scene_of(schedule, case), list[tuple[Shape, float]](), 0
    for step in scene.graph.steps:
        step_work = work_of(scene, step).of_one_row
        work += [
            (shape, 2 * _times(scene, step, kind) * macs * float(visible_share(scene, legs)))
            for shape, legs, macs in step_work.matmuls
        ]
        exps += sum(int(count * visible_share(scene, legs)) for legs, count in step_work.exponentials)
    return work, exps


def _times(scene: SizedGraph, step: Step, kind: str) -> int:
    return 3 if kind != FORWARD and step.name in scene.learned else 1


def visible_share(scene: SizedGraph, legs: Iterable[str]) -> Fraction:
    """The share of pairs that causal attention shows, if these legs are of pairs; otherwise 1."""
    graph = scene.graph
    if not (graph.causal and on_pairs(graph, legs)):
        return Fraction(1)
    n = scene.sizes[graph.query]  # the number of keys is the same, because a case has one length
    return Fraction(n + 1, 2 * n)


def bytes_of(case: Case, kind: str) -> int:
    """The minimum of bytes that any implementation of the pass reads and writes."""
    graph = case.graph
    scene = SizedGraph(graph, sizes_at(graph, case.lengths), case.batch)
    inputs, weights = [x for x in graph.of_role("input") if x.default is None], graph.of_role("weight")
    learned = sum(scene.stored[x.name] for x in (*inputs, *weights) if not x.frozen)
    constant = sum(scene.stored[x.name] for x in weights if x.frozen)
    output = case.batch * scene.size(graph.legs_of(graph.output))
    numbers = learned + constant + output
    if kind != FORWARD:
        numbers += 2 * learned + constant + output
    return dtype_bytes(case.dtype) * numbers


def pair_elements(graph: Graph, lengths: dict[str, int]) -> list[int]:
    """The elements of each tensor with a query and a key leg, for one sequence.

    >>> from tensornet_attn import build, load
    >>> pair_elements(build(load("mhsa")), {"n": 4, "m": 4})  # A.of and A: 8 heads, 16 pairs
    [128, 128]
    """
    sizes, pair = sizes_at(graph, lengths), {graph.query, graph.key}
    return [prod(sizes[leg] for leg in step.legs) for step in graph.steps if pair <= set(step.legs)]


def pair_bytes(graph: Graph, case: Case, kept: bool) -> int:
    """The bytes of the pair tensors of a graph without fused steps; `kept` if all of them stay alive."""
    pair_sizes = pair_elements(graph, case.lengths)
    elements = AT_ONCE * max(pair_sizes, default=0) + (sum(pair_sizes) if kept else 0)
    return case.batch * dtype_bytes(case.dtype) * elements


def reference_bytes(case: Case) -> int:
    """The bytes of the comparison with the reference: one sequence, in float64, with all tensors alive."""
    return SAVED * dtype_bytes("float64") * sum(pair_elements(case.graph, case.lengths))
