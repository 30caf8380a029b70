"""The backward kernels of a region: gradients by query rows and by keys, and the rows of A dA if needed."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, count
from math import prod

from tensornet_attn.emit.triton.kernel import AFTER, BEFORE, FIRST, INSIDE, LAST, KernelText
from tensornet_attn.emit.triton.nodes import row_at, shape, tile_at
from tensornet_attn.emit.triton.region import Region
from tensornet_attn.emit.triton.totals import add_totals
from tensornet_attn.tiles.derive import Gradients
from tensornet_attn.tiles.model import At, Node, below, factored

OTHERS = ("sums", "rows")  # kernels that have other results than the gradients of scalars
TOGETHER = 72  # scalar gradients per kernel; more spill registers, as measured
Leaves = list[tuple[Node, Node]]  # (what is loaded, its gradient)


def row_sums(region: Region, made: Gradients, leaves: Leaves) -> str:
    """The kernel for the rows of A dA of each map, and for the gradients of some scalars."""
    text, query = region.open(region.program.query), region.program.query
    for own, part in made.maps:
        add_row_sums(region, text, own, part, query)
    add_gradients(region, text, made, leaves)
    names = [f"{name}_grad" for name in wanted(region, leaves)]
    return region.source(
        text, "sums", "the rows of A dA of each map", ["lse", "gradient", "sums", *names], ["gradient"]
    )


def add_row_sums(region: Region, text: KernelText, one: Node, part: Node, query: str) -> None:
    sums = text.carry(f"sums_{one.data[0]}", BEFORE, f"tl.zeros({shape(region.program, part.axes)}, SUMS)")
    text.add(INSIDE, lambda: text.assign(sums, text.scope.ref(part, part.axes), adds=True), [part], part.heads, [sums])

    def stored() -> list[str]:
        return [f"store_1d({row_at(text.scope, 'sums', *one.data[:2])}, {query}, 1, {query}_end, {text.entry(sums)})"]

    text.add(AFTER, stored, (), one.heads)


def by_queries(region: Region, made: Gradients, numbers: Leaves) -> str:
    """Gradients of operands with query rows, and of some scalars."""
    mine = [(leaf, d) for leaf, d in made.leaves if region.program.query in leaf.axes or (leaf, d) in numbers]
    return backward(region, made, region.program.query, "rows", mine)


def by_numbers(region: Region, made: Gradients) -> dict[str, Leaves]:
    """Gradients of operands with neither side, by the kernel that adds them up: `rows` if there are few.

    Otherwise each kernel has as many as fit: those that need no rows of A dA are in the kernel that makes these, others
    in `rows`, and the rest in kernels of their own.
    """
    sides = {region.program.query, region.program.key, *region.program.relative}
    found, room = dict[str, Leaves](), dict[str, int]()
    for leaf, d in made.leaves:
        if sides & {*leaf.axes}:
            continue
        tiles = region.program.tiles(leaf.heads) if region.crowded else 0
        early = region.crowded and region.mixed and not any(node.op == "sums" for node in summed(made, [d]))
        own = (f"numbers_{i}" if i > 1 else "numbers" for i in count(1))
        kinds = chain(["sums"] if early else [], ["rows"], own)
        kind = next(
            kind for kind in kinds if tiles <= room.get(kind, TOGETHER if kind in OTHERS else max(tiles, TOGETHER))
        )
        found.setdefault(kind, []).append((leaf, d))
        room[kind] = room.get(kind, TOGETHER) - tiles
    return found


def summed(made: Gradients, ends: Iterable[Node]) -> list[Node]:
    """The nodes below some gradients and below the sums that they read."""
    nodes = below(ends)
    totals = {node.data[0] for node in nodes if node.op == "sum_over_blocks"}
    return below([*ends, *(part for total, part in made.totals if total.data[0] in totals)])


def by_keys(region: Region, made: Gradients) -> str:
    """Gradients of operands with keys."""
    mine = [(leaf, d) for leaf, d in made.leaves if leaf.axes[:1] == (region.program.key,)]
    return backward(region, made, region.program.key, "keys", mine)


def by_places(region: Region, made: Gradients) -> dict[str, str]:
    """Gradients of operands with relative positions: a program handles all pairs at about the same distance."""
    if not region.program.relative:
        return {}
    (leg,) = region.program.relative
    mine = [(leaf, d) for leaf, d in made.leaves if leg in leaf.axes]
    return {"places": backward(region, made, leg, "places", mine)}


def backward(region: Region, made: Gradients, fixed: str, kind: str, leaves: Leaves) -> str:
    text = gradient_text(region, made, fixed, leaves)
    region.loops |= {kind: text.looped} if text.looped else {}
    names = [f"{name}_grad" for name in wanted(region, leaves)]
    strided = [
        name
        for name in names
        if name in {f"{leaf_name(region, leaf)}_grad" for leaf, _ in leaves if by_strides(region, leaf)}
    ]
    return region.source(text, kind, "gradients", ["lse", "gradient", "sums", *names], ["gradient", *strided])


def gradient_text(region: Region, made: Gradients, fixed: str, leaves: Leaves) -> KernelText:
    """The statements of a backward kernel."""
    sides = {region.program.query, region.program.key}
    held = any(sides & {*leaf.axes} for leaf, _ in leaves)  # avoids spilled registers, as measured
    text = region.open(fixed, looped=looped(region, [leaf for leaf, _ in leaves]), held=held)
    add_gradients(region, text, made, leaves)
    return text


def add_gradients(region: Region, text: KernelText, made: Gradients, leaves: Leaves) -> None:
    """Adds the sums that gradients need, and the lines that store them."""
    used = {node.data[0] if node.op == "sum_over_blocks" else node: node for node in below([d for _, d in leaves])}
    totals = [(total, part) for total, part in made.totals if total.data[0] in used]
    ends = {leaf: multiples(d) for leaf, d in leaves}
    links = {node for chain in ends.values() for node in chain[:-1]}
    elsewhere = {arg for node in used.values() if node not in links for arg in node.args}
    carried = {
        chain[-1]
        for leaf, chain in ends.items()
        if chain[-1].op == "sum_over_blocks" and over_all(region, text, leaf) and not elsewhere & {*chain}
    }
    add_totals(region, text, totals, frozenset(carried))
    for leaf, d in leaves:
        *numbers, total = ends[leaf]
        # carried totals are multiplied after all tiles of the looped leg are added
        store_gradient(region, text, leaf, d, (numbers, total) if total in carried else None)


def multiples(node: Node) -> list[Node]:
    """The chain of nodes that remain after removing numeric factors from a node."""
    found = [node]
    while factored(found[-1])[0] is not None:
        found.append(factored(found[-1])[1])
    return found


def looped(region: Region, leaves: Iterable[Node]) -> str | None:
    """The head whose tiles a program handles one after another, because separate parts would take too much memory.

    Some leaf lacks the head, and its gradient once per tile would be larger than any other tensor.
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
    """Elements of a tensor for one query and one key."""
    return prod(region.graph.leg[leg].size or 1 for leg in legs)


def wanted(region: Region, leaves: Leaves) -> list[str]:
    """The operands to which the leaves belong."""
    return list(dict.fromkeys(leaf_name(region, leaf) for leaf, _ in leaves))


def leaf_name(region: Region, leaf: Node) -> str:
    return "mask" if leaf.op == "bias" else region.operands[leaf.data[0]]


def heads_of(region: Region, leaf: Node) -> tuple[str, ...]:
    return region.program.others if leaf.op == "bias" else region.program.operands[leaf.data[0]].heads


def in_loop(region: Region, leaf: Node) -> bool:
    """Whether the gradient of a leaf is written in each block."""
    return len(leaf.axes) == 2 and leaf.axes[1] == region.program.key


def by_strides(region: Region, leaf: Node) -> bool:
    """Whether the gradient of a leaf is stored like its operand: rows of queries or of keys."""
    sides = {region.program.query, region.program.key, *region.program.relative} & {*leaf.axes}
    return leaf.op == "load" and len(sides) == 1 and not sides & {*region.program.relative}


def over_all(region: Region, text: KernelText, leaf: Node) -> bool:
    """Whether all tiles of a looped leg contribute to the gradient of a leaf."""
    sides = {region.program.query, region.program.key} & {*leaf.axes}
    lacks = text.looped is not None and text.looped not in heads_of(region, leaf)
    return lacks and bool(sides) and not in_loop(region, leaf)


def store_gradient(
    region: Region, text: KernelText, leaf: Node, d: Node, carried: tuple[list[Node], Node] | None
) -> None:
    """`carried`: the numbers and the total over all tiles of a looped leg, whose product is the gradient."""
    index = next(value for value in leaf.data if isinstance(value, At))
    name, scope = f"{leaf_name(region, leaf)}_grad", text.scope
    alone = not {region.program.query, region.program.key} & {*leaf.axes}
    if leaf.op == "entry":
        store_entries(region, text, leaf, d, index)
        return

    def store(outer: str, value: str) -> list[str]:
        if by_strides(region, leaf):
            looped = text.looped if outer == "lead" else None
            return [region.placed(scope, name, heads_of(region, leaf), index, leaf.axes, value, looped or "")]
        line = region.stored(name, tile_at(scope, index, outer), leaf.axes, value)
        return [f"if {name} is not None:", "    " + line]

    def value() -> str:
        return scope.ref(d, leaf.axes)

    def multiplied() -> str:
        numbers, total = carried or ([], d)
        return " * ".join([*(scope.ref(node.args[0], ()) for node in numbers), scope.ref(total, total.axes)])

    if carried is not None:
        text.add(LAST, lambda: store("lead", multiplied()), (), leaf.heads)
    elif over_all(region, text, leaf):
        whole = text.carry(f"{name}_total", FIRST, f"tl.zeros({shape(region.program, leaf.axes)}, SUMS)")
        text.add(AFTER, lambda: text.assign(whole, value(), adds=True), reads_of(d), leaf.heads, [whole])
        text.add(LAST, lambda: store("lead", text.entry(whole)), (), leaf.heads)
    else:
        outer = "(pair * blocks + block)" if alone else "pair"
        where = INSIDE if in_loop(region, leaf) else AFTER
        text.add(where, lambda: store(outer, value()), reads_of(d), leaf.heads)


def reads_of(d: Node) -> list[Node]:
    return [] if d.op in ("sum_over_blocks", "number") else [d]


def store_entries(region: Region, text: KernelText, leaf: Node, d: Node, index: At) -> None:
    """Stores one entry per query and distance: from one key, except at both ends, which are sums.

    If a leg is looped, all its tiles add to the same entries.
    """
    query, (_, _, reach), scope = region.program.query, leaf.data, text.scope
    size, operand = 2 * reach + 1, leaf_name(region, leaf)
    shared = text.looped is not None and text.looped not in heads_of(region, leaf)
    opened, closed = (FIRST, LAST) if shared else (BEFORE, AFTER)
    before, after = (
        text.carry(f"{operand}_{end}", opened, f"tl.zeros({shape(region.program, leaf.axes[:1])}, SUMS)")
        for end in ("before", "after")
    )

    def base() -> str:
        return f"{operand}_grad + {tile_at(scope, index, 'lead' if shared else 'pair')} * {query}_end * {size}"

    def inside() -> list[str]:
        value, ends = scope.ref(d, leaf.axes), f"{text.entry(before)}, {text.entry(after)}"
        given = f"{base()}, {scope.along(query)}, distance, {reach}, in_bounds, {value}, {ends}, {shared}"
        names = [f"{one.name}_own" if one.dims else one.name for one in (before, after)]
        lines = [f"if {operand}_grad is not None:", f"    {', '.join(names)} = store_entries({given})"]
        if before.dims:
            lines = [f"{name} = {text.entry(one)}" for name, one in zip(names, (before, after), strict=True)] + lines
            lines += [f"{one.name}_next += ({name},)" for name, one in zip(names, (before, after), strict=True)]
        return lines

    def ends() -> list[str]:
        lines = [f"if {operand}_grad is not None:"]
        for one, start in ((before, base()), (after, f"{base()} + {size - 1}")):
            lines.append(f"    store_1d({start}, {query}, {size}, {query}_end, {text.entry(one)})")
        return lines

    text.scattered = 3
    text.add(INSIDE, inside, [d], leaf.heads, [before, after])
    text.add(closed, ends, (), leaf.heads)
