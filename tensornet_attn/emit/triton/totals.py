"""The accumulators of a backward kernel, one per total. For a scalar, each thread adds up its part of a tile."""

from __future__ import annotations

from tensornet_attn.emit.triton.kernel import BEFORE, FIRST, INSIDE, KernelText
from tensornet_attn.emit.triton.nodes import shape
from tensornet_attn.emit.triton.region import Region
from tensornet_attn.tiles.model import Node


def add_totals(
    region: Region, text: KernelText, totals: list[tuple[Node, Node]], carried: frozenset[Node] = frozenset()
) -> None:
    """Adds accumulators and the lines that add to them. `carried`: totals over all tiles of a looped leg."""
    for total, part in totals:
        if tile := None if total.axes else tile_of(text, part):
            add_number(region, text, total, tile, FIRST if total in carried else BEFORE)
        else:
            add_total(region, text, total, part, FIRST if total in carried else BEFORE)


def add_total(region: Region, text: KernelText, total: Node, part: Node, first: int) -> None:
    start = f"tl.zeros({shape(region.program, total.axes) if total.axes else '()'}, SUMS)"
    one = text.carry(text.scope.label(total), first, start)
    text.add(INSIDE, lambda: text.assign(one, text.scope.ref(part, part.axes), adds=True), [part], part.heads, [one])
    text.scope.totals[total.data[0]] = lambda read: text.entry(one, index_of(total, read))
    text.accumulators += text.widths_of(total)


def add_number(region: Region, text: KernelText, total: Node, tile: Node, first: int) -> None:
    """A scalar in parts."""
    rows, columns = shape(text.program, text.scope.pair)[1:-1].split(", ")

    def lines() -> list[str]:
        return text.assign(one, f"in_parts({text.scope.ref(tile, tile.axes)}, PARTS)", adds=True)

    one = text.carry(text.scope.label(total), first, f"tl.zeros((parts_of({rows}, {columns}, PARTS),), SUMS)")
    text.add(INSIDE, lines, [tile], tile.heads, [one], parts=True)
    text.scope.totals[total.data[0]] = lambda read: f"tl.sum({text.entry(one, index_of(total, read))})"
    text.numbers += region.program.tiles(total.heads)


def index_of(total: Node, read: Node) -> dict[str, str]:
    """Maps each variable of a total to the variable by which it is read."""
    return dict(zip(total.data[1], read.data[1], strict=True))


def tile_of(text: KernelText, part: Node) -> Node | None:
    """The tile of queries x keys whose sum is the scalar, if there is one."""
    while part.op == "sum":
        (part,) = part.args
    return part if part.axes == text.program.pair else None
