"""Kernels of routers whose products have all experts: rows times gates before the product, or after it."""

import triton
import triton.language as tl

from tensornet_attn.runtime.triton.kernels.choices_kernels import largest
from tensornet_attn.runtime.triton.kernels.tiles import tile_at, tile_mask


@triton.jit
def gates_of(
    of, chosen, r, rows, each, k: tl.constexpr, MAP: tl.constexpr, CHOOSE: tl.constexpr,
    ENTRIES: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Rows of `of`, their map, rounded to the dtype of `of`, and which k are chosen: [ROWS, ENTRIES] each.

    A row of `chosen` has a bit for each chosen entry; it is stored if CHOOSE, and read otherwise.
    """
    e = tl.arange(0, ENTRIES)
    in_bounds = tile_mask(r < rows, e < each)
    values = tl.load(tile_at(of, r, each, e), in_bounds, 0.0).to(DTYPE)
    gates = values
    if MAP is not None:
        gates = MAP(values).to(of.dtype.element_ty).to(DTYPE)
    if CHOOSE:
        is_chosen = largest(gates, tile_mask(r >= 0, e < each), k, ENTRIES)
        tl.store(chosen + r, tl.sum(is_chosen.to(tl.int32) << e[None, :], 1), r < rows)
    else:
        is_chosen = ((tl.load(chosen + r, r < rows, 0)[:, None] >> e[None, :]) & 1) != 0
    return values, gates, is_chosen & in_bounds


@triton.jit
def of_entry(x, e, ENTRIES: tl.constexpr):
    """Column e of a tile."""
    return tl.sum(tl.where((tl.arange(0, ENTRIES) == e)[None, :], x, tl.zeros_like(x)), 1)


@triton.jit
def gradient_of_gates(
    dots, values, gates, own, out, r, rows, each, SLOPE: tl.constexpr, ENTRIES: tl.constexpr,
):  # fmt: skip
    """Stores the gradient of the rows that were mapped and chosen, from that of the gates; 0 for the other entries."""
    e = tl.arange(0, ENTRIES)
    if SLOPE is not None:
        dots = SLOPE(values, gates, dots)
    in_bounds = tile_mask(r < rows, e < each)
    tl.store(tile_at(out, r, each, e), tl.where(own, dots, 0.0), in_bounds)


@triton.jit
def gated_rows(
    given, of, chosen, out, others, dof, rows, width, each,
    k: tl.constexpr, MAP: tl.constexpr, SLOPE: tl.constexpr, CHOOSE: tl.constexpr,
    ENTRIES: tl.constexpr, DTYPE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """out[r, e] = gate given[r] if e is chosen in row r, else 0: given [rows, width] -> out [rows, each, width].

    Gates are the maps of `of` [rows, each]. dof [rows, each]: their gradient, if given, from the inner products of
    given[r] with the rows others [rows, k, width] of the chosen entries.
    """
    r = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    values, gates, is_chosen = gates_of(of, chosen, r, rows, each, k, MAP, CHOOSE, ENTRIES, DTYPE)
    dots = tl.zeros([ROWS, ENTRIES], DTYPE)
    for begin in range(0, width, WIDTH):
        c = begin + tl.arange(0, WIDTH)
        in_bounds = tile_mask(r < rows, c < width)
        x = tl.load(tile_at(given, r, width, c), in_bounds, 0.0).to(DTYPE)
        chosen_row = r * k
        for e in range(each):
            gate, is_entry = of_entry(gates, e, ENTRIES), of_entry(is_chosen.to(tl.int32), e, ENTRIES)
            gated = tl.where((is_entry > 0)[:, None], x * gate[:, None], 0.0)
            tl.store(tile_at(out, r * each + e, width, c), gated, in_bounds)
            if dof is not None:
                at = tile_at(others, chosen_row, width, c)
                dot = tl.sum(x * tl.load(at, in_bounds & (is_entry > 0)[:, None], 0.0).to(DTYPE), 1)
                dots += tl.where((tl.arange(0, ENTRIES) == e)[None, :], dot[:, None], 0.0)
                chosen_row += is_entry
    if dof is not None:
        gradient_of_gates(dots, values, gates, is_chosen, dof, r, rows, each, SLOPE, ENTRIES)


@triton.jit
def gated_sums(
    given, of, chosen, out, kept, others, dof, rows, width, each,
    k: tl.constexpr, MAP: tl.constexpr, SLOPE: tl.constexpr, CHOOSE: tl.constexpr,
    ENTRIES: tl.constexpr, DTYPE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """out[r] = the sum of gate given[r, e] over the chosen e: given [rows, each, width] -> out [rows, width].

    Gates are the maps of `of` [rows, each]. If given: kept [rows, k, width] are the chosen rows, and dof [rows, each]
    is the gradient of `of` from their inner products with others [rows, width].
    """
    r = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    values, gates, is_chosen = gates_of(of, chosen, r, rows, each, k, MAP, CHOOSE, ENTRIES, DTYPE)
    dots = tl.zeros([ROWS, ENTRIES], DTYPE)
    for begin in range(0, width, WIDTH):
        c = begin + tl.arange(0, WIDTH)
        in_bounds = tile_mask(r < rows, c < width)
        acc, chosen_row = tl.zeros([ROWS, WIDTH], DTYPE), r * k
        if dof is not None:
            other_rows = tl.load(tile_at(others, r, width, c), in_bounds, 0.0).to(DTYPE)
        for e in range(each):
            gate, is_entry = of_entry(gates, e, ENTRIES), of_entry(is_chosen.to(tl.int32), e, ENTRIES)
            read = in_bounds & (is_entry > 0)[:, None]
            x = tl.load(tile_at(given, r * each + e, width, c), read, 0.0)
            if kept is not None:
                tl.store(tile_at(kept, chosen_row, width, c), x, read)
                chosen_row += is_entry
            if dof is not None:
                dot = tl.sum(x.to(DTYPE) * other_rows, 1)
                dots += tl.where((tl.arange(0, ENTRIES) == e)[None, :], dot[:, None], 0.0)
            acc += tl.where(read, x.to(DTYPE) * gate[:, None], 0.0)
        tl.store(tile_at(out, r, width, c), acc, in_bounds)
    if dof is not None:
        gradient_of_gates(dots, values, gates, is_chosen, dof, r, rows, each, SLOPE, ENTRIES)
