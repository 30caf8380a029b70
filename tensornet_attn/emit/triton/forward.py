"""The forward kernels of a region: one pass if every tile of the result reads one map, otherwise two."""

from __future__ import annotations

from collections.abc import Callable

from tensornet_attn.emit.triton.kernel import AFTER, BEFORE, INSIDE, KernelText
from tensornet_attn.emit.triton.nodes import row_at, shape
from tensornet_attn.emit.triton.region import Region
from tensornet_attn.tiles.derive import one_map
from tensornet_attn.tiles.loops import Carried
from tensornet_attn.tiles.model import Node


def forward(region: Region) -> str:
    text, exit_ = region.open(region.program.query, online=True), region.program.exit
    one = one_map(region.program)
    assert one is not None
    statistics_of(region, text)
    number = one.data[0]
    if exit_.log:
        text.add(INSIDE, list, [one])
        most, total = (text.scope.carried[f"{name}_i_{one.data[0]}"] for name in "ml")
        store_out(region, text, lambda: f"log_sum({text.entry(most)}, {text.entry(total)}, out, MASK, SPLIT)")
        return region.source(text, "forward", "forward", ["out", "lse"], ["out"])
    part = region.program.read()
    sides = "[:, None]" if len(part.axes) == 2 else ""
    out = text.carry("acc", BEFORE, f"tl.zeros({shape(region.program, region.program.axes)}, SUMS)")
    if one.op == "normalize":
        add_read(text, out, part)
        store_out(region, text, lambda: f"{text.entry(out)} * {divisor('inverse_of', region, text, one)}{sides}")
        return region.source(text, "forward", "forward", ["out", "lse"], ["out"])
    alpha = text.alpha(one)

    def more() -> list[str]:
        rows = text.scope.ref(alpha, alpha.axes)
        return text.assign(out, f"{text.entry(out)} * {rows}{sides} + {text.scope.ref(part, part.axes)}")

    def divided() -> str:
        most, total = (text.entry(text.scope.carried[f"{name}_i_{number}"], index_of(one)) for name in "ml")
        for sink in sink_of(one):
            own = f"own_sink({text.scope.ref(sink, part.axes[:1])}, SPLIT)"
            return f"{text.entry(out)} * with_sink({most}, {total}, {own}, MASK){sides}"
        whole = f"tl.where({total} > 0, {total}, 1.0)"
        return f"{text.entry(out)} / {f'({whole}){sides}' if sides else whole}"

    text.add(INSIDE, more, [part, one, alpha], part.heads, [out])
    store_out(region, text, divided, sink_of(one))
    return region.source(text, "forward", "forward", ["out", "lse"], ["out"])


def statistics(region: Region) -> str:
    """The first of two passes: the statistics of the rows of each map."""
    text = region.open(region.program.query, online=True)
    statistics_of(region, text)
    for one in region.program.maps:
        text.add(INSIDE, list, [one], one.heads)
    return region.source(text, "statistics", "row statistics", ["lse"])


def second(region: Region) -> str:
    text, part = region.open(region.program.query), region.program.read()
    out = text.carry("acc", BEFORE, f"tl.zeros({shape(region.program, region.program.axes)}, SUMS)")
    add_read(text, out, part)
    store_out(region, text, lambda: text.entry(out))
    return region.source(text, "forward", "recomputed maps times values", ["out", "lse"], ["out"])


def add_read(text: KernelText, out: Carried, part: Node) -> None:
    text.add(INSIDE, lambda: text.assign(out, text.scope.ref(part, part.axes), adds=True), [part], part.heads, [out])


def sink_of(one: Node) -> tuple[Node, ...]:
    """The sink of a map, as a tuple of at most one node."""
    return one.args[2:]


def store_out(region: Region, text: KernelText, value: Callable[[], str], reads: tuple[Node, ...] = ()) -> None:
    index, axes = region.program.exit.index, region.program.axes
    heads = [variable for variable in index if variable]
    legs = region.program.legs[: len(index)]
    text.add(AFTER, lambda: [region.placed(text.scope, "out", legs, index, axes, value())], reads, heads)


def index_of(one: Node) -> dict[str, str]:
    """The variables of a map, read under their own names."""
    return {variable: variable for variable in one.heads}


def divisor(function: str, region: Region, text: KernelText, one: Node) -> str:
    """A function of the sum that the rows of a normalised map are divided by."""
    eps = region.number(Node("number", data=(one.data[2],)))
    return f"{function}({text.entry(text.scope.carried[f'l_i_{one.data[0]}'])}, {eps}, SPLIT)"


def statistics_of(region: Region, text: KernelText) -> None:
    """The row maximum and row sum of each map: initial values, updates, and stores."""
    query = region.program.query
    for number, one in enumerate(region.program.maps):
        carried: dict[str, Carried] = text.scope.carried
        if one.op == "softmax":
            carried[f"m_i_{number}"] = text.carry(
                f"m_i_{number}", BEFORE, f'tl.full(({query}_block,), float("-inf"), SUMS)'
            )
        carried[f"l_i_{number}"] = text.carry(f"l_i_{number}", BEFORE, f"tl.zeros(({query}_block,), SUMS)")
        if one.op == "softmax" and one.data[2]:
            add_rows(text, one)
        store_rows(region, text, one)


def add_rows(text: KernelText, one: Node) -> None:
    """Accumulates the row sums of a map that is a sum over a variable."""
    total, alpha = text.scope.carried[f"l_i_{one.data[0]}"], text.alpha(one)
    node = text.scope.instead[one]

    def lines() -> list[str]:
        rows = f"tl.sum({text.scope.ref(node, node.axes)}, 1)"
        return text.assign(total, f"{text.entry(total)} * {text.scope.ref(alpha, alpha.axes)} + {rows}")

    text.add(INSIDE, lines, [node, alpha], node.heads, [total])


def store_rows(region: Region, text: KernelText, one: Node) -> None:
    number, query = one.data[0], region.program.query

    def stored(value: str, largest: bool = False) -> str:
        to = row_at(text.scope, "lse", number, one.data[1], largest)
        return f"store_1d({to}, {query}, 1, {query}_end, {value})"

    def lines() -> list[str]:
        if one.op == "normalize":
            return [stored(divisor("sums_of_part", region, text, one))]
        most, total = (text.entry(text.scope.carried[f"{name}_i_{number}"]) for name in "ml")
        for sink in sink_of(one):
            own = f"own_sink({text.scope.ref(sink, (query,))}, SPLIT), MASK"
            most, total = f"largest_with_sink({most}, {own})", f"sum_with_sink({most}, {total}, {own})"
        rows = stored(f"sums_of_part({total}, 0.0, SPLIT)")
        return [rows, stored(f"largest_of({most}, SPLIT)", largest=True)]

    text.add(AFTER, lines, sink_of(one), one.heads)
