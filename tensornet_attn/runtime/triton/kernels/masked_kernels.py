"""The kernel of linear attention under a mask of the call, which may hide any pair: tiles of scores, none in memory."""

import triton
import triton.language as tl

from tensornet_attn.runtime.triton.kernels.tiles import of_lead, part_and_lead, product, tile_at, tile_mask


@triton.jit
def masked_reads(
    left, right, values, mask, scale, bias, out, inverse,
    left_batch, left_head, left_row, right_batch, right_head, right_row, values_batch, values_head, values_row,
    out_batch, out_head, out_row, mask_batch, mask_head, mask_left, mask_right,
    heads, length, others, ahead, features, width, chunks,
    CAUSAL: tl.constexpr, LATER: tl.constexpr, EPS: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
    CHUNK: tl.constexpr, FEATURES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """out = scores values, where scores = scale (left right^T) + bias where `mask` is not 0, else 0.

    left [b, h, length, features], right [b, h, others, features], values [b, h, others, width], mask [b, h, ., .] with
    the strides of rows of left and right -> out [b, h, length, width]; one chunk of `left` per program. Row i of left
    is at the position of row i + `ahead` of right. CAUSAL: a row sees rows at its position and before, with LATER at
    its position and after.

    scale and bias [b h, .] belong to the queries: to left, or to right if LATER. With an `inverse` [b h, length], the
    result is divided by (row sums + EPS), and the reciprocal is stored there, 0 if the divisor is 0.
    """
    chunk, lead = part_and_lead(chunks)
    i, e = chunk * CHUNK + tl.arange(0, CHUNK), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    left = of_lead(left, lead, heads, left_batch, left_head)
    right = of_lead(right, lead, heads, right_batch, right_head)
    values = of_lead(values, lead, heads, values_batch, values_head)
    mask = of_lead(mask, lead, heads, mask_batch, mask_head)
    on_left = i < length
    read, rows = tl.zeros([CHUNK, WIDTH], DTYPE), tl.zeros([CHUNK], DTYPE)
    position = chunk * CHUNK + ahead
    begin, end = position * 0, position * 0 + others
    if CAUSAL and LATER:
        begin = tl.maximum(position, 0)
    elif CAUSAL:
        end = tl.minimum(position + CHUNK, others)
    for start in range(begin, end, CHUNK):
        j = start + tl.arange(0, CHUNK)
        on_right = j < others
        scores = tl.zeros([CHUNK, CHUNK], DTYPE)
        for first in range(0, features, FEATURES):
            f = first + tl.arange(0, FEATURES)
            x = tl.load(tile_at(left, i, left_row, f), tile_mask(on_left, f < features), 0.0)
            y = tl.load(right + j[None, :] * right_row + f[:, None], tile_mask(f < features, on_right), 0.0)
            scores += product(x, y, PRECISION)
        if scale is not None:
            if LATER:
                scores *= tl.load(scale + lead * others + j, on_right, 0.0)[None, :]
            else:
                scores *= tl.load(scale + lead * length + i, on_left, 0.0)[:, None]
        if bias is not None:
            if LATER:
                scores += tl.load(bias + lead * others + j, on_right, 0.0)[None, :]
            else:
                scores += tl.load(bias + lead * length + i, on_left, 0.0)[:, None]
        seen = tl.load(mask + i[:, None] * mask_left + j[None, :] * mask_right, tile_mask(on_left, on_right), 0)
        visible = seen != 0
        if CAUSAL:
            past = i[:, None] + ahead - j[None, :]
            visible = visible & (past <= 0 if LATER else past >= 0)
        scores = tl.where(visible, scores, 0.0)
        v = tl.load(tile_at(values, j, values_row, e), tile_mask(on_right, e < width), 0.0)
        read += product(scores, v, PRECISION)
        rows += tl.sum(scores, 1)
    if inverse is not None:
        rows += EPS
        reciprocal = tl.where(rows == 0, 0.0, 1 / tl.where(rows == 0, 1.0, rows))
        read *= reciprocal[:, None]
        tl.store(inverse + lead * length + i, reciprocal, on_left & (tl.program_id(1) == 0))
    out = of_lead(out, lead, heads, out_batch, out_head)
    tl.store(tile_at(out, i, out_row, e), read, tile_mask(on_left, e < width))
