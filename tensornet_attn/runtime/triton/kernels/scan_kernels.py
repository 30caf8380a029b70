"""Kernels of the delta rule in chunks: the triangular system of each chunk, states between chunks, gradients.

Reads and most gradients are linear attention and use `linear_reads`. Tensors passed between kernels, such as `undone`,
are bfloat16 if the operands are, otherwise at least float32. Sums are never bfloat16.
"""

import triton
import triton.language as tl

from tensornet_attn.runtime.triton.kernels.tiles import of_lead, part_and_lead, product, tile_at, tile_mask


@triton.jit
def rows_of(base, row, step, length, f, width):
    """The tile [rows, columns] of a tensor at these indices, zeros beyond the ends."""
    return tl.load(tile_at(base, row, step, f), tile_mask(row < length, f < width), 0.0)


@triton.jit
def store_rows(base, row, width, length, f, x):
    """Stores a tile into a contiguous tensor, nothing beyond the ends."""
    tl.store(tile_at(base, row, width, f), x, tile_mask(row < length, f < width))


@triton.jit
def solved_system(system, ROWS: tl.constexpr, LEVELS: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr):
    """The inverse of 1 + the part of `system` below the diagonal, [ROWS, ROWS], of 2 ** LEVELS rows.

    Blocks on the diagonal are combined in pairs by T - T N T, starting with single rows.
    """
    row = tl.arange(0, ROWS)
    solved = tl.where(row[:, None] == row[None, :], tl.full([ROWS, ROWS], 1.0, DTYPE), 0.0)
    solved -= tl.where((row[:, None] % 2 == 1) & (row[None, :] == row[:, None] - 1), system, 0.0)
    for level in range(1, LEVELS):
        down, across = row[:, None] >> level, row[None, :] >> level
        between = tl.where((down % 2 == 1) & (across == down - 1), system, 0.0)
        solved -= product(product(solved, between, PRECISION), solved, PRECISION)
    return solved


@triton.jit
def chunk_solutions(
    keys, values, rate, undone, writes, inverse,
    keys_batch, keys_head, keys_row, values_batch, values_head, values_row, heads, length, features, width, chunks,
    LEVELS: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
    HALF: tl.constexpr, FEATURES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """undone = T (rate k) and writes = T (rate v) of each chunk, T the inverse of 1 + rate k k^T below the diagonal.

    keys [b, h, length, features], values [b, h, length, width], rate [b h, length] -> undone and writes [b h, length,
    .], and if given T [b h, chunks, 2 HALF, 2 HALF]. The halves of a chunk are solved separately, then T combines them
    by -T N T.
    """
    chunk, lead = part_and_lead(chunks)
    row, begin = tl.arange(0, HALF), chunk * (2 * HALF)
    remaining = length - begin
    keys = of_lead(keys, lead, heads, keys_batch, keys_head) + begin * keys_row
    values = of_lead(values, lead, heads, values_batch, values_head) + begin * values_row
    undone += (lead * length + begin) * features
    writes += (lead * length + begin) * width
    rate += lead * length + begin
    top, low = tl.zeros([HALF, HALF], DTYPE), tl.zeros([HALF, HALF], DTYPE)
    join = tl.zeros([HALF, HALF], DTYPE)
    for first in range(0, features, FEATURES):
        f = first + tl.arange(0, FEATURES)
        a = rows_of(keys, row, keys_row, remaining, f, features)
        b = rows_of(keys, row + HALF, keys_row, remaining, f, features)
        top += product(a, tl.trans(a), PRECISION)
        low += product(b, tl.trans(b), PRECISION)
        join += product(b, tl.trans(a), PRECISION)
    above = tl.load(rate + row, row < remaining, 0.0)[:, None]
    below = tl.load(rate + row + HALF, row + HALF < remaining, 0.0)[:, None]
    top = solved_system(above * top, HALF, LEVELS, DTYPE, PRECISION)
    low = solved_system(below * low, HALF, LEVELS, DTYPE, PRECISION)
    join = -product(product(low, below * join, PRECISION), top, PRECISION)
    KEPT = undone.dtype.element_ty
    top, low, join = top.to(KEPT), low.to(KEPT), join.to(KEPT)
    if inverse is not None:
        square = tile_at(inverse + (lead * chunks + chunk) * (4 * HALF * HALF), row, 2 * HALF, row)
        tl.store(square, top)
        tl.store(square + HALF, tl.zeros([HALF, HALF], KEPT))
        tl.store(square + 2 * HALF * HALF, join)
        tl.store(square + 2 * HALF * HALF + HALF, low)
    for first in range(0, features, FEATURES):
        f = first + tl.arange(0, FEATURES)
        a = (above * rows_of(keys, row, keys_row, remaining, f, features).to(DTYPE)).to(KEPT)
        b = (below * rows_of(keys, row + HALF, keys_row, remaining, f, features).to(DTYPE)).to(KEPT)
        store_rows(undone, row, features, remaining, f, product(top, a, PRECISION))
        lower = product(join, a, PRECISION) + product(low, b, PRECISION)
        store_rows(undone, row + HALF, features, remaining, f, lower)
    for first in range(0, width, WIDTH):
        e = first + tl.arange(0, WIDTH)
        a = (above * rows_of(values, row, values_row, remaining, e, width).to(DTYPE)).to(KEPT)
        b = (below * rows_of(values, row + HALF, values_row, remaining, e, width).to(DTYPE)).to(KEPT)
        store_rows(writes, row, width, remaining, e, product(top, a, PRECISION))
        lower = product(join, a, PRECISION) + product(low, b, PRECISION)
        store_rows(writes, row + HALF, width, remaining, e, lower)


@triton.jit
def delta_states(
    adds, given, takes, left, right, states, moved,
    adds_batch, adds_head, adds_row, takes_batch, takes_head, takes_row,
    left_batch, left_head, left_row, right_batch, right_head, right_row,
    heads, length, others, first, features, width, chunks,
    LATER: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
    CHUNK: tl.constexpr, FEATURES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """S becomes S + adds^T moved, moved = given - takes S, for each chunk; `states` receives S^T before each chunk.

    adds and takes [b, h, length, features], given and moved [b h, length, width], states [b h, chunks, width,
    features]. LATER: from the last chunk to the first, with -given, and left^T right is added: left [b, h, others,
    features] and right [b, h, others, width], whose row i is at position `first` + i.

    Everything derived from S is transposed, so that it is the left factor of the next product: each warp has its own
    rows, which stay in registers.
    """
    lead, f = tl.program_id(0).to(tl.int64), tl.arange(0, FEATURES)
    e, row = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH), tl.arange(0, CHUNK)
    adds = of_lead(adds, lead, heads, adds_batch, adds_head)
    takes = of_lead(takes, lead, heads, takes_batch, takes_head)
    left = of_lead(left, lead, heads, left_batch, left_head)
    right = of_lead(right, lead, heads, right_batch, right_head)
    given += lead * length * width
    moved += lead * length * width
    states += lead * chunks * width * features
    KEPT = states.dtype.element_ty
    state = tl.zeros([WIDTH, FEATURES], DTYPE)
    for step in range(chunks):
        chunk = lead * 0 + (chunks - 1 - step if LATER else step)  # 64-bit
        begin = chunk * CHUNK
        remaining = length - begin
        stored_state = state.to(KEPT)
        store_rows(states + chunk * width * features, e, features, width, f, stored_state)
        take = rows_of(takes + begin * takes_row, row, takes_row, remaining, f, features)
        moved_tile = tl.trans(rows_of(given + begin * width, row, width, remaining, e, width)).to(DTYPE)
        moved_tile = (-moved_tile if LATER else moved_tile) - product(stored_state, tl.trans(take), PRECISION)
        moved_tile = moved_tile.to(KEPT)
        store_rows(moved + begin * width, row, width, remaining, e, tl.trans(moved_tile))
        add = rows_of(adds + begin * adds_row, row, adds_row, remaining, f, features)
        state += product(moved_tile, add, PRECISION)
        if LATER:
            i, j = begin - first, others + first - begin  # row of the chunk's first position; number of rows
            on, at = ((row >= -i) & (row < j))[:, None], row[:, None]
            x = tl.load(left + i * left_row + at * left_row + f[None, :], on & (f < features)[None, :], 0.0)
            y = tl.load(right + i * right_row + at * right_row + e[None, :], on & (e < width)[None, :], 0.0)
            state += product(tl.trans(y), x, PRECISION)


@triton.jit
def delta_gradients_end(
    keys, values, rate, undone, writes, moved, states, inverse,
    keys_part, keys_gradient, values_gradient, rate_gradient,
    keys_batch, keys_head, keys_row, values_batch, values_head, values_row, heads, length, features, width, chunks,
    DTYPE: tl.constexpr, PRECISION: tl.constexpr, CHUNK: tl.constexpr, FEATURES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The gradients of keys, values and rate via rate k and rate v; `keys_part` is added to that of keys.

    The gradient of rate k is T^T moved S^T and overwrites undone; that of rate v is T^T (-moved). That of the system,
    below the diagonal, is minus their products with undone and writes. keys_part [b, h, length, features], states [b h,
    chunks, width, features]. Those of keys and values have the heads of a row side by side.
    """
    chunk, lead = part_and_lead(chunks)
    row, start = tl.arange(0, CHUNK), chunk * CHUNK
    remaining, rows = length - start, lead * length + start
    KEPT = undone.dtype.element_ty
    beside = (lead // heads * length + start) * heads + lead % heads
    keys = of_lead(keys, lead, heads, keys_batch, keys_head) + start * keys_row
    values = of_lead(values, lead, heads, values_batch, values_head) + start * values_row
    undone += rows * features
    keys_part += rows * features
    keys_gradient += beside * features
    writes += rows * width
    moved += rows * width
    values_gradient += beside * width
    states += (lead * chunks + chunk) * width * features
    rates = tl.load(rate + rows + row, row < remaining, 0.0)[:, None]
    square = tile_at(inverse + (lead * chunks + chunk) * (CHUNK * CHUNK), row, CHUNK, row)
    transposed_inverse = tl.trans(tl.load(square))
    system, of_rate = tl.zeros([CHUNK, CHUNK], DTYPE), tl.zeros([CHUNK], DTYPE)
    for begin in range(0, width, WIDTH):
        e = begin + tl.arange(0, WIDTH)
        g_rated_v = -product(transposed_inverse, rows_of(moved, row, width, remaining, e, width), PRECISION)
        writes_tile = rows_of(writes, row, width, remaining, e, width)
        system += product(g_rated_v.to(KEPT), tl.trans(writes_tile), PRECISION)
        of_rate += tl.sum(g_rated_v * rows_of(values, row, values_row, remaining, e, width).to(DTYPE), 1)
        at = values_gradient + row[:, None] * heads * width + e[None, :]
        tl.store(at, g_rated_v * rates, tile_mask(row < remaining, e < width))
    for begin in range(0, features, FEATURES):
        f = begin + tl.arange(0, FEATURES)
        g_rated_k = tl.zeros([CHUNK, FEATURES], DTYPE)
        for first in range(0, width, WIDTH):
            e = first + tl.arange(0, WIDTH)
            moved_tile = rows_of(moved, row, width, remaining, e, width)
            g_rated_k += product(moved_tile, rows_of(states, e, features, width, f, features), PRECISION)
        g_rated_k = product(transposed_inverse, g_rated_k.to(KEPT), PRECISION).to(KEPT)
        undone_tile = rows_of(undone, row, features, remaining, f, features)
        system += product(g_rated_k, tl.trans(undone_tile), PRECISION)
        tl.debug_barrier()  # all threads have read before any writes
        store_rows(undone, row, features, remaining, f, g_rated_k)
    system = tl.where(row[:, None] > row[None, :], system, 0.0).to(KEPT)
    tl.debug_barrier()
    for begin in range(0, features, FEATURES):
        f = begin + tl.arange(0, FEATURES)
        k = rows_of(keys, row, keys_row, remaining, f, features)
        g_k = rows_of(undone, row, features, remaining, f, features).to(DTYPE) - product(system, k, PRECISION)
        of_rate += tl.sum(g_k * k.to(DTYPE), 1)
        g_k = rates * g_k - product(tl.trans(system), (rates * k.to(DTYPE)).to(KEPT), PRECISION)
        g_k += rows_of(keys_part, row, features, remaining, f, features).to(DTYPE)
        at = keys_gradient + row[:, None] * heads * features + f[None, :]
        tl.store(at, g_k, tile_mask(row < remaining, f < features))
    tl.store(rate_gradient + rows + row, of_rate, row < remaining)
