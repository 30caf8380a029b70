"""Sums over blocks: what a block adds to a result, to a gradient, or to the statistics of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from tensornet_attn.tiles.cpp.lines import Lines
from tensornet_attn.tiles.cpp.passes import Row, SumRow
from tensornet_attn.tiles.cpp.places import Env, Where
from tensornet_attn.tiles.cpp.values import SHIFT
from tensornet_attn.tiles.loops import Statement
from tensornet_attn.tiles.model import Node, Unfit


@dataclass(frozen=True)
class Target:
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

    def times(self, text: Lines) -> str:
        """The product of the factors; empty if there are none."""
        return " * ".join(text.value(node, {}, Where({}, text.entry.origin)) for node in self.by)

    def before(self, heads: Iterable[str], row: bool) -> list[str]:
        """The line that multiplies all rows, or row i: once, before the first of all values that a block adds."""
        if not self.alpha:
            return []
        line = f"rescale({self.at({})}, {self.factors}, rows, {self.ld});"
        if row:
            line = f"rescale({self.at({})} + i * {self.ld}, {self.factors} + i, 1, {self.ld});"
        first = " && ".join(f"at_{variable} == 0" for variable in heads if variable not in self.index)
        return [f"if ({first}) {line}" if first else line]


def add(text: Lines, part: Node, target: Target) -> None:
    """Adds a part of each block to a sum."""
    both = (text.pair, text.wide)
    part = without_sums(text.other(part))
    if part.axes not in both and part.op == "add":
        for arg in part.args:
            add(text, arg, target)
    elif part.axes not in both and part.op == "mul" and any(not arg.axes for arg in part.args):
        number, rest = part.args if not part.args[0].axes else part.args[::-1]
        add(text, rest, replace(target, by=(*target.by, number)))
    elif part.op == "dot" and part.axes not in both:
        add_product(text, part, target)
    else:
        inner = part
        while inner.op in ("sum", "over") and inner.axes not in both:
            (inner,) = map(text.other, inner.args)
        if inner.axes not in both:
            raise Unfit(f"a sum of a '{inner.op}' of {' '.join(inner.axes) or 'one number'}")
        add_row(text, without_sums(inner), part.axes, target)


def without_sums(part: Node) -> Node:
    """What is added up over variables, which a sum does itself."""
    while part.op == "over" and part.data[1] == "add":
        (part,) = part.args
    return part


def variables(text: Lines, nodes: Iterable[Node]) -> tuple[str, ...]:
    """The variables of some nodes, in the order of the program."""
    own = {variable for node in nodes for variable in node.heads}
    return tuple(variable for variable in text.program.nodes.sizes if variable in own)


def add_product(text: Lines, part: Node, target: Target) -> None:
    """Adds a product, by BLAS."""
    text = text.among((part, *target.by))
    args = tuple(map(text.other, part.args))

    def lines() -> list[str]:
        by = target.times(text) or "1"
        return [*target.before(heads, False), *text.product(part, {}, target.at({}), target.ld, "true", by)]

    heads = variables(text, (part, *target.alpha, *target.by))
    text.ends.append(Statement(heads, (*args, *target.alpha), lines))


def add_row(text: Lines, inner: Node, axes: tuple[str, ...], target: Target) -> None:
    """Adds a tile of queries x keys, summed over its other sides, row by row."""
    text = text.among((inner,))
    query, key = text.pair
    along = bool(axes) and axes in ((key,), text.program.relative)

    def lines() -> list[str]:
        by = f"{times} * " if (times := target.times(text)) else ""
        if along:
            return text.loop([inner], [{}], [f"to[j] += {by}{{x}};"], target.at({}))
        many = text.program.nodes.sizes[one.unrolled] if one.unrolled else 1
        envs: list[Env] = [{one.unrolled: str(value)} for value in range(many)]
        names = [f"part{value}" for value in range(many)]
        summed = text.loop([inner] * many, envs, [f"{name} += {{x}};" for name in names], sums=names)
        places = (f"({target.at(env)})[i]" if axes == (query,) else f"*({target.at(env)})" for env in envs)
        adds = [f"{place} += {by}{name};" for place, name in zip(places, names, strict=True)]
        return [*target.before(one.heads, True), f"{{ real {' = 0, '.join(names)} = 0;", *summed, *adds, "}"]

    one = SumRow(variables(text, (inner, *target.alpha, *target.by)), (inner, *target.alpha), lines)
    one.of = None if along or target.alpha else inner
    text.ends.append(one)


def add_pairs(text: Lines, leaf: Node, d: Node, to: str) -> None:
    """Adds the gradient of a leaf of queries x keys; `to`: the operand's gradient, from the block's first key on."""
    text, d = text.among((d,)), without_sums(text.other(d))
    heads = variables(text, (leaf, d))
    text.ends.append(Row(heads, (d,), lambda: text.loop([d], [{}], ["to[j] += {x};"], to)))


def add_entries(text: Lines, leaf: Node, d: Node, to: str) -> None:
    """Adds the gradient of a table's entries at distances; `to`: the table, or the row of it of each query."""
    text, d = text.among((d,)), without_sums(text.other(d))
    reach = leaf.data[2]
    rows = f" + i * {2 * reach + 1}" if len(text.program.operands[leaf.data[0]].axes) > 1 else ""

    def lines() -> list[str]:
        text.drops += 1
        row = f"arena.row({text.drops - 1})"
        return [
            *text.loop([d], [{}], ["to[j] = {x};"], row),
            f"add_entries({to}{rows}, {row}, keys, {reach}, {SHIFT});",
        ]

    text.ends.append(Row(variables(text, (d,)), (d,), lines))


def add_between(text: Lines, leaf: Node, d: Node, to: str) -> None:
    """Adds the gradient of a table, between whose entries a row is; `to`: the gradient of the row's table."""
    text, d = text.among((d, leaf)), without_sums(text.other(d))
    (x,), size = leaf.args, leaf.data[3]

    def lines() -> list[str]:
        text.drops += 2
        rows = [f"arena.row({text.drops - number})" for number in (2, 1)]
        made = [text.loop([node], [{}], ["to[j] = {x};"], row) for node, row in zip((x, d), rows, strict=True)]
        return [*made[0], *made[1], f"add_between({to}, {rows[0]}, {rows[1]}, keys, {size});"]

    text.ends.append(Row(variables(text, (leaf, d)), (x, d), lines))
