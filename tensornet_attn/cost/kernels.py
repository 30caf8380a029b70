"""Costs of kernels, which the planner makes of several steps: by default the costs of these steps, stored as one.

A kind of kernel that does less work, or saves more, has an entry in `WORK` or `SAVED_BY_KERNELS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tensornet_attn.cost.band import band_kept, band_work
from tensornet_attn.cost.experts import chosen_of, experts_kept, experts_of, experts_work
from tensornet_attn.cost.linear import (
    decays,
    linear_chunk,
    linear_kept,
    linear_work,
    sums_elementwise,
    sums_kept,
    sums_work,
)
from tensornet_attn.cost.scene import Scene
from tensornet_attn.cost.states import states_chunked, states_elementwise, states_kept, states_work
from tensornet_attn.graph.model import Graph, Step
from tensornet_attn.graph.pairs import split_products

Work = Callable[[Scene, Step], "dict[tuple[str, ...], int]"]
Saved = Callable[[Scene, Step], "dict[str, int]"]
WORK: dict[str, Work] = {
    "band": band_work,
    "experts": experts_work,
    "linear": linear_work,
    "states": states_work,
    "sums": sums_work,
}  # MACs of one batch element, by the legs they run over
WITHOUT_PAIRS = {*WORK} - {"band"}  # kernels that compute no values of queries x keys
SAVED_BY_KERNELS: dict[str, Saved] = {
    "band": band_kept,
    "experts": experts_kept,
    "linear": linear_kept,
    "states": states_kept,
    "sums": sums_kept,
}  # floats saved for backward besides operands and result, by name

ELEMENTWISE: dict[str, Callable[[Scene, Step], int]] = {
    "states": states_elementwise,
    "sums": sums_elementwise,
}  # elementwise operations over the whole batch
CHUNKED: dict[str, Callable[[Scene, Step], int]] = {
    "linear": linear_chunk,
    "states": states_chunked,
}  # keys in a chunk of a causal kernel, 0 if it has none

DECAYS: dict[str, Callable[[Scene, Step], list[int]]] = {
    "linear": decays,
}  # decay factors inside the chunks of a causal kernel, by term


def unfolded(graph: Graph) -> Graph:
    """The graph with each kernel replaced by the steps inside it."""
    steps = [part for step in graph.steps for part in (step.kernel.body if step.kernel else (step,))]
    return replace(graph, steps=tuple(dict.fromkeys(steps)))


def inside(scene: Scene, step: Step) -> tuple[Scene, list[Step]]:
    """The scene of the unfolded graph in primitive steps, and the primitive steps of one kernel."""
    assert step.kernel is not None
    whole = unfolded(scene.graph)
    inner = replace(scene, graph=split_products(whole))
    names = step.kernel.steps
    owners = [(part, part.name if part.name in whole.step else _owner(part.name)) for part in inner.graph.steps]
    return inner, [part for part, owner in owners if owner in names]


def inside_chosen(scene: Scene, step: Step) -> Scene:
    """The scene inside a kernel of grouped experts, which have only the chosen ones."""
    form = experts_of(step)
    count = int(scene.number(chosen_of(form.topk)[1]))
    inner, _ = inside(scene, step)
    return replace(inner, sizes={**inner.sizes, **{one.expert: count for one in form.products}})


def _owner(name: str) -> str:
    """The step that a product was split from."""
    head, _, tail = name.rpartition(".")
    return head if tail[:1] == "p" and tail[1:].isdigit() else name
