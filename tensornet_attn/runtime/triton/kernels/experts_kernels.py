"""Kernels of products with chosen experts: choices sorted by expert; the product gathers and scatters rows.

Choice c of [t, heads, slots] belongs to token c // (heads slots), one head and one slot. Experts of all heads are
numbered consecutively. `before` has the cumulative number of choices, by expert and then by block of choices.
"""

import triton
import triton.language as tl


@triton.jit
def expert_of(chosen, choice, choices, heads: tl.constexpr, slots: tl.constexpr, each: tl.constexpr):
    """The experts of these choices, -1 beyond the last choice; a head has `each` experts."""
    found = tl.load(chosen + choice, choice < choices, 0) + choice // slots % heads * each
    return tl.where(choice < choices, found, -1)


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
def expert_counts(
    chosen, counts, choices, blocks, heads: tl.constexpr, slots: tl.constexpr, each: tl.constexpr,
    BLOCK: tl.constexpr, EXPERTS: tl.constexpr,
):  # fmt: skip
    """The number of choices of each expert in a block of [t, heads, slots]: counts [heads each, blocks]."""
    e = tl.program_id(1) * EXPERTS + tl.arange(0, EXPERTS)
    choice = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    own = expert_of(chosen, choice, choices, heads, slots, each)
    found = tl.sum((own[:, None] == e[None, :]).to(tl.int32), 0)
    tl.store(counts + e * blocks + tl.program_id(0), found, e < heads * each)


@triton.jit
def expert_order(
    chosen, counts, before, order, choices, blocks, heads: tl.constexpr, slots: tl.constexpr, each: tl.constexpr,
    BLOCK: tl.constexpr, EXPERTS: tl.constexpr,
):  # fmt: skip
    """The choices sorted by expert, stably: order [choices]."""
    e = tl.program_id(1) * EXPERTS + tl.arange(0, EXPERTS)
    choice = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    own = expert_of(chosen, choice, choices, heads, slots, each)
    one = (own[:, None] == e[None, :]).to(tl.int32)
    at, in_bounds = e * blocks + tl.program_id(0), e < heads * each
    first = tl.load(before + at, in_bounds, 0) - tl.load(counts + at, in_bounds, 0)
    place = tl.sum(one * (first[None, :] + tl.cumsum(one, 0) - 1), 1)
    tl.store(order + place, choice, tl.sum(one, 1) > 0)


@triton.jit
def expert_products(
    given, weight, gates, out, others, dots, order, before,
    choices, blocks, experts, weight_expert, weight_in, weight_out, width, out_width,
    heads: tl.constexpr, slots: tl.constexpr, given_heads: tl.constexpr, given_slots: tl.constexpr,
    other_heads: tl.constexpr, other_slots: tl.constexpr, EXPERTS: tl.constexpr,
    DTYPE: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr, OUTER: tl.constexpr,
):  # fmt: skip
    """out[c] = gates[c] given[row of c] weight[expert of c] for each choice c; a program has a tile of one expert.

    given [t, heads or 1, slots or 1, width], weight [experts, width, out_width] by its strides, out [choices,
    out_width]. dots [column blocks, choices]: partial inner products with the rows of `others`, before the gates.
    """
    e = tl.arange(0, EXPERTS)
    ends = tl.load(before + (e + 1) * blocks - 1, e < experts, choices)
    begins = tl.load(before + e * blocks - 1, (e > 0) & (e < experts), 0)
    tiles = tl.where(e < experts, (ends - begins + ROWS - 1) // ROWS, 0)
    last = tl.cumsum(tiles, 0)  # tiles up to and including this expert
    here = (tl.program_id(0) < last) & (tl.program_id(0) >= last - tiles)  # true for at most one expert
    own = tl.sum(tl.where(here, e, 0), 0)
    first = tl.sum(tl.where(here, begins + (tl.program_id(0) - last + tiles) * ROWS, 0), 0)
    place = first + tl.arange(0, ROWS)
    in_bounds = place < tl.sum(tl.where(here, ends, 0), 0)
    choice = tl.load(order + place, in_bounds, 0)
    taken = row_of(choice, heads, slots, given_heads, given_slots) * width
    o = tl.program_id(1) * OUTER + tl.arange(0, OUTER)
    in_o = (o < out_width)[None, :]
    weight += own.to(tl.int64) * weight_expert
    found = tl.zeros([ROWS, OUTER], DTYPE)
    for begin in range(0, width, INNER):
        c = begin + tl.arange(0, INNER)
        x = tl.load(given + taken[:, None] + c[None, :], in_bounds[:, None] & (c < width)[None, :], 0.0)
        at = weight + c[:, None] * weight_in + o[None, :] * weight_out
        found += tl.dot(x, tl.load(at, (c < width)[:, None] & in_o, 0.0), input_precision=PRECISION)
    if dots is not None:
        other = row_of(choice, heads, slots, other_heads, other_slots) * out_width
        other = tl.load(others + other[:, None] + o[None, :], in_bounds[:, None] & in_o, 0.0)
        tl.store(dots + tl.program_id(1) * choices + choice, tl.sum(found * other.to(DTYPE), 1), in_bounds)
    if gates is not None:
        found *= tl.load(gates + choice, in_bounds, 0.0).to(DTYPE)[:, None]
    target = choice.to(tl.int64) * out_width
    tl.store(out + target[:, None] + o[None, :], found, in_bounds[:, None] & in_o)


@triton.jit
def expert_outers(
    given, gradient, gates, out, order, before, choices, blocks, width, out_width,
    heads: tl.constexpr, slots: tl.constexpr, given_heads: tl.constexpr, given_slots: tl.constexpr,
    other_heads: tl.constexpr, other_slots: tl.constexpr,
    DTYPE: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr, OUTER: tl.constexpr,
):  # fmt: skip
    """out[e] = the sum over the choices c of expert e of gates[c] given[row of c]^T gradient[row of c].

    given [t, heads or 1, slots or 1, width], gradient [t, heads or 1, slots or 1, out_width], out [experts, width,
    out_width]; one block per program.
    """
    own = tl.program_id(0).to(tl.int64)
    begin, end = tl.load(before + own * blocks - 1, own > 0, 0), tl.load(before + (own + 1) * blocks - 1)
    c = tl.program_id(1) * INNER + tl.arange(0, INNER)
    o = tl.program_id(2) * OUTER + tl.arange(0, OUTER)
    found = tl.zeros([INNER, OUTER], DTYPE)
    for start in range(begin, end, ROWS):
        place = start + tl.arange(0, ROWS)
        in_bounds = place < end
        choice = tl.load(order + place, in_bounds, 0)
        taken = row_of(choice, heads, slots, given_heads, given_slots) * width
        after = row_of(choice, heads, slots, other_heads, other_slots) * out_width
        x = tl.load(given + taken[None, :] + c[:, None], in_bounds[None, :] & (c < width)[:, None], 0.0)
        g = tl.load(gradient + after[:, None] + o[None, :], in_bounds[:, None] & (o < out_width)[None, :], 0.0)
        if gates is not None:
            g = (g.to(DTYPE) * tl.load(gates + choice, in_bounds, 0.0).to(DTYPE)[:, None]).to(g.dtype)
        found += tl.dot(x, g, input_precision=PRECISION)
    out += own * width * out_width
    tl.store(out + c[:, None] * out_width + o[None, :], found, (c < width)[:, None] & (o < out_width)[None, :])
