"""The accumulators of a backward kernel, one per total. For a scalar, each thread adds up its part of a tile."""

from __future__ import annotations

from tensornet_attn.emit.triton.kernel import BEFORE, FIRST, INSIDE, KernelText
from tensornet_attn.emit.triton.nodes import shape
from tensornet_attn.emit.triton.region import TritonRegion
from tensornet_attn.tiles.program import Node


def add_totals(
    region: TritonRegion, kernel: KernelText, totals: list[tuple[Node, Node]], carried: frozenset[Node] = frozenset()
) -> None:
    """Adds accumulators and the lines that add to them. `carried`: totals over all tiles of a looped leg."""
    for total, summand in totals:
        if tile := None if total.axes else tile_of(kernel, summand):
            add_number(region, kernel, total, tile, FIRST if total in carried else BEFORE)
        else:
            add_total(region, kernel, total, summand, FIRST if total in carried else BEFORE)


def add_total(region: TritonRegion, kernel: KernelText, total: Node, summand: Node, section: int) -> None:
    start = f"tl.zeros({shape(region.program, total.axes) if total.axes else '()'}, SUMS)"
    accumulator = kernel.carry(kernel.scope.label(total), section, start)
    kernel.add_sum(accumulator, summand)
    kernel.scope.totals[total.data[0]] = lambda read: kernel.entry(accumulator, index_of(total, read))
    kernel.accumulators += kernel.widths_of(total)


def add_number(region: TritonRegion, kernel: KernelText, total: Node, tile: Node, section: int) -> None:
    """A scalar in parts."""
    rows, columns = shape(kernel.program, kernel.scope.pair)[1:-1].split(", ")

    def lines() -> list[str]:
        return kernel.assign(accumulator, f"in_parts({kernel.scope.ref(tile)}, PARTS)", adds=True)

    accumulator = kernel.carry(
        kernel.scope.label(total), section, f"tl.zeros((parts_of({rows}, {columns}, PARTS),), SUMS)"
    )
    kernel.add(INSIDE, lines, [tile], tile.heads, [accumulator], parts=True)
    kernel.scope.totals[total.data[0]] = lambda read: f"tl.sum({kernel.entry(accumulator, index_of(total, read))})"
    kernel.numbers += region.program.tiles(total.heads)


def index_of(total: Node, read: Node) -> dict[str, str]:
    """Maps each variable of a total to the variable by which it is read."""
    return dict(zip(total.data[1], read.data[1], strict=True))


def tile_of(kernel: KernelText, summand: Node) -> Node | None:
    """The tile of queries x keys whose sum is the scalar, if there is one."""
    while summand.op == "sum":
        (summand,) = summand.args
    return summand if summand.axes == kernel.program.pair else None
