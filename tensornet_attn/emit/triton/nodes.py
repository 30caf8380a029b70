"""Nodes of a tile program as Triton expressions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import isinf

from tensornet_attn.emit.names import Names
from tensornet_attn.ops import MAPS
from tensornet_attn.tiles.loops import Accumulator
from tensornet_attn.tiles.program import At, Axes, Node, Program, scale_of

ENDS = ("next", "own", "sum", "total")
WORDS = 4  # random words that the generator makes at once


@dataclass
class KernelNames:
    """The names in one kernel: those of nodes so far, operands, heads and coefficients."""

    program: Program
    operands: tuple[str, ...]  # local names
    numbers: Callable[[Node], str]
    names: Names
    refer: Callable[[Node], str] = str  # node -> its name in the section being written
    inline: set[Node] = field(default_factory=set)  # nodes that are nested in their readers
    turned: bool = False  # whether tiles of queries x keys have keys as rows
    instead: dict[Node, Node] = field(default_factory=dict)  # nodes of this kernel that replace others
    carried: dict[str, Accumulator] = field(default_factory=dict)  # row sums and row maxima of the online softmax
    totals: dict[int, Callable[[Node], str]] = field(default_factory=dict)  # accumulators by index
    before: list[str] = field(default_factory=list)  # lines before the loop
    constants: dict[str, str] = field(default_factory=dict)  # names of expressions that are constant in the loop
    fours: str = ""  # the variable whose loop is unrolled in parts of WORDS rounds

    @property
    def pair(self) -> Axes:
        """The sides of tiles of queries x keys; the rows of the first are not shared between warps."""
        return self.sides(self.program.pair)

    def sides(self, axes: Axes) -> Axes:
        """The sides of a tile in the order of this kernel."""
        return axes[::-1] if self.turned and axes == self.program.pair else axes

    def broadcast(self, expression: str, axis: str, axes: Axes) -> str:
        """A vector along one side, shaped to broadcast to a tile."""
        return f"{expression}[:, None]" if self.sides(axes)[0] == axis else f"{expression}[None, :]"

    def along(self, axis: str, expression: str | None = None) -> str:
        """A vector along queries or keys (by default their indices), shaped to broadcast to a tile of both."""
        return self.broadcast(expression or axis, axis, self.program.pair)

    def label(self, node: Node) -> str:
        """A new local name after the diagram: `A.of.p1` becomes A_scores_1."""
        name = re.sub(r"\.p(?=\d)", "_", (node.name or node.op).replace(".of", "_scores")).replace(".", "_")
        if node.op == "load":
            name = f"{self.operands[node.data[0]]}_{'tile' if node.axes else 'value'}"
        return self.new_name(name)

    def new_name(self, wish: str) -> str:
        """A new local name; the names that lines derive from it are reserved too."""
        name = self.names.fresh(wish)
        while {f"{name}_{end}" for end in ENDS} & self.names.taken:
            name = self.names.fresh(wish)
        self.names.taken |= {f"{name}_{end}" for end in ENDS}
        return name

    def coordinate(self, leg: str, variable: str) -> str:
        """The index of a program's tile along a leg; empty if it is 0."""
        tiles = self.program.heads[leg]
        if leg in self.program.whole:
            return variable
        return f"({leg}_at * {tiles} + {variable})" if tiles > 1 else f"{leg}_at"

    def shared(self, variable: str) -> tuple[str, str]:
        """The index among groups of WORDS tiles, and that in the group; constants where the loop is unrolled."""
        if variable == self.fours:
            return f"{variable}_four", f"{variable}_word"
        return f"{variable} // {WORDS}", f"{variable} % {WORDS}"

    def within(self, name: str, heads: Iterable[str], index: At, more: Iterable[str] = ()) -> str:
        """The arguments that locate a tile in a tensor of the call: its strides, and batch, heads and `more`."""
        coordinates = (self.coordinate(leg, variable) or "0" for leg, variable in zip(heads, index, strict=True))
        indices = ["batch", *(coordinate.removeprefix("(").removesuffix(")") for coordinate in coordinates), *more]
        return f"{name}, {name}_step, ({', '.join(indices)}{',' * (len(indices) == 1)})"

    def named(self, expression: str, wish: str) -> str:
        """A name for an expression that is constant in the loop."""
        if expression not in self.constants:
            self.constants[expression] = self.names.fresh(wish)
            self.before.append(f"{self.constants[expression]} = {expression}")
        return self.constants[expression]

    def pair_at(self, name: str, heads: Iterable[str], index: At) -> str:
        """The arguments that locate a tile of queries x keys in a tensor of the call."""
        sides = ", ".join(f"{self.along(axis)}, {axis}_end" for axis in self.program.pair)
        return f"{self.within(name, heads, index)}, {sides}"

    def load(self, node: Node) -> str:
        number, index = node.data[:2]
        return self.loaded(self.operands[number], self.program.operands[number].heads, index, node.axes)

    def loaded(self, name: str, heads: Iterable[str], index: At, axes: Axes) -> str:
        if axes == self.program.pair:
            return f"pair_2d({self.pair_at(name, heads, index)}).to(SUMS)"
        sides = "".join(f", {axis}, {self.end(axis)}" for axis in axes)
        expression = f"{f'tile_{len(axes)}d' if axes else 'scalar'}({self.within(name, heads, index)}{sides})"
        return expression if self.raw_axes(axes) else f"{expression}.to(SUMS)"

    def raw_axes(self, axes: Axes) -> bool:
        return len(axes) == 2 and axes[1] in self.program.widths

    def end(self, axis: str) -> str:
        return f"{axis}_size" if axis in self.program.widths else f"{axis}_end"

    def raw(self, node: Node) -> bool:
        """Whether a tile is still in the dtype it was loaded in."""
        return node.op in ("load", "gradient") and self.raw_axes(node.axes)

    def ref(self, node: Node, axes: Axes | None = None, exact: bool = True, factor: bool = False) -> str:
        """A node as an argument of a node with these sides, or its own; `exact`: in the dtype of sums.

        `factor`: the node is multiplied or subtracted, so that a nested sum is put in parentheses.
        """
        axes = node.axes if axes is None else axes
        node = self.instead.get(node, node)
        if node.op == "number":
            return self.numbers(node)
        if node.op == "sum_over_blocks":
            expression = self.totals[node.data[0]](node)
        elif node in self.inline:
            expression = f"({self.text(node)})" if factor and node.op == "add" else self.text(node)
        else:
            expression = self.refer(node) + (".to(SUMS)" if exact and self.raw(node) else "")
        if node.axes == axes or not node.axes or len(axes) < 2:
            return expression
        return self.broadcast(expression, node.axes[0], axes)

    def text(self, node: Node) -> str:
        """The expression that computes a node from named nodes."""
        return _TEXTS[node.op](self, node)


def shape(program: Program, axes: Axes) -> str:
    """The shape of a tile with these sides."""
    sides = [f"{axis}_wide" if axis in program.widths else f"{axis}_block" for axis in axes]
    return f"({sides[0]},)" if len(sides) == 1 else f"({', '.join(sides)})"


def _add(scope: KernelNames, node: Node) -> str:
    if scale_of(node):
        return scope.ref(node.args[0].args[1], node.axes)
    expression = ""
    for arg in node.args:
        if arg.op == "bias":
            continue
        if expression and negative(scope, arg):
            expression += f" - {scope.ref(arg.args[1], node.axes, factor=True)}"
            continue
        term = scope.ref(arg, node.axes)
        expression += f" + {term}" if expression else term
    return expression


def negative(scope: KernelNames, node: Node) -> bool:
    """Whether a node is another node times -1."""
    return node.op == "mul" and node.args[0].op == "number" and scope.numbers(node.args[0]) == "-1"


def _mul(scope: KernelNames, node: Node) -> str:
    return " * ".join(scope.ref(arg, node.axes, factor=True) for arg in node.args)


def _dot(scope: KernelNames, node: Node) -> str:
    (axis,) = node.data
    a, b = (scope.ref(arg, arg.axes, exact=False) for arg in node.args)
    (a_sides, b_sides), first = (scope.sides(arg.axes) for arg in node.args), scope.sides(node.axes)[0]
    if first not in a_sides:
        a, a_sides, b, b_sides = b, b_sides, a, a_sides
    left = a if a_sides[1] == axis else f"tl.trans({a})"
    right = b if b_sides[0] == axis else f"tl.trans({b})"
    return f"dot_of({left}, {right}, DOT, SUMS)"


def _sum(scope: KernelNames, node: Node) -> str:
    (arg,), (axis,) = node.args, node.data
    expression = scope.ref(arg)
    return f"tl.sum({expression}, {scope.sides(arg.axes).index(axis)})"


def _spread(scope: KernelNames, node: Node) -> str:
    (arg,), sides = node.args, shape(scope.program, scope.sides(node.axes))
    if arg.op == "number":
        return f"tl.full({sides}, {scope.numbers(arg)}, SUMS)"
    return f"tl.broadcast_to({scope.ref(arg, node.axes)}, {sides})"


def _shift(scope: KernelNames, node: Node) -> str:
    n, m = node.axes
    return f"at_keys({scope.ref(node.args[0], node.args[0].axes)}, {n}_block, {m}_block)"


def _unshift(scope: KernelNames, node: Node) -> str:
    (arg,), (n, m) = node.args, node.args[0].axes
    return f"at_places({scope.ref(arg)}, {n}_block, {m}_block, {node.axes[1]}_block)"


def _distance(scope: KernelNames, node: Node) -> str:
    return "distance.to(SUMS)"


def _entry(scope: KernelNames, node: Node) -> str:
    number, index, reach = node.data
    operand, name = scope.program.operands[number], scope.operands[number]
    first = 1 + len(operand.heads)
    rows = f"{name}_step[{first}]" if len(operand.axes) == 2 else "0"
    step = f"{name}_step[{first + len(operand.axes) - 1}]"
    base = f"place({scope.within(name, operand.heads, index)})"
    return f"entries({base}, {scope.along(node.axes[0])}, {rows}, distance, {step}, {reach}, in_bounds).to(SUMS)"


def template_of(node: Node) -> tuple[str, str]:
    """The template of a map or of its gradient, and the letters of its arguments."""
    elementwise = MAPS[node.data[0]]
    return (elementwise.triton, "xab") if node.op == "map" else (elementwise.slope, "xydab")


def arguments(node: Node) -> Iterator[Node]:
    """The arguments of a node that appear in its text."""
    if node.op not in ("map", "slope"):
        yield from node.args
        return
    template, letters = template_of(node)
    yield from (arg for letter, arg in zip(letters, node.args, strict=False) if f"{{{letter}}}" in template)


def _map(scope: KernelNames, node: Node) -> str:
    template, letters = template_of(node)
    refs = {}
    for letter, arg in zip(letters, node.args, strict=False):
        if f"{{{letter}}}" in template:
            expression = scope.ref(arg, node.axes)
            refs[letter] = (
                expression if letter in "ab" or re.fullmatch(r"\w+(\[[^]]*\])?", expression) else f"({expression})"
            )
    return template.format(**refs)


def _equal(scope: KernelNames, node: Node) -> str:
    a, b = (scope.ref(arg, node.axes) for arg in node.args)
    return f"({a} == {b}).to(SUMS)"


def flat(indices: Iterable[str], sizes: Iterable[int]) -> str:
    """The flattened index of an entry among several variables; empty for a single entry."""
    flattened = ""
    for index, size in zip(indices, sizes, strict=True):
        outer = f"({flattened})" if " + " in flattened else flattened
        flattened = f"{outer} * {size} + {index}" if flattened else index
    return flattened


def at(outer: str, count: int, index: str) -> str:
    """The index of entry `index` among `count` entries of each `outer`."""
    return outer if count == 1 else f"({outer} * {count} + {index or 0})"


def tile_at(scope: KernelNames, index: At, outer: str = "pair", count: int = 0, first: int = 0) -> str:
    """The index of a tile among those of a program, or among `count`."""
    sizes = scope.program.sizes
    variables = [variable for variable in index if variable]
    flattened = flat(variables, [sizes[variable] for variable in variables])
    entry = f"{first} + {flattened}" if first and flattened else flattened or (str(first) if first else "")
    return at(outer, count or scope.program.tiles(variables), entry)


def _gradient(scope: KernelNames, node: Node) -> str:
    (index,) = node.data
    return scope.loaded("gradient", scope.program.legs[: len(index)], index, node.axes)


def row_at(scope: KernelNames, name: str, number: int, index: At, largest: bool = False) -> str:
    """The address of the saved statistics of a map's rows, or of their largest scores."""
    program = scope.program
    maps = program.first_of(len(program.maps))
    first, count = program.first_of(number) + maps * largest, program.statistics if name == "lse" else maps
    return f"{name} + {tile_at(scope, index, count=count, first=first)} * {program.query}_end"


def _sums(scope: KernelNames, node: Node) -> str:
    (axis,) = node.axes
    return f"load_1d({row_at(scope, 'sums', *node.data)}, {axis}, 1, {axis}_end)"


def _statistic(scope: KernelNames, node: Node) -> str:
    (axis,), (number, index) = node.axes, node.data
    return f"load_1d({row_at(scope, 'lse', number, index, node.op == 'largest')}, {axis}, 1, {axis}_end)"


def _sink_share(scope: KernelNames, node: Node) -> str:
    return f"sink_share({', '.join(scope.ref(arg, node.axes) for arg in node.args)}, MASK)"


def _lead(scope: KernelNames, heads: tuple[str, ...], index: At) -> str:
    """Two indices that are together unique per tile of these legs and equal in every program.

    The second is that of a tile among up to four, which share the work of the random number generator.
    """
    lead, word, sharing = "batch", "0", most_tiles(scope, heads)
    for leg, variable in zip(heads, index, strict=True):
        tiles, coordinate = scope.program.heads[leg], scope.coordinate(leg, variable) or "0"
        if leg == sharing:
            tiles, (coordinate, word) = -(-tiles // WORDS), scope.shared(variable)
            coordinate = coordinate if leg in scope.program.whole else f"({leg}_at * {tiles} + {coordinate})"
        size = str(tiles) if leg in scope.program.whole else f"{leg}_programs * {tiles}"
        outer = f"({lead})" if " " in lead else lead
        lead = f"{outer} * {size} + {coordinate}"
    return f"{lead if any(index) or lead == 'batch' else scope.named(lead, 'lead')}, {word}"


def most_tiles(scope: KernelNames, heads: tuple[str, ...]) -> str:
    """The leg whose tiles share random words: the last of those with the most tiles in a program, if several."""
    sizes = {leg: min(scope.program.heads[leg], WORDS) for leg in heads}
    most = max(sizes.values(), default=1)
    return next((leg for leg in reversed(heads) if sizes[leg] == most > 1), "")


def _noise(scope: KernelNames, node: Node) -> str:
    number, index, stream, std, always = node.data
    operand, name = scope.program.operands[number], scope.operands[number]
    tile, deviation = scope.pair_at(name, operand.heads, index), scope.numbers(Node("number", data=(std,)))
    drawn = f"{_lead(scope, operand.heads, index)}, {stream}, {_key(scope)}, {deviation}"
    return f"noise_2d({tile}, {drawn}, {'True' if always else 'TRAIN'}, {name}_GIVEN, DOT, SUMS)"


def _drop(scope: KernelNames, node: Node) -> str:
    stream, tree, heads, index = node.data
    n, m = map(scope.along, node.axes)
    probability = scope.numbers(Node("number", data=(tree,)))
    scores, lead = scope.ref(node.args[0], node.axes), _lead(scope, heads, index)
    return f"dropped({scores}, {n}, {m}, {lead}, {stream}, {_key(scope)}, {probability}, TRAIN)"


def _key(scope: KernelNames) -> str:
    return scope.named("key_of(seed, TRAIN)", "seed_key")


def _keep(scope: KernelNames, node: Node) -> str:
    x, visible = (scope.ref(arg, node.axes) for arg in node.args)
    fill = node.data[0].value if node.data else 0.0
    number = 'float("-inf")' if isinf(fill) else float(fill)
    return f"where_visible({x}, {visible}, edge, {number})"


def _visible(scope: KernelNames, node: Node) -> str:
    look, (n, m) = scope.program.masks[node.data[0]], scope.program.pair
    conditions = "visible"
    conditions += "" if look.left is None else f" & (distance <= {look.left})"
    conditions += "" if look.right is None else f" & (distance >= {-look.right})"
    coordinates = {
        "query": scope.along(n, f"({n} + ({m}_end - {n}_end))"),
        "key": scope.along(m),
        "distance": "distance",
    }
    conditions += "".join(f" & ({condition.format(**coordinates)})" for condition in look.conditions)
    return f"allowed({conditions}, {scope.ref(scope.program.nodes.mask_tile(node), node.axes)}, MASK)"


def _bias(scope: KernelNames, node: Node) -> str:
    return f"mask_2d({scope.pair_at('mask', scope.program.others, node.data[0])}, MASK)"


def _both(scope: KernelNames, node: Node) -> str:
    return " & ".join(scope.ref(arg, node.axes) for arg in node.args) or "in_bounds"


def _either(scope: KernelNames, node: Node) -> str:
    return " | ".join(scope.ref(arg, node.axes) for arg in node.args)


def scores_of(scope: KernelNames, node: Node) -> str:
    """The arguments that turn scores into maps: the scale, and where they are visible."""
    scores, visible = node.args[:2]
    scale = scale_of(scores)
    number = scope.ref(scale, ()) if scale else 1.0
    return f"{scope.ref(scores, node.axes)}, {number}, MASK, {scope.ref(visible, node.axes)}, edge"


def _softened(scope: KernelNames, node: Node) -> str:
    rows = ", ".join(scope.along(scope.program.query, scope.ref(arg, ())) for arg in node.args[2:])
    return f"softened({scores_of(scope, node)}, {rows})"


def _scaled(scope: KernelNames, node: Node) -> str:
    return f"scaled({scores_of(scope, node)})"


def _power(scope: KernelNames, node: Node) -> str:
    x, highest = (scope.ref(arg) for arg in node.args)
    return f"power({x}, 1.0, MASK, {highest})"


def _inside(scope: KernelNames, node: Node) -> str:
    in_bounds = " & ".join(scope.broadcast(f"({axis} < {scope.end(axis)})", axis, node.axes) for axis in node.axes)
    return f"where_visible({scope.ref(node.args[0], node.axes)}, {in_bounds}, edge, 0.0)"


_TEXTS: dict[str, Callable[[KernelNames, Node], str]] = {
    "load": KernelNames.load,
    "add": _add,
    "mul": _mul,
    "dot": _dot,
    "sum": _sum,
    "spread": _spread,
    "shift": _shift,
    "unshift": _unshift,
    "distance": _distance,
    "entry": _entry,
    "map": _map,
    "slope": _map,
    "equal": _equal,
    "gradient": _gradient,
    "sums": _sums,
    "noise": _noise,
    "drop": _drop,
    "keep": _keep,
    "hide": _keep,
    "visible": _visible,
    "bias": _bias,
    "both": _both,
    "either": _either,
    "softened": _softened,
    "scaled": _scaled,
    "power": _power,
    "statistic": _statistic,
    "largest": _statistic,
    "sink_share": _sink_share,
    "inside": _inside,
}


INSIDE_OF = {"mul": ("add", "over"), "add": ("mul", "over"), "map": ("over",)}  # readers that may nest a node


def inlined(scope: KernelNames, ends: Iterable[Node], needed: Iterable[Node]) -> set[Node]:
    """Nodes nested in their only reader with the same sides, and subtracted nodes everywhere."""
    readers: dict[Node, list[Node]] = {}
    for node in needed:
        for arg in arguments(node):
            readers.setdefault(scope.instead.get(arg, arg), []).append(node)
    end_nodes = {*ends}

    def can_nest(node: Node, node_readers: list[Node]) -> bool:
        if node in end_nodes or any(reader.op not in INSIDE_OF.get(node.op, ()) for reader in node_readers):
            return False
        if negative(scope, node):
            return all(reader.op == "add" and reader.args[0] is not node for reader in node_readers)
        plain = all(arg.op != "bias" for arg in node.args)
        return plain and len(node_readers) == 1 and node_readers[0].axes == node.axes

    return {node for node, node_readers in readers.items() if can_nest(node, node_readers)}
