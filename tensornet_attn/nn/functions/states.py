"""Sums over the keys k v^T for few heads, mixed into states that many heads of queries read: nothing is n by m."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tensornet_attn.nn.functions.linear import sums
from tensornet_attn.nn.functions.masks import causal_mask, key_keep, visible
from tensornet_attn.nn.functions.normalize import kept


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
) -> Tensor:
    """q_h times the sum over g of mix[h, g] S_g, where S_g is the sum over the visible keys of k_g v_g^T.

    q [..., h, n, d], k [..., g, m, d], v [..., g, m, e], mix [h, g] -> [..., h, n, e]; without v the keys are summed
    alone, and e is 1. `batch` counts the dimensions of the batch. With a `mask` the scores are made: it may hide any
    pair.
    """
    if mask is not None:
        return dense_states(q, k, v, mix, mask, key_mask, batch, causal)
    if key_mask is not None:
        k = torch.where(key_keep(key_mask, 1, query=False)[..., None], k, 0)
    return causal_states(q, k, v, mix, chunk) if causal else q @ mixed_heads(mix, summed_keys(k, v))


def summed_keys(k: Tensor, v: Tensor | None) -> Tensor:
    """The sum of k v^T over the keys: [..., d, e]."""
    return k.sum(-2, keepdim=True).mT if v is None else k.mT @ v


def read_values(scores: Tensor, v: Tensor | None) -> Tensor:
    """Scores times values, or their sums over the keys: [..., n, e]."""
    return scores.sum(-1, keepdim=True) if v is None else scores @ v


def mixed_heads(mix: Tensor, S: Tensor) -> Tensor:
    """mix[h, g] S_g: [..., g, d, e] -> [..., h, d, e]."""
    return (mix @ S.flatten(-2)).unflatten(-1, S.shape[-2:])


def causal_states(q: Tensor, k: Tensor, v: Tensor | None, mix: Tensor, chunk: int) -> Tensor:
    """Over the keys that are not later than the query; the last query stands at the last key.

    Inside a chunk the scores are made, head by head of the keys; what lies before a chunk is one state.
    """
    n, m = q.shape[-2], k.shape[-2]
    least = 1 if torch.compiler.is_compiling() else 0  # traced, no size is 1 for some lengths alone
    chunks = (m + (least + 1) * chunk - 1) // chunk
    q = F.pad(q, (0, 0, m - n, 0))
    q, k, v = (
        None if t is None else F.pad(t, (0, 0, 0, chunks * chunk - m)).unflatten(-2, (chunks, chunk)) for t in (q, k, v)
    )
    before, _ = sums(summed_keys(k, v), None)  # ... g chunks d e
    out = q @ mixed_heads(mix, before.flatten(-3, -2)).unflatten(-2, before.shape[-3:-1])
    for g in range(k.shape[-4]):
        scores = (q @ k[..., g, None, :, :, :].mT).tril()  # ... h chunks chunk chunk
        read = read_values(scores, None if v is None else v[..., g, None, :, :, :])
        out = out + mix[:, g, None, None, None] * read
    return F.pad(out.flatten(-3, -2), (0, 0, n - m, m - chunks * chunk))


def dense_states(
    q: Tensor, k: Tensor, v: Tensor | None, mix: Tensor, mask: Tensor, key_mask: Tensor | None, batch: int, causal: bool
) -> Tensor:
    """The same with every score made, for a mask [n, m] or [batch..., n, m]."""
    own = causal_mask(q.shape[-2], k.shape[-2], k.device) if causal else None
    keep, _ = visible(own, mask, key_mask, batch, 1)
    out = 0
    for g in range(k.shape[-3]):
        scores = kept(q @ k[..., g, None, :, :].mT, keep)
        out = out + mix[:, g, None, None] * read_values(scores, None if v is None else v[..., g, None, :, :])
    return out
