"""The matrix products of a step by shape, and its exponentials: what a machine does at measured rates.

A product of two tensors is `batch` products of matrices, [rows, summed] times [summed, columns], rows >= columns:

    product that sums a leg      batch: legs of both factors and the result; rows, columns: legs of one factor
    fused attention              for each head, queries x keys of the width, and queries x width of the keys
    blocks of queries            the products inside, for one block
    other kernels, boxes         batch: heads; rows: positions; columns, summed: the larger and the smaller of the rest
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log, log2, prod

from tensornet_attn.cost.band import BUDGET, LEAST, Block, keys_met
from tensornet_attn.cost.kernels import WORK, inside
from tensornet_attn.cost.scene import Scene
from tensornet_attn.cost.work import products
from tensornet_attn.graph.model import Step
from tensornet_attn.graph.pairs import summed
from tensornet_attn.ops import OPS

NEAREST = 3  # measured shapes between which a rate is interpolated
WIDEST = 1024  # a side from which the rate no longer changes


@dataclass(frozen=True)
class Shape:
    """`batch` products of matrices, [rows, summed] times [summed, columns]."""

    batch: int
    rows: int
    columns: int
    summed: int

    @property
    def macs(self) -> int:
        return self.batch * self.rows * self.columns * self.summed

    @property
    def place(self) -> tuple[float, ...]:
        """Logarithms of what the rate depends on: the sides, of the transposed product too, and one or many."""
        small, large = sorted((self.rows, self.columns))
        sides = (log2(min(max(side, 1), WIDEST)) for side in (small, large, self.summed))
        return (2.0 * (self.batch > 1), *sides)


@dataclass(frozen=True)
class Measured:
    """The measured FLOPs per second of products of a shape."""

    shape: Shape
    flops: float


def rate_at(shape: Shape, measured: Sequence[Measured]) -> float:
    """FLOPs per second, interpolated between the most similar measured shapes: a mean of logarithms by distance.

    >>> square, narrow = Measured(Shape(1, 512, 512, 512), 8e10), Measured(Shape(1, 512, 512, 8), 2e10)
    >>> rate_at(Shape(1, 512, 512, 512), [square, narrow]), f"{rate_at(Shape(1, 512, 512, 64), [square, narrow]):.2g}"
    (80000000000.0, '4e+10')
    """
    place, found = shape.place, list[tuple[float, float]]()
    for one in measured:
        away = sum((a - b) ** 2 for a, b in zip(place, one.shape.place, strict=True))
        if away == 0:
            return one.flops
        found.append((away, one.flops))
    nearest = sorted(found)[:NEAREST]
    weights = [1 / away for away, _ in nearest]
    logarithm = sum(w * log(flops) for w, (_, flops) in zip(weights, nearest, strict=True)) / sum(weights)
    return exp(logarithm)


def shapes(scene: Scene, step: Step) -> list[tuple[Shape, tuple[str, ...], float]]:
    """The products of a step: one call's shape, its legs, and the multiply-adds over all calls and the whole batch.

    The legs say whether a product runs over pairs of positions, of which masks may hide some.
    """
    batch = scene.batch if step.name in scene.batched else 1
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
        return _inside(scene, step, step.form)
    if step.contraction is not None:
        return _product(scene, step)
    found = []
    for legs, count in products(scene, step).items():
        shape = _of_roles(scene, legs, batch)
        found.append((shape, legs, float(count * batch * scene.size(legs))))
    return found


def _product(scene: Scene, step: Step) -> list[tuple[Shape, tuple[str, ...], float]]:
    """The product of a primitive contraction of two factors."""
    op = step.contraction
    assert op is not None
    if len(op.uses) != 2 or len(op.terms) != 1 or not summed(step):
        return []
    (left, right), kept = op.uses, {*step.legs}
    both = {*left.legs} & {*right.legs}
    sides = [_size(scene, ({*use.legs} - both) & kept) for use in (left, right)]
    batch, inner = _size(scene, both & kept), _size(scene, {*left.legs, *right.legs} - kept)
    batched = [use.name in scene.batched for use in (left, right)]
    if all(batched):
        batch *= scene.batch
    elif any(batched):
        sides[batched.index(True)] *= scene.batch
    shape = Shape(batch, max(sides), min(sides), inner)
    return [(shape, tuple({*left.legs, *right.legs}), float(shape.macs))]


def _inside(scene: Scene, step: Step, form: Block) -> list[tuple[Shape, tuple[str, ...], float]]:
    """The products of one block of queries."""
    inner, parts = inside(scene, step)
    query, key = str(scene.graph.query), str(scene.graph.key)
    met = keys_met(scene, step)
    keys = scene.sizes[key] if met is None else met
    pairs = [own.legs for own in form.inside if {query, key} <= {*own.legs}]
    widest = max((_size(scene, {*legs} - {query, key}) for legs in pairs), default=1)
    batch = scene.batch if step.name in scene.batched else 1
    rows = max(LEAST, BUDGET // max(1, 4 * widest * keys * batch))
    rows = max(1, min(scene.sizes[query], rows))
    calls = scene.sizes[query] / rows
    block = replace(inner, sizes={**inner.sizes, query: rows, key: keys})
    found = []
    for part in parts:
        often = calls if query in {leg for use in part.op.uses for leg in use.legs} | {*part.legs} else 1
        found += [(shape, legs, often * macs) for shape, legs, macs in shapes(block, part)]
    return found


def _of_roles(scene: Scene, legs: Sequence[str], batch: int) -> Shape:
    """A shape for a product of which only the legs are known."""
    kinds = {leg.name: leg for leg in scene.graph.legs}
    heads = batch * _size(scene, (leg for leg in legs if leg in kinds and kinds[leg].kind == "head"))
    long = [leg for leg in legs if leg in kinds and kinds[leg].sequence]
    rest = sorted(
        scene.size((leg,)) for leg in legs if leg not in long and not (leg in kinds and kinds[leg].kind == "head")
    )
    rows = _size(scene, long)
    if not rest:
        return Shape(heads, rows, 1, 1)
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
        sums = step.kernel.kind in WORK and step.kernel.kind != "band"  # kernels that compute no pairs
        own = (part for part in parts if not (sums and pair <= {*part.legs}))
        return [one for part in own for one in exponentials(replace(inner, sizes=few), part)]
    if step.box is None:
        return []
    each = OPS[step.box.kind].exponentials(step.box)
    return [(of.legs, each * scene.elements(of)) for role, of in step.box.operands if each and role == "of"]
