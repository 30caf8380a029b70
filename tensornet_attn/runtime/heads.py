"""Attention of the heads chosen by a topk: for each head, attention of the queries that chose it."""

import torch
from torch import Tensor

from tensornet_attn.runtime.masks import both
from tensornet_attn.runtime.softmax import attend

PIECES = 8  # causal queries of a head are split into this many pieces; each omits the keys after its last query
PIECE_ROWS = 128  # minimum rows per piece


def chosen_rows(x: Tensor, chosen: Tensor) -> Tensor:
    """The rows of the chosen heads: x [..., n, h, d], chosen [..., n, k] -> [..., n, k, d]."""
    lead = torch.broadcast_shapes(x.shape[:-2], chosen.shape[:-1])
    index = chosen.expand(*lead, chosen.shape[-1])[..., None].expand(*lead, chosen.shape[-1], x.shape[-1])
    return x.expand(*lead, *x.shape[-2:]).gather(-2, index)


def attend_chosen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    chosen: Tensor,
    heads: int,
    keep: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float = 1.0,
    dropout: float = 0.0,
    causal: bool = False,
) -> Tensor:
    """`attend` for the chosen heads: q [..., n, k, d], keys [..., h or 1, m, d], chosen [..., n, k]: [..., n, k, e]."""
    lead = torch.broadcast_shapes(q.shape[:-3], chosen.shape[:-2], k.shape[:-3], v.shape[:-3])
    n, slots, m = *chosen.shape[-2:], k.shape[-2]
    q, chosen = q.expand(*lead, *q.shape[-3:]), chosen.expand(*lead, n, slots)
    k, v = (x.expand(*lead, *x.shape[-3:]) for x in (k, v))
    traced = torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None
    groups = chosen.numel() // (n * slots) * heads if n * slots else 0
    if traced or not groups or q.device.type != "cpu":  # a GPU would wait for the counts, and launch one call per head
        return attend_all(q, k, v, chosen, heads, keep, bias, scale, dropout, causal)
    first = torch.arange(0, groups, heads, device=q.device)[:, None, None]
    found, order = (first + chosen.reshape(-1, n, slots)).flatten().sort(stable=True)
    counts = torch.bincount(found, minlength=groups).tolist()
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device)
    query = order // slots % n  # position of each row, increasing within a group
    rows = q.reshape(-1, q.shape[-1]).index_select(0, order).split(counts)
    keys, values = (x.reshape(-1, *x.shape[-3:]).unbind() for x in (k, v))
    keep, bias = (None if x is None else per_group(x, lead, n, m) for x in (keep, bias))
    results = []
    for group, (own, at) in enumerate(zip(rows, query.split(counts), strict=True)):
        batch, head = divmod(group, heads)
        sides = [x[batch][head % x[batch].shape[0]] for x in (keys, values)]
        masks = [None if x is None else of_rows(x[batch][head % x.shape[1]], at) for x in (keep, bias)]
        results.append(attend_rows(own, *sides, at, *masks, scale, dropout, m - n if causal else None))
    return torch.cat(results).index_select(0, place.flatten()).view(*lead, n, slots, v.shape[-1])


def attend_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    at: Tensor,
    keep: Tensor | None,
    bias: Tensor | None,
    scale: float,
    dropout: float,
    ahead: int | None,
) -> Tensor:
    """Attention of queries [r, d] of one head, at increasing positions `at`; row i is at key at[i] + `ahead`."""
    if ahead is None:
        return attend(q[None], k[None], v[None], keep, bias, scale, dropout)[0]
    size = max(PIECE_ROWS, -(-len(q) // PIECES))
    parts = [q.new_empty(0, v.shape[-1])]
    for first in range(0, len(q), size):
        own, place = q[first : first + size], at[first : first + size] + ahead
        seen = max(int(place[-1]) + 1, 0)
        near = place[:, None] >= torch.arange(seen, device=q.device)
        shown, some = (None if x is None else piece(x, first, size)[:, :seen] for x in (keep, bias))
        shown = both(near, shown)
        parts.append(attend(own[None], k[None, :seen], v[None, :seen], shown, some, scale, dropout)[0])
    return torch.cat(parts)


def per_group(x: Tensor, lead: tuple[int, ...], n: int, m: int) -> Tensor:
    """A mask per batch element, with one head if all share it: [batch, h or 1, n or 1, m]."""
    x = x.expand(*lead, x.shape[-3] if x.ndim > 2 else 1, *x.shape[-2:-1], m)
    return x.reshape(-1, *x.shape[-3:])


def of_rows(x: Tensor, at: Tensor) -> Tensor:
    """The rows of a mask [n or 1, m] at these indices."""
    return x if x.shape[0] == 1 else x.index_select(0, at)


def piece(x: Tensor, first: int, size: int) -> Tensor:
    """`size` rows of a mask that has one row per query, or one for all."""
    return x if x.shape[0] == 1 else x[first : first + size]


def attend_all(
    q: Tensor, k: Tensor, v: Tensor, chosen: Tensor, heads: int, keep, bias, scale: float, dropout: float, causal: bool
) -> Tensor:
    """`attend_chosen` via all heads, as plain code: it can be traced and has derivatives of every order."""
    place = chosen[..., None]
    every = q.new_zeros(*q.shape[:-2], heads, q.shape[-1]).scatter(-2, place.expand(*chosen.shape, q.shape[-1]), q)
    out = attend(every.movedim(-2, -3), k, v, keep, bias, scale, dropout, causal).movedim(-3, -2)
    return out.gather(-2, place.expand(*chosen.shape, out.shape[-1]))
