"""Kernels of routers: the k largest entries of each row, their gradients, and choices sorted by expert."""

import triton
import triton.language as tl

from tensornet_attn.runtime.triton.kernels.tiles import tile_mask


@triton.jit
def largest(scores, free, k: tl.constexpr, ENTRIES: tl.constexpr):
    """Which entries of the rows of a tile are the k largest of those that are `free`; NaN counts as infinite."""
    e, left = tl.arange(0, ENTRIES), free
    scores = tl.where(scores != scores, float("inf"), scores)
    for _ in range(k):
        best = tl.max(tl.where(left, scores, float("-inf")), 1)
        index = tl.min(tl.where(left & (scores == best[:, None]), e[None, :], ENTRIES), 1)
        left = left & (e[None, :] != index[:, None])
    return free & (left == 0)


@triton.jit
def choose_entries(
    of, by, gates, chosen, dense, rows, size, fill,
    k: tl.constexpr, DTYPE: tl.constexpr, ROWS: tl.constexpr, ENTRIES: tl.constexpr,
):  # fmt: skip
    """The k largest of each row of by [rows, size], largest first and equal ones in order: chosen [rows, k].

    Their values in `of`: gates [rows, k], or dense [rows, size] with `fill` elsewhere. NaN counts as infinite.
    """
    row, e = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64), tl.arange(0, ENTRIES)
    at, in_bounds = row[:, None] * size + e[None, :], tile_mask(row < rows, e < size)
    values = tl.load(of + at, in_bounds, 0.0).to(DTYPE)
    scores = values
    if by is not None:
        scores = tl.load(by + at, in_bounds, 0.0).to(DTYPE)
    scores = tl.where(scores != scores, float("inf"), scores)
    free = tile_mask(row >= 0, e < size)
    for slot in range(k):
        best = tl.max(tl.where(free, scores, float("-inf")), 1)
        index = tl.min(tl.where(free & (scores == best[:, None]), e[None, :], ENTRIES), 1)
        is_best = e[None, :] == index[:, None]
        free = free & (e[None, :] != index[:, None])
        tl.store(chosen + row * k + slot, index, row < rows)
        if gates is not None:
            tl.store(gates + row * k + slot, tl.sum(tl.where(is_best, values, 0.0), 1), row < rows)
    if dense is not None:
        tl.store(dense + at, tl.where(free, fill, values), in_bounds)


@triton.jit
def choose_gradient(
    gradient, chosen, out, rows, size,
    k: tl.constexpr, DENSE: tl.constexpr, ROWS: tl.constexpr, ENTRIES: tl.constexpr,
):  # fmt: skip
    """The gradient of all entries, 0 for those not chosen: out [rows, size].

    `gradient` is that of the chosen entries [rows, k], or of a dense result [rows, size].
    """
    row, e = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64), tl.arange(0, ENTRIES)
    at, in_bounds = row[:, None] * size + e[None, :], tile_mask(row < rows, e < size)
    entry_gradient = tl.zeros([ROWS, ENTRIES], gradient.dtype.element_ty)
    if DENSE:
        chosen_gradient = tl.load(gradient + at, in_bounds, 0.0)
    for slot in range(k):
        is_chosen = tl.load(chosen + row * k + slot, row < rows, -1)[:, None] == e[None, :]
        if not DENSE:
            chosen_gradient = tl.load(gradient + row * k + slot, row < rows, 0.0)[:, None]
        entry_gradient = tl.where(is_chosen, chosen_gradient, entry_gradient)
    tl.store(out + at, entry_gradient, in_bounds)


@triton.jit
def expert_counts(
    chosen, counts, tokens, heads, blocks, span, slots: tl.constexpr, TOKENS: tl.constexpr, EXPERTS: tl.constexpr
):
    """How often a block of `span` tokens of chosen [tokens, heads, slots] uses each expert of a head.

    counts [heads, blocks, EXPERTS]; a program has one block and one head.
    """
    block, head, e = tl.program_id(0), tl.program_id(1), tl.arange(0, EXPERTS)
    block_counts = tl.zeros([EXPERTS], tl.int32)
    for start in range(block * span, min((block + 1) * span, tokens), TOKENS):
        token = start + tl.arange(0, TOKENS)
        for slot in tl.range(slots, loop_unroll_factor=4):
            expert = tl.load(chosen + (token * heads + head) * slots + slot, token < tokens, -1)
            block_counts += tl.sum((expert[:, None] == e[None, :]).to(tl.int32), 0)
    tl.store(counts + (head * blocks + block) * EXPERTS + e, block_counts)


@triton.jit
def expert_order(
    chosen, counts, order, ends, tokens, heads, blocks, span, each,
    slots: tl.constexpr, TOKENS: tl.constexpr, EXPERTS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """The choices sorted by head and expert, stably: order [choices], and the end of each expert in it.

    A program has one block and one head; from the counts of all blocks it knows where its choices begin.
    """
    block, head, e = tl.program_id(0), tl.program_id(1), tl.arange(0, EXPERTS)
    total, before = tl.zeros([EXPERTS], tl.int32), tl.zeros([EXPERTS], tl.int32)
    for start in range(0, blocks, BLOCKS):
        other_block = start + tl.arange(0, BLOCKS)
        at = (head * blocks + other_block)[:, None] * EXPERTS + e[None, :]
        block_counts = tl.load(counts + at, tile_mask(other_block < blocks, e >= 0), 0)
        total += tl.sum(block_counts, 0)
        before += tl.sum(tl.where((other_block < block)[:, None], block_counts, 0), 0)
    until = head * tokens * slots + tl.cumsum(total, 0)
    if block == 0:
        tl.store(ends + head * each + e, until, e < each)
    first = until - total + before
    for start in range(block * span, min((block + 1) * span, tokens), TOKENS):
        token = start + tl.arange(0, TOKENS)
        token_counts = tl.zeros([TOKENS, EXPERTS], tl.int32)
        for slot in tl.range(slots, loop_unroll_factor=4):
            expert = tl.load(chosen + (token * heads + head) * slots + slot, token < tokens, -1)
            token_counts += (expert[:, None] == e[None, :]).to(tl.int32)
        position = tl.cumsum(token_counts, 0) - token_counts + first[None, :]
        for slot in tl.range(slots, loop_unroll_factor=4):
            choice = (token * heads + head) * slots + slot
            expert = tl.load(chosen + choice, token < tokens, -1)
            one_hot = (expert[:, None] == e[None, :]).to(tl.int32)
            tl.store(order + tl.sum(one_hot * position, 1), choice, token < tokens)
            position += one_hot
        first += tl.sum(token_counts, 0)
