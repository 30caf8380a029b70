"""The matrix products of a step by shape, and its exponentials: what a machine does at measured rates.

A product of two tensors is `batch` products of matrices, [rows, summed] times [summed, columns], rows >= columns:

    product that sums a leg      batch: legs of both factors and the result; rows, columns: legs of one factor
    fused attention              for each head, queries x keys of the width, and queries x width of the keys
    blocks of queries            the products inside, for one block
    pairs in chunks of a kernel  batch: heads and chunks; a chunk of positions, summed over a chunk, for the other legs
    other kernels, boxes         batch: heads; rows: positions; columns, summed: the larger and the smaller of the rest
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod

from tensornet_attn.cost.band import BUDGET, IN_BAND, LEAST, Band, Block, in_spans, keys_met
from tensornet_attn.cost.experts import Experts
from tensornet_attn.cost.kernels import CHUNKED, DECAYS, SAVED_BY_KERNELS, WITHOUT_PAIRS, inside, inside_chosen
from tensornet_attn.cost.products import Shape
from tensornet_attn.cost.scene import Scene
from tensornet_attn.cost.work import products
from tensornet_attn.graph.alike import one_row
from tensornet_attn.graph.model import Step
from tensornet_attn.graph.pairs import summed
from tensornet_attn.graph.recurrence import Recurrence
from tensornet_attn.ops import OPS


def shapes(scene: Scene, step: Step) -> list[tuple[Shape, tuple[str, ...], float]]:
    """The products of a step: one call's shape, its legs, and the multiply-adds over all calls and the whole batch.

    The legs say whether a product runs over pairs of positions, of which masks may hide some.
    """
    batch = scene.batch if step.name in scene.batched else 1
    if isinstance(step.form, Band):
        spans, row = in_spans(scene, step), str(scene.graph.query)
        share = scene.batch * scene.sizes[row] / (spans.batch * spans.sizes[row])  # without rows that pad a block
        blocks = shapes(spans, replace(step, op=step.form.attention))
        return [(shape, legs, share * macs) for shape, legs, macs in blocks]
    if isinstance(step.form, Experts):
        return _of_experts(scene, step, step.form, batch)
    if step.attention is not None:
        op = step.attention
        heads = batch * scene.size({*op.scores} - {scene.graph.query, op.leg})
        query, keys = scene.size({*op.scores} & {str(scene.graph.query)}), scene.size((op.leg,))
        width = scene.size({*op.query.legs} & {*op.key.legs} - {*op.scores})
        value = scene.size({*op.value.legs} - {*op.scores})
        legs = tuple(op.scores)
        made = (Shape(heads, query, keys, width), Shape(heads, query, value, keys))
        return [(shape, legs, float(shape.macs)) for shape in made]
    if isinstance(step.form, Block):
        return _inside(scene, step)
    if step.contraction is not None:
        return _product(scene, step)
    found, chunk = [], chunk_in(scene, step)
    for legs, count in products(scene, step).items():
        shape = _of_roles(scene, step, legs, batch, chunk if count >= chunk else 0)
        found.append((shape, legs, float(count * batch * scene.size(legs))))
    return found


def _product(scene: Scene, step: Step) -> list[tuple[Shape, tuple[str, ...], float]]:
    """The product of a primitive contraction of two factors."""
    op = step.contraction
    assert op is not None
    if len(op.uses) != 2 or len(op.terms) != 1 or not summed(step):
        return []
    kept, alike = {*step.legs}, one_row(scene.graph)
    broadcast = [step.name not in alike and use.name in alike for use in op.uses]  # one row for the other's queries
    left, right = (
        {*use.legs} - ({str(scene.graph.query)} if one else set()) for use, one in zip(op.uses, broadcast, strict=True)
    )
    both = left & right
    sides = [_size(scene, (legs - both) & kept) for legs in (left, right)]
    batch, inner = _size(scene, both & kept), _size(scene, (left | right) - kept)
    batched = [use.name in scene.batched for use in op.uses]
    if all(batched):
        batch *= scene.batch
    elif any(batched):
        sides[batched.index(True)] *= scene.batch
    shape = Shape(batch, max(sides), min(sides), inner)
    return [(shape, tuple(left | right), float(shape.macs))]


def _inside(scene: Scene, step: Step) -> list[tuple[Shape, tuple[str, ...], float]]:
    """The products of one block of queries, and their multiply-adds in all blocks."""
    block, parts = block_of(scene, step)
    return [(shape, legs, often * macs) for part, often in parts for shape, legs, macs in shapes(block, part)]


def block_of(scene: Scene, step: Step) -> tuple[Scene, list[tuple[Step, float]]]:
    """One block of a kernel of blocks of queries: its scene, and the steps inside with the number of times they run."""
    form = step.form
    assert isinstance(form, Block)
    inner, parts = inside(scene, step)
    query, key = str(scene.graph.query), str(scene.graph.key)
    met = keys_met(scene, step)
    keys = scene.sizes[key] if met is None else met
    pairs = [own.legs for own in form.inside if {query, key} <= {*own.legs}]
    widest = max((_size(scene, {*legs} - {query, key}) for legs in pairs), default=1)
    batch = scene.batch if step.name in scene.batched else 1
    rows = max(LEAST, BUDGET // max(1, 4 * widest * keys * batch))
    rows = rows if form.tiled or met is None else min(rows, IN_BAND)
    rows = max(1, min(scene.sizes[query], rows))
    calls = scene.sizes[query] / rows
    block = that_sees(replace(inner, sizes={**inner.sizes, query: rows}), keys)
    rowwise = [query in {leg for use in part.op.uses for leg in use.legs} | {*part.legs} for part in parts]
    return block, [(part, calls if own else 1.0) for part, own in zip(parts, rowwise, strict=True)]


def that_sees(block: Scene, keys: int) -> Scene:
    """A block of queries that sees so many keys, at as few relative positions."""
    graph, rows = block.graph, block.sizes[str(block.graph.query)]
    relative = [leg.name for leg in graph.legs if leg.kind == "relative" and leg.size is None]
    return replace(block, sizes={**block.sizes, str(graph.key): keys, **dict.fromkeys(relative, rows + keys - 1)})


def _of_experts(scene: Scene, step: Step, form: Experts, batch: int) -> list[tuple[Shape, tuple[str, ...], float]]:
    """The products of chosen experts, of the rows that one of them has on average; attention of chosen heads."""
    few, found = inside_chosen(scene, step), []
    for one in form.products:
        result = (*one.tokens, *one.heads, one.expert, *one.own)
        experts, summed, own = (_size(scene, legs) for legs in ((*one.heads, one.expert), one.summed, one.own))
        rows = batch * _size(scene if one.at_once else few, result) // own
        shape = Shape(1, max(1, rows // experts), own, summed)
        found.append((shape, (*result, *one.summed), float(rows * own * (summed + one.gated))))
    attended = (part for part in step.kernel.body if part.attention) if step.kernel else ()
    return found + [one for part in attended for one in shapes(few, part)]


def _of_roles(scene: Scene, step: Step, legs: Sequence[str], batch: int, chunk: int = 0) -> Shape:
    """A shape for a product of which only the legs are known. `chunk`: it runs over pairs of positions in chunks."""
    known = {leg.name: leg for leg in scene.graph.legs}
    own = {leg.name for leg in scene.graph.legs if leg.kind == "head"}
    if isinstance(step.form, Recurrence):  # features, and values that a core mixes, may be head legs
        own = {*step.form.heads, *(step.form.mixed if step.form.mixes else ())}
    heads = batch * _size(scene, (leg for leg in legs if leg in own))
    long = [leg for leg in legs if leg in known and known[leg].sequence]
    rest = sorted(scene.size((leg,)) for leg in legs if leg not in own and leg not in long)
    rows = _size(scene, long)
    if not rest:
        return Shape(heads, rows, 1, 1)
    if chunk:
        return Shape(heads * -(-rows // chunk), chunk, prod(rest), chunk)
    return Shape(heads, rows, rest[-1], prod(rest[:-1]))


def _size(scene: Scene, legs: Iterable[str]) -> int:
    return scene.size(tuple(legs))


def exponentials(scene: Scene, step: Step) -> list[tuple[tuple[str, ...], int]]:
    """The exponentials, and similar functions, of a step in the forward, by the legs of what they are taken of."""
    batch = scene.batch if step.name in scene.batched else 1
    if step.attention is not None:
        return [(step.attention.scores, batch * scene.size(step.attention.scores))]
    if step.kernel is not None:
        inner, parts = inside(scene, step)
        met, pair = keys_met(scene, step), {scene.graph.query, scene.graph.key}
        few: Mapping[str, int] = inner.sizes if met is None else {**inner.sizes, str(scene.graph.key): met}
        few = inside_chosen(scene, step).sizes if isinstance(step.form, Experts) else few
        sums = step.kernel.kind in WITHOUT_PAIRS
        own = (part for part in parts if not (sums and pair <= {*part.legs}))
        found = [one for part in own for one in exponentials(replace(inner, sizes=few), part)]
        counted = DECAYS.get(step.kernel.kind)
        factors = sum(counted(scene, step)) if counted else 0
        return [*found, (step.legs, factors)] if factors else found
    if step.box is None:
        return []
    each = OPS[step.box.kind].exponentials(step.box)
    return [(of.legs, each * scene.elements(of)) for role, of in step.box.operands if each and role == "of"]


def chunk_in(scene: Scene, step: Step) -> int:
    """The keys in a chunk of a step, 0 if it is not computed in chunks."""
    found = CHUNKED.get(step.kernel.kind) if step.kernel is not None else None
    return 0 if found is None else found(scene, step)


def between(scene: Scene, step: Step) -> list[int]:
    """The elements of tensors that a kernel in chunks writes and reads again: states, and scores inside the chunks."""
    own = SAVED_BY_KERNELS[step.kernel.kind](scene, step) if step.kernel and chunk_in(scene, step) else {}
    return [count for count in own.values() if count]
