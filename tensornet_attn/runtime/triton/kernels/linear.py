"""`linear_attention` by Triton kernels, in chunks whose states are stored in memory."""

import torch
from torch import Tensor

from tensornet_attn.runtime.linear import Term, by_head, linear_attention, seen_terms
from tensornet_attn.runtime.masks import key_keep, run_time_mask, visible_and_bias
from tensornet_attn.runtime.operations import operation
from tensornet_attn.runtime.products import autocast_dtype
from tensornet_attn.runtime.recomputed import derivatives_of, recomputed
from tensornet_attn.runtime.softmax import laid_out
from tensornet_attn.runtime.triton.kernels.linear_chunks import (
    chunk_sums,
    chunked,
    operand_shapes,
    read_chunks,
    row_sums_gradient,
    side_by_side,
)
from tensornet_attn.runtime.triton.kernels.masked import read_masked
from tensornet_attn.runtime.triton.kernels.tile_maps import TILE_MAPS
from tensornet_attn.runtime.triton.kernels.tiles import batch_and_heads, common_dtype, in_batch_dimension, sums_of


def triton_linear_attention(
    terms: list[Term],
    v: Tensor,
    mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    batch: int = 0,
    heads: int = 0,
    eps: float = 0.0,
    normalize: bool = True,
    causal: bool = False,
    chunk: int = 64,
    maps: tuple[str, str] = ("", ""),
) -> Tensor:
    """`linear_attention`, with the same arguments; kernels choose the chunk. `maps`: names of `tile_map`, or empty."""
    if any(maps) and (
        mask is not None or autocast_dtype(v) == torch.float16
    ):  # autocast maps in float32: exp overflows
        sides = zip(maps, (terms[0].q, terms[0].k), strict=True)
        terms, maps = [Term(*(mapped_whole(name, x) for name, x in sides))], ("", "")
    if mask is None and len(terms) == 1 and terms[0].core is None:
        seen = None if key_mask is None else key_keep(key_mask, heads, query=False)[..., None]
        return linear_by_heads(terms[0].q, terms[0].k, v, None, causal, normalize, eps, seen, maps)
    terms = seen_terms(terms, key_mask, heads)
    cores = [term.core for term in terms if term.core is not None]
    if mask is not None:
        mask, _ = visible_and_bias(run_time_mask(mask, batch, heads + bool(cores)))
    if cores:
        v = v.unflatten(-1, (cores[0].shape[-1], -1)).movedim(-2, -3)  # ... h m e
        terms = [by_head(term) for term in terms]
    q, k = (joined_features(sides) for sides in ([term.q for term in terms], [term.k for term in terms]))
    out = linear_by_heads(q, k, v, mask, causal, normalize, eps)
    return out.movedim(-3, -2).flatten(-2) if cores else out


def joined_features(sides: list[Tensor]) -> Tensor:
    """Concatenates the features of all terms, whose scores are added."""
    if len(sides) == 1:
        return sides[0]
    lead = torch.broadcast_shapes(*(side.shape[:-1] for side in sides))
    return torch.cat([side.expand(*lead, -1) for side in sides], -1)


def linear_by_heads(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, normalize: bool, eps: float,
    seen: Tensor | None = None, maps: tuple[str, str] = ("", ""),
) -> Tensor:  # fmt: skip
    """One term: q [..., n, d], k [..., m, d], v [..., m, e], mask [..., n, m] -> [..., n, e] in the dtype of v.

    Leading dimensions broadcast. Without a mask of pairs, keys may be hidden, `seen` [..., m, 1], and q and k mapped.
    """
    tensors = [x for x in (q, k, v, mask, seen) if x is not None]
    lead, dtype = torch.broadcast_shapes(*(x.shape[:-2] for x in tensors)), common_dtype(q, k, v)
    operands = [batch_and_heads(x.to(dtype), lead) for x in (q, k, v)]
    if mask is None:
        keys = None if seen is None else batch_and_heads(seen, lead)[..., 0]
        out = read_linear(*operands, keys, causal, normalize, eps, *maps)[0]
    else:
        mask = mask.expand(*mask.shape[:-2], q.shape[-2], k.shape[-2])  # of one row for all queries, or one key
        out = read_masked(*operands, batch_and_heads(mask, lead), causal, normalize, eps)[0]
    return out.reshape(*lead, *out.shape[-2:]).to(v.dtype)


@torch.library.custom_op(operation("triton_linear"), mutates_args=())
def triton_linear(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, causal: bool, normalize: bool, eps: float,
    query_map: str, key_map: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """q [b, h, n, d], k [b, h, m, d], v [b, h, m, e] -> [b, h, n, e], and what the gradients need of it.

    The second result are the reciprocals of the row sums [b, h, n], the others the sums of k v^T [b h, 1, d, e] and of
    k [b h, 1, d]. Reciprocals and sums of k are empty unless `normalize`; sums are empty if causal. `seen` [b, h, m]:
    the keys that are not hidden. The scores are products of the maps of q and k, if these have names.
    """
    with torch.cuda.device_of(q):
        q, k, v = map(laid_out, (q, k, v))
        seen, phi_q, phi_k = bytes_of(seen), TILE_MAPS[query_map][1], TILE_MAPS[key_map][1]
        longest = max(q.shape[-2], k.shape[-2])
        how = chunked(q, q.shape[-1], v.shape[-1], longest, causal, bool(query_map or key_map))
        sums, total = chunk_sums(k, v, how, total=normalize, seen=seen, tile=phi_k)
        out, inverse = read_chunks(
            q, k, v, sums, how, total, eps=eps if normalize else None, seen=seen, tiles=(phi_q, phi_k, None)
        )
        saved = (inverse, None, None) if causal else (inverse, sums, total)
        inverse, sums, total = (q.new_empty(0, dtype=sums_of(q)) if x is None else x for x in saved)
        return out, inverse, sums, total


@torch.library.custom_op(operation("triton_linear_gradients"), mutates_args=())
def triton_linear_gradients(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, out: Tensor, inverse: Tensor, sums: Tensor,
    total: Tensor, causal: bool, normalize: bool, eps: float, query_map: str, key_map: str,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of q, k and v. With g' = inverse g and the gradient r of the row sums, each is linear attention:

    dq = (g' v^T + r) k,    dk = (v g'^T + r) q,    dv = (k q^T) g',    over the visible pairs.

    Here q and k are the maps; the gradient of a map is multiplied by its slope before it is stored.
    """
    with torch.cuda.device_of(g):
        g, q, k, v = map(laid_out, (g, q, k, v))
        (_, phi_q, slope_q), (_, phi_k, slope_k) = TILE_MAPS[query_map], TILE_MAPS[key_map]
        seen, n, m = bytes_of(seen), q.shape[-2], k.shape[-2]
        how = chunked(q, q.shape[-1], v.shape[-1], max(n, m), causal, bool(query_map or key_map))
        scale, bias = (inverse, row_sums_gradient(g, out, inverse)) if normalize else (None, None)
        if causal:
            sums, total = chunk_sums(k, v, how, total=normalize, seen=seen, tile=phi_k)
        by_q, by_k = (q, phi_q, slope_q) if query_map else None, (k, phi_k, slope_k) if key_map else None
        dq, _ = read_chunks(g, v, k, sums.mT, how, total, scale, bias, seen=seen, tiles=(None, None, phi_k), of=by_q)
        sums, total = chunk_sums(q, g, how, scale, bias, m - n, m, later=True, total=normalize, tile=phi_q)
        later: dict = {"later": True, "seen": seen}
        dk, _ = read_chunks(v, g, q, sums.mT, how, total, scale, bias, tiles=(None, None, phi_q), of=by_k, **later)
        dv, _ = read_chunks(k, q, g, sums, how, None, scale, tiles=(phi_k, phi_q, None), **later)
        return dq, dk, dv


def bytes_of(seen: Tensor | None) -> Tensor | None:
    """Booleans as kernels read them: contiguous bytes."""
    return None if seen is None else seen.contiguous().view(torch.uint8)


def mapped_whole(name: str, x: Tensor) -> Tensor:
    """The map of a tensor; without a name, the tensor."""
    return TILE_MAPS[name][0](x) if name else x


@triton_linear.register_fake
def triton_linear_shapes(q, k, v, seen, causal, normalize, eps, query_map, key_map):
    """The shapes of the result and of the reciprocal row sums."""
    lead, features, width = q.shape[0] * q.shape[1], q.shape[-1], v.shape[-1]
    rows, keys = (q.shape[:-1], (lead, 1, features)) if normalize else ((0,), (0,))
    shapes = (rows, (0,), (0,)) if causal else (rows, (lead, 1, features, width), keys)
    return side_by_side(q, width), *(q.new_empty(shape, dtype=sums_of(q)) for shape in shapes)


triton_linear_gradients.register_fake(operand_shapes)


def plain_linear(q, k, v, seen, causal, normalize, eps, query_map, key_map):
    """The first result of `triton_linear`."""
    q, k = mapped_whole(query_map, q), mapped_whole(key_map, k)
    k = k if seen is None else torch.where(seen[..., None], k, 0)
    return linear_attention([Term(q, k)], v, eps=eps, normalize=normalize, causal=causal)


read_linear = recomputed(triton_linear, triton_linear_gradients, derivatives_of(plain_linear, 3), in_batch_dimension)
