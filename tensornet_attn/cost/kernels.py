"""Kernels, which the planner makes of several steps: what prices ask of a kind, and the steps inside.

Each kind of kernel has a file in `kernels/`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tensornet_attn.cost.scene import SizedGraph
from tensornet_attn.graph.graph import Graph, Step

Parts = dict[str, float]  # seconds, by what is measured together


class KernelTraits:
    """What a kind of kernel is, for prices, plans and emitted code.

    `pairs`: it computes values of queries x keys. `native`: by C++ of its own, which may take memory for what it saves.
    `stepwise`: a GPU launches the steps inside one by one. `by_steps`: it costs what the steps inside do.
    `again`: its backward computes it again.
    """

    kind = ""
    pairs = True
    native = False
    stepwise = False
    by_steps = False
    again = True

    def pairs_stored(self, graph: Graph, step: Step, backward: bool) -> Iterator[str]:
        """The tensors of queries x keys that it stores besides its result, in words."""
        yield from ()

    def replaced(self, step: Step) -> tuple[str, ...]:
        """The steps of the diagram that it computes, the one that names it last: those inside, then its own."""
        return tuple(dict.fromkeys((*(name for inner in body_of(step) for name in steps_of(inner)), step.name)))


KERNELS: dict[str, Any] = {}  # the implementations by kind: the files of `kernels/` add themselves


def traits_of(step: Step) -> KernelTraits:
    """The traits of the kind of a kernel; the defaults for other steps."""
    traits: KernelTraits = ANY if step.kernel is None else KERNELS[step.kernel.kind]
    return traits


ANY = KernelTraits()


def body_of(step: Step) -> tuple[Step, ...]:
    """The steps inside a kernel; none inside another step."""
    return step.kernel.body if step.kernel is not None else ()


def steps_of(step: Step) -> tuple[str, ...]:
    """The steps of the diagram that a step computes, the one that names it last."""
    return traits_of(step).replaced(step)


def unfolded(graph: Graph) -> Graph:
    """The graph with each kernel replaced by the steps inside it, and by those of kernels there."""
    return replace(graph, steps=tuple(dict.fromkeys(inner for step in graph.steps for inner in deep_inside(step))))


def deep_inside(step: Step) -> Iterator[Step]:
    """The steps inside a kernel, and inside kernels there; another step itself."""
    if step.kernel is None:
        yield step
    for inner in body_of(step):
        yield from deep_inside(inner)


def inside(scene: SizedGraph, step: Step) -> tuple[SizedGraph, list[Step]]:
    """The scene with the steps of each kernel in its place, and the primitive steps of one kernel."""
    assert step.kernel is not None
    inner_scene, owners = scene.expanded
    names = step.kernel.steps
    return inner_scene, [inner for inner in inner_scene.graph.steps if owners[inner.name] in names]
