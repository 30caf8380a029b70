"""Kernels of linear attention in chunks: sums over the keys of each chunk, then the reads of each chunk of queries.

The gradients are linear attention with other operands and use the same kernel.
"""

import triton
import triton.language as tl

from tensornet_attn.runtime.triton.kernels.channel_tiles import channel_read, channel_scores, tile_exponents
from tensornet_attn.runtime.triton.kernels.tiles import finite_of, of_lead, part_and_lead, product, tile_at, tile_mask


@triton.jit
def mapped(x, seen, MAP: tl.constexpr, DTYPE: tl.constexpr):
    """The map of a tile, rounded to the dtype of the tile; 0 where not seen. Without a map, the tile."""
    if MAP is not None:
        x = tl.where(seen, MAP(x.to(DTYPE)), 0.0).to(x.dtype)
    return x


@triton.jit
def linear_sums(
    keys, values, scale, weight, power, seen, sums, total, most,
    keys_batch, keys_head, keys_row, values_batch, values_head, values_row, power_batch, power_head, power_row,
    heads, length, first, features, width, parts,
    span: tl.constexpr, MAP: tl.constexpr, sign: tl.constexpr, BY_FEATURES: tl.constexpr, DTYPE: tl.constexpr,
    PRECISION: tl.constexpr, CHUNK: tl.constexpr, FEATURES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """sums = (scale keys)^T values and total = the sum of weight keys, over the rows of each part of `span` chunks.

    keys [b, h, length, features], values [b, h, length, width], scale and weight [b h, length] -> sums
    [b h, parts, features, width], total [b h, parts, features], if given. Row i is at position `first` + i. MAP: keys
    are this map of what is stored. Only rows where `seen` [b h, length] is not 0 are read, if given.

    With exponents sign power [b, h, length, .], one for each row or, BY_FEATURES, each key, keys have a factor
    exp(exponent - most), where `most` [b h, parts, .], the largest of a part, is stored; a part is one chunk.
    """
    part, lead = part_and_lead(parts)
    f = tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    e = tl.program_id(2) * WIDTH + tl.arange(0, WIDTH)
    keys = of_lead(keys, lead, heads, keys_batch, keys_head)
    values = of_lead(values, lead, heads, values_batch, values_head)
    sum_tile, total_tile = tl.zeros([FEATURES, WIDTH], DTYPE), tl.zeros([FEATURES], DTYPE)
    for chunk in range(part * span, tl.minimum(part * span + span, tl.cdiv(first + length, CHUNK))):
        row = chunk * CHUNK + tl.arange(0, CHUNK) - first
        in_bounds = (row >= 0) & (row < length)
        if seen is not None:
            in_bounds = in_bounds & (tl.load(seen + lead * length + row, in_bounds, 0) != 0)
        on_key = tile_mask(f < features, in_bounds)
        k = mapped(tl.load(keys + row[None, :] * keys_row + f[:, None], on_key, 0.0), on_key, MAP, DTYPE)
        if total is not None:
            weights = tl.load(weight + lead * length + row, in_bounds, 0.0)[None, :] if weight is not None else 1.0
            total_tile += tl.sum(k.to(DTYPE) * weights, 1)
        if scale is not None:
            k = k.to(DTYPE) * tl.load(scale + lead * length + row, in_bounds, 0.0)[None, :]
        if power is not None:
            powers = of_lead(power, lead, heads, power_batch, power_head) + row * power_row
            if BY_FEATURES:
                exponent = tl.where(on_key, sign * tl.load(powers[None, :] + f[:, None], on_key, 0.0), float("-inf"))
                top = tl.max(exponent, 1)
                tl.store(most + (lead * parts + part) * features + f, top, (f < features) & (tl.program_id(2) == 0))
                k = k.to(DTYPE) * tl.exp(exponent - finite_of(top)[:, None])
            else:
                exponent = tl.where(in_bounds, sign * tl.load(powers, in_bounds, 0.0), float("-inf"))
                top = tl.max(exponent, 0)
                tl.store(most + lead * parts + part, top, (tl.program_id(1) == 0) & (tl.program_id(2) == 0))
                k = k.to(DTYPE) * tl.exp(exponent - finite_of(top))[None, :]
        if sums is not None:
            v = tl.load(tile_at(values, row, values_row, e), tile_mask(in_bounds, e < width), 0.0)
            sum_tile += product(k, v, PRECISION)
    entry = (lead * parts + part) * features + f
    if sums is not None:
        tl.store(tile_at(sums, entry, width, e), sum_tile, tile_mask(f < features, e < width))
    if total is not None:
        tl.store(total + entry, total_tile, (f < features) & (tl.program_id(2) == 0))


@triton.jit
def sums_before(sums, most, parts, size, each, REVERSE: tl.constexpr, DTYPE: tl.constexpr, BLOCK: tl.constexpr):
    """Replaces each part by the sum of the parts before it, or after it, in place: sums [b h, parts, size].

    If parts have factors exp(-most), `most` [b h, parts, size / each], the result has the factor exp(-reference), where
    the reference is the most of the parts that it adds, -inf if there are none; it replaces `most`, stored as the
    second half of [2, b h, parts, size / each], because programs share it.
    """
    lead, entry = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    running, inside = tl.zeros([BLOCK], DTYPE), entry < size
    if most is not None:
        reference = tl.full([BLOCK], float("-inf"), DTYPE)
        others = tl.num_programs(0).to(tl.int64) * parts * (size // each)
    for step in range(parts):
        part = parts - 1 - step if REVERSE else step
        at = sums + (lead * parts + part) * size + entry
        part_sum = tl.load(at, inside, 0.0)
        tl.store(at, running, inside)
        if most is not None:
            at = most + (lead * parts + part) * (size // each) + entry // each
            top = tl.load(at, inside, float("-inf"))
            tl.store(at + others, reference, inside & (entry % each == 0))
            largest = tl.maximum(reference, top)
            finite = finite_of(largest)
            running *= tl.exp(reference - finite)
            part_sum *= tl.exp(top - finite)
            reference = largest
        running += part_sum


@triton.jit
def linear_reads(
    left, right, values, sums, total, scale, bias, own_power, other_power, reference, seen, of, out, slopes, inverse,
    left_batch, left_head, left_row, right_batch, right_head, right_row, values_batch, values_head, values_row,
    own_batch, own_head, own_row, other_batch, other_head, other_row,
    of_batch, of_head, of_row, out_batch, out_head, out_row, sums_feature, sums_value, parts,
    heads, length, others, left_first, right_first, features, width, chunks, start,
    LATER: tl.constexpr, EPS: tl.constexpr,
    LEFT_MAP: tl.constexpr, RIGHT_MAP: tl.constexpr, VALUES_MAP: tl.constexpr, OUT_MAP: tl.constexpr,
    OUT_SLOPE: tl.constexpr, sign: tl.constexpr, BY_FEATURES: tl.constexpr, BY_WIDTH: tl.constexpr,
    DTYPE: tl.constexpr, PRECISION: tl.constexpr, CHUNK: tl.constexpr, FEATURES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """out = scores values, where scores = scale (left right^T) + bias, over the rows that `left` can see.

    left [b, h, length, features], right [b, h, others, features], values [b, h, others, width] -> out [b, h, length,
    width]; one chunk of `left` per program. A row sees rows at its position and before, with LATER at its position and
    after. Within its own chunk the scores are computed. For other chunks, `sums` [b h, parts, features, width] is
    right^T values, accessed by its strides, and `total` the sum of `right` [b h, parts, features], with a bias that of
    `values`.

    scale and bias [b h, .] belong to the queries: to left, or to right if LATER. With an `inverse` [b h, length], the
    result is divided by (row sums + EPS), and the reciprocal is stored there, 0 if the divisor is 0.

    LEFT_MAP, RIGHT_MAP, VALUES_MAP: the operands are these maps of what is stored. With `of` [b, h, length, width],
    out is the gradient of `of` if the result is that of its map. Keys are rows of right, of left if LATER; only keys
    where `seen` [b h, .] is not 0 are read, if given, and the result of others is 0.

    Scores that decay have a factor exp(sign (other_power - own_power)), own_power [b, h, length, .] and other_power
    [b, h, others, .]; `sums` then have factors exp(sign other_power - reference [b h, parts, .]). They have one number
    for each row, one for each feature with BY_FEATURES, or one for each value with BY_WIDTH. With `slopes`, which is
    laid out like `out`, the gradients of own_power are stored there, if `out` is the gradient of `of`.
    """
    chunk, lead = (tl.program_id(0) % chunks + start).to(tl.int64), (tl.program_id(0) // chunks).to(tl.int64)
    position = chunk * CHUNK + tl.arange(0, CHUNK)
    i, j = position - left_first, position - right_first
    on_left, on_right = (i >= 0) & (i < length), (j >= 0) & (j < others)
    e = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    left = of_lead(left, lead, heads, left_batch, left_head)
    right = of_lead(right, lead, heads, right_batch, right_head)
    values = of_lead(values, lead, heads, values_batch, values_head)
    stored = on_left
    if seen is not None:
        if LATER:
            on_left = on_left & (tl.load(seen + lead * length + i, on_left, 0) != 0)
        else:
            on_right = on_right & (tl.load(seen + lead * others + j, on_right, 0) != 0)
    if own_power is not None:
        own_power = of_lead(own_power, lead, heads, own_batch, own_head)
        other_power = of_lead(other_power, lead, heads, other_batch, other_head)
    part, summed = lead * parts + chunk, (chunk >= 0) & (chunk < parts)
    scores, read = tl.zeros([CHUNK, CHUNK], DTYPE), tl.zeros([CHUNK, WIDTH], DTYPE)
    rows = tl.zeros([CHUNK], DTYPE)
    for begin in range(0, features, FEATURES):
        f = begin + tl.arange(0, FEATURES)
        entries = tile_mask(on_left, f < features)
        x = mapped(tl.load(tile_at(left, i, left_row, f), entries, 0.0), entries, LEFT_MAP, DTYPE)
        entries = tile_mask(f < features, on_right)
        y = mapped(tl.load(right + j[None, :] * right_row + f[:, None], entries, 0.0), entries, RIGHT_MAP, DTYPE)
        if BY_FEATURES:
            exponent = tile_exponents(
                own_power, i[:, None] * own_row + f[None, :], tile_mask(on_left, f < features), -sign
            )
            scores += channel_scores(
                x, exponent, y, right, right_row, other_power, other_row, f, features, chunk * CHUNK - right_first,
                others, sign, LATER, PRECISION, CHUNK,
            )  # fmt: skip
            top = tl.load(reference + part * features + f, (f < features) & summed, float("-inf"))
            x = (x.to(DTYPE) * tl.exp(exponent + top[None, :])).to(x.dtype)
        else:
            scores += product(x, y, PRECISION)
        if sums is not None:
            s = tl.load(
                sums + part * features * width + f[:, None] * sums_feature + e[None, :] * sums_value,
                tile_mask(f < features, e < width) & summed,
                0.0,
            )
            read += product(x, s, PRECISION)
        if inverse is not None:
            z = tl.load(total + part * features + f, (f < features) & summed, 0.0)
            rows += tl.sum(x.to(DTYPE) * z[None, :], 1)
    if scale is not None:
        if LATER:
            scores *= tl.load(scale + lead * others + j, on_right, 0.0)[None, :]
        else:
            row_scale = tl.load(scale + lead * length + i, on_left, 0.0)[:, None]
            scores, read = scores * row_scale, read * row_scale
    if bias is not None:
        z = tl.load(total + part * width + e, (e < width) & summed, 0.0)
        if LATER:
            scores += tl.load(bias + lead * others + j, on_right, 0.0)[None, :]
            read += z[None, :]
        else:
            row_bias = tl.load(bias + lead * length + i, on_left, 0.0)[:, None]
            scores, read = scores + row_bias, read + row_bias * z[None, :]
    past = position[:, None] - position[None, :]
    visible = (past <= 0 if LATER else past >= 0) & on_right[None, :]
    scores = tl.where(visible, scores, 0.0)
    if BY_WIDTH:
        exponent = tile_exponents(own_power, i[:, None] * own_row + e[None, :], tile_mask(on_left, e < width), -sign)
        top = tl.load(reference + part * width + e, (e < width) & summed, float("-inf"))
        read = read * tl.exp(exponent + top[None, :]) + channel_read(
            scores, exponent, values, values_row, other_power, other_row, e, width, chunk * CHUNK - right_first, others,
            sign, LATER, PRECISION, CHUNK,
        )  # fmt: skip
    else:
        if own_power is not None and not BY_FEATURES:
            exponent = tile_exponents(own_power, i * own_row, on_left, -sign)
            read *= tl.exp(exponent + tl.load(reference + part, summed, float("-inf")))[:, None]
            other_exponent = tile_exponents(other_power, j * other_row, on_right, sign)
            scores *= tl.exp(tl.where(visible, exponent[:, None] + other_exponent[None, :], float("-inf")))
        entries = tile_mask(on_right, e < width)
        v = mapped(tl.load(tile_at(values, j, values_row, e), entries, 0.0), entries, VALUES_MAP, DTYPE)
        read += product(scores, v, PRECISION)
    if inverse is not None:
        rows += tl.sum(scores, 1) + EPS
        reciprocal = tl.where(rows == 0, 0.0, 1 / tl.where(rows == 0, 1.0, rows))
        read *= reciprocal[:, None]
        tl.store(inverse + lead * length + i, reciprocal, on_left & (tl.program_id(1) == 0))
    if of is not None:
        of = of_lead(of, lead, heads, of_batch, of_head)
        x = tl.load(tile_at(of, i, of_row, e), tile_mask(on_left, e < width), 0.0).to(DTYPE)
        if OUT_MAP is not None:
            read = OUT_SLOPE(x, OUT_MAP(x), read)
    if seen is not None and LATER:
        read = tl.where(on_left[:, None], read, 0.0)
    out = of_lead(out, lead, heads, out_batch, out_head)
    tl.store(tile_at(out, i, out_row, e), read, tile_mask(stored, e < width))
    if slopes is not None:
        slopes = of_lead(slopes, lead, heads, out_batch, out_head)
        tl.store(tile_at(slopes, i, out_row, e), -sign * read * x, tile_mask(stored, e < width))


@triton.jit
def linear_reads_all(
    left, sums, total, scale, bias, seen, of, out, inverse,
    left_batch, left_head, left_row, of_batch, of_head, of_row, out_batch, out_head, out_row, sums_feature, sums_value,
    heads, length, features, width, programs, span,
    LATER: tl.constexpr, EPS: tl.constexpr, LEFT_MAP: tl.constexpr, OUT_MAP: tl.constexpr, OUT_SLOPE: tl.constexpr,
    DTYPE: tl.constexpr, PRECISION: tl.constexpr, CHUNK: tl.constexpr, FEATURES: tl.constexpr, WIDTH: tl.constexpr,
    ONCE: tl.constexpr,
):  # fmt: skip
    """`linear_reads` where all rows see the same rows: one sum for each head, sums [b h, features, width].

    A program reads `span` chunks of `left`. ONCE: it loads the sums once, because one block has all features. scale
    belongs to left: with LATER, the sums have it.
    """
    lead, e = (tl.program_id(0) // programs).to(tl.int64), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    begin = tl.program_id(0) % programs * span
    left = of_lead(left, lead, heads, left_batch, left_head)
    out = of_lead(out, lead, heads, out_batch, out_head)
    sums += lead * features * width
    if of is not None:
        of = of_lead(of, lead, heads, of_batch, of_head)
    f = tl.arange(0, FEATURES)
    if ONCE:
        inside = tile_mask(f < features, e < width)
        s = tl.load(sums + f[:, None] * sums_feature + e[None, :] * sums_value, inside, 0.0)
        if inverse is not None:
            z = tl.load(total + lead * features + f, f < features, 0.0)
    if bias is not None:
        shift = tl.load(total + lead * width + e, e < width, 0.0)[None, :]
    for chunk in range(begin, tl.minimum(begin + span, tl.cdiv(length, CHUNK))):
        i = lead * 0 + chunk * CHUNK + tl.arange(0, CHUNK)  # 64-bit
        stored = i < length
        on_left = stored
        if seen is not None:
            on_left = on_left & (tl.load(seen + lead * length + i, on_left, 0) != 0)
        if ONCE:
            entries = tile_mask(on_left, f < features)
            x = mapped(tl.load(tile_at(left, i, left_row, f), entries, 0.0), entries, LEFT_MAP, DTYPE)
            read = product(x, s, PRECISION)
            if inverse is not None:
                rows = tl.sum(x.to(DTYPE) * z[None, :], 1)
        else:
            read, rows = tl.zeros([CHUNK, WIDTH], DTYPE), tl.zeros([CHUNK], DTYPE)
            for first in range(0, features, FEATURES):
                g = first + f
                entries = tile_mask(on_left, g < features)
                x = mapped(tl.load(tile_at(left, i, left_row, g), entries, 0.0), entries, LEFT_MAP, DTYPE)
                inside = tile_mask(g < features, e < width)
                s = tl.load(sums + g[:, None] * sums_feature + e[None, :] * sums_value, inside, 0.0)
                read += product(x, s, PRECISION)
                if inverse is not None:
                    rows += tl.sum(x.to(DTYPE) * tl.load(total + lead * features + g, g < features, 0.0)[None, :], 1)
        if scale is not None:
            read *= tl.load(scale + lead * length + i, on_left, 0.0)[:, None]
        if bias is not None:
            if LATER:
                read += shift
            else:
                read += tl.load(bias + lead * length + i, on_left, 0.0)[:, None] * shift
        if inverse is not None:
            rows += EPS
            reciprocal = tl.where(rows == 0, 0.0, 1 / tl.where(rows == 0, 1.0, rows))
            read *= reciprocal[:, None]
            tl.store(inverse + lead * length + i, reciprocal, stored & (tl.program_id(1) == 0))
        if of is not None:
            y = tl.load(tile_at(of, i, of_row, e), tile_mask(on_left, e < width), 0.0).to(DTYPE)
            read = OUT_SLOPE(y, OUT_MAP(y), read)
        if seen is not None:
            read = tl.where(on_left[:, None], read, 0.0)
        tl.store(tile_at(out, i, out_row, e), read, tile_mask(stored, e < width))


@triton.jit
def row_products(a, b, factor, out, a_batch, a_head, a_row, b_batch, b_head, b_row, heads, length, width,
                 DTYPE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    """out = -factor times the inner products of rows: a and b [b, h, length, width], the others [b h, length].

    Without a factor, out is the inner products.
    """
    blocks = tl.cdiv(length, ROWS)
    lead = (tl.program_id(0) // blocks).to(tl.int64)
    i = (tl.program_id(0) % blocks).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    a = of_lead(a, lead, heads, a_batch, a_head)
    b = of_lead(b, lead, heads, b_batch, b_head)
    dots = tl.zeros([ROWS], DTYPE)
    for begin in range(0, width, WIDTH):
        e = begin + tl.arange(0, WIDTH)
        in_bounds = tile_mask(i < length, e < width)
        x = tl.load(tile_at(a, i, a_row, e), in_bounds, 0.0)
        y = tl.load(tile_at(b, i, b_row, e), in_bounds, 0.0)
        dots += tl.sum(x.to(DTYPE) * y.to(DTYPE), 1)
    if factor is not None:
        dots *= -tl.load(factor + lead * length + i, i < length, 0.0)
    tl.store(out + lead * length + i, dots, i < length)
