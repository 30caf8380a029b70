"""Linear attention on a CPU, one tile of positions at a time: features, products and row sums stay in the cache.

    S, z = sum over the keys of phi(k)^T [v, 1];    out = phi(q) S / (phi(q) z + eps), summed over kernels

The backward computes features again from what they are maps of, except for slow maps, whose features are saved.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tensornet_attn.constants import SLOW_MAPS
from tensornet_attn.runtime.maps import SLOPES
from tensornet_attn.runtime.operations import asks_gradients, is_plain, place_among, plain_gradients

LINEAR_TILE = 1 << 17  # elements of a tile per thread: the tensors of a tile fit into the L2 cache
LINEAR_LEAST = 1 << 17  # elements of values up to which plain operations are faster
SLOW = [getattr(torch, name) for name in SLOW_MAPS]
LINEAR_ROWS = 64  # rows of a tile, if there are as many: products of few rows are slow


class LinearKernel(NamedTuple):
    """A linear attention: q [..., n, d] and k [..., m, d], their maps, and what is added to row sums.

    A side may be a tuple of the arguments of its map; inside, it is a tuple of their places among the operands. A map
    None is none, and with eps None rows are not divided by their sums.
    """

    q: Any
    k: Any
    of_q: object = None
    of_k: object = None
    eps: float | None = None


def fills_tiles(x: Tensor) -> bool:
    """Whether there are enough elements for tiles; C++ takes any number."""
    return x.numel() > LINEAR_LEAST


def tiled_takes(seen: Tensor | None, *operands: Tensor, cpp=None) -> bool:
    """Whether `tiled_linear` takes these operands: of one dtype and batch, on a CPU, and nothing watches them.

    Without C++ the last operand has more than LINEAR_LEAST elements.
    """
    if torch.compiler.is_compiling():
        return False
    if not fills_tiles(operands[-1]) and (cpp is None or not cpp.takes(operands[-1])):
        return False
    first = operands[0]
    wide = first.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled("cpu")
    if first.device.type != "cpu" or not wide:
        return False
    if any(x.dtype != first.dtype or x.shape[:-2] != first.shape[:-2] or 0 in x.shape for x in operands):
        return False
    if seen is not None and torch.broadcast_shapes(seen.shape[:-2], first.shape[:-2]) != first.shape[:-2]:
        return False
    return is_plain((seen, *operands))


def tiled_linear(kernels: list[LinearKernel], seen: Tensor | None, batch: int, v: Tensor, cpp=None) -> Tensor:
    """The sum over kernels of what they read of v [..., m, e].

    `seen`: the visible keys, [..., m, 1]. `batch`: the number of dimensions before the heads. `cpp`: the C++ of the
    kernels, a `LinearCpp`, if there is one. With it, q and k may be tuples of arguments of their maps, with further
    dimensions behind.
    """
    lead = v.shape[:-2]
    seen = None if seen is None else heads_apart(seen.expand(*lead, *seen.shape[-2:]), batch)
    queries, keys = list[Tensor](), list[Tensor]()
    at_q = [tuple(place_among(queries, x) for x in inputs_of(kernel.q)) for kernel in kernels]
    at_k = [tuple(len(queries) + place_among(keys, x) for x in inputs_of(kernel.k)) for kernel in kernels]
    plan = tuple(kernel._replace(q=q, k=k) for kernel, q, k in zip(kernels, at_q, at_k, strict=True))
    operands = [heads_apart(x, batch, cpp, len(lead)) for x in (*queries, *keys, v)]
    if asks_gradients(*operands):
        out = TiledLinear.apply(plan, seen, cpp, *operands)
    else:
        out, _ = tiled_forward(plan, seen, cpp, operands)
    return out.view(*lead, *out.shape[-2:])


def inputs_of(side) -> tuple[Tensor, ...]:
    """The arguments of the map of a side."""
    return side if isinstance(side, tuple) else (side,)


def heads_apart(x: Tensor, batch: int, cpp=None, lead: int = -2) -> Tensor:
    """[batch..., heads..., rows, columns] as [batch, heads, rows, columns], as the C++ takes it if there is one."""
    first, rest = x.shape[:lead], x.shape[lead:]
    x = x.reshape(math.prod(first[:batch]), math.prod(first[batch:]), *rest)
    return x if cpp is None else cpp.laid(x)


class TiledLinear(torch.autograd.Function):
    """`tiled_forward` with a backward that computes features again."""

    @staticmethod
    def forward(ctx, kernels, seen, cpp, *operands):
        """Saves the operands; and of each kernel the state of a head, the reciprocals of row sums and slow features."""
        out, saved = tiled_forward(kernels, seen, cpp, operands, saves=True)
        ctx.kernels, ctx.count, ctx.cpp = kernels, len(operands), cpp
        ctx.save_for_backward(seen, *operands, *saved)
        return out

    @staticmethod
    def backward(ctx, g):
        """The gradients of the operands; plain operations if they are differentiated in turn, or batched."""
        seen, *rest = ctx.saved_tensors
        operands, saved, wanted = rest[: ctx.count], rest[ctx.count :], ctx.needs_input_grad[3:]
        several = any(
            len(side) > 1 or operands[side[0]].ndim > 4 for kernel in ctx.kernels for side in (kernel.q, kernel.k)
        )
        if torch.is_grad_enabled() or not is_plain((g,)) or (several and not ctx.cpp.takes(operands[-1])):
            gradients = plain_gradients(lambda *views: untiled_reads(ctx.kernels, seen, views), operands, wanted, g)
        else:
            gradients = tiled_backward(ctx.kernels, seen, ctx.cpp, g, operands, saved, wanted)
        return None, None, None, *gradients


def untiled_reads(kernels: tuple, seen: Tensor | None, operands) -> Tensor:
    """The same by operations that have all derivatives."""
    *sides, v = operands
    total = v.new_zeros(())
    for at_q, at_k, of_q, of_k, eps in kernels:
        q, k = (map_applied(of, *(sides[at] for at in places)) for of, places in ((of_q, at_q), (of_k, at_k)))
        k = k if seen is None else torch.where(seen, k, 0)
        read = q @ (k.mT @ v)
        total = total + (read if eps is None else read * row_shares(q @ k.sum(-2)[..., None], eps))
    return total


def row_shares(rows: Tensor, eps: float) -> Tensor:
    """1 / (row sums + eps); 0 if that is infinite, also in the gradient."""
    if torch.is_grad_enabled():
        return row_divisors(rows, eps).reciprocal()
    return (rows + eps if eps else rows).reciprocal().nan_to_num_(math.nan, 0, 0)


def row_divisors(rows: Tensor, eps: float) -> Tensor:
    """Row sums + eps; infinite where their reciprocal would be."""
    rows = rows + eps if eps else rows
    return rows.masked_fill(rows.detach().abs() <= 1 / torch.finfo(rows.dtype).max, math.inf)


def tiled_forward(kernels: tuple, seen: Tensor | None, cpp, operands, saves: bool = False) -> tuple[Tensor, list]:
    """The result, with the heads of a row side by side, and of each kernel S, z and 1 / (phi(q) z + eps); if `saves`,
    also phi(q) of each, then phi(k), where the map is slow, else None.
    """
    *sides, v = operands
    if cpp is not None and cpp.takes(v):
        queries, keys = side_inputs(kernels, sides)
        states, totals = cpp.sums(keys, v, seen)
        out, rows = cpp.reads(queries, states, totals, [kernel.eps for kernel in kernels])
        return out, [*states, *totals, *rows, *[None] * (2 * len(kernels))]
    (batch, heads, _, e), (at_q, at_k) = v.shape, tile_places(kernels)
    out = v.new_empty(batch, sides[at_q[0]].shape[2], heads, e).transpose(1, 2)
    widths = [sides[kernel.k[0]].shape[3] for kernel in kernels]
    states = [v.new_zeros(batch, heads, width, e) for width in widths]
    totals = [v.new_zeros(batch, heads, 1, width) for width in widths]
    rows = [v.new_empty(*out.shape[:-1], 1) for _ in kernels]
    saved_q = [feature_space(kernel.of_q, sides[kernel.q[0]]) if saves else None for kernel in kernels]
    saved_k = [feature_space(kernel.of_k, sides[kernel.k[0]]) if saves else None for kernel in kernels]
    for (v_tile, keep), ks, phis, Ss, zs in linear_tiles(
        v, ([v, seen], [sides[at] for at in at_k], saved_k), (states, totals)
    ):
        ks = heads_first(at_k, ks)
        for (_, (at,), _, key, eps), saved_phi, S, z in zip(kernels, phis, Ss, zs, strict=True):
            phi = tile_features(key, ks[at], keep, saved_phi)
            S.baddbmm_(phi.mT, v_tile)
            if eps is not None:
                z.add_(phi.sum(-2, keepdim=True))
    for (out_tile,), qs, phis, shares, Ss, zs in linear_tiles(
        out, ([out], [sides[at] for at in at_q], saved_q, rows), (states, totals)
    ):
        sums: dict[int, Tensor] = {}
        qs = heads_first(at_q, qs)
        for i, ((at,), _, query, _, eps) in enumerate(kernels):
            phi = tile_features(query, qs[at], None, phis[i])
            read = torch.bmm(phi, Ss[i])
            if eps is not None:
                phi = phi * zs[i] if query is None or phi is phis[i] else phi.mul_(zs[i])
                read.mul_(shares[i].copy_(row_shares(phi.sum(-1, keepdim=True), eps)))
            add_to(sums, 0, read)
        out_tile.copy_(sums[0])
    return out, [*states, *totals, *rows, *saved_q, *saved_k]


def tiled_backward(
    kernels: tuple, seen: Tensor | None, cpp, g: Tensor, operands, forward_saved, wanted
) -> list[Tensor | None]:
    """The gradients of the `wanted` operands."""
    *sides, v = operands
    states, totals, rows, saved_q, saved_k = (
        forward_saved[i : i + len(kernels)] for i in range(0, len(forward_saved), len(kernels))
    )
    if cpp is not None and cpp.takes(v):
        queries, keys = side_inputs(kernels, sides)
        d_queries, *d_sums = cpp.read_gradients(queries, g, states, totals, rows, [kernel.eps for kernel in kernels])
        gradients = [*d_queries, *cpp.sum_gradients(keys, v, seen, *d_sums)]
        return [x if is_wanted else None for x, is_wanted in zip(gradients, wanted, strict=True)]
    gradients = [laid_like(x) for x in operands]
    (at_q, at_k), of_v = tile_places(kernels), len(sides)
    d_states = [S.new_zeros(*S.shape[:-1], S.shape[-1] + 1) for S in states]  # and a column for z
    by_rows = ([g], *([x[at] for at in at_q] for x in (sides, gradients)), saved_q, rows)
    for (g_tile,), qs, to_q, phis, shares, Ss, zs, d_Ss in linear_tiles(g, by_rows, (states, totals, d_states)):
        sums: dict[int, Tensor] = {}
        qs = heads_first(at_q, qs)
        for i, ((at,), _, query, _, eps) in enumerate(kernels):
            phi, slope = tile_slope(query, qs[at], None, phis[i])
            if eps is None:
                d_phi = torch.bmm(g_tile, Ss[i].mT)
                d_Ss[i][..., :-1].baddbmm_(phi.mT, g_tile)
            else:
                wide = g_tile.new_empty(*g_tile.shape[:-1], g_tile.shape[-1] + 1)
                d_phi = torch.bmm(torch.mul(g_tile, shares[i], out=wide[..., :-1]), Ss[i].mT)
                row = torch.mul((phi * d_phi).sum(-1, keepdim=True), shares[i], out=wide[..., -1:])
                d_Ss[i].baddbmm_(phi.mT, wide)
                d_phi.addcmul_(row, zs[i], value=-1)
            add_to(sums, at, slope(d_phi))
        for at, gradient_tile in zip(at_q, to_q, strict=True):
            gradient_tile.copy_(sums[at])
    by_rows = ([v, gradients[of_v], seen], *([x[at] for at in at_k] for x in (sides, gradients)), saved_k)
    for (v_tile, to_v, keep), ks, to_k, phis, d_Ss in linear_tiles(v, by_rows, (d_states,)):
        ks, sums = heads_first(at_k, ks), {}
        for (_, (at,), _, key, eps), saved_phi, d_Sz in zip(kernels, phis, d_Ss, strict=True):
            (phi, slope), (d_S, d_z) = tile_slope(key, ks[at], keep, saved_phi), d_Sz.split([v.shape[-1], 1], -1)
            add_to(sums, of_v, torch.bmm(phi, d_S))
            d_phi = torch.bmm(v_tile, d_S.mT)
            add_to(sums, at, slope(d_phi if eps is None else d_phi.sub_(d_z.mT)))
        for at, gradient_tile in zip([*at_k, of_v], [*to_k, to_v], strict=True):
            gradient_tile.copy_(sums[at])
    return [x if is_wanted else None for x, is_wanted in zip(gradients, wanted, strict=True)]


def tile_places(kernels: tuple) -> list[list[int]]:
    """The places of all queries, and of all keys."""
    firsts = zip(*((kernel.q[0], kernel.k[0]) for kernel in kernels), strict=True)
    return [list(dict.fromkeys(places)) for places in firsts]


def heads_first(indices: list[int], tiles) -> dict[int, Tensor]:
    """By place, the part of a tile, head by head in memory: threads divide its elements as they divide products.

    Otherwise a thread reads what another has just computed.
    """
    return {index: tile.contiguous() for index, tile in zip(indices, tiles, strict=True)}


def add_to(sums: dict, index, x: Tensor) -> None:
    """Adds x to a sum, which may begin with it and be overwritten."""
    sums[index] = sums[index].add_(x) if index in sums else x


def feature_space(function, x: Tensor) -> Tensor | None:
    """Space for the features of x, if their map is slow."""
    return x.new_empty(x.shape) if function in SLOW else None


def side_inputs(kernels: tuple, sides) -> list[list[list[Tensor]]]:
    """The arguments of the maps of the queries, and those of the keys, by kernel."""
    by_side = [kernel.q for kernel in kernels], [kernel.k for kernel in kernels]
    return [[[sides[at] for at in places] for places in by_kernel] for by_kernel in by_side]


def linear_tiles(x: Tensor, by_rows: tuple, wholes: tuple):
    """For each tile of x [batch, heads, rows, columns] the parts [heads, rows, columns] of lists of tensors.

    `by_rows`: lists of tensors with these rows; `wholes`: lists of tensors that a tile has for all rows.
    """
    _, heads, rows, width = x.shape
    size = LINEAR_TILE * torch.get_num_threads() // width
    block = min(rows, max(LINEAR_ROWS, size // heads))
    tile_heads = max(1, min(heads, size // block))
    blocks = (rows + block - 1) // block
    tile_count = len(x) * ((heads + tile_heads - 1) // tile_heads) * blocks

    def tiles_of(tensors: list[Tensor | None], split: bool):
        by_tensor = [
            [None] * tile_count if tensor is None else tile_parts(tensor, tile_heads, block if split else 0, blocks)
            for tensor in tensors
        ]
        return zip(*by_tensor, strict=True)

    return zip(
        *(tiles_of(tensors, True) for tensors in by_rows),
        *(tiles_of(tensors, False) for tensors in wholes),
        strict=True,
    )


def tile_parts(x: Tensor, heads: int, block: int, blocks: int) -> list[Tensor]:
    """The parts of one tensor, tile by tile."""
    groups = [group for element in x.unbind() for group in element.split(heads)]
    if block:
        return [tile for group in groups for tile in group.split(block, 1)]
    return [group for group in groups for _ in range(blocks)]


def laid_like(x: Tensor) -> Tensor:
    """A new tensor [batch, heads, rows, columns] with the heads of a row side by side."""
    return x.new_empty(x.transpose(1, 2).shape).transpose(1, 2)


def tile_features(function, x: Tensor, keep: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """The features of a tile, 0 where hidden; `out` gets those of all."""
    phi = map_applied(function, x) if out is None else function(x, out=out)
    return phi if keep is None else torch.where(keep, phi, 0)


def map_applied(function, *inputs: Tensor) -> Tensor:
    """A map of its arguments; None: the only argument."""
    return inputs[0] if function is None else function(*inputs)


def tile_slope(function, x: Tensor, keep: Tensor | None = None, phi: Tensor | None = None):
    """The features of a tile, and a function that gives the gradient of x for that of the features, and overwrites it.

    `phi`: the features if they were saved, without `keep`.
    """
    map_gradient = SLOPES.get(function)
    if map_gradient is not None:
        if phi is None:
            phi = tile_features(function, x, keep)
        elif keep is not None:
            phi = torch.where(keep, phi, 0)
        return phi, lambda g: map_gradient(phi, g if keep is None else torch.where(keep, g, 0))
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        features = tile_features(function, x, keep)
    return features.detach(), lambda g: torch.autograd.grad(features, x, g)[0]
