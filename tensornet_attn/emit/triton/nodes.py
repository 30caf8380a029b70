"""Nodes of a tile program as Triton expressions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import isinf

from tensornet_attn.emit.names import Names
from tensornet_attn.plan.tiles.maps import MAPS
from tensornet_attn.plan.tiles.model import Axes, Node, Program, scale_of

_SHORT = 50  # characters of an address that may stand inside a call


@dataclass
class Scope:
    """What expressions of one kernel speak of: the local name of each node so far, of operands, heads and numbers."""

    program: Program
    operands: tuple[str, ...]  # local names
    numbers: Callable[[Node], str]
    names: Names
    local: dict[Node, str] = field(default_factory=dict)
    inline: dict[Node, str] = field(default_factory=dict)
    turned: bool = False  # tiles of queries x keys stand keys first
    instead: dict[Node, Node] = field(default_factory=dict)  # nodes of this kernel that others stand for
    before: list[str] = field(default_factory=list)  # lines before the loop
    bases: dict[str, str] = field(default_factory=dict)  # addresses that have a name

    @property
    def pair(self) -> Axes:
        """The sides of tiles of queries x keys: first the one whose rows warps have to themselves."""
        return self.sides(self.program.pair)

    def sides(self, axes: Axes) -> Axes:
        """The sides of a tile in the order in which this kernel has them."""
        return axes[::-1] if self.turned and axes == self.program.pair else axes

    def broadcast(self, text: str, axis: str, axes: Axes) -> str:
        """Numbers along one of the two sides of a tile, so that they broadcast to it."""
        return f"{text}[:, None]" if self.sides(axes)[0] == axis else f"{text}[None, :]"

    def along(self, axis: str, text: str | None = None) -> str:
        """Numbers along queries or keys, these numbers themselves if no others are given, for tiles of both."""
        return self.broadcast(text or axis, axis, self.program.pair)

    def label(self, node: Node) -> str:
        """A new local name, as the diagram calls it: `A.of.p1_0` as A_scores_1_0."""
        name = re.sub(r"\.p(?=\d)", "_", (node.name or node.op).replace(".of", "_scores")).replace(".", "_")
        if node.op == "load" and node.axes:
            operand = self.operands[node.data[0]]
            name = "_".join([f"{operand}_tile", *map(str, self.several(node))])
        return self.names.fresh(name)

    def several(self, node: Node) -> list[int]:
        """The index of a loaded tile, on the legs of which a program has several."""
        heads = self.program.operands[node.data[0]].heads
        return [at for leg, at in zip(heads, node.data[1], strict=True) if self.program.heads[leg] > 1]

    def coordinate(self, leg: str, place: int) -> str:
        """Where tile `place` of a program stands on a leg; empty for the first."""
        if leg in self.program.whole:
            return str(place) if place else ""
        tiles = self.program.heads[leg]
        if tiles == 1:
            return f"{leg}_at"
        return f"({leg}_at * {tiles} + {place})" if place else f"{leg}_at * {tiles}"

    def base(self, name: str, heads: Iterable[str], places: Iterable[int]) -> str:
        """The address of a tile's first number, by the strides of its operand: batch, heads, sides."""
        terms = [name, f"batch * {name}_step[0]"]
        for number, (leg, place) in enumerate(zip(heads, places, strict=True), 1):
            if at := self.coordinate(leg, place):
                terms.append(f"{name}_step[{number}]" if at == "1" else f"{at} * {name}_step[{number}]")
        text = " + ".join(terms)
        return text if len(text) <= _SHORT else self.named(text, f"{name}_base")

    def named(self, text: str, wish: str) -> str:
        """A name for an expression that does not change in the loop."""
        if text not in self.bases:
            self.bases[text] = self.names.fresh(wish)
            self.before.append(f"{self.bases[text]} = {text}")
        return self.bases[text]

    def load(self, node: Node) -> str:
        number, places = node.data[:2]
        operand, name = self.program.operands[number], self.operands[number]
        base, first = self.base(name, operand.heads, places), 1 + len(operand.heads)
        return self.loaded(base, node.axes, [f"{name}_step[{first + i}]" for i in range(len(node.axes))])

    def loaded(self, base: str, axes: Axes, steps: list[str]) -> str:
        if not axes:
            return f"tl.load({base}).to(SUMS)"
        step = dict(zip(axes, steps, strict=True))
        sides = ", ".join(f"{axis}, {step[axis]}, {self.end(axis)}" for axis in self.sides(axes))
        text = f"load_{len(axes)}d({base}, {sides})"
        return text if self.raw_axes(axes) else f"{text}.to(SUMS)"

    def raw_axes(self, axes: Axes) -> bool:
        return len(axes) == 2 and axes[1] in self.program.widths

    def end(self, axis: str) -> str:
        return f"{axis}_size" if axis in self.program.widths else f"{axis}_end"

    def raw(self, node: Node) -> bool:
        """Whether a tile is as it was loaded, not in the dtype of sums."""
        return node.op in ("load", "gradient") and self.raw_axes(node.axes)

    def ref(self, node: Node, axes: Axes, exact: bool = True) -> str:
        """A node as an argument of what has these sides; `exact`: in the dtype of sums."""
        node = self.instead.get(node, node)
        if node.op == "number":
            return self.numbers(node)
        if node in self.inline:
            return self.inline[node]
        text = self.local[node] + (".to(SUMS)" if exact and self.raw(node) else "")
        if node.axes == axes or not node.axes or len(axes) < 2:
            return text
        return self.broadcast(text, node.axes[0], axes)

    def seen(self, mask: int, places: tuple[int, ...]) -> str:
        """The name of where a tile of a box may look."""
        return "_".join(["visible", *map(str, (mask, *places))])

    def text(self, node: Node) -> str:
        """How a node is computed, of what has a name."""
        return _TEXTS[node.op](self, node)


def _add(scope: Scope, node: Node) -> str:
    if scale_of(node):
        return scope.ref(node.args[0].args[1], node.axes)
    text = ""
    for arg in node.args:
        if arg.op == "bias":
            continue
        if text and negative(scope, arg):
            text += f" - {scope.ref(arg.args[1], node.axes)}"
            continue
        part = scope.ref(arg, node.axes)
        text += f" + {part}" if text else part
    return text


def negative(scope: Scope, node: Node) -> bool:
    """Whether a node is another times -1."""
    return node.op == "mul" and node.args[0].op == "number" and scope.numbers(node.args[0]) == "-1"


def _mul(scope: Scope, node: Node) -> str:
    a, b = (scope.ref(arg, node.axes) for arg in node.args)
    return f"{a} * {b}"


def _dot(scope: Scope, node: Node) -> str:
    (axis,) = node.data
    a, b = (scope.ref(arg, arg.axes, exact=False) for arg in node.args)
    (a_sides, b_sides), first = (scope.sides(arg.axes) for arg in node.args), scope.sides(node.axes)[0]
    if first not in a_sides:
        a, a_sides, b, b_sides = b, b_sides, a, a_sides
    left = a if a_sides[1] == axis else f"tl.trans({a})"
    right = b if b_sides[0] == axis else f"tl.trans({b})"
    return f"dot_of({left}, {right}, DOT, SUMS)"


def _sum(scope: Scope, node: Node) -> str:
    (arg,), (axis,) = node.args, node.data
    text = scope.ref(arg, arg.axes)
    return f"tl.sum({text}, {scope.sides(arg.axes).index(axis)})"


def _spread(scope: Scope, node: Node) -> str:
    sides = ", ".join(
        f"{axis}_{'wide' if axis in scope.program.widths else 'block'}" for axis in scope.sides(node.axes)
    )
    (arg,) = node.args
    if arg.op == "number":
        return f"tl.full(({sides}), {scope.numbers(arg)}, SUMS)"
    return f"tl.broadcast_to({scope.ref(arg, node.axes)}, ({sides}))"


def _shift(scope: Scope, node: Node) -> str:
    n, m = node.axes
    return f"at_keys({scope.ref(node.args[0], node.args[0].axes)}, {n}_block, {m}_block)"


def _unshift(scope: Scope, node: Node) -> str:
    (arg,), (n, m) = node.args, node.args[0].axes
    return f"at_places({scope.ref(arg, arg.axes)}, {n}_block, {m}_block, {node.axes[1]}_block)"


def _distance(scope: Scope, node: Node) -> str:
    return "distance.to(SUMS)"


def _entry(scope: Scope, node: Node) -> str:
    number, places, reach = node.data
    operand, name = scope.program.operands[number], scope.operands[number]
    base, first = scope.base(name, operand.heads, places), 1 + len(operand.heads)
    rows = f"{name}_step[{first}]" if len(operand.axes) == 2 else "0"
    step = f"{name}_step[{first + len(operand.axes) - 1}]"
    return f"entries({base}, {scope.along(node.axes[0])}, {rows}, distance, {step}, {reach}, in_bounds).to(SUMS)"


def _filled(scope: Scope, node: Node, template: str, letters: str) -> str:
    refs = {}
    for letter, arg in zip(letters, node.args, strict=False):
        text = scope.ref(arg, node.axes)
        refs[letter] = text if text.isidentifier() or letter in "ab" else f"({text})"
    return template.format(**refs)


def _map(scope: Scope, node: Node) -> str:
    return _filled(scope, node, MAPS[node.data[0]].value, "xab")


def _slope(scope: Scope, node: Node) -> str:
    return _filled(scope, node, MAPS[node.data[0]].slope, "xydab")


def _max(scope: Scope, node: Node) -> str:
    text, *more = (scope.ref(arg, node.axes) for arg in node.args)
    for one in more:
        text = f"tl.maximum({text}, {one})"
    return text


def _lse(scope: Scope, node: Node) -> str:
    text, *more = (scope.ref(arg, node.axes) for arg in node.args)
    for one in more:
        text = f"log_add({text}, {one})"
    return text


def _argmax_share(scope: Scope, node: Node) -> str:
    own, most, *tiles = (scope.ref(arg, node.axes) for arg in node.args)
    equal = " + ".join(f"({tile} == {most}).to(SUMS)" for tile in tiles)
    return f"tl.where({own} == {most}, 1.0, 0.0) / ({equal})"


def at(outer: str, count: int, place: int) -> str:
    """The number of entry `place` among `count` of each `outer`."""
    return outer if count == 1 else f"({outer} * {count} + {place})"


def _gradient(scope: Scope, node: Node) -> str:
    axes, count = node.axes, len(scope.program.exits)
    steps = ["1"] if len(axes) == 1 else [f"{axes[1]}_size", "1"]
    rows = f"{at('pair', count, node.data[0])} * {axes[0]}_end"
    return scope.loaded(f"gradient + {rows if len(axes) == 1 else f'{rows} * {axes[1]}_size'}", axes, steps)


def _sums(scope: Scope, node: Node) -> str:
    (axis,) = node.axes
    base = f"sums + {at('pair', len(scope.program.maps), node.data[0])} * {axis}_end"
    return f"load_1d({base}, {axis}, 1, {axis}_end)"


def _lead(scope: Scope, heads: tuple[str, ...], places: tuple[int, ...]) -> str:
    """A number of its own for each tile of these legs, the same in every program."""
    text = "batch"
    if not heads:
        return text
    for leg, place in zip(heads, places, strict=True):
        size = (
            str(scope.program.heads[leg])
            if leg in scope.program.whole
            else f"{leg}_programs * {scope.program.heads[leg]}"
        )
        text = f"({text}) * {size} + {scope.coordinate(leg, place) or '0'}"
    return scope.named(text.replace("(batch)", "batch"), "lead")


def _noise(scope: Scope, node: Node) -> str:
    number, places, stream, std, always = node.data
    operand, name = scope.program.operands[number], scope.operands[number]
    base, first = scope.base(name, operand.heads, places), 1 + len(operand.heads)
    steps = {axis: f"{name}_step[{first + i}]" for i, axis in enumerate(node.axes)}
    sides = ", ".join(f"{axis}, {steps[axis]}, {axis}_end" for axis in scope.sides(node.axes))
    sides += f", {', '.join(map(scope.along, node.axes))}"
    deviation = scope.numbers(Node("number", data=(std,)))
    drawn = f"{_lead(scope, operand.heads, places)}, {stream}, seed, {deviation}, {'True' if always else 'TRAIN'}"
    return f"noise_2d({base}, {sides}, {drawn}, {name}_GIVEN, SUMS)"


def _drop(scope: Scope, node: Node) -> str:
    stream, tree, heads, places = node.data
    n, m = map(scope.along, node.axes)
    probability = scope.numbers(Node("number", data=(tree,)))
    x = scope.ref(node.args[0], node.axes)
    return f"dropped({x}, {n}, {m}, {_lead(scope, heads, places)}, {stream}, seed, {probability}, TRAIN)"


def _keep(scope: Scope, node: Node) -> str:
    return f"where_visible({scope.ref(node.args[0], node.axes)}, {scope.seen(*node.data)}, edge, 0.0)"


def _hide(scope: Scope, node: Node) -> str:
    groups, fill = node.data
    seen = [" & ".join(scope.seen(*place) for place in group) or "in_bounds" for group in groups]
    text = seen[0] if len(seen) == 1 else " | ".join(f"({one})" if "&" in one else one for one in seen)
    number = 'float("-inf")' if isinf(fill.value) else float(fill.value)
    return f"where_visible({scope.ref(node.args[0], node.axes)}, {text}, edge, {number})"


def _inside(scope: Scope, node: Node) -> str:
    there = " & ".join(scope.broadcast(f"({axis} < {scope.end(axis)})", axis, node.axes) for axis in node.axes)
    return f"where_visible({scope.ref(node.args[0], node.axes)}, {there}, edge, 0.0)"


def _inverse(scope: Scope, node: Node) -> str:
    return f"lse_{node.data[0]}"


_TEXTS: dict[str, Callable[[Scope, Node], str]] = {
    "load": Scope.load,
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
    "slope": _slope,
    "max": _max,
    "lse": _lse,
    "argmax_share": _argmax_share,
    "gradient": _gradient,
    "sums": _sums,
    "noise": _noise,
    "drop": _drop,
    "keep": _keep,
    "hide": _hide,
    "inside": _inside,
    "inverse": _inverse,
}


def inlined(scope: Scope, ends: Iterable[Node], needed: Iterable[Node]) -> frozenset[Node]:
    """Products that stand inside of sums: of the same sides, where that is their only reader, or what is subtracted."""
    readers: dict[Node, list[Node]] = {}
    for node in needed:
        for arg in node.args:
            readers.setdefault(arg, []).append(node)
    own = {*ends}

    def fits(node: Node, reads: list[Node]) -> bool:
        if node.op != "mul" or node in own or any(one.op != "add" for one in reads):
            return False
        minus = negative(scope, node) and all(one.args[0] is not node for one in reads)
        return minus or (len(reads) == 1 and reads[0].axes == node.axes and not negative(scope, node))

    return frozenset(node for node, reads in readers.items() if fits(node, reads))
