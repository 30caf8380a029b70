"""The forward kernels of a region: one pass if every tile of the result reads one map, otherwise two."""

from __future__ import annotations

from collections.abc import Callable

from tensornet_attn.emit.triton.kernel import AFTER, BEFORE, INSIDE, KernelText
from tensornet_attn.emit.triton.nodes import row_at, shape
from tensornet_attn.emit.triton.region import TritonRegion
from tensornet_attn.tiles.derive import one_map
from tensornet_attn.tiles.loops import Accumulator
from tensornet_attn.tiles.program import Node


def forward(region: TritonRegion) -> str:
    kernel, exit_ = region.open(region.program.query, online=True), region.program.exit
    map_node = one_map(region.program)
    assert map_node is not None
    statistics_of(region, kernel)
    number = map_node.data[0]
    if exit_.log:
        kernel.add(INSIDE, list, [map_node])
        row_max, row_sum = (kernel.scope.carried[f"{name}_i_{map_node.data[0]}"] for name in "ml")
        store_out(region, kernel, lambda: f"log_sum({kernel.entry(row_max)}, {kernel.entry(row_sum)}, MASK, SPLIT)")
        return region.source(kernel, "forward", "forward", ["out", "lse"], ["out"])
    summand = region.program.read()
    sides = "[:, None]" if len(summand.axes) == 2 else ""
    out = kernel.carry("acc", BEFORE, f"tl.zeros({shape(region.program, region.program.axes)}, SUMS)")
    if map_node.op == "normalize":
        kernel.add_sum(out, summand)
        store_out(
            region, kernel, lambda: f"{kernel.entry(out)} * {divisor('inverse_of', region, kernel, map_node)}{sides}"
        )
        return region.source(kernel, "forward", "forward", ["out", "lse"], ["out"])
    alpha = kernel.alpha(map_node)

    def rescaled() -> list[str]:
        rows = kernel.scope.ref(alpha)
        return kernel.assign(out, f"{kernel.entry(out)} * {rows}{sides} + {kernel.scope.ref(summand)}")

    def divided() -> str:
        row_max, row_sum = (
            kernel.entry(kernel.scope.carried[f"{name}_i_{number}"], index_of(map_node)) for name in "ml"
        )
        for sink in sink_of(map_node):
            own_sink = f"own_sink({kernel.scope.ref(sink, summand.axes[:1])}, SPLIT)"
            return f"{kernel.entry(out)} * with_sink({row_max}, {row_sum}, {own_sink}, MASK){sides}"
        denominator = f"tl.where({row_sum} > 0, {row_sum}, 1.0)"
        return f"{kernel.entry(out)} / {f'({denominator}){sides}' if sides else denominator}"

    kernel.add(INSIDE, rescaled, [summand, map_node, alpha], summand.heads, [out])
    store_out(region, kernel, divided, sink_of(map_node))
    return region.source(kernel, "forward", "forward", ["out", "lse"], ["out"])


def statistics(region: TritonRegion) -> str:
    """The first of two passes: the statistics of the rows of each map."""
    kernel = region.open(region.program.query, online=True)
    statistics_of(region, kernel)
    for map_node in region.program.maps:
        kernel.add(INSIDE, list, [map_node], map_node.heads)
    return region.source(kernel, "statistics", "row statistics", ["lse"])


def second(region: TritonRegion) -> str:
    kernel, summand = region.open(region.program.query), region.program.read()
    out = kernel.carry("acc", BEFORE, f"tl.zeros({shape(region.program, region.program.axes)}, SUMS)")
    kernel.add_sum(out, summand)
    store_out(region, kernel, lambda: kernel.entry(out))
    return region.source(kernel, "forward", "recomputed maps times values", ["out", "lse"], ["out"])


def sink_of(map_node: Node) -> tuple[Node, ...]:
    """The sink of a map, as a tuple of at most one node."""
    return map_node.args[2:]


def store_out(
    region: TritonRegion, kernel: KernelText, expression: Callable[[], str], reads: tuple[Node, ...] = ()
) -> None:
    index, axes = region.program.exit.index, region.program.axes
    heads = [variable for variable in index if variable]
    legs = region.program.legs[: len(index)]
    kernel.add(AFTER, lambda: [region.placed(kernel.scope, "out", legs, index, axes, expression())], reads, heads)


def index_of(map_node: Node) -> dict[str, str]:
    """The variables of a map, read under their own names."""
    return {variable: variable for variable in map_node.heads}


def divisor(function: str, region: TritonRegion, kernel: KernelText, map_node: Node) -> str:
    """A function of the sum that the rows of a normalised map are divided by."""
    eps = region.number(Node("number", data=(map_node.data[2],)))
    return f"{function}({kernel.entry(kernel.scope.carried[f'l_i_{map_node.data[0]}'])}, {eps}, SPLIT)"


def statistics_of(region: TritonRegion, kernel: KernelText) -> None:
    """The row maximum and row sum of each map: initial values, updates, and stores."""
    query = region.program.query
    for number, map_node in enumerate(region.program.maps):
        carried: dict[str, Accumulator] = kernel.scope.carried
        if map_node.op == "softmax":
            carried[f"m_i_{number}"] = kernel.carry(
                f"m_i_{number}", BEFORE, f'tl.full(({query}_block,), float("-inf"), SUMS)'
            )
        carried[f"l_i_{number}"] = kernel.carry(f"l_i_{number}", BEFORE, f"tl.zeros(({query}_block,), SUMS)")
        if map_node.op == "softmax" and map_node.data[2]:
            add_rows(kernel, map_node)
        store_rows(region, kernel, map_node)


def add_rows(kernel: KernelText, map_node: Node) -> None:
    """Accumulates the row sums of a map that is a sum over a variable."""
    row_sum, alpha = kernel.scope.carried[f"l_i_{map_node.data[0]}"], kernel.alpha(map_node)
    node = kernel.scope.instead[map_node]

    def lines() -> list[str]:
        rows = f"tl.sum({kernel.scope.ref(node)}, 1)"
        return kernel.assign(row_sum, f"{kernel.entry(row_sum)} * {kernel.scope.ref(alpha)} + {rows}")

    kernel.add(INSIDE, lines, [node, alpha], node.heads, [row_sum])


def store_rows(region: TritonRegion, kernel: KernelText, map_node: Node) -> None:
    number, query = map_node.data[0], region.program.query

    def stored(expression: str, largest: bool = False) -> str:
        address = row_at(kernel.scope, "lse", number, map_node.data[1], largest)
        return f"store_1d({address}, {query}, 1, {query}_end, {expression})"

    def lines() -> list[str]:
        if map_node.op == "normalize":
            return [stored(divisor("sums_of_part", region, kernel, map_node))]
        row_max, row_sum = (kernel.entry(kernel.scope.carried[f"{name}_i_{number}"]) for name in "ml")
        for sink in sink_of(map_node):
            own_sink = f"own_sink({kernel.scope.ref(sink, (query,))}, SPLIT), MASK"
            row_max, row_sum = (
                f"largest_with_sink({row_max}, {own_sink})",
                f"sum_with_sink({row_max}, {row_sum}, {own_sink})",
            )
        rows = stored(f"sums_of_part({row_sum}, 0.0, SPLIT)")
        return [rows, stored(f"largest_of({row_max}, SPLIT)", largest=True)]

    kernel.add(AFTER, lines, sink_of(map_node), map_node.heads)
