"""Resources of a program of a region's kernel: values in registers, bytes of shared memory. Plain Python.

The coefficients are fitted to compilations of the kernels of 19 designs for sm_80 and sm_90, ten block shapes each.
"""

from dataclasses import dataclass

from tensornet_attn.runtime.triton.configure import interpreted

SPILLS = 8  # one of so many scalar accumulators counts, where all together cost less than smaller blocks


@dataclass(frozen=True)
class Footprint:
    """Resources of a program with blocks `fixed_rows` x `looped_rows`, of the fixed side and the looped side.

    `tiles`: live tiles of the block; `sums`: scalar accumulators; widths of the other accumulators, of resident
    operands, of streamed operands and of temporaries; `wide`: twice the sum of all widths.
    """

    tiles: int
    sums: int
    accumulators: int
    resident: int
    streamed: int
    temporaries: int
    wide: int


def need_of_cores(
    footprint: Footprint, fixed_rows: int, looped_rows: int, rows: int, warps: int, stages: int, size: int, target: int
) -> tuple[int, int]:
    """(values in registers, bytes per stage) with tensor cores, for elements of `size` bytes.

    Warps with 16 rows each exchange nothing. From sm_90 on, operands stay in shared memory.
    """
    tiles, operands, streamed = (
        fixed_rows * looped_rows * footprint.tiles,
        fixed_rows * footprint.resident,
        looped_rows * footprint.streamed,
    )
    sums, scalars = (
        fixed_rows * footprint.accumulators + looped_rows * footprint.temporaries,
        72 * warps * footprint.sums,
    )
    staged = max((fixed_rows + looped_rows) * footprint.wide, operands + streamed) * size
    if rows < 16 * warps:
        repeats = copies(rows, fixed_rows * looped_rows // rows, warps)
        tiles, in_registers = repeats * tiles, footprint.resident > 2 * footprint.wide  # operands stay in registers
        least = fixed_rows * footprint.accumulators + (operands + streamed) // 2  # in registers beside any tiles
        operands *= repeats if in_registers else 1
        staged //= stages if target >= 90 else 1  # measured: a second stage takes hardly more there
        sums += scalars // SPILLS  # those that spill are read and written once per block
        return max((tiles + sums + (operands + streamed) // 2) * 16 // 35, least * 3 // 4), staged
    sums += scalars
    if target < 90:
        return (59 * tiles + 75 * sums + 15 * operands + 27 * streamed) // 100, staged
    return (580 * tiles + 675 * sums + 100 * operands) // 1000, (operands // stages + streamed) * size


def need_elsewhere(footprint: Footprint, fixed_rows: int, looped_rows: int, size: int) -> tuple[int, int]:
    """`need_of_cores` without tensor cores: threads multiply whole rows."""
    operands = fixed_rows * footprint.resident + looped_rows * footprint.streamed
    sums = max(1, size // 4) * (fixed_rows * looped_rows * footprint.tiles + fixed_rows * footprint.accumulators)
    return (sums + operands * size // 4) * 11 // 4, max((fixed_rows + looped_rows) * footprint.wide, operands) * size


def copies(rows: int, columns: int, warps: int) -> int:
    """The number of warps that hold the same part of a tile; they split its longer side into 16 rows or 8 columns."""
    return max(1, 16 * warps // rows if rows >= columns else 8 * warps // columns)


def spread(relative: str, cores: bool) -> int:
    """The weight of a tile whose values move between threads, from relative positions to keys."""
    return 2 if relative and (cores or not interpreted()) else 1
