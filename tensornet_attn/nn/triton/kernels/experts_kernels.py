"""Kernels of products with chosen experts: rows sorted by expert, gathered and scattered by the product itself."""

import triton
import triton.language as tl


@triton.jit
def expert_products(
    given, weight, gates, out, others, dots, order, source, other_source, expert, first, ends,
    choices, weight_expert, weight_in, weight_out, width, out_width,
    DTYPE: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr, OUTER: tl.constexpr,
):  # fmt: skip
    """out[order[r]] = gates[order[r]] given[source[r]] weight[expert of r], one tile of rows of one expert a program.

    Tile t has the rows from first[t] to the end of expert[t]. given [., width], weight [experts, width, out_width] by
    its strides, out [choices, out_width]. dots [blocks, choices]: the inner products with others[other_source[r]]
    before the gates, one part for each block of columns.
    """
    own = tl.load(expert + tl.program_id(0))
    row = tl.load(first + tl.program_id(0)) + tl.arange(0, ROWS)
    there = row < tl.load(ends + own)
    target, taken = tl.load(order + row, there, 0), tl.load(source + row, there, 0)
    o = tl.program_id(1) * OUTER + tl.arange(0, OUTER)
    in_o = (o < out_width)[None, :]
    found = tl.zeros([ROWS, OUTER], DTYPE)
    for begin in range(0, width, INNER):
        c = begin + tl.arange(0, INNER)
        x = tl.load(given + taken[:, None] * width + c[None, :], there[:, None] & (c < width)[None, :], 0.0)
        at = weight + own * weight_expert + c[:, None] * weight_in + o[None, :] * weight_out
        found += tl.dot(x, tl.load(at, (c < width)[:, None] & in_o, 0.0), input_precision=PRECISION)
    if dots is not None:
        other = tl.load(other_source + row, there, 0)
        other = tl.load(others + other[:, None] * out_width + o[None, :], there[:, None] & in_o, 0.0)
        tl.store(dots + tl.program_id(1) * choices + target, tl.sum(found * other.to(DTYPE), 1), there)
    if gates is not None:
        found *= tl.load(gates + target, there, 0.0).to(DTYPE)[:, None]
    tl.store(out + target[:, None] * out_width + o[None, :], found, there[:, None] & in_o)


@triton.jit
def expert_outers(
    given, gradient, gates, out, order, source, target, ends, width, out_width,
    DTYPE: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr, OUTER: tl.constexpr,
):  # fmt: skip
    """out[e] = the sum over the rows r of expert e of gates[order[r]] given[source[r]]^T gradient[target[r]].

    given [., width], gradient [., out_width], out [experts, width, out_width]; a program has one block of it.
    """
    own = tl.program_id(0).to(tl.int64)
    begin, end = tl.load(ends + own - 1, own > 0, 0), tl.load(ends + own)
    c = tl.program_id(1) * INNER + tl.arange(0, INNER)
    o = tl.program_id(2) * OUTER + tl.arange(0, OUTER)
    found = tl.zeros([INNER, OUTER], DTYPE)
    for start in range(begin, end, ROWS):
        row = start + tl.arange(0, ROWS)
        there = row < end
        taken, after = tl.load(source + row, there, 0), tl.load(target + row, there, 0)
        x = tl.load(given + taken[None, :] * width + c[:, None], there[None, :] & (c < width)[:, None], 0.0)
        g = tl.load(gradient + after[:, None] * out_width + o[None, :], there[:, None] & (o < out_width)[None, :], 0.0)
        if gates is not None:
            gate = tl.load(gates + tl.load(order + row, there, 0), there, 0.0)
            g = (g.to(DTYPE) * gate.to(DTYPE)[:, None]).to(g.dtype)
        found += tl.dot(x, g, input_precision=PRECISION)
    place = out + own * width * out_width + c[:, None] * out_width + o[None, :]
    tl.store(place, found, (c < width)[:, None] & (o < out_width)[None, :])
