"""Kernels of the delta rule in chunks: the triangular system of each chunk, the fast weights between, the gradients.

What queries read and most gradients are linear attention: `linear_reads` makes them.
"""

import triton
import triton.language as tl

from tensornet_attn.nn.triton.kernels.tiles import product


@triton.jit
def chunk_inverse(
    keys, rate, inverse, keys_batch, keys_head, keys_row, heads, length, features, chunks,
    levels: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr, CHUNK: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """The inverse of each chunk's system, 1 + rate k k^T below the diagonal: [b h, chunks CHUNK, CHUNK].

    That of two blocks on the diagonal and what joins them is T - T N T, from blocks of one row on. keys [b, h, length,
    features], rate [b h, length].
    """
    chunk, lead = (tl.program_id(0) % chunks).to(tl.int64), (tl.program_id(0) // chunks).to(tl.int64)
    place = tl.arange(0, CHUNK)
    row = chunk * CHUNK + place
    there = row < length
    keys += lead // heads * keys_batch + lead % heads * keys_head
    system = tl.zeros([CHUNK, CHUNK], DTYPE)
    for begin in range(0, features, FEATURES):
        f = begin + tl.arange(0, FEATURES)
        k = tl.load(keys + row[:, None] * keys_row + f[None, :], there[:, None] & (f < features)[None, :], 0.0)
        k_across = tl.load(keys + row[None, :] * keys_row + f[:, None], there[None, :] & (f < features)[:, None], 0.0)
        system += product(k, k_across, PRECISION)
    system *= tl.load(rate + lead * length + row, there, 0.0)[:, None]
    solved = tl.where(place[:, None] == place[None, :], tl.full([CHUNK, CHUNK], 1.0, DTYPE), 0.0)
    for level in range(levels):
        down, across = place[:, None] >> level, place[None, :] >> level
        between = tl.where((down % 2 == 1) & (across == down - 1), system, 0.0)
        solved -= product(product(solved, between, PRECISION), solved, PRECISION)
    tl.store(inverse + ((lead * chunks * CHUNK + row) * CHUNK)[:, None] + place[None, :], solved)


@triton.jit
def chunk_products(
    inverse, given, rate, out, given_batch, given_head, given_row, heads, length, width, chunks,
    sign: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """out = inverse (rate given), chunk by chunk; without a rate, sign times the transposed inverse times given.

    given [b, h, length, width], rate [b h, length] -> out [b h, length, width].
    """
    chunk, lead = (tl.program_id(0) % chunks).to(tl.int64), (tl.program_id(0) // chunks).to(tl.int64)
    place, e = tl.arange(0, CHUNK), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    row = chunk * CHUNK + place
    mask = (row < length)[:, None] & (e < width)[None, :]
    given += lead // heads * given_batch + lead % heads * given_head
    x = tl.load(given + row[:, None] * given_row + e[None, :], mask, 0.0).to(DTYPE)
    square = inverse + (lead * chunks + chunk) * CHUNK * CHUNK
    if rate is not None:
        x *= tl.load(rate + lead * length + row, row < length, 0.0)[:, None]
        found = product(tl.load(square + place[:, None] * CHUNK + place[None, :]), x, PRECISION)
    else:
        found = product(tl.load(square + place[None, :] * CHUNK + place[:, None]), x, PRECISION) * sign
    tl.store(out + ((lead * length + row) * width)[:, None] + e[None, :], found, mask)


@triton.jit
def delta_states(
    adds, given, takes, left, right, states, moved,
    adds_batch, adds_head, adds_row, takes_batch, takes_head, takes_row,
    left_batch, left_head, left_row, right_batch, right_head, right_row,
    heads, length, others, first, features, width, chunks,
    LATER: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
    CHUNK: tl.constexpr, FEATURES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """S becomes S + adds^T moved, moved = given - takes S, chunk after chunk; `states` has S before each chunk.

    adds and takes [b, h, length, features], given and moved [b h, length, width], states [b h, chunks, features,
    width]. LATER: from the last chunk on, with -given, and left^T right added: left [b, h, others, features] and
    right [b, h, others, width], whose row i stands at position `first` + i.
    """
    lead, f = tl.program_id(0).to(tl.int64), tl.arange(0, FEATURES)
    e = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    adds += lead // heads * adds_batch + lead % heads * adds_head
    takes += lead // heads * takes_batch + lead % heads * takes_head
    state = tl.zeros([FEATURES, WIDTH], DTYPE)
    in_f, in_e = f < features, e < width
    for step in range(chunks):
        chunk = chunks - 1 - step if LATER else step
        row = (chunk * CHUNK + tl.arange(0, CHUNK)).to(tl.int64)
        there = row < length
        at = states + ((lead * chunks + chunk) * features + f)[:, None] * width + e[None, :]
        tl.store(at, state, in_f[:, None] & in_e[None, :])
        place, mask = ((lead * length + row) * width)[:, None] + e[None, :], there[:, None] & in_e[None, :]
        own = tl.load(given + place, mask, 0.0)
        take = tl.load(takes + row[:, None] * takes_row + f[None, :], there[:, None] & in_f[None, :], 0.0)
        own = (-own if LATER else own) - product(take, state, PRECISION)
        tl.store(moved + place, own, mask)
        add = tl.load(adds + row[None, :] * adds_row + f[:, None], there[None, :] & in_f[:, None], 0.0)
        state += product(add, own, PRECISION)
        if LATER:
            i = row - first
            on = (i >= 0) & (i < others)
            from_left = left + lead // heads * left_batch + lead % heads * left_head
            from_right = right + lead // heads * right_batch + lead % heads * right_head
            x = tl.load(from_left + i[None, :] * left_row + f[:, None], on[None, :] & in_f[:, None], 0.0)
            y = tl.load(from_right + i[:, None] * right_row + e[None, :], on[:, None] & in_e[None, :], 0.0)
            state += product(x, y, PRECISION)


@triton.jit
def delta_gradients_end(
    keys, values, rate, undone, writes, of_key, of_value, keys_gradient, values_gradient, rate_gradient,
    keys_batch, keys_head, keys_row, values_batch, values_head, values_row,
    heads, length, features, width, chunks,
    DTYPE: tl.constexpr, PRECISION: tl.constexpr,
    CHUNK: tl.constexpr, FEATURES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The gradients of keys, values and rate by way of rate k and rate v, whose gradients are of_key and of_value.

    That of the system is -(of_key undone^T + of_value writes^T) below the diagonal.
    """
    chunk, lead = (tl.program_id(0) % chunks).to(tl.int64), (tl.program_id(0) // chunks).to(tl.int64)
    place = tl.arange(0, CHUNK)
    row = chunk * CHUNK + place
    there, rows = row < length, lead * length + row
    rates = tl.load(rate + rows, there, 0.0)
    system, of_rate = tl.zeros([CHUNK, CHUNK], DTYPE), tl.zeros([CHUNK], DTYPE)
    values += lead // heads * values_batch + lead % heads * values_head
    for begin in range(0, width, WIDTH):
        e = begin + tl.arange(0, WIDTH)
        mask = there[:, None] & (e < width)[None, :]
        own = tl.load(of_value + (rows * width)[:, None] + e[None, :], mask, 0.0)
        wrote = tl.load(writes + (rows * width)[None, :] + e[:, None], there[None, :] & (e < width)[:, None], 0.0)
        system += product(own, wrote, PRECISION)
        v = tl.load(values + row[:, None] * values_row + e[None, :], mask, 0.0).to(DTYPE)
        of_rate += tl.sum(own * v, 1)
        tl.store(values_gradient + (rows * width)[:, None] + e[None, :], own * rates[:, None], mask)
    for begin in range(0, features, FEATURES):
        f = begin + tl.arange(0, FEATURES)
        own = tl.load(of_key + (rows * features)[:, None] + f[None, :], there[:, None] & (f < features)[None, :], 0.0)
        took = tl.load(undone + (rows * features)[None, :] + f[:, None], there[None, :] & (f < features)[:, None], 0.0)
        system += product(own, took, PRECISION)
    system = tl.where(place[:, None] > place[None, :], system, 0.0)
    keys += lead // heads * keys_batch + lead % heads * keys_head
    for begin in range(0, features, FEATURES):
        f = begin + tl.arange(0, FEATURES)
        mask = there[:, None] & (f < features)[None, :]
        k = tl.load(keys + row[:, None] * keys_row + f[None, :], mask, 0.0).to(DTYPE)
        own = tl.load(of_key + (rows * features)[:, None] + f[None, :], mask, 0.0) - product(system, k, PRECISION)
        of_rate += tl.sum(own * k, 1)
        back = rates[:, None] * own - product(tl.trans(system), rates[:, None] * k, PRECISION)
        tl.store(keys_gradient + (rows * features)[:, None] + f[None, :], back, mask)
    tl.store(rate_gradient + rows, of_rate, there)
