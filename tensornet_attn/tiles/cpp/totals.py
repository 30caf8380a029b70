"""Sums over blocks: what a block adds to a result, to a gradient, or to the statistics of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from tensornet_attn.ir.steps import within
from tensornet_attn.tiles.cpp.lines import PassPrinter
from tensornet_attn.tiles.cpp.passes import RowStatement, SumRow
from tensornet_attn.tiles.cpp.places import Env, Where
from tensornet_attn.tiles.cpp.values import SHIFT
from tensornet_attn.tiles.loops import Statement
from tensornet_attn.tiles.program import Node, Unfit


@dataclass(frozen=True)
class SumStorage:
    """Where a sum is kept, for values of variables: a tile of rows x columns `ld` apart, a row, or a number.

    `alpha`: what rows are multiplied by before a block is added, at `factors`; `index`: the variables of the sum then.
    `by`: factors of what is added.
    """

    at: Callable[[Env], str]
    ld: str = "1"
    factors: str = ""
    alpha: tuple[Node, ...] = ()
    index: tuple[str, ...] = ()
    by: tuple[Node, ...] = ()

    def times(self, key_pass: PassPrinter) -> str:
        """The product of the factors; empty if there are none."""
        return " * ".join(key_pass.value(node, {}, Where({}, key_pass.entry.origin)) for node in self.by)

    def before(self, heads: Iterable[str], row: bool) -> list[str]:
        """The line that multiplies all rows, or row i: once, before the first of all values that a block adds."""
        if not self.alpha:
            return []
        line = f"rescale({self.at({})}, {self.factors}, rows, {self.ld});"
        if row:
            line = f"rescale({self.at({})} + i * {self.ld}, {self.factors} + i, 1, {self.ld});"
        first = " && ".join(f"at_{variable} == 0" for variable in heads if variable not in self.index)
        return [f"if ({first}) {line}" if first else line]


def add(key_pass: PassPrinter, summand: Node, target: SumStorage) -> None:
    """Adds a part of each block to a sum."""
    pair_axes = (key_pass.pair, key_pass.wide)
    summand = without_sums(key_pass.other(summand))
    if summand.axes not in pair_axes and summand.op == "add":
        for arg in summand.args:
            add(key_pass, arg, target)
    elif summand.axes not in pair_axes and summand.op == "mul" and any(not arg.axes for arg in summand.args):
        number, rest = summand.args if not summand.args[0].axes else summand.args[::-1]
        add(key_pass, rest, replace(target, by=(*target.by, number)))
    elif summand.op == "dot" and summand.axes not in pair_axes:
        add_product(key_pass, summand, target)
    else:
        inner = summand
        while inner.op in ("sum", "over") and inner.axes not in pair_axes:
            (inner,) = map(key_pass.other, inner.args)
        if inner.axes not in pair_axes:
            raise Unfit(f"a sum of a '{inner.op}' of {' '.join(inner.axes) or 'one number'}")
        add_row(key_pass, without_sums(inner), summand.axes, target)


def without_sums(summand: Node) -> Node:
    """What is added up over variables, which a sum does itself."""
    while summand.op == "over" and summand.data[1] == "add":
        (summand,) = summand.args
    return summand


def variables(key_pass: PassPrinter, nodes: Iterable[Node]) -> tuple[str, ...]:
    """The variables of some nodes, in the order of the program."""
    used = {variable for node in nodes for variable in node.heads}
    return within(key_pass.program.sizes, used)


def add_product(key_pass: PassPrinter, summand: Node, target: SumStorage) -> None:
    """Adds a product, by BLAS."""
    key_pass = key_pass.among((summand, *target.by))
    args = tuple(map(key_pass.other, summand.args))

    def lines() -> list[str]:
        factor = target.times(key_pass) or "1"
        return [*target.before(heads, False), *key_pass.product(summand, {}, target.at({}), target.ld, "true", factor)]

    heads = variables(key_pass, (summand, *target.alpha, *target.by))
    key_pass.ends.append(Statement(heads, (*args, *target.alpha), lines))


def add_row(key_pass: PassPrinter, inner: Node, axes: tuple[str, ...], target: SumStorage) -> None:
    """Adds a tile of queries x keys, summed over its other sides, row by row."""
    key_pass = key_pass.among((inner,))
    query, key = key_pass.pair
    along = bool(axes) and axes in ((key,), key_pass.program.relative)

    def lines() -> list[str]:
        factor = f"{times} * " if (times := target.times(key_pass)) else ""
        if along:
            return key_pass.loop([inner], [{}], [f"to[j] += {factor}{{x}};"], target.at({}))
        count = key_pass.program.sizes[statement.unrolled] if statement.unrolled else 1
        envs: list[Env] = [{statement.unrolled: str(value)} for value in range(count)]
        names = [f"part{value}" for value in range(count)]
        summed = key_pass.loop([inner] * count, envs, [f"{name} += {{x}};" for name in names], sums=names)
        addresses = (f"({target.at(env)})[i]" if axes == (query,) else f"*({target.at(env)})" for env in envs)
        adds = [f"{address} += {factor}{name};" for address, name in zip(addresses, names, strict=True)]
        return [*target.before(statement.heads, True), f"{{ real {' = 0, '.join(names)} = 0;", *summed, *adds, "}"]

    statement = SumRow(variables(key_pass, (inner, *target.alpha, *target.by)), (inner, *target.alpha), lines)
    statement.of = None if along or target.alpha else inner
    key_pass.ends.append(statement)


def add_pairs(key_pass: PassPrinter, leaf: Node, gradient: Node, to: str) -> None:
    """Adds the gradient of a leaf of queries x keys; `to`: the operand's gradient, from the block's first key on."""
    key_pass, gradient = key_pass.among((gradient,)), without_sums(key_pass.other(gradient))
    heads = variables(key_pass, (leaf, gradient))
    key_pass.ends.append(
        RowStatement(heads, (gradient,), lambda: key_pass.loop([gradient], [{}], ["to[j] += {x};"], to))
    )


def add_entries(key_pass: PassPrinter, leaf: Node, gradient: Node, to: str) -> None:
    """Adds the gradient of a table's entries at distances; `to`: the table, or the row of it of each query."""
    key_pass, gradient = key_pass.among((gradient,)), without_sums(key_pass.other(gradient))
    reach = leaf.data[2]
    rows = f" + i * {2 * reach + 1}" if len(key_pass.program.operands[leaf.data[0]].axes) > 1 else ""

    def lines() -> list[str]:
        key_pass.drops += 1
        row = f"arena.row({key_pass.drops - 1})"
        return [
            *key_pass.loop([gradient], [{}], ["to[j] = {x};"], row),
            f"add_entries({to}{rows}, {row}, keys, {reach}, {SHIFT});",
        ]

    key_pass.ends.append(RowStatement(variables(key_pass, (gradient,)), (gradient,), lines))


def add_between(key_pass: PassPrinter, leaf: Node, gradient: Node, to: str) -> None:
    """Adds the gradient of a table, between whose entries a row is; `to`: the gradient of the row's table."""
    key_pass, gradient = key_pass.among((gradient, leaf)), without_sums(key_pass.other(gradient))
    (x,), size = leaf.args, leaf.data[3]

    def lines() -> list[str]:
        key_pass.drops += 2
        rows = [f"arena.row({key_pass.drops - number})" for number in (2, 1)]
        row_loops = [
            key_pass.loop([node], [{}], ["to[j] = {x};"], row) for node, row in zip((x, gradient), rows, strict=True)
        ]
        return [*row_loops[0], *row_loops[1], f"add_between({to}, {rows[0]}, {rows[1]}, keys, {size});"]

    key_pass.ends.append(RowStatement(variables(key_pass, (leaf, gradient)), (x, gradient), lines))
