"""The two halves of `tiled_linear` for states that are mixed in between, on a CPU, one tile of positions at a time.

    S, z = sum over the keys of phi(k)^T [v, 1];    out = phi(q) S, rows = phi(q) z

The results have the heads of a position side by side. The backward computes the features again.
"""

import functools

import torch
from torch import Tensor

from tensornet_attn.runtime.operations import asks_gradients, is_plain, plain_gradients
from tensornet_attn.runtime.tiled_linear import heads_apart, laid_like, linear_tiles, tile_features, tile_slope


def tiled_states(feature_map: tuple, k: Tensor, v: Tensor, seen: Tensor | None) -> tuple[Tensor, Tensor]:
    """The sums [..., g, d, e] and [..., g, d, 1] over the keys of features of k [..., g, m, d], with v [..., g, m, e].

    `feature_map`: the map, and a `LinearCpp`, if there is one. `seen`: the visible keys, [..., 1, m, 1].
    """
    lead = v.shape[:-2]
    seen = None if seen is None else heads_apart(seen.expand(*lead, *seen.shape[-2:]), len(lead) - 1)
    operands = [heads_apart(x, len(lead) - 1, feature_map[1]) for x in (k, v)]
    call = TiledStates.apply if asks_gradients(*operands) else tiled_sums
    S, z = call(feature_map, seen, *operands)
    return S.view(*lead, *S.shape[-2:]), z.mT.view(*lead, z.shape[-1], 1)


def tiled_reads(feature_map: tuple, q: Tensor, S: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """What features of q [..., h, n, d] read of states [..., h, d, e] and [..., h, d, 1]."""
    lead = q.shape[:-2]
    operands = [heads_apart(x.expand(*lead, *x.shape[-2:]), len(lead) - 1, feature_map[1]) for x in (q, S, z.mT)]
    call = TiledReads.apply if asks_gradients(*operands) else reads_of_tiles
    out, rows = call(feature_map, *operands)
    return out.view(*lead, *out.shape[-2:]), rows.view(*lead, *rows.shape[-2:])


def tiled_sums(feature_map: tuple, seen: Tensor | None, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """S [batch, heads, d, e] and z [batch, heads, 1, d]."""
    function, cpp = feature_map
    if cpp is not None and cpp.takes(v):
        (S,), (z,) = cpp.sums([[k]], v, seen)
        return S, z
    S, z = v.new_zeros(*k.shape[:2], k.shape[3], v.shape[3]), v.new_zeros(*k.shape[:2], 1, k.shape[3])
    for (k_tile, v_tile, keep), (S_tile, z_tile) in linear_tiles(v, ([k, v, seen],), ([S, z],)):
        phi = tile_features(function, k_tile.contiguous(), keep)
        S_tile.baddbmm_(phi.mT, v_tile)
        z_tile.add_(phi.sum(-2, keepdim=True))
    return S, z


def reads_of_tiles(feature_map: tuple, q: Tensor, S: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """phi(q) S [batch, heads, n, e] and phi(q) z [batch, heads, n, 1]."""
    function, cpp = feature_map
    if cpp is not None and cpp.takes(q):
        out, (rows,) = cpp.reads([[q]], [S], [z], [])
        return out, rows
    out = q.new_empty(q.shape[0], q.shape[2], q.shape[1], S.shape[3]).transpose(1, 2)
    rows = q.new_empty(q.shape[0], q.shape[2], q.shape[1], 1).transpose(1, 2)
    for (q_tile, out_tile, row_tile), (S_tile, z_tile) in linear_tiles(out, ([q, out, rows],), ([S, z],)):
        phi = tile_features(function, q_tile.contiguous())
        out_tile.copy_(torch.bmm(phi, S_tile))
        row_tile.copy_((phi * z_tile).sum(-1, keepdim=True))
    return out, rows


class TiledStates(torch.autograd.Function):
    """`tiled_sums` with a backward in tiles."""

    @staticmethod
    def forward(ctx, feature_map, seen, k, v):
        """Saves the operands."""
        ctx.way = feature_map
        ctx.save_for_backward(seen, k, v)
        return tiled_sums(feature_map, seen, k, v)

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
        for (k_tile, v_tile, keep, d_k_tile, d_v_tile), (d_S_tile, d_z_tile) in tiles:
            phi, slope = tile_slope(function, k_tile.contiguous(), keep)
            d_v_tile.copy_(torch.bmm(phi, d_S_tile))
            d_k_tile.copy_(slope(torch.bmm(v_tile, d_S_tile.mT).add_(d_z_tile)))
        return None, None, d_k, d_v


class TiledReads(torch.autograd.Function):
    """`reads_of_tiles` with a backward in tiles."""

    @staticmethod
    def forward(ctx, feature_map, q, S, z):
        """Saves the operands."""
        ctx.way = feature_map
        ctx.save_for_backward(q, S, z)
        return reads_of_tiles(feature_map, q, S, z)

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
        for (q_tile, g_tile, g_rows_tile, d_q_tile), (S_tile, z_tile, d_S_tile, d_z_tile) in linear_tiles(
            g, ([q, g, g_rows, d_q],), ([S, z, d_S, d_z],)
        ):
            phi, slope = tile_slope(function, q_tile.contiguous())
            d_S_tile.baddbmm_(phi.mT, g_tile)
            d_z_tile.baddbmm_(g_rows_tile.mT, phi)
            d_q_tile.copy_(slope(torch.bmm(g_tile, S_tile.mT).addcmul_(g_rows_tile, z_tile)))
        return None, d_q, d_S, d_z


def plain_sums(function, seen: Tensor | None, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """`tiled_sums` by operations that have all derivatives."""
    phi = tile_features(function, k, seen)
    return phi.mT @ v, phi.sum(-2, keepdim=True)


def plain_reads(function, q: Tensor, S: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """`reads_of_tiles` by operations that have all derivatives."""
    phi = tile_features(function, q)
    return phi @ S, phi @ z.mT
