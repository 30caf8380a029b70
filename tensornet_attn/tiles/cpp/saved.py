"""Products of a region that its forward saves for the backward, where computing them again takes longer than reading.

A product of queries and keys of width w costs 2 w operations a pair to compute again; saved, it is written to fresh
memory once and read once. Rates are those of the shipped table, so that the text of a kernel does not depend on the
machine.
"""

from __future__ import annotations

from math import prod

from tensornet_attn.cost.products import Shape, rate_at
from tensornet_attn.cost.rates import shipped
from tensornet_attn.graph.model import Graph
from tensornet_attn.tiles.derive import Gradients
from tensornet_attn.tiles.model import ROWS, Node, Program, below

BLOCK = (64, 256)  # queries x keys of the product whose rate counts
BYTES = 4


def saved_products(graph: Graph, program: Program, made: Gradients) -> dict[Node, int]:
    """The products of queries x keys that a forward may save, with the number of tiles before each.

    They read no map, and both passes compute them.
    """
    again = {*below([d for _, d in (*made.totals, *made.leaves, *made.maps)])}
    found, tiles = dict[Node, int](), 0
    for node in below(program.maps):
        if node.op == "dot" and node.axes == program.pair and node in again and pays(width_of(graph, program, node)):
            if not any(one.op in ROWS for one in below([node])):
                found[node] = tiles
                tiles += program.tiles(node.heads)
    return found


def width_of(graph: Graph, program: Program, node: Node) -> int:
    """The width that a product sums over."""
    return prod(graph.leg[leg].size or 1 for leg in program.widths.get(node.data[0], ()))


def pays(width: int) -> bool:
    """Whether a product of this width is saved.

    >>> [width for width in (32, 64, 128, 256) if pays(width)]
    [128, 256]
    """
    return seconds_saved() < seconds_again(width)


def seconds_again(width: int) -> float:
    """The time of a product of queries and keys of this width, for one pair."""
    return 2 * width / rate_at(Shape(1, *BLOCK, width), shipped().products)


def seconds_saved() -> float:
    """The time to write a number to fresh memory, as an operation whose result is large does, and to read it."""
    table = shipped()
    return 2 * BYTES / table.passes[-1][1] + BYTES / table.bandwidth
