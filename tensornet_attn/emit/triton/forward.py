"""The kernels of a region's forward: in one pass where every tile of the result reads one map, else in two."""

from __future__ import annotations

from collections.abc import Iterator

from tensornet_attn.emit.triton.kernel import AFTER, BEFORE, INSIDE, KernelText
from tensornet_attn.emit.triton.nodes import at
from tensornet_attn.emit.triton.region import Region
from tensornet_attn.plan.tiles.model import Node


def forward(region: Region) -> str:
    text = region.open(region.program.query, online=True)
    statistic_lines(region, text)
    for number, part in enumerate(parts(region)):
        (one,) = region.read(region.program.exits[number].pairs)
        assert one is not None
        place = region.program.maps.index(one)
        if region.program.exits[number].log:
            text.compute([one])
            store_out(region, text, number, log_sum(place))
            continue
        text.compute([part])
        sides = "[:, None]" if len(part.axes) == 2 else ""
        name = accumulator(region, text, number)
        if one.op == "normalize":
            text.line(INSIDE, f"{name} += {text.scope.local[part]}")
            store_out(region, text, number, f"{name} * {inverse(region, one)}{sides}")
            continue
        total = f"tl.where(l_i_{place} > 0, l_i_{place}, 1.0)"
        text.line(INSIDE, f"{name} = {name} * alpha_{place}{sides} + {text.scope.local[part]}")
        store_out(region, text, number, f"{name} / {f'({total}){sides}' if sides else total}")
    store_statistics(region, text)
    return region.source(text, "forward", "forward", ["out", "lse"])


def statistics(region: Region) -> str:
    """Of two passes the first: the log of the sum of each softmax row, 1 / (sum + eps) of a normalized one."""
    text = region.open(region.program.query, online=True)
    statistic_lines(region, text)
    text.compute(region.program.maps)
    store_statistics(region, text)
    return region.source(text, "statistics", "what the sum of each row is", ["lse"])


def second(region: Region) -> str:
    text = region.open(region.program.query)
    for number, part in enumerate(parts(region)):
        text.compute([part])
        name = accumulator(region, text, number)
        text.line(INSIDE, f"{name} += {text.scope.local[part]}")
        store_out(region, text, number, name)
    return region.source(text, "forward", "maps again, and what they read", ["out", "lse"])


def parts(region: Region) -> Iterator[Node]:
    """What a block of keys adds to each tile of the result."""
    nodes, axes = region.program.nodes, region.program.axes
    for exit_ in region.program.exits:
        name = "_".join(["read", *map(str, exit_.index)])
        found = [nodes.product(a, v, axes, name) if v else nodes.total(a, axes, name) for a, v in exit_.pairs]
        yield nodes.add(found, name)


def accumulator(region: Region, text: KernelText, number: int) -> str:
    name = text.scope.names.fresh("_".join(["out", *map(str, region.program.exits[number].index)]))
    text.line(BEFORE, f"{name} = tl.zeros({region.shape(region.program.axes)}, SUMS)")
    return name


def store_out(region: Region, text: KernelText, number: int, value: str) -> None:
    text.line(AFTER, region.stored("out", at("pair", len(region.program.exits), number), region.program.axes, value))


def inverse(region: Region, one: Node) -> str:
    """What the rows of a normalized map are multiplied with."""
    eps = region.number(Node("number", data=(one.data[2],)))
    return f"inverse_of(total_{region.program.maps.index(one)}, {eps})"


def log_sum(number: int) -> str:
    """The log of what the rows of a softmax are divided by."""
    return f"log_sum(m_i_{number}, l_i_{number})"


def statistic_lines(region: Region, text: KernelText) -> None:
    block = f"{region.program.query}_block"
    for number, one in enumerate(region.program.maps):
        if one.op == "softmax":
            text.line(BEFORE, f'm_i_{number} = tl.full(({block},), float("-inf"), SUMS)')
        text.line(BEFORE, f"l_i_{number} = tl.zeros(({block},), SUMS)")


def store_statistics(region: Region, text: KernelText) -> None:
    for number, one in enumerate(region.program.maps):
        place = at("pair", len(region.program.maps), number)
        value = log_sum(number) if one.op == "softmax" else inverse(region, one)
        text.line(AFTER, region.stored("lse", place, (region.program.query,), value))
