"""The matrix products of a step by shape, and its exponentials: what a machine does at measured rates.

A product of two tensors is `batch` products of matrices, [rows, summed] times [summed, columns], rows >= columns:

    product that sums a leg      batch: legs of both factors and the result; rows, columns: legs of one factor
    fused attention              for each head, queries x keys of the width, and queries x width of the keys
    blocks of queries            the products inside, for one block
    pairs in chunks of a kernel  batch: heads and chunks; a chunk of positions, summed over a chunk, for the other legs
    other kernels, boxes         batch: heads; rows: positions; columns, summed: the larger and the smaller of the rest
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tensornet_attn.cost.kernels import cost_of
from tensornet_attn.cost.products import Matmul, Shape
from tensornet_attn.cost.scene import SizedGraph
from tensornet_attn.cost.work import products
from tensornet_attn.graph.alike import one_row
from tensornet_attn.graph.diagram import operation_of
from tensornet_attn.graph.graph import Step
from tensornet_attn.graph.pairs import summed
from tensornet_attn.graph.recurrence import Recurrence


def matmuls(scene: SizedGraph, step: Step) -> list[Matmul]:
    """The matrix products of a primitive step or kernel."""
    if step.name in one_row(scene.graph):
        scene = scene.at({scene.query: 1})
    products_of_kernel = cost_of(step).matmuls(scene, step)
    if products_of_kernel is not None:
        return products_of_kernel
    batch = scene.batch_of(step)
    if step.contraction is not None:
        return _product(scene, step)
    chunk, of_roles = cost_of(step).chunk(scene, step), list[Matmul]()
    for legs, count in products(scene, step).items():
        shape = _of_roles(scene, step, legs, batch, chunk if count >= chunk else 0)
        of_roles.append(Matmul(shape, legs, float(count * batch * scene.size(legs))))
    return of_roles


def _product(scene: SizedGraph, step: Step) -> list[Matmul]:
    """The product of a primitive contraction of two factors."""
    op = step.contraction
    assert op is not None
    if len(op.uses) != 2 or len(op.terms) != 1 or not summed(step):
        return []
    kept, alike = {*step.legs}, one_row(scene.graph)
    broadcast = [step.name not in alike and use.name in alike for use in op.uses]  # one row for the other's queries
    left, right = (
        {*use.legs} - ({scene.query} if shared else set()) for use, shared in zip(op.uses, broadcast, strict=True)
    )
    both = left & right
    sides = [scene.size((legs - both) & kept) for legs in (left, right)]
    batch, inner = scene.size(both & kept), scene.size((left | right) - kept)
    batched = [use.name in scene.batched for use in op.uses]
    if all(batched):
        batch *= scene.batch
    elif any(batched):
        sides[batched.index(True)] *= scene.batch
    shape = Shape(batch, max(sides), min(sides), inner)
    return [Matmul(shape, tuple(left | right), float(shape.macs))]


def _of_roles(scene: SizedGraph, step: Step, legs: Sequence[str], batch: int, chunk: int = 0) -> Shape:
    """A shape for a product of which only the legs are known. `chunk`: it runs over pairs of positions in chunks."""
    head_legs = {leg.name for leg in scene.graph.legs if leg.kind == "head"}
    if isinstance(step.form, Recurrence):  # features, and values that a core mixes, may be head legs
        head_legs = {*step.form.heads, *(step.form.mixed if step.form.mixes else ())}
    heads = batch * scene.size(leg for leg in legs if leg in head_legs)
    long = [leg for leg in legs if leg in scene.graph.leg and scene.graph.leg[leg].sequence]
    rest = sorted(scene.size((leg,)) for leg in legs if leg not in head_legs and leg not in long)
    rows = scene.size(long)
    if not rest:
        return Shape(heads, rows, 1, 1)
    if chunk:
        return Shape(heads * -(-rows // chunk), chunk, prod(rest), chunk)
    return Shape(heads, rows, rest[-1], prod(rest[:-1]))


def exponentials(scene: SizedGraph, step: Step) -> list[tuple[tuple[str, ...], int]]:
    """The exponentials, and similar functions, of a step in the forward, by the legs of what they are taken of."""
    if step.kernel is not None:
        kernel, pair = cost_of(step), {scene.graph.query, scene.graph.key}
        inner_steps, inner_scene = kernel.primitive_steps(scene, step), kernel.inside(scene, step)
        if (keys_met := kernel.keys_met(scene, step)) is not None:
            inner_scene = inner_scene.at({scene.key: keys_met})
        counted = [inner for inner in inner_steps if kernel.pairs or not pair <= {*inner.legs}]
        besides = kernel.exponentials(scene, step)
        of_parts = [count for inner in counted for count in exponentials(inner_scene, inner)]
        return [*of_parts, (step.legs, besides)] if besides else of_parts
    if step.box is None:
        return []
    count_each = operation_of(step).exponentials(step.box)
    return [(of.legs, count_each * scene.elements(of)) for role, of in step.box.operands if count_each and role == "of"]


def between(scene: SizedGraph, step: Step) -> list[int]:
    """The elements of tensors that a kernel in chunks writes and reads again: states, and scores inside the chunks."""
    kernel = cost_of(step)
    return [count for count in kernel.saved(scene, step).values() if count] if kernel.chunk(scene, step) else []
