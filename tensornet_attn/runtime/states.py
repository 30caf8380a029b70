"""Sums k v^T over the keys for few heads, mixed into states that many query heads read; no n by m tensor."""

import torch
from torch import Tensor

from tensornet_attn.runtime.linear import joint_reads, sums
from tensornet_attn.runtime.maps import kept, with_padding
from tensornet_attn.runtime.masks import causal_mask, key_keep, visible
from tensornet_attn.runtime.tiled_linear import tiled_takes
from tensornet_attn.runtime.tiled_states import tiled_reads, tiled_states


def mixed_states(
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    mix: Tensor,
    mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    batch: int = 0,
    causal: bool = False,
    chunk: int = 32,
    added: Tensor | None = None,
    maps: tuple = (None, None),
) -> Tensor:
    """q_h times the sum over g of mix[h, g] S_g, where S_g is the sum of k_g v_g^T over the visible keys.

    q [..., h, n, d], k [..., g, m, d], v [..., g, m, e], mix [h, g] -> [..., h, n, e]; without v, only keys are summed
    and e is 1. `batch`: number of batch dimensions. With a `mask`, which may hide any pair, the scores are
    materialised. `added`: what is added to the mixed states, [..., h, d, e].
    `maps`: functions to apply to q and k first, or None.
    """
    q, k = mapped_sides(maps, q, k)
    if mask is not None:
        return read_too(dense_states(q, k, v, mix, mask, key_mask, batch, causal), q, added)
    if key_mask is not None:
        k = torch.where(key_keep(key_mask, 1, query=False)[..., None], k, 0)
    if causal:
        return read_too(causal_states(q, k, v, mix, chunk), q, added)
    return q @ mixed_heads(mix, summed_keys(k, v), added)


def mixed_states_and_blockwise(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mix: Tensor,
    mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    batch: int = 0,
    causal: bool = False,
    chunk: int = 32,
    added: tuple[Tensor | None, Tensor | None] = (None, None),
    maps: tuple = (None, None),
    cpp=None,
) -> tuple[Tensor, Tensor]:
    """`mixed_states` with v, and without v as [..., h, n]; both read one state, and scores are computed once.

    `added`: what is added to each of the two states. `maps`: as for `mixed_states`. `cpp`: a `LinearCpp`.
    """
    seen = None if key_mask is None else key_keep(key_mask, 1, query=False)[..., None]
    if mask is None and not causal and states_in_tiles(q, k, v, seen, cpp):
        summed = tiled_states((maps[1], cpp), k, v, seen)
        read, rows = tiled_reads((maps[0], cpp), q, *(mixed_heads(mix, *x) for x in zip(summed, added, strict=True)))
        return read, rows.squeeze(-1)
    q, k = mapped_sides(maps, q, k)
    if mask is not None or causal:
        wider = torch.cat([v, torch.ones_like(v[..., :1])], -1)
        read, rows = mixed_states(q, k, wider, mix, mask, key_mask, batch, causal, chunk).split([v.shape[-1], 1], -1)
        read, rows = read_too(read, q, added[0]), read_too(rows, q, added[1])
    else:
        k = k if seen is None else torch.where(seen, k, 0)
        summed = summed_keys(k, v), summed_keys(k, None)
        read, rows = joint_reads(q, *(mixed_heads(mix, *x) for x in zip(summed, added, strict=True)))
    return read, rows.squeeze(-1)


def states_in_tiles(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, cpp) -> bool:
    """Whether `tiled_states` and `tiled_reads` take a call: of a size that pays, with equal batches."""
    takes = tiled_takes(None, q, cpp=cpp) and tiled_takes(seen, k, v, cpp=cpp)
    # only then sizes, which are unknown in traced code
    return takes and q.shape[:-3] == k.shape[:-3] and q.dtype == k.dtype


def mapped_sides(maps: tuple, *sides: Tensor) -> list[Tensor]:
    """The sides with their maps, or as they are."""
    return [x if function is None else function(x) for function, x in zip(maps, sides, strict=True)]


def summed_keys(k: Tensor, v: Tensor | None) -> Tensor:
    """The sum of k v^T over the keys: [..., d, e]."""
    return k.sum(-2, keepdim=True).mT if v is None else k.mT @ v


def read_values(scores: Tensor, v: Tensor | None) -> Tensor:
    """Scores times values, or row sums of the scores: [..., n, e]."""
    return scores.sum(-1, keepdim=True) if v is None else scores @ v


def mixed_heads(mix: Tensor, S: Tensor, added: Tensor | None = None) -> Tensor:
    """mix[h, g] S_g, plus what is added: [..., g, d, e] -> [..., h, d, e]."""
    mixed = (mix @ S.flatten(-2)).unflatten(-1, S.shape[-2:])
    return mixed if added is None else mixed + added


def read_too(read: Tensor, q: Tensor, added: Tensor | None) -> Tensor:
    """What queries read, plus what they read of a state [..., h, d, e]."""
    return read if added is None else read + q @ added


def causal_states(q: Tensor, k: Tensor, v: Tensor | None, mix: Tensor, chunk: int) -> Tensor:
    """Causal: only keys not later than the query; the last query is at the last key.

    Within a chunk the scores are materialised, one key head at a time for all query heads; earlier keys are one state.
    """
    n, m = q.shape[-2], k.shape[-2]
    least = 1 if torch.compiler.is_compiling() else 0  # in traced code a size must not become 1 for some lengths
    chunks = (m + (least + 1) * chunk - 1) // chunk
    q = with_padding(q, (0, 0, m - n, 0))
    q, k, *values = (
        with_padding(t, (0, 0, 0, chunks * chunk - m)).unflatten(-2, (chunks, chunk))
        for t in (q, k, v)
        if t is not None
    )
    v = values[0] if values else None
    before, _ = sums(summed_keys(k, v), None)  # ... g chunks d e
    q = q.movedim(-4, -3)  # ... chunks h C d
    out = (q @ mixed_heads(mix, before.movedim(-3, -4))).flatten(-3, -2)  # ... chunks (h C) e
    rows = q.flatten(-3, -2)
    for g in range(k.shape[-4]):
        scores = (rows @ k[..., g, :, :, :].mT).unflatten(-2, (-1, chunk)).tril() * mix[:, g, None, None]
        out = out + read_values(scores.flatten(-3, -2), None if v is None else v[..., g, :, :, :])
    out = out.unflatten(-2, (-1, chunk)).movedim(-3, -4)  # ... h chunks C e
    return with_padding(out.flatten(-3, -2), (0, 0, n - m, m - chunks * chunk))


def dense_states(
    q: Tensor, k: Tensor, v: Tensor | None, mix: Tensor, mask: Tensor, key_mask: Tensor | None, batch: int, causal: bool
) -> Tensor:
    """`mixed_states` with all scores materialised, for a mask [n, m] or [batch..., n, m]."""
    causal_keep = causal_mask(q.shape[-2], k.shape[-2], k.device) if causal else None
    keep, _ = visible(causal_keep, mask, key_mask, batch, 1)
    out = k.new_zeros(())
    for g in range(k.shape[-3]):
        scores = kept(q @ k[..., g, None, :, :].mT, keep)
        out = out + mix[:, g, None, None] * read_values(scores, None if v is None else v[..., g, None, :, :])
    return out
