"""Kernels that multiply rows by the gates of chosen experts, before or after one product with all experts."""

import triton
import triton.language as tl


@triton.jit
def gated_rows(
    given, gates, chosen, out, others, dgates, rows, width, each,
    slots: tl.constexpr, SLOTS: tl.constexpr, DTYPE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """out[r, e] = gate given[r] if e is chosen in row r, else 0: given [rows, width] -> out [rows, each, width].

    gates and chosen [rows, slots]. dgates [rows, slots]: the inner products of given[r] with others [rows, slots,
    width], if given.
    """
    r, slot = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64), tl.arange(0, SLOTS)
    dots = tl.zeros([ROWS, SLOTS], DTYPE)
    for begin in range(0, width, WIDTH):
        c = begin + tl.arange(0, WIDTH)
        in_bounds = (r < rows)[:, None] & (c < width)[None, :]
        x = tl.load(given + r[:, None] * width + c[None, :], in_bounds, 0.0).to(DTYPE)
        if dgates is not None:
            for j in tl.static_range(slots):
                at = (r * slots + j)[:, None] * width + c[None, :]
                dot = tl.sum(x * tl.load(others + at, in_bounds, 0.0).to(DTYPE), 1)
                dots += tl.where(slot[None, :] == j, dot[:, None], 0.0)
        for e in range(each):
            found = tl.zeros([ROWS, WIDTH], DTYPE)
            for j in tl.static_range(slots):
                own = tl.load(chosen + r * slots + j, r < rows, -1) == e
                gate = tl.load(gates + r * slots + j, own, 0.0).to(DTYPE)
                found += tl.where(own[:, None], x * gate[:, None], 0.0)
            tl.store(out + (r * each + e)[:, None] * width + c[None, :], found, in_bounds)
    if dgates is not None:
        tl.store(dgates + r[:, None] * slots + slot[None, :], dots, (r < rows)[:, None] & (slot < slots)[None, :])


@triton.jit
def gated_sums(
    given, gates, chosen, out, kept, others, dgates, rows, width, each,
    slots: tl.constexpr, SLOTS: tl.constexpr, DTYPE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """out[r] = the sum of gate given[r, e] over the chosen e: given [rows, each, width] -> out [rows, width].

    gates and chosen [rows, slots]. If given: kept [rows, slots, width] are the chosen rows, and dgates [rows, slots]
    their inner products with others [rows, width].
    """
    r, slot = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64), tl.arange(0, SLOTS)
    dots = tl.zeros([ROWS, SLOTS], DTYPE)
    for begin in range(0, width, WIDTH):
        c = begin + tl.arange(0, WIDTH)
        in_bounds = (r < rows)[:, None] & (c < width)[None, :]
        found = tl.zeros([ROWS, WIDTH], DTYPE)
        for j in tl.static_range(slots):
            e = tl.load(chosen + r * slots + j, r < rows, 0)
            x = tl.load(given + (r * each + e)[:, None] * width + c[None, :], in_bounds, 0.0)
            if kept is not None:
                tl.store(kept + (r * slots + j)[:, None] * width + c[None, :], x, in_bounds)
            x = x.to(DTYPE)
            if dgates is not None:
                other = tl.load(others + r[:, None] * width + c[None, :], in_bounds, 0.0).to(DTYPE)
                dots += tl.where(slot[None, :] == j, tl.sum(x * other, 1)[:, None], 0.0)
            found += x * tl.load(gates + r * slots + j, r < rows, 0.0).to(DTYPE)[:, None]
        tl.store(out + r[:, None] * width + c[None, :], found, in_bounds)
    if dgates is not None:
        tl.store(dgates + r[:, None] * slots + slot[None, :], dots, (r < rows)[:, None] & (slot < slots)[None, :])
