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
        found = torch.empty_strided(self.shape, self.strides, dtype=room.dtype, device=room.device)
        return torch.sum(room, [*range(len(self.parts))], out=found)


def dense(sizes, order=None, size: int = 1) -> tuple[int, ...]:
    """The strides of dimensions that lie in memory in this order, without gaps; `size`: elements of an entry."""
    found = [0] * len(sizes)
    for dim in reversed(order or range(len(sizes))):
        found[dim], size = size, size * sizes[dim]
    return tuple(found)


def nested(sizes, strides) -> int | None:
    """The stride of several dimensions as one. Returns None if there is none; a single size is not compared with 1."""
    if len(sizes) == 1:
        return strides[0]
    some = [(size, step) for size, step in zip(sizes, strides, strict=True) if size != 1]
    if any(some[i - 1][1] != size * step for i, (size, step) in enumerate(some) if i):
        return None
    return some[-1][1] if some else 0


def steps_of(run, legs: list[str], shape, strides) -> tuple[int, ...] | None:
    """The strides of [batch..., legs] for kernels: batch, heads, and sides. None if batch or width has no stride."""
    lead, sides = len(run.batch), {*run.region.sides}
    first = next((i for i, leg in enumerate(legs) if leg in sides), len(legs)) + lead + 1  # after query or key
    groups = [
        (0, lead),
        *((i, i + 1) for i in range(lead, first)),
        *([(first, len(shape))] if first < len(shape) else []),
    ]
    found = [step for i, j in groups if (step := nested(shape[i:j], strides[i:j])) is not None]
    return tuple(found) if len(found) == len(groups) else None


def stored_result(run) -> Stored:
    """The result: rows of queries with all heads are adjacent, as the product with the next weight reads them."""
    if "out" not in run.known:
        legs = run.region.result.split()
        shape, strides = result_layout(run)
        run.known["out"] = stored(run, "forward", legs, shape, strides, run.dtype)
    return run.known["out"]


def result_layout(run) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of the result, [batch..., heads..., n, width...]."""
    legs, lead = run.region.result.split(), len(run.batch)
    shape = (*run.batch, *run.whole(legs))
    at = lead + legs.index(run.region.sides[0])
    wide = at + 1 < len(shape)  # otherwise a program stores single entries of a row
    order = [*range(lead), at, *range(lead, at), *range(at + 1, len(shape))] if wide else None
    return shape, dense(shape, order)


def stored(run, kind: str, legs: list[str], shape, strides, dtype: torch.dtype) -> Stored:
    """A tensor [batch..., legs] that a kernel stores; each program of a head that it lacks has a part."""
    heads = [leg for leg in run.region.heads if leg not in legs and leg not in run.region.whole]
    counts = run.programs_of(kind)
    parts = tuple(counts[leg] for leg in heads)
    steps = dense(parts, size=math.prod(shape))
    single = math.prod(parts) == 1
    own, sides = steps_of(run, legs, shape, strides), {*run.region.sides, run.region.relative}
    assert own is not None
    first = 1 + next(i for i, leg in enumerate(legs) if leg in sides)
    step = (*own[:first], *((0,) * len(parts) if single else steps), *own[first:])
    return Stored(() if single else parts, tuple(shape), tuple(strides), step, dtype)


def stored_gradient(run, kind: str, name: str, x: Tensor) -> Stored:
    """The gradient of an operand, in the memory order of the operand."""
    key = (name, "gradient")
    if key not in run.known:
        shape, strides = gradient_layout(run, name, x)
        found = stored(run, kind, run.region.operands[name].split(), shape, strides, x.dtype)
        whole = not found.parts and found.shape == tuple(x.shape)
        run.known[key] = found if whole else Stored(found.parts, found.shape, found.strides, found.step, run.sums)
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
    own = [leg for leg in region.heads if leg in legs]
    lacking = [leg for leg in region.heads if leg not in own]
    parted = [leg for leg in lacking if leg not in region.whole] if parts else []
    split = [size for leg in own for size in (run.programs[leg], region.heads[leg])]
    sides = [
        run.lengths[region.sides[0]],
        *(size for axis, size in run.width.items() if region.widths[axis].split()[0] in legs),
    ]
    x = x.reshape(*x.shape[:lead], *parts, run.count, *split, *sides)
    first = lead + len(parts)
    place = {leg: lead + i for i, leg in enumerate(parted)} | {leg: first + 1 + 2 * i for i, leg in enumerate(own)}
    tiles = [first + 2 + 2 * i for i in range(len(own))]
    order = [*range(lead), first, *(place[leg] for leg in region.heads if leg in place), *tiles]
    x = x.permute(*order, *range(first + 1 + 2 * len(own), x.ndim))
    at = lead + 1
    for i, leg in enumerate(region.heads):
        x = x if leg in place else x.unsqueeze(at + i)
    return x.expand(*x.shape[:at], *run.programs.values(), *x.shape[at + len(region.heads) :])


def from_programs(run, x: Tensor, lead: int = 0, parts: tuple[int, ...] = ()) -> Tensor:
    """The inverse of `joined`: [lead..., pairs, tiles, n, width], contiguous."""
    tiles = run.tiles(run.region.result.split())
    found = by_programs(run, x, lead, parts)
    sides = found.shape[found.ndim - (1 + (run.region.result.split()[-1] != run.region.sides[0])) :]
    return found.reshape(*found.shape[:lead], run.pairs, tiles, *sides).contiguous()
