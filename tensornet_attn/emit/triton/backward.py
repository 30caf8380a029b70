"""The backward kernels of a region: gradients by query rows and by keys, and the rows of A dA if needed."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, count
from math import prod

from tensornet_attn.emit.triton.kernel import AFTER, BEFORE, FIRST, INSIDE, LAST, KernelText
from tensornet_attn.emit.triton.nodes import row_at, shape, tile_at
from tensornet_attn.emit.triton.region import TritonRegion
from tensornet_attn.emit.triton.totals import add_totals
from tensornet_attn.graph.diagram import size_of
from tensornet_attn.tiles.derive import Gradients
from tensornet_attn.tiles.program import At, Node, below, factored

OTHERS = ("sums", "rows")  # kernels that have other results than the gradients of scalars
TOGETHER = 72  # scalar gradients per kernel; more spill registers, as measured
Leaves = list[tuple[Node, Node]]  # (what is loaded, its gradient)


def row_sums(region: TritonRegion, grads: Gradients, leaves: Leaves) -> str:
    """The kernel for the rows of A dA of each map, and for the gradients of some scalars."""
    kernel, query = region.open(region.program.query), region.program.query
    for map_node, summand in grads.maps:
        add_row_sums(region, kernel, map_node, summand, query)
    add_gradients(region, kernel, grads, leaves)
    names = [f"{name}_grad" for name in wanted(region, leaves)]
    return region.source(
        kernel, "sums", "the rows of A dA of each map", ["lse", "gradient", "sums", *names], ["gradient"]
    )


def add_row_sums(region: TritonRegion, kernel: KernelText, node: Node, summand: Node, query: str) -> None:
    sums = kernel.carry(f"sums_{node.data[0]}", BEFORE, f"tl.zeros({shape(region.program, summand.axes)}, SUMS)")
    kernel.add_sum(sums, summand)

    def stored() -> list[str]:
        return [
            f"store_1d({row_at(kernel.scope, 'sums', *node.data[:2])}, {query}, 1, {query}_end, {kernel.entry(sums)})"
        ]

    kernel.add(AFTER, stored, (), node.heads)


def by_queries(region: TritonRegion, grads: Gradients, numbers: Leaves) -> str:
    """Gradients of operands with query rows, and of some scalars."""
    own_leaves = [
        (leaf, gradient)
        for leaf, gradient in grads.leaves
        if region.program.query in leaf.axes or (leaf, gradient) in numbers
    ]
    return backward(region, grads, region.program.query, "rows", own_leaves)


def by_numbers(region: TritonRegion, grads: Gradients) -> dict[str, Leaves]:
    """Gradients of operands with neither side, by the kernel that adds them up: `rows` if there are few.

    Otherwise each kernel has as many as fit: those that need no rows of A dA are in the kernel that makes these, others
    in `rows`, and the rest in kernels of their own.
    """
    sides = {region.program.query, region.program.key, *region.program.relative}
    leaves_by_kernel, room = dict[str, Leaves](), dict[str, int]()
    for leaf, gradient in grads.leaves:
        if sides & {*leaf.axes}:
            continue
        tiles = region.program.tiles(leaf.heads) if region.crowded else 0
        early = region.crowded and region.mixed and not any(node.op == "sums" for node in summed(grads, [gradient]))
        extra_kinds = (f"numbers_{i}" if i > 1 else "numbers" for i in count(1))
        kinds = chain(["sums"] if early else [], ["rows"], extra_kinds)
        kind = next(
            kind for kind in kinds if tiles <= room.get(kind, TOGETHER if kind in OTHERS else max(tiles, TOGETHER))
        )
        leaves_by_kernel.setdefault(kind, []).append((leaf, gradient))
        room[kind] = room.get(kind, TOGETHER) - tiles
    return leaves_by_kernel


def summed(grads: Gradients, ends: Iterable[Node]) -> list[Node]:
    """The nodes below some gradients and below the sums that they read."""
    nodes = below(ends)
    totals = {node.data[0] for node in nodes if node.op == "sum_over_blocks"}
    return below([*ends, *(summand for total, summand in grads.totals if total.data[0] in totals)])


def by_keys(region: TritonRegion, grads: Gradients) -> str:
    """Gradients of operands with keys."""
    own_leaves = [(leaf, gradient) for leaf, gradient in grads.leaves if leaf.axes[:1] == (region.program.key,)]
    return backward(region, grads, region.program.key, "keys", own_leaves)


def by_places(region: TritonRegion, grads: Gradients) -> dict[str, str]:
    """Gradients of operands with relative positions: a program handles all pairs at about the same distance."""
    if not region.program.relative:
        return {}
    (leg,) = region.program.relative
    own_leaves = [(leaf, gradient) for leaf, gradient in grads.leaves if leg in leaf.axes]
    return {"places": backward(region, grads, leg, "places", own_leaves)}


def backward(region: TritonRegion, grads: Gradients, fixed: str, kind: str, leaves: Leaves) -> str:
    kernel = gradient_text(region, grads, fixed, leaves)
    region.loops |= {kind: kernel.looped} if kernel.looped else {}
    names = [f"{name}_grad" for name in wanted(region, leaves)]
    strided = [
        name
        for name in names
        if name in {f"{leaf_name(region, leaf)}_grad" for leaf, _ in leaves if by_strides(region, leaf)}
    ]
    return region.source(kernel, kind, "gradients", ["lse", "gradient", "sums", *names], ["gradient", *strided])


def gradient_text(region: TritonRegion, grads: Gradients, fixed: str, leaves: Leaves) -> KernelText:
    """The statements of a backward kernel."""
    sides = {region.program.query, region.program.key}
    held = any(sides & {*leaf.axes} for leaf, _ in leaves)  # avoids spilled registers, as measured
    kernel = region.open(fixed, looped=looped(region, [leaf for leaf, _ in leaves]), held=held)
    add_gradients(region, kernel, grads, leaves)
    return kernel


def add_gradients(region: TritonRegion, kernel: KernelText, grads: Gradients, leaves: Leaves) -> None:
    """Adds the sums that gradients need, and the lines that store them."""
    used = {
        node.data[0] if node.op == "sum_over_blocks" else node: node
        for node in below([gradient for _, gradient in leaves])
    }
    totals = [(total, summand) for total, summand in grads.totals if total.data[0] in used]
    ends = {leaf: multiples(gradient) for leaf, gradient in leaves}
    links = {node for chain in ends.values() for node in chain[:-1]}
    elsewhere = {arg for node in used.values() if node not in links for arg in node.args}
    carried = {
        chain[-1]
        for leaf, chain in ends.items()
        if chain[-1].op == "sum_over_blocks" and over_all(region, kernel, leaf) and not elsewhere & {*chain}
    }
    add_totals(region, kernel, totals, frozenset(carried))
    for leaf, gradient in leaves:
        *numbers, total = ends[leaf]
        # carried totals are multiplied after all tiles of the looped leg are added
        store_gradient(region, kernel, leaf, gradient, (numbers, total) if total in carried else None)


def multiples(node: Node) -> list[Node]:
    """The chain of nodes that remain after removing numeric factors from a node."""
    nodes = [node]
    while factored(nodes[-1])[0] is not None:
        nodes.append(factored(nodes[-1])[1])
    return nodes


def looped(region: TritonRegion, leaves: Iterable[Node]) -> str | None:
    """The head whose tiles a program handles one after another, because separate parts would take too much memory.

    Some leaf lacks the head, and its gradient once per tile would be larger than any other tensor.
    """
    sides = {region.program.query, region.program.key}
    long = [operand for operand in region.program.operands if sides & {*operand.axes}]
    largest = max(numbers_of(region, legs) for legs in (region.program.legs, *(operand.use.legs for operand in long)))
    numbers = {leaf.data[0] for leaf in leaves if leaf.op == "load"}
    for operand in (operand for i, operand in enumerate(region.program.operands) if i in numbers and operand in long):
        for leg, tiles in region.program.heads.items():
            parts = numbers_of(region, (leg,)) // tiles
            if leg not in operand.heads and parts > 1 and parts * numbers_of(region, operand.use.legs) > largest:
                return leg
    return None


def numbers_of(region: TritonRegion, legs: Iterable[str]) -> int:
    """Elements of a tensor for one query and one key."""
    return prod(size_of(region.graph, leg) or 1 for leg in legs)


def wanted(region: TritonRegion, leaves: Leaves) -> list[str]:
    """The operands to which the leaves belong."""
    return list(dict.fromkeys(leaf_name(region, leaf) for leaf, _ in leaves))


def leaf_name(region: TritonRegion, leaf: Node) -> str:
    return "mask" if leaf.op == "bias" else region.operands[leaf.data[0]]


def heads_of(region: TritonRegion, leaf: Node) -> tuple[str, ...]:
    return region.program.others if leaf.op == "bias" else region.program.operands[leaf.data[0]].heads


def in_loop(region: TritonRegion, leaf: Node) -> bool:
    """Whether the gradient of a leaf is written in each block."""
    return len(leaf.axes) == 2 and leaf.axes[1] == region.program.key


def by_strides(region: TritonRegion, leaf: Node) -> bool:
    """Whether the gradient of a leaf is stored like its operand: rows of queries or of keys."""
    sides = {region.program.query, region.program.key, *region.program.relative} & {*leaf.axes}
    return leaf.op == "load" and len(sides) == 1 and not sides & {*region.program.relative}


def over_all(region: TritonRegion, kernel: KernelText, leaf: Node) -> bool:
    """Whether all tiles of a looped leg contribute to the gradient of a leaf."""
    sides = {region.program.query, region.program.key} & {*leaf.axes}
    lacks = kernel.looped is not None and kernel.looped not in heads_of(region, leaf)
    return lacks and bool(sides) and not in_loop(region, leaf)


def store_gradient(
    region: TritonRegion, kernel: KernelText, leaf: Node, gradient: Node, carried: tuple[list[Node], Node] | None
) -> None:
    """`carried`: the numbers and the total over all tiles of a looped leg, whose product is the gradient."""
    index = next(field for field in leaf.data if isinstance(field, At))
    name, scope = f"{leaf_name(region, leaf)}_grad", kernel.scope
    without_sides = not {region.program.query, region.program.key} & {*leaf.axes}
    if leaf.op == "entry":
        store_entries(region, kernel, leaf, gradient, index)
        return

    def store(outer: str, expression: str) -> list[str]:
        if by_strides(region, leaf):
            looped = kernel.looped if outer == "lead" else None
            return [region.placed(scope, name, heads_of(region, leaf), index, leaf.axes, expression, looped or "")]
        line = region.stored(name, tile_at(scope, index, outer), leaf.axes, expression)
        return [f"if {name} is not None:", "    " + line]

    def referenced() -> str:
        return scope.ref(gradient, leaf.axes)

    def multiplied() -> str:
        numbers, total = carried or ([], gradient)
        return " * ".join([*(scope.ref(node.args[0], ()) for node in numbers), scope.ref(total)])

    if carried is not None:
        kernel.add(LAST, lambda: store("lead", multiplied()), (), leaf.heads)
    elif over_all(region, kernel, leaf):
        accumulator = kernel.carry(f"{name}_total", FIRST, f"tl.zeros({shape(region.program, leaf.axes)}, SUMS)")
        kernel.add(
            AFTER,
            lambda: kernel.assign(accumulator, referenced(), adds=True),
            reads_of(gradient),
            leaf.heads,
            [accumulator],
        )
        kernel.add(LAST, lambda: store("lead", kernel.entry(accumulator)), (), leaf.heads)
    else:
        outer = "(pair * blocks + block)" if without_sides else "pair"
        section = INSIDE if in_loop(region, leaf) else AFTER
        kernel.add(section, lambda: store(outer, referenced()), reads_of(gradient), leaf.heads)


def reads_of(gradient: Node) -> list[Node]:
    return [] if gradient.op in ("sum_over_blocks", "number") else [gradient]


def store_entries(region: TritonRegion, kernel: KernelText, leaf: Node, gradient: Node, index: At) -> None:
    """Stores one entry per query and distance: from one key, except at both ends, which are sums.

    If a leg is looped, all its tiles add to the same entries.
    """
    query, (_, _, reach), scope = region.program.query, leaf.data, kernel.scope
    size, operand = 2 * reach + 1, leaf_name(region, leaf)
    shared = kernel.looped is not None and kernel.looped not in heads_of(region, leaf)
    opened, closed = (FIRST, LAST) if shared else (BEFORE, AFTER)
    before, after = (
        kernel.carry(f"{operand}_{end}", opened, f"tl.zeros({shape(region.program, leaf.axes[:1])}, SUMS)")
        for end in ("before", "after")
    )

    def base() -> str:
        return f"{operand}_grad + {tile_at(scope, index, 'lead' if shared else 'pair')} * {query}_end * {size}"

    def inside() -> list[str]:
        expression, ends = scope.ref(gradient, leaf.axes), f"{kernel.entry(before)}, {kernel.entry(after)}"
        arguments = f"{base()}, {scope.along(query)}, distance, {reach}, in_bounds, {expression}, {ends}, {shared}"
        names = [f"{accumulator.name}_own" if accumulator.dims else accumulator.name for accumulator in (before, after)]
        lines = [f"if {operand}_grad is not None:", f"    {', '.join(names)} = store_entries({arguments})"]
        if before.dims:
            lines = [
                f"{name} = {kernel.entry(accumulator)}"
                for name, accumulator in zip(names, (before, after), strict=True)
            ] + lines
            lines += [
                f"{accumulator.name}_next += ({name},)"
                for name, accumulator in zip(names, (before, after), strict=True)
            ]
        return lines

    def ends() -> list[str]:
        lines = [f"if {operand}_grad is not None:"]
        for accumulator, start in ((before, base()), (after, f"{base()} + {size - 1}")):
            lines.append(f"    store_1d({start}, {query}, {size}, {query}_end, {kernel.entry(accumulator)})")
        return lines

    kernel.scattered = 3
    kernel.add(INSIDE, inside, [gradient], leaf.heads, [before, after])
    kernel.add(closed, ends, (), leaf.heads)
