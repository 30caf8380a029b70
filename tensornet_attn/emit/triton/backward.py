"""The kernels of a region's backward: gradients by query rows and by keys, and the rows of A dA where these need it."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from tensornet_attn.emit.triton.kernel import AFTER, BEFORE, FIRST, INSIDE, LAST, KernelText
from tensornet_attn.emit.triton.nodes import at
from tensornet_attn.emit.triton.region import MOST_NUMBERS, Region
from tensornet_attn.emit.triton.totals import add_totals
from tensornet_attn.plan.tiles.derive import Gradients, gradients
from tensornet_attn.plan.tiles.model import Node, below, factored

MOST_TILES = 32  # of queries x keys that a kernel holds; where there would be more, some are made again


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


def by_queries(region: Region, made: Gradients) -> str:
    """Gradients of what has query rows, or neither side."""
    query, others = region.program.query, {region.program.key, *region.program.relative}
    if region.crowded:
        mine = [(leaf, d) for leaf, d in made.leaves if query in leaf.axes]
    else:
        mine = [(leaf, d) for leaf, d in made.leaves if query in leaf.axes or not others & {*leaf.axes}]
    return backward(region, made, query, "rows", mine)


def by_numbers(region: Region, made: Gradients) -> dict[str, str]:
    """Gradients of what has neither side, where these are many: kernels for some operands each, as they can be held."""
    sides = {region.program.query, region.program.key, *region.program.relative}
    found, groups = dict[int, list[tuple[Node, Node]]](), list[list[tuple[Node, Node]]]()
    for leaf, d in made.leaves:
        if not sides & {*leaf.axes}:
            found.setdefault(leaf.data[0], []).append((leaf, d))
    for leaves in found.values():
        if not groups or len(groups[-1]) + len(leaves) > MOST_NUMBERS:
            groups.append([])
        groups[-1] += leaves
    kinds = ["numbers", *(f"numbers_{i}" for i in range(2, 1 + len(groups)))]
    query = region.program.query
    return {kind: backward(region, made, query, kind, own) for kind, own in zip(kinds, groups, strict=True)}


def by_keys(region: Region, made: Gradients) -> str:
    """Gradients of what has keys."""
    mine = [(leaf, d) for leaf, d in made.leaves if leaf.axes[:1] == (region.program.key,)]
    return backward(region, made, region.program.key, "keys", mine)


def by_places(region: Region, made: Gradients) -> dict[str, str]:
    """Gradients of what has relative positions: a program has all pairs that are about as far apart."""
    if not region.program.relative:
        return {}
    (leg,) = region.program.relative
    mine = [(leaf, d) for leaf, d in made.leaves if leg in leaf.axes]
    return {"places": backward(region, made, leg, "places", mine)}


def backward(region: Region, made: Gradients, fixed: str, kind: str, leaves: list[tuple[Node, Node]]) -> str:
    text = gradient_text(region, made, fixed, leaves)
    if text.live > MOST_TILES:
        text = gradient_text(region, made, fixed, leaves, again=True)
    region.loops |= {kind: text.looped} if text.looped else {}
    names = [f"{name}_grad" for name in wanted(region, leaves)]
    return region.source(text, kind, "gradients", ["lse", "gradient", "sums", *names])


def gradient_text(
    region: Region, made: Gradients, fixed: str, leaves: list[tuple[Node, Node]], again: bool = False
) -> KernelText:
    """The lines of a kernel; `again`: what maps are made of is made again for its gradients."""
    sides = {region.program.query, region.program.key}
    held = not again and any(sides & {*leaf.axes} for leaf, _ in leaves)  # fewer spill so, as compiling has shown
    text = region.open(fixed, looped=looped(region, [leaf for leaf, _ in leaves]), held=held)
    used = below([d for _, d in leaves])
    totals = [(total, part) for total, part in made.totals if total in used]
    if again:
        read = below([*used, *(part for _, part in totals)])
        scores = [node for node in made.scores if node in read]
        text.compute(scores)
        text.again(scores)
    ends = {leaf: multiples(d) for leaf, d in leaves}
    links = {node for chain in ends.values() for node in chain[:-1]}
    elsewhere = {arg for node in used if node not in links for arg in node.args}
    carried = {
        chain[-1]
        for leaf, chain in ends.items()
        if chain[-1].op == "sum_over_blocks" and over_all(region, text, leaf) and not elsewhere & {*chain}
    }
    add_totals(region, text, totals, frozenset(carried))
    for leaf, d in leaves:
        *numbers, total = ends[leaf]
        if total in carried:  # and is multiplied when all tiles of the looped leg have been added
            factors = [*(text.scope.ref(node.args[0], ()) for node in numbers), text.scope.local[total]]
            store_gradient(region, text, leaf, " * ".join(factors), True)
            continue
        text.compute([d])
        store_gradient(region, text, leaf, text.scope.ref(d, d.axes), False)
    return text


def multiples(node: Node) -> list[Node]:
    """A node, and of what it is a multiple of a number, as far as that goes."""
    found = [node]
    while factored(found[-1])[0] is not None:
        found.append(factored(found[-1])[1])
    return found


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


def heads_of(region: Region, leaf: Node) -> tuple[str, ...]:
    return region.program.others if leaf.op == "bias" else region.program.operands[leaf.data[0]].heads


def in_loop(region: Region, leaf: Node) -> bool:
    """Whether the gradient of a leaf is written in each block."""
    return len(leaf.axes) == 2 and leaf.axes[1] == region.program.key


def over_all(region: Region, text: KernelText, leaf: Node) -> bool:
    """Whether all tiles of a looped leg add to the gradient of a leaf."""
    sides = {region.program.query, region.program.key} & {*leaf.axes}
    lacks = text.looped is not None and text.looped not in heads_of(region, leaf)
    return lacks and bool(sides) and not in_loop(region, leaf)


def store_gradient(region: Region, text: KernelText, leaf: Node, value: str, carried: bool) -> None:
    """`carried`: the value has all tiles of a looped leg already."""
    heads = heads_of(region, leaf)
    places = leaf.data[0] if leaf.op == "bias" else leaf.data[1]
    tile, tiles = 0, prod(region.program.heads[leg] for leg in heads)
    for leg, place in zip(heads, places, strict=True):
        tile = tile * region.program.heads[leg] + place
    name, pair = f"{leaf_name(region, leaf)}_grad", "pair"
    if not {region.program.query, region.program.key} & {*leaf.axes}:
        pair = "(pair * blocks + block)"
    place = at(pair, tiles, tile)
    if leaf.op == "entry":
        shared = text.looped is not None and text.looped not in heads
        store_entries(region, text, leaf, value, f"{name} + {at('lead', tiles, tile) if shared else place}", shared)
        return
    where = INSIDE if in_loop(region, leaf) else AFTER
    if over_all(region, text, leaf) and not carried:
        total = text.scope.names.fresh(f"{name}_total")
        text.line(FIRST, f"{total} = tl.zeros({region.shape(leaf.axes)}, SUMS)")
        text.line(AFTER, f"{total} += {value}")
        text.accumulators += [axis for axis in leaf.axes if axis in region.program.widths]
        value = total
    if over_all(region, text, leaf):
        where, place = LAST, at("lead", tiles, tile)
    text.line(where, f"if {name} is not None:")
    text.line(where, "    " + region.stored(name, place, leaf.axes, value))


def store_entries(region: Region, text: KernelText, leaf: Node, value: str, base: str, shared: bool) -> None:
    """Each query has an entry of its own for each distance: one key has it, but for the ends, which are sums.

    `shared`: all tiles of a looped leg add to the same entries.
    """
    query, (_, _, reach) = region.program.query, leaf.data
    size, operand = 2 * reach + 1, leaf_name(region, leaf)
    base = f"{base} * {query}_end * {size}"
    before, after = (text.scope.names.fresh(f"{operand}_{end}") for end in ("before", "after"))
    opened, closed = (FIRST, LAST) if shared else (BEFORE, AFTER)
    for end in (before, after):
        text.line(opened, f"{end} = tl.zeros({region.shape(leaf.axes[:1])}, SUMS)")
    given = f"{base}, {text.scope.along(query)}, distance, {reach}, in_bounds, {value}, {before}, {after}, {shared}"
    text.line(INSIDE, f"if {operand}_grad is not None:")
    text.line(INSIDE, f"    {before}, {after} = store_entries({given})")
    text.line(closed, f"if {operand}_grad is not None:")
    for end, start in ((before, base), (after, f"{base} + {size - 1}")):
        text.line(closed, f"    store_1d({start}, {query}, {size}, {query}_end, {end})")
