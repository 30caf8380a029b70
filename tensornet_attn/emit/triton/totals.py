"""The accumulators of a backward kernel: one for each total. Of a number each thread adds up what it has of a tile."""

from __future__ import annotations

from collections.abc import Iterator

from tensornet_attn.emit.triton.kernel import AFTER, BEFORE, FIRST, INSIDE, KernelText
from tensornet_attn.emit.triton.region import Region
from tensornet_attn.plan.tiles.model import Node, below


def add_totals(
    region: Region, text: KernelText, totals: list[tuple[Node, Node]], carried: frozenset[Node] = frozenset()
) -> None:
    """Accumulators, and what is added to each. `carried`: over all tiles of a looped leg."""
    for total, part in nearest_first(text, totals) if text.repeats else totals:
        tile = None if total.axes else tile_of(text, part)
        text.compute([tile or part])
        text.places[total] = AFTER
        name = text.scope.local[total] = text.scope.label(total)
        first = FIRST if total in carried else BEFORE
        if tile is not None:
            rows, columns = region.shape(text.scope.pair)[1:-1].split(", ")
            text.line(first, f"{name} = tl.zeros((parts_of({rows}, {columns}, PARTS),), SUMS)")
            text.line(INSIDE, f"{name} += in_parts({text.scope.ref(tile, tile.axes)}, PARTS)")
            text.scope.local[total] = f"tl.sum({name})"
            text.numbers += 1
            continue
        text.line(first, f"{name} = tl.zeros({region.shape(total.axes) if total.axes else '()'}, SUMS)")
        text.line(INSIDE, f"{name} += {text.scope.ref(part, part.axes)}")
        text.accumulators += text.widths_of(total)


def tile_of(text: KernelText, part: Node) -> Node | None:
    """The tile of queries x keys that a number is the sum of, if it is one."""
    while part.op == "sum":
        (part,) = part.args
    return part if part.axes == text.program.pair else None


def nearest_first(text: KernelText, totals: list[tuple[Node, Node]]) -> Iterator[tuple[Node, Node]]:
    """Totals in an order in which what one makes is soon read by others; the lines of each are written in between."""
    left = list(totals)
    while left:
        costs = [len(below([part], text.scope.local)) for _, part in left]
        yield left.pop(costs.index(min(costs)))
