"""Attention whose scores are products of query and key features: the keys are summed first, nothing is n by m."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tensornet_attn.nn.functions.autocast import exact_products
from tensornet_attn.nn.functions.masks import causal_mask, key_keep, visible
from tensornet_attn.nn.functions.normalize import kept, normalized


def linear_attention(
    terms: list[tuple[Tensor, ...]],
    v: Tensor,
    mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    batch: int = 0,
    heads: int = 0,
    eps: float = 0.0,
    normalize: bool = True,
    causal: bool = False,
    chunk: int = 64,
) -> Tensor:
    """Scores, divided by their row sums and eps if `normalize`, times values: v [..., m, e] -> [..., n, e].

    The scores are the sum over `terms` (q, k) of q k^T, q [..., n, d] and k [..., m, d]. In a term (q, k, core), core
    [..., g, h], the features are g groups side by side and the values h heads: the scores of head h are the sum over g
    of core[g, h] times those of group g. `batch` and `heads` count dimensions before the sequence. With a `mask` the
    scores are made: it may hide any pair.
    """
    if mask is not None:
        return dense_linear(terms, v, mask, key_mask, batch, heads, eps, normalize, causal)
    if key_mask is not None:
        seen = key_keep(key_mask, heads, query=False)[..., None]  # ... m 1
        terms = [(q, torch.where(seen, k, 0), *core) for q, k, *core in terms]
    if not normalize:
        return sum(read for read, _ in term_reads(terms, v, causal, chunk))
    if v.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled(v.device.type):
        return divided_reads(terms, v, eps, causal, chunk)
    with exact_products(v):  # products and row sums nearly cancel in the gradient: neither is rounded before
        wide = torch.promote_types(v.dtype, torch.float32)
        terms = [tuple(x.to(wide) for x in term) for term in terms]
        return divided_reads(terms, v.to(wide), eps, causal, chunk).to(v.dtype)


def term_reads(terms: list[tuple[Tensor, ...]], v: Tensor, causal: bool, chunk: int) -> list[tuple[Tensor, Tensor]]:
    """What each term reads, and the sums of its rows."""
    return [causal_reads(q, k, v, chunk, *core) if causal else key_reads(q, k, v, *core) for q, k, *core in terms]


def divided_reads(terms: list[tuple[Tensor, ...]], v: Tensor, eps: float, causal: bool, chunk: int) -> Tensor:
    """The sum of what the terms read, divided by the sum of their rows."""
    reads = term_reads(terms, v, causal, chunk)
    out, total = sum(read for read, _ in reads), sum(rows for _, rows in reads) + eps  # ... n h
    total = torch.where(total == 0, float("inf"), total)[..., None]  # what is divided by it is 0, in its gradient too
    return (out.unflatten(-1, (total.shape[-2], -1)) * total.reciprocal()).flatten(-2)  # cheaper than to divide


def key_reads(q: Tensor, k: Tensor, v: Tensor, core: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Scores times values [..., n, e], and the sums of the scores' rows [..., n, h], h = 1 without a core."""
    return q @ mixed_state(k.mT @ v, core), row_sums(q, k.sum(-2, keepdim=True), core)


def causal_reads(q: Tensor, k: Tensor, v: Tensor, chunk: int, core: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The same over the keys that are not later than the query; the last query stands at the last key.

    Inside a chunk the scores are made; what lies before a chunk is one state, a running sum over chunks.
    """
    n, m = q.shape[-2], k.shape[-2]
    least = 1 if torch.compiler.is_compiling() else 0  # traced, no size is 1 for some lengths alone
    chunks = (m + (least + 1) * chunk - 1) // chunk
    q, k, v = (
        F.pad(t, (0, 0, before, chunks * chunk - m)).unflatten(-2, (chunks, chunk))  # ... chunks chunk d
        for t, before in ((q, m - n), (k, 0), (v, 0))
    )
    core = None if core is None else core.unsqueeze(-3)
    scores = linear_scores(q, k, core).tril()
    out = scores_read(scores, v, core) + q @ mixed_state(sum_before(k.mT @ v), core)
    rows = scores.sum(-1, keepdim=True) if core is None else scores.sum(-1).mT
    rows = rows + row_sums(q, sum_before(k.sum(-2, keepdim=True)), core)
    return tuple(F.pad(t.flatten(-3, -2), (0, 0, n - m, m - chunks * chunk)) for t in (out, rows))


def sum_before(each: Tensor) -> Tensor:
    """The sum of what lies before each chunk, nothing before the first: [..., chunks, d, e]."""
    wide = torch.promote_types(each.dtype, torch.float32)
    return F.pad(each, (0, 0, 0, 0, 1, 0)).cumsum(-3, dtype=wide).to(each.dtype)[..., :-1, :, :]


def mixed_state(S: Tensor, core: Tensor | None) -> Tensor:
    """core[g, h] S[(g d), (h e)]: a state as the heads read it."""
    if core is None:
        return S
    g, h = core.shape[-2:]
    S = S.unflatten(-1, (h, -1)).unflatten(-3, (g, -1))  # ... g d h e
    return (S * core[..., :, None, :, None]).flatten(-4, -3).flatten(-2)


def row_sums(q: Tensor, z: Tensor, core: Tensor | None = None) -> Tensor:
    """The sums of the scores' rows [..., n, h] by z, the sum of the keys: q [..., n, (g d)], z [..., 1, (g d)]."""
    if core is None:
        return q @ z.mT
    return (q * z).unflatten(-1, (core.shape[-2], -1)).sum(-1) @ core


def linear_scores(q: Tensor, k: Tensor, core: Tensor | None = None) -> Tensor:
    """[..., n, m], with a core [..., h, n, m]."""
    if core is None:
        return q @ k.mT
    q, k = (t.unflatten(-1, (core.shape[-2], -1)).movedim(-2, -3) for t in (q, k))  # ... g n d
    scores = q @ k.mT
    return (core.mT @ scores.flatten(-2)).unflatten(-1, scores.shape[-2:])


def scores_read(scores: Tensor, v: Tensor, core: Tensor | None) -> Tensor:
    """Scores times values, those of several heads side by side: [..., n, (h e)]."""
    if core is None:
        return scores @ v
    v = v.unflatten(-1, (core.shape[-1], -1)).movedim(-2, -3)  # ... h m e
    return (scores @ v).movedim(-3, -2).flatten(-2)


def dense_linear(
    terms: list[tuple[Tensor, ...]],
    v: Tensor,
    mask: Tensor,
    key_mask: Tensor | None,
    batch: int,
    heads: int,
    eps: float,
    normalize: bool,
    causal: bool,
) -> Tensor:
    """The same with every score made, for a mask [n, m], [batch..., n, m] or [batch..., heads..., n, m]."""
    cores = [core for _, _, *rest in terms for core in rest]
    parts = [linear_scores(q, k, *core) for q, k, *core in terms]
    if cores:
        parts = [part if len(term) > 2 else part.unsqueeze(-3) for part, term in zip(parts, terms, strict=True)]
    scores = sum(parts)
    own = causal_mask(scores.shape[-2], scores.shape[-1], v.device) if causal else None
    keep, _ = visible(own, mask, key_mask, batch, heads + bool(cores))
    maps = normalized(scores, keep, eps) if normalize else kept(scores, keep)
    return scores_read(maps, v, cores[0] if cores else None)


def heads_ordered(mask: Tensor | None, batch: int, order: tuple[int, ...], mixed: int) -> Tensor | None:
    """A mask that names other legs, these in the given order, the last `mixed` as one: [batch..., heads..., n, m]."""
    if mask is None or mask.ndim <= batch + 2:
        return mask
    last = len(order) + 2
    mask = mask.movedim(tuple(i - last for i in order), tuple(range(-last, -2)))
    return mask.flatten(-2 - mixed, -3) if mixed > 1 else mask
