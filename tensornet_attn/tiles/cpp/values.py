"""Entries of tiles as C++ expressions: of row i and key j in loops over rows, of a row and a width elsewhere."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import isinf

from tensornet_attn.ops import MAPS
from tensornet_attn.tiles.cpp.places import Env, Places, Where
from tensornet_attn.tiles.model import Node, Unfit

Hoist = Callable[[str, str], str]  # an expression and its type -> its name, computed before the loop
SHIFT = "(first + i + key_end - query_end - start)"  # the distance of a row and the first key of a block


@dataclass
class Values(Places):
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
        both = {n: ("i", "first"), m: ("j", "start"), **places}
        return Where({axis: own for axis, (own, _) in both.items()}, {axis: own for axis, (_, own) in both.items()})

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
            first = replace(where, index={**where.index, node.axes[-1]: "0"})
            return f"{hoist(self.address(node, env, first), 'const real* ')}[{where.index[node.axes[-1]]}]"
        if node.op not in VALUES:
            raise Unfit(f"C++ kernels have no '{node.op}' of {' '.join(node.axes) or 'one number'} here")
        return VALUES[node.op](self, node, env, where, hoist)

    def each(self, node: Node, env: Env, where: Where, hoist: Hoist | None, variable: str) -> list[str]:
        """The entries for each value of a variable."""
        size = self.program.nodes.sizes[variable]
        return [self.value(node, {**env, variable: str(value)}, where, hoist) for value in range(size)]

    def text_of(self, text: str, kind: str, hoist: Hoist | None) -> str:
        return hoist(text, kind) if hoist else f"({text})"

    def seen(self, node: Node, env: Env, hoist: Hoist | None) -> str:
        """Whether key j is visible to row i."""
        node = self.other(node)
        if node.op == "over":
            (arg,), (variable, _) = node.args, node.data
            many = range(self.program.nodes.sizes[variable])
            return f"({' | '.join(self.seen(arg, {**env, variable: str(value)}, hoist) for value in many)})"
        if node.op != "visible":
            parts = [self.seen(arg, env, hoist) for arg in node.args]
            return f"({(' & ' if node.op == 'both' else ' | ').join(parts) or 'true'})"
        number, index = node.data
        look = self.program.masks[number]
        parts = []
        if look.left is not None:
            parts.append(f"(j >= {self.text_of(f'{SHIFT} - {look.left}', 'const long ', hoist)})")
        if look.right is not None:
            parts.append(f"(j <= {self.text_of(f'{SHIFT} + {look.right}', 'const long ', hoist)})")
        query = self.text_of("int(first + i + key_end - query_end)", "const int ", hoist)
        places = {"query": query, "key": "int(start + j)", "distance": f"({query} - int(start + j))"}
        for condition in look.conditions:  # written for PyTorch and Triton
            parts.append(f"({condition.format(**places).replace('//', '/').replace('~', '!')})")
        at = self.mask_at(index, env)
        place = self.looks.setdefault(at, len(self.looks))
        given = f"see(arena, row_of(mask_seen, {at}), key_seen, keys, {place})"
        row = self.text_of(f"MODE == 2 ? {given} : nullptr", "const unsigned char* ", hoist)
        return f"seen<MODE>({' & '.join(parts) or 'true'}, {row}, j)"


Rule = Callable[[Values, Node, Env, Where, Hoist | None], str]


def mapped(node: Node, parts: list[str]) -> str:
    """A map, or its gradient, of these arguments."""
    own = MAPS[node.data[0]]
    template, letters = (own.triton, "xab") if node.op == "map" else (own.slope, "xydab")
    if not template:
        raise Unfit(f"C++ kernels have no map '{node.data[0]}'")
    return f"({in_cpp(template).format(**dict(zip(letters, (f'({part})' for part in parts), strict=False)))})"


def in_cpp(text: str) -> str:
    """The Triton text of a map as C++: a decimal number has the type of the tile; as a double, it would widen it."""
    text = re.sub(r"\b(max|min)imum_of", r"tl::\1imum", text.replace("tl.", "tl::"))
    return re.sub(r"(?<![\w.])(\d+\.\d*(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?|\d+e[+-]?\d+)", r"real(\1)", text)


def _number(own: Values, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    return f"real({own.number(node.data[0])})"


def _load(own: Values, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    return f"*({own.address(node, env, where)})"


def _entry(own: Values, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    number, index, reach = node.data
    operand = own.program.operands[number]
    load = Node("load", (), operand.axes, node.name, (number, index))
    row = own.address(load, env, where)
    own.drops += 1
    made = f"entries(arena.row({own.drops - 1}), keys, {row}, {reach}, {SHIFT})"
    return f"{own.text_of(made, 'const real* ', hoist)}[j]"


def _between(own: Values, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    number, index, at, size = node.data
    load = Node("load", (), own.program.operands[number].axes, node.name, (number, index))
    first, step = own.address(load, env, where), f"{own.operands[number]}_step[{1 + at}]"
    own.drops += 1
    table = own.text_of(f"table(arena.row({own.drops - 1}), {first}, {step}, {size})", "const real* ", hoist)
    return f"{node.op}({table}, {own.value(node.args[0], env, where, hoist)}, {size})"


def _statistic(own: Values, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    return own.statistic(node.data, env, where.along(own.program.query), node.op == "largest")


def _sums(own: Values, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    return f"sums[{own.stat_at(node.data, env)} * QUERIES + {where.index[own.program.query]}]"


def _less(own: Values, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    return "less"  # the largest score so far, in the lines of a map


def _factor(own: Values, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    at = own.stat_at(node.data, env)
    rows = (own.statistic(node.data, env, where.along(own.program.query), largest) for largest in (True, False))
    most = f"most_then[(start / KEYS * {own.maps} + {at}) * QUERIES + {where.index[own.program.query]}]"
    return f"factor({most}, {', '.join(rows)})"


def _sink_share(own: Values, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    return f"factor({', '.join(own.value(arg, env, where, hoist) for arg in node.args)})"


def _gradient(own: Values, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    at, row = own.result_at("gradient", node.data[0], node.axes, env), where.index[own.program.query]
    width = node.axes[1:]
    return f"({at})[{row}{''.join(f' * {axis}_size + {where.index[axis]}' for axis in width)}]"


def _total(own: Values, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    return own.total_at(node, env, where)


def _add(own: Values, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    parts = [own.value(arg, env, where, hoist) for arg in node.args if arg.op != "bias"]
    text = f"({' + '.join(parts)})" if len(parts) > 1 else parts[0]
    for arg in node.args:
        if arg.op == "bias":
            row = f"MODE == 2 ? row_of(mask_bias, {own.mask_at(arg.data[0], env)}) : nullptr"
            text = f"biased<MODE>({text}, {own.text_of(row, 'const real* ', hoist)}, j)"
    return text


def _mul(own: Values, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    a, b = (own.value(arg, env, where, hoist) for arg in node.args)
    return f"{a} * {b}"


def _map(own: Values, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    return mapped(node, [own.value(arg, env, where, hoist) for arg in node.args])


def _keep(own: Values, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    x, seen = node.args
    fill = node.data[0].value if node.data else 0.0
    number = "-INFINITY" if isinf(fill) else repr(float(fill))
    return f"where_seen<MODE>({own.seen(seen, env, hoist)}, {own.value(x, env, where, hoist)}, {number})"


def _softened(own: Values, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    x, seen, largest, *rows = node.args
    power = f"exp_below({own.value(x, env, where, hoist)} - {own.value(largest, env, where, hoist)})"
    power = " * ".join([power, *(own.value(one, env, where, hoist) for one in rows)])
    return f"where_seen<MODE>({own.seen(seen, env, hoist)}, {power}, 0.0)"


def _same(own: Values, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    return own.value(node.args[0], env, where, hoist)


def _over(own: Values, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    variable, how = node.data
    parts = own.each(node.args[0], env, where, hoist, variable)
    if how in ("add", "any"):
        return f"({(' + ' if how == 'add' else ' | ').join(parts)})"
    if how == "max":
        most = parts[0]
        for part in parts[1:]:
            most = f"tl::maximum({most}, {part})"
        return most
    return f"log_sum({', '.join(parts)})"


def _shift(own: Values, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    relative = "(i + keys - 1 - j)"
    index = {**where.index, own.pair[1]: relative, **dict.fromkeys(own.program.relative, relative)}
    return own.value(node.args[0], env, replace(where, index=index), hoist)


def _drop(own: Values, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    stream, tree, heads, index = node.data
    own.drops += 1
    drawn = f"{own.number(tree)}, seed, {own.lead(heads, index, env)}, {stream}, first + i, start"
    made = f"training ? keep_row(arena.row({own.drops - 1}), keys, {drawn}) : nullptr"
    row = own.text_of(made, "const real* ", hoist)
    return f"dropped({own.value(node.args[0], env, where, hoist)}, {row}, j)"


def _equal(own: Values, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    a, b = (own.value(arg, env, where, hoist) for arg in node.args)
    return f"(({a}) == ({b}) ? real(1) : real(0))"


def _distance(own: Values, node: Node, env: Env, where: Where, hoist: Hoist | None) -> str:
    return f"real(int({own.text_of(SHIFT, 'const long ', hoist)}) - int(j))"


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
