"""The two halves of `tiled_linear` for states that are mixed in between, on a CPU, one tile of positions at a time.

    S, z = sum over the keys of phi(k)^T [v, 1];    out = phi(q) S, rows = phi(q) z

The results have the heads of a position side by side. The backward computes the features again.
"""

import functools

import torch
from torch import Tensor

from tensornet_attn.runtime.operations import asks_gradients, is_plain, plain_gradients
from tensornet_attn.runtime.tiled_linear import heads_apart, laid_like, linear_tiles, tile_features, tile_slope


def tiled_states(way: tuple, k: Tensor, v: Tensor, seen: Tensor | None) -> tuple[Tensor, Tensor]:
    """The sums [..., g, d, e] and [..., g, d, 1] over the keys of features of k [..., g, m, d], with v [..., g, m, e].

    `way`: the map of the features, and a `LinearCpp`, if there is one. `seen`: the visible keys, [..., 1, m, 1].
    """
    lead = v.shape[:-2]
    seen = None if seen is None else heads_apart(seen.expand(*lead, *seen.shape[-2:]), len(lead) - 1)
    given = [heads_apart(x, len(lead) - 1, way[1]) for x in (k, v)]
    call = TiledStates.apply if asks_gradients(*given) else tiled_sums
    S, z = call(way, seen, *given)
    return S.view(*lead, *S.shape[-2:]), z.mT.view(*lead, z.shape[-1], 1)


def tiled_reads(way: tuple, q: Tensor, S: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """What features of q [..., h, n, d] read of states [..., h, d, e] and [..., h, d, 1]."""
    lead = q.shape[:-2]
    given = [heads_apart(x.expand(*lead, *x.shape[-2:]), len(lead) - 1, way[1]) for x in (q, S, z.mT)]
    call = TiledReads.apply if asks_gradients(*given) else reads_of_tiles
    found, rows = call(way, *given)
    return found.view(*lead, *found.shape[-2:]), rows.view(*lead, *rows.shape[-2:])


def tiled_sums(way: tuple, seen: Tensor | None, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """S [batch, heads, d, e] and z [batch, heads, 1, d]."""
    function, cpp = way
    if cpp is not None and cpp.takes(v):
        (S,), (z,) = cpp.sums([[k]], v, seen)
        return S, z
    S, z = v.new_zeros(*k.shape[:2], k.shape[3], v.shape[3]), v.new_zeros(*k.shape[:2], 1, k.shape[3])
    for (own_k, own_v, keep), (own_S, own_z) in linear_tiles(v, ([k, v, seen],), ([S, z],)):
        phi = tile_features(function, own_k.contiguous(), keep)
        own_S.baddbmm_(phi.mT, own_v)
        own_z.add_(phi.sum(-2, keepdim=True))
    return S, z


def reads_of_tiles(way: tuple, q: Tensor, S: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """phi(q) S [batch, heads, n, e] and phi(q) z [batch, heads, n, 1]."""
    function, cpp = way
    if cpp is not None and cpp.takes(q):
        found, (rows,) = cpp.reads([[q]], [S], [z], [])
        return found, rows
    found = q.new_empty(q.shape[0], q.shape[2], q.shape[1], S.shape[3]).transpose(1, 2)
    rows = q.new_empty(q.shape[0], q.shape[2], q.shape[1], 1).transpose(1, 2)
    for (own, to, row), (own_S, own_z) in linear_tiles(found, ([q, found, rows],), ([S, z],)):
        phi = tile_features(function, own.contiguous())
        to.copy_(torch.bmm(phi, own_S))
        row.copy_((phi * own_z).sum(-1, keepdim=True))
    return found, rows


class TiledStates(torch.autograd.Function):
    """`tiled_sums` with a backward in tiles."""

    @staticmethod
    def forward(ctx, way, seen, k, v):
        """Saves the operands."""
        ctx.way = way
        ctx.save_for_backward(seen, k, v)
        return tiled_sums(way, seen, k, v)

    @staticmethod
    def backward(ctx, d_S, d_z):
        """The gradients of keys and values; of plain operations if they are differentiated in turn, or batched."""
        seen, k, v = ctx.saved_tensors
        function, cpp = ctx.way
        if torch.is_grad_enabled() or not is_plain((d_S, d_z)):
            plain, wanted = functools.partial(plain_sums, function, seen), ctx.needs_input_grad[2:]
            return None, None, *plain_gradients(plain, (k, v), wanted, d_S, d_z)
        if cpp is not None and cpp.takes(v):
            return None, None, *cpp.sum_gradients([[k]], v, seen, [d_S.contiguous()], [d_z.contiguous()])
        d_k, d_v = laid_like(k), laid_like(v)
        tiles = linear_tiles(v, ([k, v, seen, d_k, d_v],), ([d_S.contiguous(), d_z.contiguous()],))
        for (own_k, own_v, keep, to_k, to_v), (own_S, own_z) in tiles:
            phi, slope = tile_slope(function, own_k.contiguous(), keep)
            to_v.copy_(torch.bmm(phi, own_S))
            to_k.copy_(slope(torch.bmm(own_v, own_S.mT).add_(own_z)))
        return None, None, d_k, d_v


class TiledReads(torch.autograd.Function):
    """`reads_of_tiles` with a backward in tiles."""

    @staticmethod
    def forward(ctx, way, q, S, z):
        """Saves the operands."""
        ctx.way = way
        ctx.save_for_backward(q, S, z)
        return reads_of_tiles(way, q, S, z)

    @staticmethod
    def backward(ctx, g, g_rows):
        """The gradients of queries and states; of plain operations if differentiated in turn, or batched."""
        q, S, z = ctx.saved_tensors
        function, cpp = ctx.way
        if torch.is_grad_enabled() or not is_plain((g, g_rows)):
            plain, wanted = functools.partial(plain_reads, function), ctx.needs_input_grad[1:]
            return None, *plain_gradients(plain, (q, S, z), wanted, g, g_rows)
        if cpp is not None and cpp.takes(q):
            (d_q,), (d_S,), (d_z,) = cpp.read_gradients([[q]], g, [S], [z], [g_rows.contiguous()], [])
            return None, d_q, d_S, d_z
        d_q = laid_like(q)
        d_S, d_z = torch.zeros_like(S), torch.zeros_like(z)
        for (own, own_g, row, to), (own_S, own_z, to_S, to_z) in linear_tiles(
            g, ([q, g, g_rows, d_q],), ([S, z, d_S, d_z],)
        ):
            phi, slope = tile_slope(function, own.contiguous())
            to_S.baddbmm_(phi.mT, own_g)
            to_z.baddbmm_(row.mT, phi)
            to.copy_(slope(torch.bmm(own_g, own_S.mT).addcmul_(row, own_z)))
        return None, d_q, d_S, d_z


def plain_sums(function, seen: Tensor | None, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """`tiled_sums` by operations that have all derivatives."""
    phi = tile_features(function, k, seen)
    return phi.mT @ v, phi.sum(-2, keepdim=True)


def plain_reads(function, q: Tensor, S: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """`reads_of_tiles` by operations that have all derivatives."""
    phi = tile_features(function, q)
    return phi @ S, phi @ z.mT
