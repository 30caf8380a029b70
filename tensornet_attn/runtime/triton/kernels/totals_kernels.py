"""Kernels of weighted totals: one pass over up to four tensors [rows, inner], and one for their gradients."""

import triton
import triton.language as tl

from tensornet_attn.runtime.triton.kernels.tiles import tile_mask


@triton.jit
def total_term(x, weight, below, size, at, i, inside, DTYPE: tl.constexpr):
    """A tile of x times its weight, of which entry `i // below % size` belongs to column i."""
    term = tl.load(x + at, inside, 0.0).to(DTYPE)
    if weight is not None:
        term *= tl.load(weight + i // below % size)[None, :].to(DTYPE)
    return term


@triton.jit
def weighted_totals(
    x0, x1, x2, x3, weight0, weight1, weight2, weight3, out,
    below0, below1, below2, below3, size0, size1, size2, size3, rows, inner,
    DTYPE: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    """out = x0 weight0 + ...; an x may be absent."""
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    i = tl.program_id(1) * INNER + tl.arange(0, INNER)
    inside, at = tile_mask(r < rows, i < inner), r[:, None] * inner + i[None, :]
    acc = total_term(x0, weight0, below0, size0, at, i, inside, DTYPE)
    acc += total_term(x1, weight1, below1, size1, at, i, inside, DTYPE)
    if x2 is not None:
        acc += total_term(x2, weight2, below2, size2, at, i, inside, DTYPE)
    if x3 is not None:
        acc += total_term(x3, weight3, below3, size3, at, i, inside, DTYPE)
    tl.store(out + at, acc, inside)


@triton.jit
def total_term_gradient(g, x, weight, dx, below, size, at, i, inside, DTYPE: tl.constexpr):
    """Stores the gradient of x; returns the sums of g x over the rows, for that of the weight."""
    weight_sums = tl.zeros([i.shape[0]], DTYPE)
    if dx is not None:
        tl.store(dx + at, g * tl.load(weight + i // below % size)[None, :].to(DTYPE), inside)
    if x is not None:
        weight_sums += tl.sum(g * tl.load(x + at, inside, 0.0).to(DTYPE), 0)
    return weight_sums


@triton.jit
def weighted_gradients(
    g, x0, x1, x2, x3, weight0, weight1, weight2, weight3, dx0, dx1, dx2, dx3, parts,
    below0, below1, below2, below3, size0, size1, size2, size3, rows, inner, span,
    DTYPE: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    """dx = g weight, where dx is given; parts [4, programs, inner] = the sums of g x over the rows of each program.

    A program reads `span` blocks of ROWS rows. An x is absent where nobody asks for the gradient of its weight.
    """
    program, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * INNER + tl.arange(0, INNER)
    sum0, sum1 = tl.zeros([INNER], DTYPE), tl.zeros([INNER], DTYPE)
    sum2, sum3 = tl.zeros([INNER], DTYPE), tl.zeros([INNER], DTYPE)
    for block in range(span):
        r = (program * span + block) * ROWS + tl.arange(0, ROWS)
        inside, at = tile_mask(r < rows, i < inner), r[:, None] * inner + i[None, :]
        g_tile = tl.load(g + at, inside, 0.0).to(DTYPE)
        sum0 += total_term_gradient(g_tile, x0, weight0, dx0, below0, size0, at, i, inside, DTYPE)
        sum1 += total_term_gradient(g_tile, x1, weight1, dx1, below1, size1, at, i, inside, DTYPE)
        sum2 += total_term_gradient(g_tile, x2, weight2, dx2, below2, size2, at, i, inside, DTYPE)
        sum3 += total_term_gradient(g_tile, x3, weight3, dx3, below3, size3, at, i, inside, DTYPE)
    at, next = parts + program * inner + i, tl.num_programs(0) * inner
    if x0 is not None:
        tl.store(at, sum0, i < inner)
    if x1 is not None:
        tl.store(at + next, sum1, i < inner)
    if x2 is not None:
        tl.store(at + 2 * next, sum2, i < inner)
    if x3 is not None:
        tl.store(at + 3 * next, sum3, i < inner)
