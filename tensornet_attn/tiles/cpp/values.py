"""Entries of tiles as C++ expressions: of row i and key j in loops over rows, of a row and a width elsewhere."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import isinf

from tensornet_attn.ops import MAPS
from tensornet_attn.tiles.cpp.places import Addresses, Env, Where
from tensornet_attn.tiles.program import Node, Unfit

Hoist = Callable[[str, str], str]  # an expression and its type -> its name, computed before the loop
SHIFT = "(first + i + key_end - query_end - start)"  # the distance of a row and the first key of a block


@dataclass
class PassExpressions(Addresses):
    """The expressions of a pass. `instead`: nodes that replace others."""

    instead: dict[Node, Node] = field(default_factory=dict)
    kept: set[Node] = field(default_factory=set)  # nodes that have a tile or a row of their own
    drops: int = 0  # rows that are drawn or read at distances
    looks: dict[str, int] = field(default_factory=dict)  # rows of visibility by a mask and keys, by place of the mask

    def other(self, node: Node) -> Node:
        return self.instead.get(node, node)

    @abstractmethod
    def row(self, node: Node, env: Env) -> str:
        """The address of row i of what is made."""

    @property
    def entry(self) -> Where:
        """Row i and key j of a block."""
        n, m = self.pair
        places = dict.fromkeys(self.program.relative, ("j", "place"))
        sides = {n: ("i", "first"), m: ("j", "start"), **places}
        return Where(
            {axis: index for axis, (index, _) in sides.items()}, {axis: origin for axis, (_, origin) in sides.items()}
        )

    def value(self, node: Node, env: Env, where: Where, hoist: Hoist | None = None) -> str:
        """An entry of a tile. `hoist`: names what is the same for all keys of a row."""
        node = self.other(node)
        query, key = self.pair
        if node in self.kept:
            row = self.row(node, env)
            return f"{hoist(row, 'const real* ') if hoist else f'({row})'}[{where.index[key]}]"
        if hoist and {*node.axes} <= {query}:
            return hoist(self.value(node, env, where), "const real ")
        if hoist and node.op == "load":
            row_start = replace(where, index={**where.index, node.axes[-1]: "0"})
            return f"{hoist(self.address(node, env, row_start), 'const real* ')}[{where.index[node.axes[-1]]}]"
        if node.op not in VALUES:
            raise Unfit(f"C++ kernels have no '{node.op}' of {' '.join(node.axes) or 'one number'} here")
        return VALUES[node.op](self, node, env, where, hoist)

    def each(self, node: Node, env: Env, where: Where, hoist: Hoist | None, variable: str) -> list[str]:
        """The entries for each value of a variable."""
        size = self.program.sizes[variable]
        return [self.value(node, {**env, variable: str(value)}, where, hoist) for value in range(size)]

    def text_of(self, expression: str, cpp_type: str, hoist: Hoist | None) -> str:
        return hoist(expression, cpp_type) if hoist else f"({expression})"

    def seen(self, node: Node, env: Env, hoist: Hoist | None) -> str:
        """Whether key j is visible to row i."""
        node = self.other(node)
        if node.op == "over":
            (arg,), (variable, _) = node.args, node.data
            values = range(self.program.sizes[variable])
            return f"({' | '.join(self.seen(arg, {**env, variable: str(value)}, hoist) for value in values)})"
        if node.op != "visible":
            conditions = [self.seen(arg, env, hoist) for arg in node.args]
            return f"({(' & ' if node.op == 'both' else ' | ').join(conditions) or 'true'})"
        number, index = node.data
        look = self.program.masks[number]
        conditions = []
        if look.left is not None:
            conditions.append(f"(j >= {self.text_of(f'{SHIFT} - {look.left}', 'const long ', hoist)})")
        if look.right is not None:
            conditions.append(f"(j <= {self.text_of(f'{SHIFT} + {look.right}', 'const long ', hoist)})")
        query = self.text_of("int(first + i + key_end - query_end)", "const int ", hoist)
        places = {"query": query, "key": "int(start + j)", "distance": f"({query} - int(start + j))"}
        for condition in look.conditions:  # written for PyTorch and Triton
            conditions.append(f"({condition.format(**places).replace('//', '/').replace('~', '!')})")
        mask_row = self.mask_at(index, env)
        row_number = self.looks.setdefault(mask_row, len(self.looks))
        visible_row = f"see(arena, row_of(mask_seen, {mask_row}), key_seen, keys, {row_number})"
        row = self.text_of(f"MODE == 2 ? {visible_row} : nullptr", "const unsigned char* ", hoist)
        return f"seen<MODE>({' & '.join(conditions) or 'true'}, {row}, j)"


Rule = Callable[[PassExpressions, Node, Env, Where, Hoist | None], str]


def mapped(node: Node, arguments: list[str]) -> str:
    """A map, or its gradient, of these arguments."""
    elementwise = MAPS[node.data[0]]
    template, letters = (elementwise.triton, "xab") if node.op == "map" else (elementwise.slope, "xydab")
    if not template:
        raise Unfit(f"C++ kernels have no map '{node.data[0]}'")
    return (
        f"({in_cpp(template).format(**dict(zip(letters, (f'({argument})' for argument in arguments), strict=False)))})"
    )


def in_cpp(expression: str) -> str:
    """The Triton text of a map as C++: a decimal number has the type of the tile; as a double, it would widen it."""
    expression = re.sub(r"\b(max|min)imum_of", r"tl::\1imum", expression.replace("tl.", "tl::"))
    return re.sub(r"(?<![\w.])(\d+\.\d*(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?|\d+e[+-]?\d+)", r"real(\1)", expression)


def _number(printer: PassExpressions, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    return f"real({printer.number(node.data[0])})"


def _load(printer: PassExpressions, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    return f"*({printer.address(node, env, where)})"


def _entry(printer: PassExpressions, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    number, index, reach = node.data
    operand = printer.program.operands[number]
    load = Node("load", (), operand.axes, node.name, (number, index))
    row = printer.address(load, env, where)
    printer.drops += 1
    entries = f"entries(arena.row({printer.drops - 1}), keys, {row}, {reach}, {SHIFT})"
    return f"{printer.text_of(entries, 'const real* ', hoist)}[j]"


def _between(printer: PassExpressions, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    number, index, table_axis, size = node.data
    load = Node("load", (), printer.program.operands[number].axes, node.name, (number, index))
    table_start, step = printer.address(load, env, where), f"{printer.operands[number]}_step[{1 + table_axis}]"
    printer.drops += 1
    table = printer.text_of(
        f"table(arena.row({printer.drops - 1}), {table_start}, {step}, {size})", "const real* ", hoist
    )
    return f"{node.op}({table}, {printer.value(node.args[0], env, where, hoist)}, {size})"


def _statistic(printer: PassExpressions, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    return printer.statistic(node.data, env, where.along(printer.program.query), node.op == "largest")


def _sums(printer: PassExpressions, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    return f"sums[{printer.stat_at(node.data, env)} * QUERIES + {where.index[printer.program.query]}]"


def _less(printer: PassExpressions, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    return "less"  # the largest score so far, in the lines of a map


def _factor(printer: PassExpressions, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    statistic = printer.stat_at(node.data, env)
    rows = (printer.statistic(node.data, env, where.along(printer.program.query), largest) for largest in (True, False))
    largest_then = (
        f"most_then[(start / KEYS * {printer.maps} + {statistic}) * QUERIES + {where.index[printer.program.query]}]"
    )
    return f"factor({largest_then}, {', '.join(rows)})"


def _sink_share(printer: PassExpressions, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    return f"factor({', '.join(printer.value(arg, env, where, hoist) for arg in node.args)})"


def _gradient(printer: PassExpressions, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    tile, row = printer.result_at("gradient", node.data[0], node.axes, env), where.index[printer.program.query]
    width = node.axes[1:]
    return f"({tile})[{row}{''.join(f' * {axis}_size + {where.index[axis]}' for axis in width)}]"


def _total(printer: PassExpressions, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    return printer.total_at(node, env, where)


def _add(printer: PassExpressions, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    summands = [printer.value(arg, env, where, hoist) for arg in node.args if arg.op != "bias"]
    total = f"({' + '.join(summands)})" if len(summands) > 1 else summands[0]
    for arg in node.args:
        if arg.op == "bias":
            row = f"MODE == 2 ? row_of(mask_bias, {printer.mask_at(arg.data[0], env)}) : nullptr"
            total = f"biased<MODE>({total}, {printer.text_of(row, 'const real* ', hoist)}, j)"
    return total


def _mul(printer: PassExpressions, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    a, b = (printer.value(arg, env, where, hoist) for arg in node.args)
    return f"{a} * {b}"


def _map(printer: PassExpressions, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    return mapped(node, [printer.value(arg, env, where, hoist) for arg in node.args])


def _keep(printer: PassExpressions, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    x, seen = node.args
    fill = node.data[0].value if node.data else 0.0
    number = "-INFINITY" if isinf(fill) else repr(float(fill))
    return f"where_seen<MODE>({printer.seen(seen, env, hoist)}, {printer.value(x, env, where, hoist)}, {number})"


def _softened(printer: PassExpressions, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    x, seen, largest, *rows = node.args
    power = f"exp_below({printer.value(x, env, where, hoist)} - {printer.value(largest, env, where, hoist)})"
    power = " * ".join([power, *(printer.value(row, env, where, hoist) for row in rows)])
    return f"where_seen<MODE>({printer.seen(seen, env, hoist)}, {power}, 0.0)"


def _same(printer: PassExpressions, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    return printer.value(node.args[0], env, where, hoist)


def _over(printer: PassExpressions, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    variable, how = node.data
    entries = printer.each(node.args[0], env, where, hoist, variable)
    if how in ("add", "any"):
        return f"({(' + ' if how == 'add' else ' | ').join(entries)})"
    if how == "max":
        largest = entries[0]
        for entry in entries[1:]:
            largest = f"tl::maximum({largest}, {entry})"
        return largest
    return f"log_sum({', '.join(entries)})"


def _shift(printer: PassExpressions, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    relative = "(i + keys - 1 - j)"
    index = {**where.index, printer.pair[1]: relative, **dict.fromkeys(printer.program.relative, relative)}
    return printer.value(node.args[0], env, replace(where, index=index), hoist)


def _drop(printer: PassExpressions, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    stream, tree, heads, index = node.data
    printer.drops += 1
    drawn = f"{printer.number(tree)}, seed, {printer.lead(heads, index, env)}, {stream}, first + i, start"
    kept_row = f"training ? keep_row(arena.row({printer.drops - 1}), keys, {drawn}) : nullptr"
    row = printer.text_of(kept_row, "const real* ", hoist)
    return f"dropped({printer.value(node.args[0], env, where, hoist)}, {row}, j)"


def _equal(printer: PassExpressions, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    a, b = (printer.value(arg, env, where, hoist) for arg in node.args)
    return f"(({a}) == ({b}) ? real(1) : real(0))"


def _distance(printer: PassExpressions, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    return f"real(int({printer.text_of(SHIFT, 'const long ', hoist)}) - int(j))"


VALUES: dict[str, Rule] = {
    "number": _number,
    "load": _load,
    "entry": _entry,
    "between": _between,
    "incline": _between,
    "statistic": _statistic,
    "largest": _statistic,
    "sink_share": _sink_share,
    "sums": _sums,
    "factor": _factor,
    "less": _less,
    "gradient": _gradient,
    "sum_over_blocks": _total,
    "add": _add,
    "mul": _mul,
    "map": _map,
    "slope": _map,
    "keep": _keep,
    "hide": _keep,
    "softened": _softened,
    "over": _over,
    "shift": _shift,
    "spread": _same,
    "inside": _same,
    "drop": _drop,
    "equal": _equal,
    "distance": _distance,
}
