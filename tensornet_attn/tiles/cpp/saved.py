"""Products of a region that its forward saves for the backward, where computing them again takes longer.

A product of queries and keys of width w takes 2 w operations for a pair. A saved one is written to memory that is new
to the process, and read once. Rates are those of the shipped table: the text of a kernel is the same on every machine.
"""

from __future__ import annotations

from math import prod

from tensornet_attn.cost.rates import shipped
from tensornet_attn.graph.diagram import size_of
from tensornet_attn.graph.graph import Graph
from tensornet_attn.tiles.derive import Gradients
from tensornet_attn.tiles.program import ROWS, Node, Program, below

WORTH = 2.0  # memory is taken for a product that costs this many times as much to compute again
BYTES = 4


def saved_products(graph: Graph, program: Program, gradients: Gradients) -> dict[Node, int]:
    """The products of queries x keys that the forward may save, each with the number of tiles before its own.

    They read no map, and the backward computes them too.
    """
    recomputed = {*below([gradient for _, gradient in (*gradients.totals, *gradients.leaves, *gradients.maps)])}
    saved, tiles = dict[Node, int](), 0
    for node in below(program.maps):
        if node.op != "dot" or node.axes != program.pair or any(inner.op in ROWS for inner in below([node])):
            continue
        if node in recomputed and pays(width_of(graph, program, node)):
            saved[node] = tiles
            tiles += program.tiles(node.heads)
    return saved


def width_of(graph: Graph, program: Program, node: Node) -> int:
    """The width that a product sums over."""
    return prod(size_of(graph, leg) or 1 for leg in program.widths.get(node.data[0], ()))


def pays(width: int) -> bool:
    """Whether products of this width are saved.

    >>> [width for width in (32, 64, 128, 256, 512) if pays(width)]
    [256, 512]
    """
    return seconds_again(width) >= WORTH * seconds_saved()


def seconds_again(width: int) -> float:
    """The time to compute a product of this width, for one pair: kernels reach the rate of large matrices."""
    return 2 * width / shipped().rate


def seconds_saved() -> float:
    """The time to write a number to new memory, as an operation with a large result does, and to read it again."""
    table = shipped()
    return 2 * BYTES / table.passes[-1][1] + 2 * BYTES / table.bandwidth
