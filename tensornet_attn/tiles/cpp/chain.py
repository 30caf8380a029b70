"""Passes over blocks of keys that follow each other: what each stores for those after it.

A sum that runs along keys is known where a pass walks its way: the pass after it walks the other way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tensornet_attn.tiles.cpp.lines import PassPrinter
from tensornet_attn.tiles.cpp.passes import INLINE, RowStatement
from tensornet_attn.tiles.cpp.region import Printed, RegionText
from tensornet_attn.tiles.program import Node, below


def in_turn(region: RegionText, *chains: PassPrinter, same: Mapping[Node, Node] | None = None) -> list[Printed]:
    """The passes of chains, given their first passes. `same`: nodes whose tiles are those of others, before."""
    for first_pass in chains:
        need_of_later(first_pass)
    passes, printed, originals = (
        [key_pass for first_pass in chains for key_pass in first_pass.chain.passes if key_pass.ends],
        [],
        same or {},
    )
    for number, key_pass in enumerate(passes):
        later_passes = passes[number + 1 :]
        for later in later_passes:
            key_pass.stored |= stored_between(key_pass, later)
        printed.append(region.print(key_pass))
        for later in later_passes:
            for node in later.needed():
                original = originals.get(node, node)
                if original in key_pass.stored and original in key_pass.name:
                    later.from_earlier_pass[node] = key_pass.name[original]
    return printed


def wanted(key_pass: PassPrinter, nodes: Iterable[Node]) -> None:
    """Makes a chain compute nodes that no sum reads."""
    for node in nodes:
        key_pass.among((node,)).ends.append(RowStatement(node.heads, (node,), list))


def need_of_later(first_pass: PassPrinter) -> None:
    """Makes each pass of a chain compute what a later one reads and cannot make: it reads a sum that runs its way."""
    for later in reversed(first_pass.chain.passes):
        needed = later.needed()
        reads = {later.other(arg) for node in needed if later.turn_of(node) == later.turn for arg in node.args}
        reads |= {later.other(node) for statement in later.ends for node in statement.reads}
        bound = [node for node in reads if later.turn_of(node) < later.turn and runs(later, node)]
        wanted(first_pass, [node for node in needed if node in bound])


def runs(key_pass: PassPrinter, node: Node) -> bool:
    return any(inner.op == "running" for inner in below([node], (), key_pass.instead))


def stored_between(earlier: PassPrinter, later: PassPrinter) -> set[Node]:
    """The nodes that both passes need and what only the later one makes reads: their tiles are stored."""
    computed = {node for node in earlier.needed() if node.axes in (earlier.pair, earlier.wide)}
    needed = later.needed()
    common = computed & {*needed}
    ends = {later.other(node) for statement in later.ends for node in statement.reads}
    args = {later.other(arg) for node in needed if node not in common for arg in node.args}
    multiplied = {later.other(arg) for node in needed if node.op == "dot" for arg in node.args}
    multiplied |= {
        later.other(node)
        for statement in later.ends
        if not isinstance(statement, RowStatement)
        for node in statement.reads
    }
    read = {node if node in multiplied else without_numbers(later, node) for node in common & (ends | args)}
    return {node for node in read if node.op not in INLINE and not free(node)}


def without_numbers(key_pass: PassPrinter, node: Node) -> Node:
    """The tile that a node is, but for numbers that it is multiplied by: what reads it multiplies itself."""
    while node.op == "mul":
        wide = [arg for arg in map(key_pass.other, node.args) if len(arg.axes) == 2]
        if len(wide) != 1:
            break
        (node,) = wide
    return node


def free(node: Node) -> bool:
    """Whether a tile is made again sooner than it is read from memory."""
    reads = [tile for tile in below([node]) if len(tile.axes) == 2]
    return all(
        tile.op in ("load", "distance", "number", "spread", "visible", "both", "either", "bias") for tile in reads
    )
