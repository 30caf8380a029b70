"""The costs of kernels, which the planner makes of several steps: by default those of the steps inside, stored as one.

Each kind of kernel has a file in `kernels/`, whose class says what differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from tensornet_attn.cost.devices import Device
from tensornet_attn.cost.products import Matmul
from tensornet_attn.cost.rates import RateTable
from tensornet_attn.cost.scene import SizedGraph
from tensornet_attn.graph.graph import Graph, Step
from tensornet_attn.ir.values import Legs

Parts = dict[str, float]  # seconds, by what is measured together


class KernelCost:
    """The costs of one kind of kernel. A method that returns None leaves the answer to the steps inside.

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

    def macs(self, scene: SizedGraph, step: Step) -> Mapping[Legs, int] | None:
        """MACs of one batch element, by the legs they run over."""
        return None

    def elementwise(self, scene: SizedGraph, step: Step) -> int | None:
        """Elementwise operations over the whole batch."""
        return None

    def exponentials(self, scene: SizedGraph, step: Step) -> int:
        """Exponentials over the whole batch besides those of the steps inside."""
        return 0

    def kept(self, scene: SizedGraph, step: Step) -> dict[str, int] | None:
        """Floats of operands and result saved for backward, by their memory; None: of all, as they are."""
        return None

    def saved(self, scene: SizedGraph, step: Step) -> dict[str, int]:
        """Floats saved for backward besides operands and result, by name."""
        return {}

    def chunk(self, scene: SizedGraph, step: Step) -> int:
        """Keys in a chunk; 0 if it is not computed in chunks."""
        return 0

    def keys_met(self, scene: SizedGraph, step: Step) -> int | None:
        """The keys that each query meets, if blocks beyond its bands are skipped; None if it meets all keys."""
        return None

    def programs_alike(self, scene: SizedGraph, step: Step, legs: Legs) -> int:
        """The programs that compute the same: what runs along these legs, but not along all that programs split."""
        return 1

    def inside(self, scene: SizedGraph, step: Step) -> SizedGraph:
        """The scene of the steps inside, in primitive steps."""
        return inside(scene, step)[0]

    def primitive_steps(self, scene: SizedGraph, step: Step) -> list[Step]:
        """The primitive steps inside that it computes."""
        return inside(scene, step)[1]

    def matmuls(self, scene: SizedGraph, step: Step) -> list[Matmul] | None:
        """The matrix products by shape; None: by the roles of the legs of its MACs."""
        return None

    def seconds(self, scene: SizedGraph, step: Step, table: RateTable, backward: bool) -> Parts | None:
        """The seconds at the rates of a table, by kind of part; None: products, exponentials, passes and calls."""
        return None

    def padding(self, scene: SizedGraph, step: Step) -> int:
        """Elements moved besides operands and result, for operands that it pads."""
        return 0

    def copied(self, scene: SizedGraph, step: Step) -> int:
        """Elements moved in passes of their own, before and after its products."""
        return 0

    def filled(self, scene: SizedGraph, step: Step) -> float:
        """How many times its own rows it computes, to fill blocks."""
        return 1

    def pairs_stored(self, graph: Graph, step: Step, backward: bool) -> Iterator[str]:
        """The tensors of queries x keys that it stores besides its result, in words."""
        yield from ()

    def replaced(self, step: Step) -> tuple[str, ...]:
        """The steps of the diagram that it computes, the one that names it last: those inside, then its own."""
        return tuple(dict.fromkeys((*(name for inner in body_of(step) for name in steps_of(inner)), step.name)))

    def scratch(self, scene: SizedGraph, step: Step, device: Device) -> tuple[int, int] | None:
        """Elements of temporary memory, forward and backward; None: by the size of the operands."""
        return None


KERNELS: dict[str, Any] = {}  # the implementations by kind: the files of `kernels/` add themselves


def cost_of(step: Step) -> KernelCost:
    """The costs of the kind of a kernel; its defaults for steps that are no kernels, and kinds without a file."""
    cost: KernelCost = KERNELS.get(step.kernel.kind, ANY) if step.kernel is not None else ANY
    return cost


ANY = KernelCost()


def body_of(step: Step) -> tuple[Step, ...]:
    """The steps inside a kernel; none inside another step."""
    return step.kernel.body if step.kernel is not None else ()


def steps_of(step: Step) -> tuple[str, ...]:
    """The steps of the diagram that a step computes, the one that names it last."""
    return cost_of(step).replaced(step)


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
