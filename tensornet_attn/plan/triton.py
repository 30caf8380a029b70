"""Regions of queries x keys as Triton kernels: the regions, the reasons against others, the orders of products.

# A.of = Q K;  A = softmax over m of A.of;  y.p1 = A V;  y = y.p1 Wo     ->     y.p1 = tiles(Q, K, V);  y = y.p1 Wo
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from math import prod

from tensornet_attn.cost.band import Block
from tensornet_attn.cost.devices import DEVICES
from tensornet_attn.graph.model import Graph, Step
from tensornet_attn.graph.pairs import BATCH, Legs, Path, split_products
from tensornet_attn.plan.blocks import Group, groups_of, steps_with
from tensornet_attn.plan.implementation import Context, Implementation, Lowered
from tensornet_attn.plan.order import order, split_best
from tensornet_attn.tiles.build import tile_program
from tensornet_attn.tiles.derive import gradients
from tensornet_attn.tiles.model import Node, Program, Unfit, below


class Tiles(Implementation[Group]):
    """Groups of steps with values of queries x keys that a tile program can compute, on the triton backend."""

    name, kind, opaque = "Triton kernels", "tiles", True

    def fit(self, graph: Graph, step: Step) -> Program:
        """The program of a kernel. Raises Unfit."""
        program = tile_program(graph, step)
        if running := next((node for node in below([program.exit.maps]) if node.op == "running"), None):
            raise Unfit(f"Triton kernels have no sums that run along keys, as '{running.name}' does")
        gradients(program)
        return program

    def as_kernel(self, step: Step) -> Step:
        """A kernel of blocks of queries as one of this kind."""
        assert step.kernel is not None
        assert isinstance(step.form, Block)
        return replace(step, op=replace(step.kernel, kind=self.kind, form=replace(step.form, tiled=True)))

    def lowered(self, graph: Graph, context: Context) -> Lowered:
        sizes = context.sizes
        orders = [split_products(graph, partial(_weights_first, graph), sizes)]
        orders += [split_best(graph, sizes, priced)[0] for priced in (DEVICES["flops"], context.device)]
        chosen, refused, made, removed = dict[str, str](), dict[str, tuple[str, ...]](), dict[str, Step](), set[str]()
        best = min(orders, key=lambda split: self.work(split, sizes))
        for group in groups_of(best, sizes):
            (reasons, _), kernels = self.judged(group, context), group.kernels
            found = {step.name: reasons[0] if reasons else self.reason(group, step) for step in kernels}
            against = {name: reason for name, reason in found.items() if reason}
            none = len(against) == len(kernels)
            for step in kernels:
                if reason := against.get(step.name):
                    named = (*(group.steps if none else ()), step.name)
                    refused |= {name: (reason,) for name in named if _own(best, name, group.steps)}
            if none:
                continue
            removed |= group.steps | group.spread
            made |= {step.name: step if step.name in against else self.as_kernel(step) for step in group.kernels}
            chosen |= {name: f"blockwise, some queries at a time: {reason}" for name, reason in against.items()}
            fine = [step for step in group.kernels if step.name not in against]
            chosen |= {step.name: self.describe(best, step, context) for step in fine}
        return Lowered(replace(graph, steps=tuple(steps_with(graph, best, made, removed))), chosen, refused)

    def on_triton(self, form: object) -> bool:
        return True

    def reason(self, group: Group, step: Step) -> str | None:
        """Why a kernel of a group cannot be of this kind; None if it can."""
        if group.reason:
            return group.reason
        try:
            self.fit(group.graph, step)
        except Unfit as error:
            return str(error)
        return None

    def work(self, graph: Graph, sizes: Mapping[str, int]) -> float:
        """MACs per query-key pair over all programs; infinite if a group has no tile program."""
        total = 0.0
        for group in groups_of(graph, sizes):
            for step in group.kernels:
                try:
                    program = self.fit(graph, step)
                except Unfit:
                    return float("inf")
                total += _programs(graph, program) * sum(_macs(graph, program, node) for node in _forward(program))
        return total

    def describe(self, graph: Graph, step: Step, context: Context) -> str:
        program = self.fit(graph, step)
        beside = " x ".join(f"{tiles} {leg}" for leg, tiles in program.heads.items() if tiles > 1)
        tiles = f", {beside} tiles per program" if beside else ""
        return f"{self.name}{tiles}: no tensor of {program.query} x {program.key} elements"


TRITON = Tiles()


def _weights_first(graph: Graph, factors: Sequence[Legs], result: Legs, sizes: Mapping[str, int]) -> Path:
    """The best order after weights have been multiplied with each other, so that a kernel reads two cores as one."""
    waiting, pairs = list(factors), list[tuple[int, int]]()
    outside = {BATCH, *(leg.name for leg in graph.legs if leg.sequence or leg.kind == "relative")}
    while len(waiting) > 2 and (pair := _sharing(waiting, outside)):
        both = [waiting.pop(i) for i in reversed(pair)]
        needed = {*result, *(leg for legs in waiting for leg in legs)}
        waiting.append(tuple(leg for leg in dict.fromkeys(both[1] + both[0]) if leg in needed))
        pairs.append(pair)
    places = sorted(range(len(waiting)), key=lambda i: not outside & {*waiting[i]})  # of equal orders, weights last
    path = order([waiting[i] for i in places], result, sizes, DEVICES["flops"]).path
    return [*pairs, *_permuted(path, places)]


def _permuted(path: Path, places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """A path for factors in another order: factor i of the path is at places[i]."""
    own, found = [*places], [*range(len(places))]
    for number, (i, j) in enumerate(path, len(places)):
        pair = own[i], own[j]
        own = [one for one in own if one not in pair] + [number]
        yield min(map(found.index, pair)), max(map(found.index, pair))
        found = [one for one in found if one not in pair] + [number]


def _sharing(factors: Sequence[Legs], outside: set[str]) -> tuple[int, int] | None:
    """Two factors that share a leg and have no leg in `outside`."""
    inner = [i for i, legs in enumerate(factors) if not outside & {*legs}]
    return next(((i, j) for i, j in combinations(inner, 2) if {*factors[i]} & {*factors[j]}), None)


def _own(graph: Graph, name: str, group: Container[str]) -> bool:
    """Whether a step is a step of the diagram or an exit of the group."""
    return name not in group or not graph.step[name].nested


def _forward(program: Program) -> list[Node]:
    return [node for node in below([program.exit.maps]) if node.axes == (program.query, program.key)]


def _macs(graph: Graph, program: Program, node: Node) -> int:
    """MACs of all tiles of a node; an elementwise operation counts as one per element."""
    summed = node.data[0] if node.op == "dot" else ""
    terms = program.nodes.sizes[node.data[0]] if node.op == "over" else 1
    return program.tiles(node.heads) * terms * prod(graph.leg[leg].size or 1 for leg in program.widths.get(summed, ()))


def _programs(graph: Graph, program: Program) -> int:
    """The number of programs per block: one for each combination of heads that are not tiled inside a program."""
    return prod((graph.leg[leg].size or 1) // tiles for leg, tiles in program.heads.items())
