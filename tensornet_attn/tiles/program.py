"""The tile program of a region: the computation of a kernel, as nodes over tiles of queries, keys and widths.

Every node is assigned once. Its `axes` are the sides of its tile, in this order: query rows, keys, relative positions,
a width (the legs that a score product sums or that a value carries, as one side); a tile without sides is a scalar. Its
`heads` are index variables: a program has one such tile for each combination of their values.

    A.of[h n m] = P[g h] Q[n g d] K[m g d]      over g: P(g, h) dot(Q(g), K(g))      heads (h), g is bound
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import log, prod
from typing import Any

from tensornet_attn.graph.graph import Step, Use
from tensornet_attn.ir.arithmetic import ONE, Arith, Binary, FunctionCall, Name, Number
from tensornet_attn.ir.steps import within
from tensornet_attn.tiles.conditions import MaskConditions

Axes = tuple[str, ...]
ROWS = ("softmax", "normalize")  # nodes that divide by a sum over the keys


class At(tuple[str, ...]):
    """The index variable of each of some legs; empty for a leg of which a program has one tile."""

    __slots__ = ()


class Unfit(Exception):  # caught by the lowering that tries to build the program
    """The reason why a region cannot be a tile program, as a clause."""


@dataclass(frozen=True, eq=False)
class Node:
    """One tile for each value of its index variables: operation, arguments and sides; `name`: its name in the diagram.

    | op | tile |
    | --- | --- |
    | load | a part of an operand: data = (number of the operand, its index) |
    | number | a coefficient: data = (tree,) |
    | noise, distance | computed in the kernel: data = (operand, index, stream, std, always), () |
    | add, mul | elementwise; broadcast along sides that an argument lacks |
    | over | the sum of its argument over a variable, the maximum, the log of the sum of exp, or logical or:
      data = (variable, "add", "max", "lse" or "any") |
    | dot | a product of two that sums the side data = (axis,) |
    | sum, spread | summed along data = (axis,); broadcast to its sides |
    | map | text in `maps.py`: data = (function, ...), arguments may follow the tile |
    | equal | 1 if its arguments are equal, otherwise 0 |
    | shift, unshift | from relative positions to keys, and back; zero outside the keys |
    | entry | the entries of an operand at the distance of query and key: data = (number of the operand, index, reach) |
    | between, incline | interpolated entries of an operand, and their derivative, see `cpp/lookups.py`: data = (number
      of the operand, its index without that of the entries, the place of the latter, the number of entries) |
    | bias | the float mask of the call: data = (index,) |
    | visible | where a mask leaves pairs visible: data = (number of the mask, index) |
    | both, either | logical and, logical or of its arguments |
    | softmax | of (x, seen): exp(x) / sum of exp(x) where visible, optionally with a sink: data = (number of the map,
      its index, a variable that is summed over, or empty) |
    | normalize | of (x, seen): x / (sum of x along the row + eps) where visible: data = (..., ..., eps) |
    | largest | for each row of a softmax, its largest score: data = (number of the map, its index) |
    | statistic | for each row of a map 1 / sum of exp(x - largest), or 1 / (sum + eps): data as above |
    | softened | of (x, seen, largest, statistic): exp(x - largest) statistic where visible |
    | sink_share | of (sink, largest, statistic): exp(sink - largest) statistic |
    | keep, hide | of (x, seen): x where visible; otherwise zero, or data = (a number,) |
    | running | the sum of its argument up to each key, or, if data = (True,), from each key on |
    | inside | x, but zero after the last query and after the last key |
    | drop | dropout: data = (stream, tree, legs, index) |
    | gradient, sums, sum_over_blocks | in the backward: of the result, rows of sum(A dA), an accumulator |
    | box, constant, drawn, dropped, view; box_grad, pull, kept | of whole rows: see `rows.py` |
    """

    op: str
    args: tuple[Node, ...] = ()
    axes: Axes = ()
    name: str = ""
    data: tuple[Any, ...] = ()
    heads: tuple[str, ...] = ()


@dataclass
class Nodes:
    """Creates nodes; equal nodes are created once. `order`: of axes; `sizes`: the size of each index variable.

    `taken`: names that are unavailable for index variables. `dynamic`: sizes are known only in the call, so legs of
    size 1 have index variables too, and all index variables have the names of their legs.
    """

    order: Axes
    taken: frozenset[str] = frozenset()
    dynamic: bool = False
    sizes: dict[str, int] = field(default_factory=dict)
    interned: dict[Any, Node] = field(default_factory=dict)

    @property
    def pair(self) -> Axes:
        """The query and key sides."""
        return self.order[:2]

    def node(
        self, op: str, args: Iterable[Node], axes: Iterable[str], name: str = "", data: tuple[Any, ...] = ()
    ) -> Node:
        args, wanted = tuple(args), frozenset(axes)
        sides = within(self.order, wanted)
        key = (op, tuple(map(id, args)), sides, data)
        if key not in self.interned:
            free = {*variables(data)} | {head for arg in args for head in arg.heads}.difference(bound(op, data))
            heads = within(self.sizes, free)
            self.interned[key] = Node(op, args, sides, name, data, heads)
        return self.interned[key]

    def variable(self, leg: str, size: int, taken: Container[str] = ()) -> str:
        """An index variable of a leg: the leg's own name unless that is taken; empty if the leg has size 1."""
        name, number = leg, 1
        while name in taken or name in self.taken or name in self.order or self.sizes.get(name, size) != size:
            number += 1
            name = f"{leg}_{number}"
        if size > 1 or self.dynamic:
            self.sizes.setdefault(name, size)
        return name if size > 1 or self.dynamic else ""

    def number(self, tree: Arith) -> Node:
        return self.node("number", (), (), "", (tree,))

    def scaled(self, x: Node, by: Arith, name: str) -> Node:
        return x if by == ONE else self.mul(self.number(by), x, name)

    def share(self, variable: str) -> Node:
        """1 / (size of an index variable)."""
        reciprocal = Number(1 / self.sizes[variable] if variable else 1)
        return self.number(Binary("/", ONE, self.count(variable)) if self.dynamic else reciprocal)

    def count(self, variable: str, log_of: bool = False) -> Arith:
        """The size of an index variable, or its logarithm."""
        if self.dynamic:
            return FunctionCall("log", (Name(variable),)) if log_of else Name(variable)
        return Number(log(self.sizes[variable]) if log_of else self.sizes[variable])

    def over(self, x: Node, variable: str, how: str = "add", name: str = "") -> Node:
        """x reduced over an index variable: the sum, the maximum, or the log of the sum of exp."""
        if not variable:
            return x
        if variable not in x.heads:  # x is the same for all of its values
            count = self.number(self.count(variable, how == "lse"))
            return x if how in ("max", "any") else self.add([x, count]) if how == "lse" else self.mul(count, x, name)
        if how == "add":
            for factor, rest in [x.args, x.args[::-1]] if x.op == "mul" else []:
                if variable not in factor.heads:
                    return self.mul(factor, self.over(rest, variable, how, name), name)
        return self.node("over", (x,), x.axes, name, (variable, how))

    def renamed(self, node: Node, names: Mapping[str, str]) -> Node:
        """The tile with other index variables."""
        names = {old: new for old, new in names.items() if old in node.heads and old != new}
        if not names:
            return node
        data, inner_names = node.data, dict(names)
        for variable in {*bound(node.op, node.data)} & {*names.values()}:
            heads = {head for arg in node.args for head in arg.heads}
            inner_names[variable] = self.variable(variable, self.sizes[variable], {*names.values(), *heads})
            data = tuple(inner_names[variable] if datum == variable else datum for datum in data)
        args = (self.renamed(arg, inner_names) for arg in node.args)
        return self.node(node.op, args, node.axes, node.name, with_variables(data, inner_names))

    def add(self, terms: Iterable[Node], name: str = "") -> Node:
        """The sum of terms; a common scalar factor is factored out."""
        terms = tuple(terms)
        if len(terms) == 1:
            return terms[0]
        numbers, rests = zip(*map(factored, terms), strict=True)
        if numbers[0] is not None and len({*numbers}) == 1:
            return self.mul(numbers[0], self.add(rests, name), name)
        return self.node("add", terms, (axis for term in terms for axis in term.axes), name)

    def mul(self, a: Node, b: Node, name: str = "") -> Node:
        """a b. Scalar factors are hoisted out of products and sums along sides, which then cost less."""
        if b.op == "number":
            a, b = b, a
        if a.op != "number":
            for left, right in ((a, b), (b, a)):
                number, rest = factored(left)
                if number is not None:
                    return self.mul(number, self.mul(rest, right, name), name)
        return self.node("mul", (a, b), (*a.axes, *b.axes), name)

    def total(self, x: Node, wanted: Axes, name: str = "") -> Node:
        """x summed along unwanted sides, keys first, because each thread holds parts of rows."""
        number, rest = factored(x)
        if number is not None:
            return self.mul(number, self.total(rest, wanted, name), name)
        for axis in reversed(x.axes):
            if axis not in wanted:
                x = self.node("sum", (x,), set(x.axes) - {axis}, name, (axis,))
        return x

    def product(self, a: Node, b: Node, wanted: Axes, name: str = "") -> Node:
        """a b summed along unwanted sides. A factor that is common to all rows is hoisted out of sums over rows."""
        for left, right in ((a, b), (b, a)):
            number, rest = factored(left)
            if number is not None:
                return self.mul(number, self.product(rest, right, wanted, name), name)
            row, rest = along_width(left)
            if row is not None and {*row.axes} <= {*wanted} - {*right.axes}:
                return self.mul(row, self.product(rest, right, wanted, name), name)
        contracted = [axis for axis in a.axes if axis in b.axes and axis not in wanted]
        free = [axis for axis in (*a.axes, *b.axes) if axis not in contracted]
        if len(contracted) == 1 and len(free) == len({*free}) == 2 and {*free} <= {*wanted}:
            if self.order.index(free[0]) > self.order.index(free[1]):
                a, b = b, a
            return self.node("dot", (a, b), free, name, (contracted[0],))
        a, b = (self.total(x, (*wanted, *y.axes)) for x, y in ((a, b), (b, a)))
        return self.total(self.mul(a, b, name), wanted, name)

    def spread(self, x: Node, axes: Axes) -> Node:
        return x if x.axes == axes else self.node("spread", (x,), axes, x.name)

    def mask_tile(self, visible: Node) -> Node:
        """The tile of the mask of the call that says, beside a mask of the diagram, what is visible."""
        return self.node("bias", (), self.pair, "mask_tile", visible.data[1:])


@dataclass(frozen=True)
class TileOperand:
    """An operand of a program: its legs with one tile per entry (`heads`), and the sides of these tiles.

    `table`: the leg of distances, the last of `axes`, if the operand is read by the distance of query and key.
    """

    use: Use
    heads: tuple[str, ...]
    axes: Axes
    table: str = ""


@dataclass(frozen=True)
class Exit:
    """The tiles of the result: maps times values (None: only maps), summed over keys and over `summed`.

    `index`: the index variable of each head of the result. `log`: the result is the log of the sum that rows of the
    only map, a softmax, are divided by.
    """

    index: At
    maps: Node
    values: Node | None
    summed: tuple[str, ...] = ()
    log: bool = False


@dataclass(frozen=True)
class Program:
    """The program of a region. `heads`: tiles per program of each leg that is not inside a tile; the other tiles belong
    to other programs. `whole`: legs with all tiles in a program. `widths`: the legs of each axis that is a width.

    `masks`: the masks of boxes.
    """

    step: Step
    query: str
    key: str
    heads: dict[str, int]
    whole: frozenset[str]
    widths: dict[str, tuple[str, ...]]
    operands: tuple[TileOperand, ...]
    exit: Exit
    legs: tuple[str, ...]  # of the result: heads, query, width
    maps: tuple[Node, ...]
    masks: tuple[MaskConditions, ...]
    others: tuple[str, ...]  # legs of a run-time mask besides query and key
    nodes: Nodes
    relative: tuple[str, ...] = ()  # the leg of relative positions, a side of tiles that are shifted to keys

    @property
    def pair(self) -> tuple[str, str]:
        return (self.query, self.key)

    @property
    def sizes(self) -> dict[str, int]:
        """The number of values of each variable."""
        return self.nodes.sizes

    @property
    def axes(self) -> Axes:
        """The sides of a tile of the result."""
        return (self.query, *(axis for axis, legs in self.widths.items() if {*legs} & {*self.legs}))

    def read(self) -> Node:
        """What a block of keys adds to the tiles of the result."""
        maps, values = self.exit.maps, self.exit.values
        if values is None:
            tile = self.nodes.total(maps, self.axes, "read")
        else:
            tile = self.nodes.product(maps, values, self.axes, "read")
        for variable in self.exit.summed:
            tile = self.nodes.over(tile, variable, "add", "read")
        return tile

    def tiles(self, variables: Iterable[str]) -> int:
        """The number of combinations of values of some index variables."""
        return prod(self.sizes[variable] for variable in variables if variable)

    @property
    def sums_powers(self) -> bool:
        """Whether a softmax sums exponentials over a variable: calls with a float mask have another program then."""
        return any(node.op == "softmax" and node.data[2] for node in self.maps)

    def first_of(self, number: int) -> int:
        """The number of tiles of all maps before this one."""
        return sum(self.tiles(node.heads) for node in self.maps[:number])

    @property
    def statistics(self) -> int:
        """The numbers that are saved for a row: what each tile of a map is multiplied by; if there are softmaxes, the
        largest scores after them. Their logarithmic sum would lose the sum beside a bias of -1e9.
        """
        return self.first_of(len(self.maps)) * (1 + any(node.op == "softmax" for node in self.maps))

    def divided(self, attention_map: Node) -> Node:
        """A map, computed from the statistics of its rows."""
        (x, seen, *_), (number, index, last) = attention_map.args, attention_map.data
        rows = self.nodes.node("statistic", (), (self.query,), f"{attention_map.name}_rows", (number, index))
        if attention_map.op == "normalize":
            return self.nodes.node(
                "keep", (self.nodes.mul(x, rows, attention_map.name), seen), attention_map.axes, attention_map.name
            )
        largest = self.nodes.node("largest", (), (self.query,), f"{attention_map.name}_largest", (number, index))
        softened = self.nodes.node("softened", (x, seen, largest, rows), attention_map.axes, attention_map.name)
        return self.nodes.over(softened, last, "add", attention_map.name)


def structure(program: Program) -> tuple[object, ...]:
    """What determines the kernels of a program, apart from names: equal if two programs can share them."""
    exit_ = program.exit
    nodes = below([exit_.maps, *([exit_.values] if exit_.values else []), *program.maps])
    numbers = {node: number for number, node in enumerate(nodes)}
    return (
        program.query, program.key, [*program.heads.items()], program.whole, [*program.widths.items()],
        [(operand.heads, operand.axes, operand.table) for operand in program.operands],
        [(node.op, [numbers[arg] for arg in node.args], node.axes, node.data, node.heads) for node in nodes],
        exit_.index, numbers[exit_.maps], exit_.values and numbers[exit_.values], exit_.summed, exit_.log,
        [numbers[node] for node in program.maps], program.legs, program.masks, program.others, program.relative,
        program.nodes.order, [*program.nodes.sizes.items()],
    )  # fmt: skip


def bound(op: str, data: tuple[Any, ...]) -> tuple[str, ...]:
    """The index variables that a node binds: it sums over them or renames them."""
    if op == "box":
        return data[2]  # type: ignore[no-any-return]
    return (data[0],) if op == "over" else (data[2],) if op == "softmax" else data[0] if op == "view" else ()


def variables(data: tuple[Any, ...]) -> Iterator[str]:
    """The index variables in the data of a node."""
    for datum in data:
        if isinstance(datum, At):
            yield from datum
        elif isinstance(datum, tuple):
            yield from variables(datum)


def with_variables(data: tuple[Any, ...], names: Mapping[str, str]) -> tuple[Any, ...]:
    """The data of a node with other index variables."""
    if isinstance(data, At):
        return At(names.get(variable, variable) for variable in data)
    return tuple(with_variables(datum, names) if isinstance(datum, tuple) else datum for datum in data)


def factored(node: Node) -> tuple[Node | None, Node]:
    """(scalar factor of a tile, the rest); (None, node) if there is none."""
    if node.op == "mul" and node.args[0].op == "number":
        number, rest = node.args
        return number, rest
    return None, node


def along_width(node: Node) -> tuple[Node | None, Node]:
    """(a factor that is common to all rows of a tile of rows x width, the rest); (None, node) if there is none."""
    if node.op == "mul" and len(node.axes) == 2:
        for row, rest in (node.args, node.args[::-1]):
            if row.op == "load" and row.axes == node.axes[1:] and rest.axes == node.axes:
                return row, rest
    return None, node


def scale_of(scores: Node) -> Node | None:
    """The scalar factor of scores that a softmax applies itself if a run-time mask is added last: see `softened`."""
    if scores.op == "add" and [arg.op for arg in scores.args[1:]] == ["bias"]:
        return factored(scores.args[0])[0]
    return None


def vanishes(node: Node) -> bool:
    """Whether a tile is zero in all hidden entries."""
    if node.op in (*ROWS, "keep"):
        return True
    if node.op in ("mul", "drop"):
        return any(vanishes(arg) for arg in node.args)
    return (node.op == "add" or node.data[1:] == ("add",)) and all(vanishes(arg) for arg in node.args)


def below(
    ends: Iterable[Node], known: Container[Node | None] = (), instead: Mapping[Node, Node] | None = None
) -> list[Node]:
    """All nodes that `ends` depend on, with them, in topological order; without `known` nodes and their dependencies.

    `instead`: replacements of nodes.
    """
    ordered, replacements = dict[Node, None](), instead or {}
    stack = [(replacements.get(node, node), False) for node in reversed(list(ends))]
    while stack:
        node, ready = stack.pop()
        if ready:
            ordered[node] = None
        elif node not in ordered and node not in known:
            stack.append((node, True))
            stack += [
                (replacements.get(arg, arg), False)
                for arg in reversed(node.args)
                if replacements.get(arg, arg) not in ordered
            ]
    return list(ordered)
