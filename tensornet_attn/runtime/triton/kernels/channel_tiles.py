"""Tiles of scores whose channels decay at rates of their own: factors exp(own + other) for each channel, by pieces.

Rows that read a whole piece of PIECE rows do so through the largest exponent of the piece: exp(own + most) and
exp(other - most). The latter is at most 1, and the former at most the largest factor of the piece, so nothing overflows
however fast the decay. Inside of a piece, one row after another is read with its exact factor.
"""

import triton
import triton.language as tl

from tensornet_attn.runtime.triton.kernels.tiles import finite_of, product, tile_at, tile_mask

PIECE = tl.constexpr(16)  # the smallest tile of products


@triton.jit
def tile_exponents(power, place, entries, sign: tl.constexpr):
    """sign times what is stored, -inf outside of the entries."""
    return tl.where(entries, sign * tl.load(power + place, entries, 0.0), float("-inf"))


@triton.jit
def shifted_tile(x, exponent, most):
    """x exp(exponent - most) in the dtype of x, 0 where all exponents are -inf."""
    most = finite_of(most)
    return (x.to(exponent.dtype) * tl.exp(exponent - most)).to(x.dtype)


@triton.jit
def channel_scores(
    x, own, y, right, right_row, power, power_row, f, features, start, others,
    sign: tl.constexpr, LATER: tl.constexpr, PRECISION: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """sum over f of x y exp(own + other) for rows of the same chunk: x, own [CHUNK, f], y [f, CHUNK] -> [CHUNK, CHUNK].

    y and `other`, which is sign power, are also read from memory: row i of the chunk is row `start` + i there. Rows see
    rows up to them, or with LATER from them on; entries that they do not see are arbitrary, but finite.
    """
    row = tl.arange(0, CHUNK)
    channel, begin = f < features, row // PIECE * PIECE
    j = start + row
    offsets, entries = j[None, :] * power_row + f[:, None], tile_mask(channel, (j >= 0) & (j < others))
    scores = tl.zeros([CHUNK, CHUNK], own.dtype)
    for piece in range(1 if LATER else 0, CHUNK // PIECE if LATER else CHUNK // PIECE - 1):
        inside, reads = row // PIECE == piece, (row // PIECE < piece if LATER else row // PIECE > piece)
        other = tile_exponents(power, offsets, entries & inside[None, :], sign)
        most = tl.max(other, 1)
        factor = tl.exp(tl.where(reads[:, None], own + most[None, :], float("-inf")))
        scores += product((x.to(own.dtype) * factor).to(x.dtype), shifted_tile(y, other, most[:, None]), PRECISION)
    for step in range(PIECE):
        at = begin + step
        j = start + at
        visible = tile_mask((at >= row if LATER else at <= row) & (j >= 0) & (j < others), channel)
        other = tile_exponents(power, j[:, None] * power_row + f[None, :], visible, sign)
        z = tl.load(tile_at(right, j, right_row, f), visible, 0.0)
        dots = tl.sum(x.to(own.dtype) * z.to(own.dtype) * tl.exp(own + other), 1)
        scores += tl.where(row[None, :] == at[:, None], dots[:, None], 0.0)
    return scores


@triton.jit
def channel_read(
    scores, own, values, values_row, power, power_row, e, width, start, others,
    sign: tl.constexpr, LATER: tl.constexpr, PRECISION: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """sum over the columns of scores values exp(own + other): scores [CHUNK, CHUNK], own [CHUNK, e] -> [CHUNK, e].

    Scores are 0 where a row sees no row. Otherwise as `channel_scores`.
    """
    row = tl.arange(0, CHUNK)
    channel, begin = e < width, row // PIECE * PIECE
    j = start + row
    entries = tile_mask((j >= 0) & (j < others), channel)
    offsets = j[:, None] * power_row + e[None, :]
    v = tl.load(tile_at(values, j, values_row, e), entries, 0.0)
    read = tl.zeros(own.shape, own.dtype)
    for piece in range(1 if LATER else 0, CHUNK // PIECE if LATER else CHUNK // PIECE - 1):
        inside, reads = row // PIECE == piece, (row // PIECE < piece if LATER else row // PIECE > piece)
        other = tile_exponents(power, offsets, entries & inside[:, None], sign)
        most = tl.max(other, 0)
        factor = tl.exp(tl.where(reads[:, None], own + most[None, :], float("-inf")))
        seen = tl.where(tile_mask(reads, inside), scores, 0.0)
        read += product(seen, shifted_tile(v, other, most[None, :]), PRECISION) * factor
    for step in range(PIECE):
        at = begin + step
        j = start + at
        visible = tile_mask((at >= row if LATER else at <= row) & (j >= 0) & (j < others), channel)
        other = tile_exponents(power, j[:, None] * power_row + e[None, :], visible, sign)
        z = tl.load(tile_at(values, j, values_row, e), visible, 0.0)
        score = tl.sum(tl.where(row[None, :] == at[:, None], scores, 0.0), 1)
        read += score[:, None] * z.to(own.dtype) * tl.exp(own + other)
    return read
