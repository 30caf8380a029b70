"""Kernels of products with chosen experts: choices sorted by expert; the product gathers and scatters rows.

Choice c of [t, heads, slots] belongs to token c // (heads slots), one head and one slot. Experts of all heads are
numbered consecutively; `ends` has the end of each expert in `order`, the sorted choices.
"""

import triton
import triton.language as tl

from tensornet_attn.runtime.triton.kernels.tiles import tile_at, tile_mask


@triton.jit
def row_of(choice, heads: tl.constexpr, slots: tl.constexpr, own_heads: tl.constexpr, own_slots: tl.constexpr):
    """The rows of [t, heads or 1, slots or 1, .] that choices use, as 64-bit indices."""
    row = (choice // (heads * slots)).to(tl.int64)
    if own_heads > 1:
        row = row * heads + choice // slots % heads
    if own_slots > 1:
        row = row * slots + choice % slots
    return row


@triton.jit
def expert_products(
    given, weight, gates, out, others, dots, order, ends,
    choices, experts, each, weight_head, weight_expert, weight_in, weight_out, width, out_width,
    heads: tl.constexpr, slots: tl.constexpr, given_heads: tl.constexpr, given_slots: tl.constexpr,
    other_heads: tl.constexpr, other_slots: tl.constexpr, EXPERTS: tl.constexpr,
    DTYPE: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr, OUTER: tl.constexpr,
):  # fmt: skip
    """out[c] = gates[c] given[row of c] weight[expert of c] for each choice c; a program has a tile of one expert.

    given [t, heads or 1, slots or 1, width], weight [heads, each, width, out_width] by its strides, out [choices,
    out_width]. dots [column blocks, choices]: partial inner products with the rows of `others`, before the gates.
    """
    e = tl.arange(0, EXPERTS)
    until = tl.load(ends + e, e < experts, choices)
    begins = tl.load(ends + e - 1, (e > 0) & (e < experts), 0)
    tiles = tl.where(e < experts, (until - begins + ROWS - 1) // ROWS, 0)
    last = tl.cumsum(tiles, 0)  # tiles up to and including this expert
    here = (tl.program_id(0) < last) & (tl.program_id(0) >= last - tiles)  # true for at most one expert
    expert = tl.sum(tl.where(here, e, 0), 0)
    first = tl.sum(tl.where(here, begins + (tl.program_id(0) - last + tiles) * ROWS, 0), 0)
    position = first + tl.arange(0, ROWS)
    in_bounds = position < tl.sum(tl.where(here, until, 0), 0)
    choice = tl.load(order + position, in_bounds, 0)
    given_offset = row_of(choice, heads, slots, given_heads, given_slots) * width
    o = tl.program_id(1) * OUTER + tl.arange(0, OUTER)
    in_o = (o < out_width)[None, :]
    weight += (expert // each).to(tl.int64) * weight_head + (expert % each).to(tl.int64) * weight_expert
    acc = tl.zeros([ROWS, OUTER], DTYPE)
    for begin in range(0, width, INNER):
        c = begin + tl.arange(0, INNER)
        x = tl.load(given + given_offset[:, None] + c[None, :], tile_mask(in_bounds, c < width), 0.0)
        at = weight + c[:, None] * weight_in + o[None, :] * weight_out
        acc += tl.dot(x, tl.load(at, (c < width)[:, None] & in_o, 0.0), input_precision=PRECISION)
    if dots is not None:
        other_offset = row_of(choice, heads, slots, other_heads, other_slots) * out_width
        other_rows = tl.load(others + other_offset[:, None] + o[None, :], in_bounds[:, None] & in_o, 0.0)
        tl.store(dots + tl.program_id(1) * choices + choice, tl.sum(acc * other_rows.to(DTYPE), 1), in_bounds)
    if gates is not None:
        acc *= tl.load(gates + choice, in_bounds, 0.0).to(DTYPE)[:, None]
    target = choice.to(tl.int64) * out_width
    tl.store(out + target[:, None] + o[None, :], acc, in_bounds[:, None] & in_o)


@triton.jit
def expert_outers(
    given, gradient, gates, out, order, ends, width, out_width,
    heads: tl.constexpr, slots: tl.constexpr, given_heads: tl.constexpr, given_slots: tl.constexpr,
    other_heads: tl.constexpr, other_slots: tl.constexpr,
    DTYPE: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr, OUTER: tl.constexpr,
):  # fmt: skip
    """out[e] = the sum over the choices c of expert e of gates[c] given[row of c]^T gradient[row of c].

    given [t, heads or 1, slots or 1, width], gradient [t, heads or 1, slots or 1, out_width], out [experts, width,
    out_width]; one block per program.
    """
    expert = tl.program_id(0).to(tl.int64)
    begin, end = tl.load(ends + expert - 1, expert > 0, 0), tl.load(ends + expert)
    c = tl.program_id(1) * INNER + tl.arange(0, INNER)
    o = tl.program_id(2) * OUTER + tl.arange(0, OUTER)
    acc = tl.zeros([INNER, OUTER], DTYPE)
    for start in range(begin, end, ROWS):
        position = start + tl.arange(0, ROWS)
        in_bounds = position < end
        choice = tl.load(order + position, in_bounds, 0)
        given_offset = row_of(choice, heads, slots, given_heads, given_slots) * width
        gradient_offset = row_of(choice, heads, slots, other_heads, other_slots) * out_width
        x = tl.load(given + given_offset[None, :] + c[:, None], tile_mask(c < width, in_bounds), 0.0)
        g = tl.load(gradient + gradient_offset[:, None] + o[None, :], tile_mask(in_bounds, o < out_width), 0.0)
        if gates is not None:
            g = (g.to(DTYPE) * tl.load(gates + choice, in_bounds, 0.0).to(DTYPE)[:, None]).to(g.dtype)
        acc += tl.dot(x, g, input_precision=PRECISION)
    out += expert * width * out_width
    tl.store(tile_at(out, c, out_width, o), acc, tile_mask(c < width, o < out_width))


@triton.jit
def expert_joined(
    rows, out, dots, dgates, count, choices, columns, width,
    TERMS: tl.constexpr, DTYPE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """out[r] = the sum of the rows [r TERMS, (r + 1) TERMS); dgates[c] = the sum of dots[column block, c], if given."""
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    o = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    in_bounds = tile_mask(r < count, o < width)
    first, acc = r.to(tl.int64) * TERMS, tl.zeros([ROWS, WIDTH], DTYPE)
    for term in tl.static_range(TERMS):
        acc += tl.load(tile_at(rows, first + term, width, o), in_bounds, 0.0).to(DTYPE)
    tl.store(tile_at(out, r.to(tl.int64), width, o), acc, in_bounds)
    if dots is not None:  # noqa: SIM102 - known when it compiles
        if tl.program_id(1) == 0:
            for term in tl.static_range(TERMS):
                gate = tl.zeros([ROWS], DTYPE)
                for column in range(columns):
                    gate += tl.load(dots + column * choices + first + term, r < count, 0.0)
                tl.store(dgates + first + term, gate, r < count)
