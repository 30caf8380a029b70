"""The accumulators of a backward kernel: one for each total, but for numbers, of which many stand in one."""

from __future__ import annotations

from collections.abc import Iterator

from tensornet_attn.emit.triton.kernel import AFTER, BEFORE, FIRST, INSIDE, KernelText
from tensornet_attn.emit.triton.region import Region
from tensornet_attn.plan.tiles.model import Node, below


def add_totals(
    region: Region, text: KernelText, totals: list[tuple[Node, Node]], carried: frozenset[Node] = frozenset()
) -> None:
    """Accumulators, and what is added to each; many numbers stand in one. `carried`: over all tiles of a looped leg."""
    packed = [total for total, _ in totals if region.crowded and not total.axes]
    if packed:
        places, numbers = text.scope.names.fresh("places"), text.scope.names.fresh("numbers")
        size = 1 << (len(packed) - 1).bit_length()  # tl.arange takes powers of two
        text.line(BEFORE, f"{places} = tl.arange(0, {size})")
        text.line(BEFORE, f"{numbers} = tl.zeros(({size},), SUMS)")
    for total, part in nearest_first(text, totals) if text.repeats else totals:
        text.compute([part])
        value = text.scope.ref(part, part.axes)
        text.places[total] = AFTER
        if total in packed:
            here = f"{places} == {packed.index(total)}"
            text.line(INSIDE, f"{numbers} += tl.where({here}, {value}, 0.0)")
            text.scope.local[total] = f"tl.sum(tl.where({here}, {numbers}, 0.0))"
            continue
        name = text.scope.local[total] = text.scope.label(total)
        first = FIRST if total in carried else BEFORE
        text.line(first, f"{name} = tl.zeros({region.shape(total.axes) if total.axes else '()'}, SUMS)")
        text.line(INSIDE, f"{name} += {value}")
        often = 2 if total in carried else 1  # a loop around the loop holds more, as compiling has shown
        text.kept += often * text.widths_of(total)


def nearest_first(text: KernelText, totals: list[tuple[Node, Node]]) -> Iterator[tuple[Node, Node]]:
    """Totals in an order in which what one makes is soon read by others; the lines of each are written in between."""
    left = list(totals)
    while left:
        costs = [len(below([part], text.scope.local)) for _, part in left]
        yield left.pop(costs.index(min(costs)))
