"""Where the programs of a region store results and gradients: by strides, in the memory order of their readers."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Stored:
    """A tensor [parts..., batch..., legs] that programs store. The first dimensions, `parts`, are added.

    `step`: the strides of batch, heads, parts and sides.
    """

    parts: tuple[int, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    step: tuple[int, ...]
    dtype: torch.dtype

    def room(self, like: Tensor, *lead: int, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor, not filled; `lead`: more dimensions before."""
        shape = (*lead, *self.parts, *self.shape)
        strides = (*dense((*lead, *self.parts), size=math.prod(self.shape)), *self.strides)
        return torch.empty_strided(shape, strides, dtype=dtype or self.dtype, device=like.device)

    def added(self, room: Tensor) -> Tensor:
        """The sum of the parts."""
        if not self.parts:
            return room
        total = torch.empty_strided(self.shape, self.strides, dtype=room.dtype, device=room.device)
        return torch.sum(room, [*range(len(self.parts))], out=total)


def dense(sizes, order=None, size: int = 1) -> tuple[int, ...]:
    """The strides of dimensions that lie in memory in this order, without gaps; `size`: elements of an entry."""
    strides = [0] * len(sizes)
    for dim in reversed(order or range(len(sizes))):
        strides[dim], size = size, size * sizes[dim]
    return tuple(strides)


def nested(sizes, strides) -> int | None:
    """The stride of several dimensions as one. Returns None if there is none; a single size is not compared with 1."""
    if len(sizes) == 1:
        return strides[0]
    pairs = [(size, step) for size, step in zip(sizes, strides, strict=True) if size != 1]
    if any(pairs[i - 1][1] != size * step for i, (size, step) in enumerate(pairs) if i):
        return None
    return pairs[-1][1] if pairs else 0


def steps_of(run, legs: list[str], shape, strides) -> tuple[int, ...] | None:
    """The strides of [batch..., legs] for kernels: batch, heads, and sides. None if batch or width has no stride."""
    lead, sides = len(run.batch), {*run.region.sides}
    first = next((i for i, leg in enumerate(legs) if leg in sides), len(legs)) + lead + 1  # after query or key
    groups = [
        (0, lead),
        *((i, i + 1) for i in range(lead, first)),
        *([(first, len(shape))] if first < len(shape) else []),
    ]
    steps = [step for i, j in groups if (step := nested(shape[i:j], strides[i:j])) is not None]
    return tuple(steps) if len(steps) == len(groups) else None


def stored_result(run) -> Stored:
    """The result: rows of queries with all heads are adjacent, as the product with the next weight reads them."""
    if "out" not in run.known:
        legs = run.region.result.split()
        shape, strides = result_layout(run)
        run.known["out"] = stored(run, "forward", legs, shape, strides, run.out_dtype)
    return run.known["out"]


def result_layout(run) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of the result, [batch..., heads..., n, width...]."""
    legs, lead = run.region.result.split(), len(run.batch)
    shape = (*run.batch, *run.whole(legs))
    query_dim = lead + legs.index(run.region.sides[0])
    has_width = query_dim + 1 < len(shape)  # otherwise a program stores single entries of a row
    order = [*range(lead), query_dim, *range(lead, query_dim), *range(query_dim + 1, len(shape))] if has_width else None
    return shape, dense(shape, order)


def stored(run, kind: str, legs: list[str], shape, strides, dtype: torch.dtype) -> Stored:
    """A tensor [batch..., legs] that a kernel stores; each program of a head that it lacks has a part."""
    heads = [leg for leg in run.region.heads if leg not in legs and leg not in run.region.whole]
    counts = run.programs_of(kind)
    parts = tuple(counts[leg] for leg in heads)
    steps = dense(parts, size=math.prod(shape))
    single = math.prod(parts) == 1
    side_steps, sides = steps_of(run, legs, shape, strides), {*run.region.sides, run.region.relative}
    assert side_steps is not None
    first = 1 + next(i for i, leg in enumerate(legs) if leg in sides)
    step = (*side_steps[:first], *((0,) * len(parts) if single else steps), *side_steps[first:])
    return Stored(() if single else parts, tuple(shape), tuple(strides), step, dtype)


def stored_gradient(run, kind: str, name: str, x: Tensor) -> Stored:
    """The gradient of an operand, in the memory order of the operand."""
    key = (name, "gradient")
    if key not in run.known:
        shape, strides = gradient_layout(run, name, x)
        store = stored(run, kind, run.region.operands[name].split(), shape, strides, x.dtype)
        same_layout = not store.parts and store.shape == tuple(x.shape)
        run.known[key] = store if same_layout else Stored(store.parts, store.shape, store.strides, store.step, run.sums)
    return run.known[key]


def gradient_layout(run, name: str, x: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of an operand's gradient before it is summed to the shape of the operand."""
    legs = run.region.operands[name].split()
    shape = (*run.batch, *run.whole(legs))
    if tuple(x.shape) == shape:
        strides = torch.empty_like(x).stride()
        if steps_of(run, legs, shape, strides) is not None:
            return shape, strides
    return shape, dense(shape)


def by_programs(run, x: Tensor, lead: int = 0, parts: tuple[int, ...] = ()) -> Tensor:
    """[lead..., parts..., batch..., legs] of the result as [lead..., batch, programs..., tiles..., n, width].

    Without parts, all programs of a head that the result lacks have the same.
    """
    region, legs = run.region, run.region.result.split()
    own_heads = [leg for leg in region.heads if leg in legs]
    lacking = [leg for leg in region.heads if leg not in own_heads]
    part_heads = [leg for leg in lacking if leg not in region.whole] if parts else []
    split = [size for leg in own_heads for size in (run.programs[leg], region.heads[leg])]
    sides = [
        run.lengths[region.sides[0]],
        *(size for axis, size in run.width.items() if region.widths[axis].split()[0] in legs),
    ]
    x = x.reshape(*x.shape[:lead], *parts, run.count, *split, *sides)
    first = lead + len(parts)
    dims = {leg: lead + i for i, leg in enumerate(part_heads)} | {
        leg: first + 1 + 2 * i for i, leg in enumerate(own_heads)
    }
    tiles = [first + 2 + 2 * i for i in range(len(own_heads))]
    order = [*range(lead), first, *(dims[leg] for leg in region.heads if leg in dims), *tiles]
    x = x.permute(*order, *range(first + 1 + 2 * len(own_heads), x.ndim))
    first_program = lead + 1
    for i, leg in enumerate(region.heads):
        x = x if leg in dims else x.unsqueeze(first_program + i)
    return x.expand(*x.shape[:first_program], *run.programs.values(), *x.shape[first_program + len(region.heads) :])


def from_programs(run, x: Tensor, lead: int = 0, parts: tuple[int, ...] = ()) -> Tensor:
    """The inverse of `joined`: [lead..., pairs, tiles, n, width], contiguous."""
    tiles = run.tiles(run.region.result.split())
    by_program = by_programs(run, x, lead, parts)
    sides = by_program.shape[by_program.ndim - (1 + (run.region.result.split()[-1] != run.region.sides[0])) :]
    return by_program.reshape(*by_program.shape[:lead], run.pairs, tiles, *sides).contiguous()
