"""The kernels of a region's backward: gradients by query rows and by keys, and the rows of A dA where these need it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod

from tensornet_attn.emit.triton.kernel import AFTER, BEFORE, FIRST, INSIDE, LAST, KernelText
from tensornet_attn.emit.triton.nodes import at
from tensornet_attn.emit.triton.region import Region
from tensornet_attn.plan.tiles.derive import Gradients, gradients
from tensornet_attn.plan.tiles.model import Node, below


def row_sums(region: Region) -> str:
    """The rows of A dA of each map."""
    text = region.open(region.program.query)
    for number, part in enumerate(gradients(region.program).maps):
        text.compute([part])
        text.line(BEFORE, f"sums_{number} = tl.zeros({region.shape(part.axes)}, SUMS)")
        text.line(INSIDE, f"sums_{number} += {text.scope.local[part]}")
        place = at("pair", len(region.program.maps), number)
        text.line(AFTER, region.stored("sums", place, part.axes, f"sums_{number}"))
    return region.source(text, "sums", "the rows of A dA of each map", ["lse", "gradient", "sums"])


def by_rows(region: Region, made: Gradients) -> str:
    """Gradients of what has query rows, or neither side."""
    key = region.program.key
    return backward(
        region, made, region.program.query, "rows", lambda axes: key not in axes or (len(axes) == 2 and axes[0] != key)
    )


def by_keys(region: Region, made: Gradients) -> str:
    """Gradients of what has keys."""
    return backward(region, made, region.program.key, "keys", lambda axes: axes[:1] == (region.program.key,))


def backward(region: Region, made: Gradients, fixed: str, kind: str, mine: Callable[[tuple[str, ...]], bool]) -> str:
    leaves = [(leaf, d) for leaf, d in made.leaves if mine(leaf.axes)]
    text = region.open(fixed, looped=looped(region, [leaf for leaf, _ in leaves]))
    used = below([d for _, d in leaves])
    for total, part in made.totals:
        if total in used:
            text.compute([part])
            name = text.scope.local[total] = text.scope.label(total)
            text.line(BEFORE, f"{name} = tl.zeros({region.shape(total.axes) if total.axes else '()'}, SUMS)")
            text.line(INSIDE, f"{name} += {text.scope.ref(part, part.axes)}")
            text.places[total] = AFTER
            text.kept += [axis for axis in total.axes if axis in region.program.widths]
    for leaf, d in leaves:
        text.compute([d])
        store_gradient(region, text, leaf, text.scope.ref(d, d.axes))
    region.loops |= {kind: text.looped} if text.looped else {}
    names = [f"{name}_grad" for name in wanted(region, leaves)]
    return region.source(text, kind, "gradients", ["lse", "gradient", "sums", *names])


def looped(region: Region, leaves: Iterable[Node]) -> str | None:
    """The head that a program has all tiles of, one after another: parts of it would be too many to keep apart.

    Some leaf lacks it, and is, once for each of its tiles, larger than anything else.
    """
    sides = {region.program.query, region.program.key}
    long = [operand for operand in region.program.operands if sides & {*operand.axes}]
    most = max(numbers_of(region, legs) for legs in (region.program.legs, *(operand.use.legs for operand in long)))
    numbers = {leaf.data[0] for leaf in leaves if leaf.op == "load"}
    for operand in (operand for i, operand in enumerate(region.program.operands) if i in numbers and operand in long):
        for leg, tiles in region.program.heads.items():
            parts = numbers_of(region, (leg,)) // tiles
            if leg not in operand.heads and parts > 1 and parts * numbers_of(region, operand.use.legs) > most:
                return leg
    return None


def numbers_of(region: Region, legs: Iterable[str]) -> int:
    """The numbers of a tensor of one query and one key."""
    return prod(region.graph.leg[leg].size or 1 for leg in legs)


def wanted(region: Region, leaves: list[tuple[Node, Node]]) -> list[str]:
    """The operands that some leaves are tiles of."""
    return list(dict.fromkeys(leaf_name(region, leaf) for leaf, _ in leaves))


def leaf_name(region: Region, leaf: Node) -> str:
    return "mask" if leaf.op == "bias" else region.operands[leaf.data[0]]


def store_gradient(region: Region, text: KernelText, leaf: Node, value: str) -> None:
    heads = region.program.others if leaf.op == "bias" else region.program.operands[leaf.data[0]].heads
    places = leaf.data[0] if leaf.op == "bias" else leaf.data[1]
    tile, tiles = 0, prod(region.program.heads[leg] for leg in heads)
    for leg, place in zip(heads, places, strict=True):
        tile = tile * region.program.heads[leg] + place
    name, pair = f"{leaf_name(region, leaf)}_grad", "pair"
    if not {region.program.query, region.program.key} & {*leaf.axes}:
        pair = "(pair * blocks + block)"
    place = at(pair, tiles, tile)
    where = INSIDE if len(leaf.axes) == 2 and leaf.axes[1] == region.program.key else AFTER
    if text.looped and text.looped not in heads and where == AFTER and pair == "pair":
        total = text.scope.names.fresh(f"{name}_total")
        text.line(FIRST, f"{total} = tl.zeros({region.shape(leaf.axes)}, SUMS)")
        text.line(AFTER, f"{total} += {value}")
        text.kept += [axis for axis in leaf.axes if axis in region.program.widths]
        where, value, place = LAST, total, at("lead", tiles, tile)
    text.line(where, f"if {name} is not None:")
    text.line(where, "    " + region.stored(name, place, leaf.axes, value))
