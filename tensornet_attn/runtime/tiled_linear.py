"""Linear attention on a CPU, one tile of positions at a time: features, products and row sums stay in the cache.

    S, z = sum over the keys of phi(k)^T [v, 1];    out = phi(q) S / (phi(q) z + eps), summed over kernels

A kernel is (map of the query, map of the key, eps); with eps None, rows are not divided by their sums. The backward
computes the features again, from what they are maps of.
"""

import math

import torch
from torch import Tensor

from tensornet_attn.runtime.maps import SLOPES

TILE = 1 << 17  # elements of a tile per thread: the tensors of a tile fit into the L2 cache
LEAST = 64  # rows of a tile, if there are as many: products of few rows are slow


def tiled_takes(seen: Tensor | None, *given: Tensor) -> bool:
    """Whether `tiled_linear` takes these operands: of one dtype and batch, on a CPU, not traced or transformed."""
    first = given[0]
    wide = first.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled("cpu")
    if torch.compiler.is_compiling() or first.device.type != "cpu" or not wide:
        return False
    if any(x.dtype != first.dtype or x.shape[:-2] != first.shape[:-2] or 0 in x.shape for x in given):
        return False
    if seen is not None and torch.broadcast_shapes(seen.shape[:-2], first.shape[:-2]) != first.shape[:-2]:
        return False
    return torch._C._functorch.peek_interpreter_stack() is None and torch.autograd.forward_ad._current_level < 0


def tiled_linear(kernels: tuple, seen: Tensor | None, batch: int, sides: list[Tensor], v: Tensor) -> Tensor:
    """The sum over kernels of what they read; `sides`: q [..., n, d] and k [..., m, d] of each; v [..., m, e].

    `seen`: the visible keys, [..., m, 1]. `batch`: the number of dimensions before the heads.
    """
    lead = v.shape[:-2]
    seen = None if seen is None else in_four(seen.expand(*lead, *seen.shape[-2:]), batch)
    given = [in_four(x, batch) for x in (*sides, v)]
    if torch.is_grad_enabled() and any(x.requires_grad for x in given):
        found = TiledLinear.apply(kernels, seen, *given)
    else:
        found, _ = tiled_forward(kernels, seen, given)
    return found.view(*lead, *found.shape[-2:])


def in_four(x: Tensor, batch: int) -> Tensor:
    """[batch..., heads..., rows, columns] as [batch, heads, rows, columns]."""
    lead = x.shape[:-2]
    return x.reshape(math.prod(lead[:batch]), math.prod(lead[batch:]), *x.shape[-2:])


class TiledLinear(torch.autograd.Function):
    """`tiled_forward` with a backward that computes features again."""

    @staticmethod
    def forward(ctx, kernels, seen, *given):
        """Saves the operands; and of each kernel the state of a head and the reciprocals of row sums."""
        found, kept = tiled_forward(kernels, seen, given)
        ctx.kernels = kernels
        ctx.save_for_backward(seen, *given, *kept)
        return found

    @staticmethod
    def backward(ctx, g):
        """The gradients of the operands; plain operations if they are differentiated in turn."""
        seen, *rest = ctx.saved_tensors
        count = 2 * len(ctx.kernels) + 1
        given, kept, wanted = rest[:count], rest[count:], ctx.needs_input_grad[2:]
        if torch.is_grad_enabled():
            asked = [x for x, need in zip(given, wanted, strict=True) if need]
            found = iter(torch.autograd.grad(plain_reads(ctx.kernels, seen, given), asked, g, create_graph=True))
            return None, None, *(next(found) if need else None for need in wanted)
        return None, None, *tiled_backward(ctx.kernels, seen, g, given, kept, wanted)


def plain_reads(kernels: tuple, seen: Tensor | None, given: list[Tensor]) -> Tensor:
    """The same by operations that have all derivatives."""
    *sides, v = given
    total = 0
    for (query, key, eps), q, k in zip(kernels, sides[::2], sides[1::2], strict=True):
        q, k = query(q), key(k)
        k = k if seen is None else torch.where(seen, k, 0)
        found = q @ (k.mT @ v)
        total = total + (found if eps is None else found * shares(q @ k.sum(-2)[..., None], eps))
    return total


def shares(rows: Tensor, eps: float) -> Tensor:
    """1 / (row sums + eps); 0 if that is infinite, also in the gradient."""
    return (rows + eps if eps else rows).reciprocal().nan_to_num(math.nan, 0, 0)


def tiled_forward(kernels: tuple, seen: Tensor | None, given) -> tuple[Tensor, list[Tensor]]:
    """The result, with the heads of a row side by side, and of each kernel S, z and 1 / (phi(q) z + eps)."""
    *sides, v = given
    (batch, heads, _, e), n = v.shape, sides[0].shape[2]
    out = v.new_empty(batch, n, heads, e).transpose(1, 2)
    states = [v.new_zeros(batch, heads, k.shape[3], e) for k in sides[1::2]]
    totals = [v.new_zeros(batch, heads, 1, k.shape[3]) for k in sides[1::2]]
    rows = [v.new_empty(batch, heads, n, 1) for _ in kernels]
    tiles = Tiles(v)
    for i, (_, key, eps) in enumerate(kernels):
        for k, own, keep, S, z in tiles((sides[2 * i + 1], v, seen), (states[i], totals[i])):
            phi = features(key, k, keep)
            S.baddbmm_(phi.mT, own)
            if eps is not None:
                z.add_(phi.sum(-2, keepdim=True))
    tiles = Tiles(out)
    every = zip(sides[::2], rows, states, totals, strict=True)
    every = [tiles((out, q, row), whole) for q, row, *whole in every]
    for parts in zip(*every, strict=True):
        for i, ((query, _, eps), (total, q, row, S, z)) in enumerate(zip(kernels, parts, strict=True)):
            phi = features(query, q)
            read, share = torch.bmm(phi, S), 1
            if eps is not None:
                share = row.copy_(shares(phi.mul_(z).sum(-1, keepdim=True), eps))
            torch.mul(read, share, out=total) if i == 0 else total.add_(read.mul_(share))
    return out, [*states, *totals, *rows]


def tiled_backward(kernels: tuple, seen: Tensor | None, g: Tensor, given, kept, wanted) -> list[Tensor | None]:
    """The gradients of the `wanted` operands."""
    *sides, v = given
    states, totals, rows = (kept[i : i + len(kernels)] for i in range(0, len(kept), len(kernels)))
    found = [x.new_empty(x.transpose(1, 2).shape).transpose(1, 2) for x in given]
    d_states = [S.new_zeros(*S.shape[:-1], S.shape[-1] + 1) for S in states]  # and a column for z
    tiles, wide = Tiles(g), None
    for i, (query, _, eps) in enumerate(kernels):
        of_rows = (g, sides[2 * i], found[2 * i], rows[i])
        for own, q, d_q, share, S, z, d_S in tiles(of_rows, (states[i], totals[i], d_states[i])):
            phi, slope = learned(query, q)
            if eps is None:
                slope(torch.bmm(own, S.mT), d_q)
                d_S[..., :-1].baddbmm_(phi.mT, own)
                continue
            wide = own.new_empty(*own.shape[:-1], own.shape[-1] + 1)
            own, row = torch.mul(own, share, out=wide[..., :-1]), wide[..., -1:]
            d_phi = torch.bmm(own, S.mT)
            torch.mul((phi * d_phi).sum(-1, keepdim=True), share, out=row)
            d_S.baddbmm_(phi.mT, wide)
            slope(d_phi.addcmul_(row, z, value=-1), d_q)
    tiles = Tiles(v)
    every = zip(sides[1::2], found[1:-1:2], d_states, strict=True)
    every = [tiles((v, found[-1], seen, k, d_k), (d_S,)) for k, d_k, d_S in every]
    for parts in zip(*every, strict=True):
        for i, ((_, key, eps), (own, d_v, keep, k, d_k, d_S)) in enumerate(zip(kernels, parts, strict=True)):
            (phi, slope), d_z, d_S = learned(key, k, keep), d_S[..., -1:].mT, d_S[..., :-1]
            read = torch.bmm(phi, d_S)
            d_v.add_(read) if i else d_v.copy_(read)
            d_phi = torch.bmm(own, d_S.mT)
            slope(d_phi if eps is None else d_phi.sub_(d_z), d_k)
    return [x if need else None for x, need in zip(found, wanted, strict=True)]


class Tiles:
    """The tiles of tensors [batch, heads, rows, columns] with as many rows as x."""

    def __init__(self, x: Tensor):
        self.batch, heads, rows, width = x.shape
        size = TILE * torch.get_num_threads() // width
        self.block = min(rows, max(LEAST, size // heads))
        self.heads = max(1, min(heads, size // self.block))
        self.groups, self.blocks = -(-heads // self.heads), -(-rows // self.block)

    def __call__(self, rows: tuple, wholes: tuple = ()) -> list[tuple]:
        """For each tile the parts [heads, rows, columns] of `rows`, and those of `wholes` for all rows."""
        parts = [self.of(x, self.block) for x in rows] + [self.of(x, 0) for x in wholes]
        return list(zip(*parts, strict=True))

    def of(self, x: Tensor | None, block: int) -> list[Tensor | None]:
        """The parts of one tensor."""
        if x is None:
            return [None] * (self.batch * self.groups * self.blocks)
        groups = [group for element in x.unbind() for group in element.split(self.heads)]
        if not block:
            return [group for group in groups for _ in range(self.blocks)]
        return [part for group in groups for part in group.split(block, 1)]


def features(function, x: Tensor, keep: Tensor | None = None) -> Tensor:
    """The features of a tile, 0 where hidden; a tensor of their own."""
    phi = x.clone() if function is None else function(x)
    return phi if keep is None else torch.where(keep, phi, 0)


def learned(function, x: Tensor, keep: Tensor | None = None):
    """The features of a tile, and a function that writes the gradient of x, for that of the features."""
    slope = SLOPES.get(function)
    if slope is not None:
        phi = features(function, x, keep)
        return phi, lambda g, out: slope(phi, g if keep is None else torch.where(keep, g, 0), out)
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        phi = features(function, x, keep)
    return phi.detach(), lambda g, out: out.copy_(torch.autograd.grad(phi, x, g)[0])
