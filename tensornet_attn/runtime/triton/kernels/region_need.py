"""What a program of a region's kernel needs: numbers in registers, bytes of shared memory. Plain Python.

The weights are fitted to what compiling the kernels of 19 designs for sm_80 and sm_90 gave, blocks of ten shapes each.
"""

from dataclasses import dataclass

from tensornet_attn.runtime.triton.configure import interpreted


@dataclass(frozen=True)
class Footprint:
    """What a program holds of blocks `own` x `more`, its own side and the one that it loops over, with `rows` rows.

    `tiles` of own x more; `sums` that are one number each; the widths of the sums that it keeps all the time, of the
    operands that it holds, of those that it streams and of what it makes of these; `wide`: of all, twice.
    """

    tiles: int
    sums: int
    accumulators: int
    resident: int
    streamed: int
    temporaries: int
    wide: int


def need_of_cores(
    footprint: Footprint, own: int, more: int, rows: int, warps: int, stages: int, size: int, target: int
) -> tuple[int, int]:
    """(numbers a program holds, bytes of a stage) where tensor cores make products of numbers of `size` bytes.

    Warps that have 16 rows of their own exchange nothing. From sm_90 on operands stay in shared memory.
    """
    tiles, operands, streamed = own * more * footprint.tiles, own * footprint.resident, more * footprint.streamed
    sums = own * footprint.accumulators + more * footprint.temporaries + 72 * warps * footprint.sums
    staged = max((own + more) * footprint.wide, operands + streamed) * size
    if rows < 16 * warps:
        often = copies(rows, own * more // rows, warps)
        tiles, many = often * tiles, footprint.resident > 2 * footprint.wide  # operands: these stay in registers
        operands *= often if many else 1
        return (tiles + sums + (operands + streamed) // 2) * 16 // 35, staged
    if target < 90:
        return (58 * tiles + 75 * sums + 15 * operands + 29 * streamed) // 100, staged
    return (580 * tiles + 675 * sums + 100 * operands) // 1000, (operands // stages + streamed) * size


def need_elsewhere(footprint: Footprint, own: int, more: int, size: int) -> tuple[int, int]:
    """The same where threads multiply, from whole rows of their own."""
    operands = own * footprint.resident + more * footprint.streamed
    sums = max(1, size // 4) * (own * more * footprint.tiles + own * footprint.accumulators)
    return (sums + operands * size // 4) * 11 // 4, max((own + more) * footprint.wide, operands) * size


def copies(rows: int, columns: int, warps: int) -> int:
    """How many warps hold the same part of a tile: they split what it has more of, in parts of 16 rows or 8 columns."""
    return max(1, 16 * warps // rows if rows >= columns else 8 * warps // columns)


def spread(relative: str, cores: bool) -> int:
    """As how many a tile counts whose numbers move to other threads: those of relative positions to keys."""
    return 2 if relative and (cores or not interpreted()) else 1
