"""Attention of the heads chosen by a topk: for each head, attention of the queries that chose it."""

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from tensornet_attn.runtime.masks import both
from tensornet_attn.runtime.operations import plain_gradients
from tensornet_attn.runtime.softmax import attend, masked_softmax, softmax_gradient

PIECES = 8  # causal queries of a head are split into this many pieces; each omits the keys after its last query
PIECE_ROWS = 128  # minimum rows per piece
FEW_ROWS = 64  # in a piece of products and softmax: with so many, the scores of few later keys are made


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
    row_groups, order = (first + chosen.reshape(-1, n, slots)).flatten().sort(stable=True)
    counts = torch.bincount(row_groups, minlength=groups).tolist()
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(len(order), device=order.device)
    query = order // slots % n  # position of each row, increasing within a group
    rows = q.reshape(-1, q.shape[-1]).index_select(0, order)
    keys, values = (x.reshape(groups // heads, *x.shape[-3:]) for x in (k, v))
    keep, bias = (None if x is None else per_group(x, lead, n, m) for x in (keep, bias))
    wide = q.dtype == k.dtype == v.dtype and q.dtype in (torch.float32, torch.float64)
    if causal and bias is None and n <= m and not dropout and wide and not torch.is_autocast_enabled("cpu"):
        at = query + (m - n)
        out = CausalRows.apply(rows * scale, keys, values, at, keep, causal_parts(counts, at, heads))
        return out.index_select(0, inverse).view(*lead, n, slots, v.shape[-1])
    outs = []
    for group, (group_rows, at) in enumerate(zip(rows.split(counts), query.split(counts), strict=True)):
        batch, head = divmod(group, heads)
        k, v = (x[batch][head % x[batch].shape[0]] for x in (keys, values))
        group_keep, group_bias = (None if x is None else of_rows(x[batch][head % x.shape[1]], at) for x in (keep, bias))
        outs.append(
            attend_rows(group_rows, k, v, at, group_keep, group_bias, scale, dropout, m - n if causal else None)
        )
    return torch.cat(outs).index_select(0, inverse).view(*lead, n, slots, v.shape[-1])


class HeadRows(NamedTuple):
    """Rows of one head that are done together, and how many keys the first and the last of them see."""

    batch: int
    head: int
    rows: slice
    first: int
    seen: int


def causal_parts(counts: list[int], at: Tensor, heads: int) -> list[HeadRows]:
    """The parts of sorted rows, of which each head of each batch element has a count."""
    parts, first = [], 0
    for group, count in enumerate(counts):
        starts = range(first, first + count, FEW_ROWS)
        parts += [(*divmod(group, heads), slice(start, min(start + FEW_ROWS, first + count))) for start in starts]
        first += count
    ends = torch.tensor([(rows.start, rows.stop - 1) for _, _, rows in parts], device=at.device)
    return [HeadRows(*block, *seen) for block, seen in zip(parts, (at[ends] + 1).tolist(), strict=True)]


def plain_rows(at, keep, parts, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The result of `CausalRows` by operations that have derivatives."""
    outs = []
    for block in parts:
        keys, values = of_head((k, v), block)
        outs.append(seen_weights(q, keys, at, block, shown(keep, at, block)) @ values)
    return torch.cat(outs)


class CausalRows(torch.autograd.Function):
    """Causal attention of sorted rows [r, d] of all groups: k [b, h or 1, m, d], v [b, h or 1, m, e].

    `at` is the key at each row's own position. The backward recomputes the weights, and adds up gradients of keys in
    place: autograd would make a gradient of all keys for each block.
    """

    @staticmethod
    def forward(ctx, q, k, v, at, keep, parts):
        """The rows of values."""
        ctx.save_for_backward(q, k, v, at, keep)
        ctx.parts = parts
        out = q.new_empty(len(q), v.shape[-1])
        for block in parts:
            keys, values = of_head((k, v), block)
            torch.mm(seen_weights(q, keys, at, block, shown(keep, at, block)), values, out=out[block.rows])
        return out

    @staticmethod
    def backward(ctx, g):
        """The gradients of rows, keys and values, by differentiable code if they need gradients themselves."""
        q, k, v, at, keep = ctx.saved_tensors
        wanted, none = ctx.needs_input_grad[:3], (None,) * 3
        if torch.is_grad_enabled():
            plain = functools.partial(plain_rows, at, keep, ctx.parts)
            return *plain_gradients(plain, (q, k, v), wanted, g), *none
        sums = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for block in ctx.parts:
            rows, seen = block.rows, shown(keep, at, block)
            (keys, values), (of_keys, of_values) = (of_head(pair, block) for pair in ((k, v), sums[1:]))
            weights = seen_weights(q, keys, at, block, seen)
            of_values.addmm_(weights.mT, g[rows])
            of_scores = softmax_gradient(weights, g[rows] @ values.mT, seen)
            torch.mm(of_scores, keys, out=sums[0][rows])
            of_keys.addmm_(of_scores.mT, q[rows])
        return *(x if is_wanted else None for x, is_wanted in zip(sums, wanted, strict=True)), *none


def of_head(sides: tuple[Tensor, ...], block: HeadRows) -> list[Tensor]:
    """Keys and values of a block's head, up to the last that it sees: [b, h or 1, m, d] -> [seen, d]."""
    return [x[block.batch, block.head % x.shape[1], : block.seen] for x in sides]


def seen_weights(q: Tensor, keys: Tensor, at: Tensor, block: HeadRows, keep: Tensor | None) -> Tensor:
    """The weights of a block's rows: [rows, seen]."""
    scores = q[block.rows] @ keys.mT
    later = torch.arange(block.first, block.seen, device=at.device) > at[block.rows, None]  # all see the keys before
    scores[:, block.first :].masked_fill_(later, -torch.inf)
    return scores.softmax(-1) if keep is None else masked_softmax(scores, keep)


def shown(keep: Tensor | None, at: Tensor, block: HeadRows) -> Tensor | None:
    """What a mask [batch, h or 1, n or 1, m] shows a block's rows: [rows or 1, seen]."""
    if keep is None:
        return None
    n, m = keep.shape[-2:]
    return of_rows(keep[block.batch, block.head % keep.shape[1]], at[block.rows] - (m - n))[:, : block.seen]


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
    size = max(PIECE_ROWS, (len(q) + PIECES - 1) // PIECES)
    outs = [q.new_empty(0, v.shape[-1])]
    for first in range(0, len(q), size):
        piece_rows, positions = q[first : first + size], at[first : first + size] + ahead
        seen = max(int(positions[-1]) + 1, 0)
        near = positions[:, None] >= torch.arange(seen, device=q.device)
        piece_keep, piece_bias = (None if x is None else piece(x, first, size)[:, :seen] for x in (keep, bias))
        piece_keep = both(near, piece_keep)
        outs.append(attend(piece_rows[None], k[None, :seen], v[None, :seen], piece_keep, piece_bias, scale, dropout)[0])
    return torch.cat(outs)


def per_group(x: Tensor, lead: tuple[int, ...], n: int, m: int) -> Tensor:
    """A mask per batch element, with one head if all share it: [batch, h or 1, n or 1, m]."""
    x = x.expand(*lead, x.shape[-3] if x.ndim > 2 else 1, *x.shape[-2:-1], m)
    return x.reshape(math.prod(lead), *x.shape[-3:])


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
    index = chosen[..., None]
    all_rows = q.new_zeros(*q.shape[:-2], heads, q.shape[-1]).scatter(-2, index.expand(*chosen.shape, q.shape[-1]), q)
    out = attend(all_rows.movedim(-2, -3), k, v, keep, bias, scale, dropout, causal).movedim(-3, -2)
    return out.gather(-2, index.expand(*chosen.shape, out.shape[-1]))
