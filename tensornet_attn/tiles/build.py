"""From the body of a region to its tile program: each step is evaluated for index variables of its legs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tensornet_attn.graph.model import Box, Contraction, Function, Graph, Kernel, Step, Term, Use
from tensornet_attn.ir.arithmetic import ONE, Arith, Negative, Number, evaluate
from tensornet_attn.ops import OPS
from tensornet_attn.tiles.hidden import where_seen, with_hiding
from tensornet_attn.tiles.legs import RESERVED, made_inside, relative, sides_of
from tensornet_attn.tiles.look import Look, look_of
from tensornet_attn.tiles.model import (
    ROWS,
    At,
    Axes,
    Exit,
    Node,
    Nodes,
    Operand,
    Program,
    Unfit,
    below,
    vanishes,
)

Index = Mapping[str, str]  # of a leg its index variable, empty where a program has one tile of it


def tile_program(graph: Graph, step: Step) -> Program:
    """The program of a kernel's body. Raises Unfit with the reason where there is none."""
    op = with_hiding(graph, step)
    heads, whole, widths = sides_of(graph, op)
    places = relative(graph, op)
    order = (str(graph.query), str(graph.key), *places, *widths)
    return Builder(graph, step, op, heads, whole, widths, places, Nodes(order, RESERVED)).program()


@dataclass
class Builder:
    graph: Graph
    step: Step
    op: Kernel
    heads: dict[str, int]
    whole: frozenset[str]
    widths: dict[str, tuple[str, ...]]
    places: tuple[str, ...]  # the leg of relative positions
    nodes: Nodes
    operands: dict[Use, Operand] = field(default_factory=dict)
    values: dict[tuple[str, At], Node] = field(default_factory=dict)
    maps: dict[str, Node] = field(default_factory=dict)
    masks: dict[Look, int] = field(default_factory=dict)
    others: tuple[str, ...] | None = None
    streams: dict[str, int] = field(default_factory=dict)

    def program(self) -> Program:
        *steps, last = self.op.body
        for step in steps:
            self.value(step, self.indices(step.legs))
        exit_ = self.exit(last)
        legs = self.arranged(last.legs)
        query, key = self.nodes.order[:2]
        found = Program(
            self.step, query, key, self.heads, self.whole, self.widths, tuple(self.operands.values()), exit_, legs,
            tuple(self.maps.values()), tuple(self.masks), self.others or (), self.nodes, self.places,
        )  # fmt: skip
        _check(found)
        return found

    def value(self, step: Step, index: Index) -> Node:
        at = (step.name, self.place(step.legs, index))
        if at not in self.values:
            self.values[at] = self.tile(step, index)
        return self.values[at]

    def indices(self, legs: Iterable[str], index: Index | None = None) -> dict[str, str]:
        """Index variables of these legs, beside those of others: new ones."""
        taken, own = {*(index or {}).values()}, {*legs}
        return {leg: self.nodes.variable(leg, size, taken) for leg, size in self.heads.items() if leg in own}

    def place(self, legs: tuple[str, ...], index: Index) -> At:
        return At(index[leg] for leg in self.heads if leg in legs)

    def axes(self, legs: tuple[str, ...]) -> Axes:
        sides = {*self.nodes.order[:2], *self.places} & {*legs}
        sides |= {axis for axis, own in self.widths.items() if {*own} & {*legs}}
        found = tuple(axis for axis in self.nodes.order if axis in sides)
        if len(found) > 2:
            raise Unfit(f"a tile would have the sides {', '.join(found)}")
        return found

    def arranged(self, legs: tuple[str, ...]) -> tuple[str, ...]:
        """Legs as operands and results have them: heads, sequence, width."""
        heads = tuple(leg for leg in self.heads if leg in legs)
        long = tuple(leg for leg in self.nodes.order[:2] if leg in legs)
        return heads + long + tuple(leg for own in self.widths.values() for leg in own if leg in legs)

    # the value of a use

    def use(self, use: Use, index: Index) -> Node:
        """The tile of a use, for these tiles of its legs."""
        own = next((step for step in self.op.body if step.name == use.name), None)
        if own is None:
            return self.leaf(use, index)
        read = dict(zip(own.legs, use.legs, strict=True))
        if any(old != new and not {old, new} <= self.whole for old, new in read.items()):
            raise Unfit(f"'{use.name}' is read with its legs renamed")
        at = {old: index[new] for old, new in read.items() if old in self.heads}
        if len({*filter(None, at.values())}) < len([*filter(None, at.values())]):
            raise Unfit(f"'{use.name}' is read along a diagonal")
        return self.value(own, at)

    def leaf(self, use: Use, index: Index) -> Node:
        if made_inside(self.graph, use):
            tensor = self.graph.tensor[use.name]
            if tensor.role == "noise":
                return self.noise(use, index)
            assert tensor.init is not None
            if tensor.init.name == "distance":
                return self.nodes.node("distance", (), self.axes(use.legs), use.name)
            numbers = {"zeros": Number(0), "ones": ONE}
            return self.number(numbers.get(tensor.init.name) or tensor.init.arguments[0])  # type: ignore[arg-type]
        axes, at = self.operand(use)
        return self.nodes.node("load", (), axes, use.name, (at, self.place(use.legs, index)))

    def operand(self, use: Use) -> tuple[Axes, int]:
        """The axes of an operand, and its number."""
        if use not in self.operands:
            heads = tuple(leg for leg in self.heads if leg in use.legs)
            axes = self.axes(use.legs)
            missing = [leg for axis in axes if axis in self.widths for leg in self.widths[axis] if leg not in use.legs]
            if missing:
                raise Unfit(f"'{use.name}' has only some of the legs of a width: it lacks '{missing[0]}'")
            if {*self.places} & {*axes} and {*self.nodes.order[:2]} & {*axes}:
                raise Unfit(f"'{use.name}' has relative positions beside '{axes[0]}'")
            self.operands[use] = Operand(use, heads, axes)
        if self.operands[use].table:
            raise Unfit(f"'{use.name}' is read at the distance of query and key, and otherwise too")
        return self.operands[use].axes, list(self.operands).index(use)

    def noise(self, use: Use, index: Index) -> Node:
        tensor, place = self.graph.tensor[use.name], self.place(use.legs, index)
        axes, at = self.operand(use)
        data = (at, place, self.stream(use.name), tensor.std, tensor.always)
        return self.nodes.node("noise", (), axes, use.name, data)

    def stream(self, name: str) -> int:
        """A number of its own for all that is drawn for a name."""
        return self.streams.setdefault(name, len(self.streams))

    def number(self, tree: Arith) -> Node:
        return self.nodes.node("number", (), (), "", (tree,))

    # steps

    def tile(self, step: Step, index: Index) -> Node:
        if isinstance(step.op, Contraction):
            return self.nodes.add([self.term(step, term, index) for term in step.op.terms], step.name)
        assert isinstance(step.op, Box)
        return self.box(step, step.op, index)

    def term(self, step: Step, term: Term, index: Index) -> Node:
        """A product of a term, added up over the legs that it sums."""
        wanted, name = self.axes(step.legs), step.name
        summed = self.indices((leg for use in term.factors for leg in use.legs if leg not in step.legs), index)
        factors = [self.use(use, {**index, **summed}) for use in term.factors]
        if not factors:
            return self.number(term.coefficient)
        found = self.nodes.total(factors[0], wanted, name)
        if len(factors) == 2:
            found = self.nodes.product(factors[0], factors[1], wanted, name)
        return self.scaled(self.summed_over(found, summed, name), term.coefficient, name)

    def summed_over(self, x: Node, summed: Index, name: str) -> Node:
        for variable in reversed([*summed.values()]):
            x = self.nodes.over(x, variable, "add", name)
        return x

    def scaled(self, x: Node, by: Arith, name: str) -> Node:
        return x if by == ONE else self.nodes.mul(self.number(by), x, name)

    def box(self, step: Step, box: Box, index: Index) -> Node:
        name, use = step.name, box.uses[0]
        if box.leg in self.heads:
            return self.along(box, index, name)
        if box.kind == "rel_shift" and box.leg not in self.places:
            return self.entry(use, str(box.leg), index, name)
        x = self.use(use, index)
        if box.kind == "hide":
            return self.hidden(step, box, x, index)
        if self.graph.masked(step) and box.kind in (*ROWS, "keep"):
            return self.masked(step, box, x, index, name)
        if box.kind == "rel_shift":
            query, key = self.nodes.order[:2]
            return self.nodes.node("shift", (self.nodes.spread(x, (query, *self.places)),), (query, key), name)
        if box.kind == "dropout":
            return self.dropped(step, x, box.number("dropout"), index, name)
        found: Node | None = OPS[box.kind].tile(self, step, box, x)
        if found is not None:
            return found
        told = box.function.name if box.function is not None else box.kind
        raise Unfit(f"there are no tiles of '{told}', in '{step.name}'")

    def entry(self, use: Use, leg: str, index: Index, name: str) -> Node:
        """What a table of distances, one for all queries or one for each, has at that of query and key."""
        query, key = self.nodes.order[:2]
        heads = tuple(one for one in self.heads if one in use.legs)
        if others := {*use.legs} - {*heads, query, leg}:
            raise Unfit(f"'{use.name}' has the leg '{min(others)}', which '{name}' would have beside queries and keys")
        if any(step.name == use.name for step in self.op.body):
            raise Unfit(f"'{use.name}' is made for each block, and read at the distance of query and key")
        axes = (query, leg) if query in use.legs else (leg,)
        found = Operand(use, heads, axes, leg)
        if self.operands.setdefault(use, found) != found:
            raise Unfit(f"'{use.name}' is read at the distance of query and key, and otherwise too")
        data = (list(self.operands).index(use), self.place(use.legs, index), self.graph.leg[leg].reach)
        return self.nodes.node("entry", (), (query, key), name, data)

    def along(self, box: Box, index: Index, name: str) -> Node:
        """A box over tiles beside each other."""
        leg = str(box.leg)
        inner = {**index, **self.indices((leg,), index)}
        x, variable = self.use(box.uses[0], inner), inner[leg]
        if box.kind in ("sum", "mean"):
            found = self.nodes.over(x, variable, "add", name)
            share = self.number(Number(1 / self.heads[leg]))
            return found if box.kind == "sum" else self.nodes.mul(share, found, name)
        if box.kind == "logsumexp":
            return self.nodes.over(x, variable, "lse", name)
        if box.kind == "softmax":
            x = self.scaled(x, box.number("scale"), name)
            found = self.nodes.over(x, variable, "lse", name)
            return self.exp(self.nodes.renamed(x, {variable: index[leg]}), found, name)
        if box.kind == "max":
            return self.nodes.over(x, variable, "max", name)
        raise Unfit(f"there are no tiles of '{box.kind}' over '{leg}'")

    def exp(self, x: Node, lse: Node, name: str) -> Node:
        minus = self.nodes.add([x, self.nodes.mul(self.number(Negative(ONE)), lse)])
        return self.nodes.node("map", (minus,), minus.axes, name, ("exp",))

    def masked(self, step: Step, box: Box, x: Node, index: Index, name: str) -> Node:
        """A softmax over the keys, what is divided by its sum over them, or values where a query may look."""
        seen = self.mask(step, box, x, index)
        place = seen.data[1]
        if box.kind == "keep":
            return self.nodes.node("keep", (x, seen), x.axes, name)
        if box.kind == "normalize":
            return self.map("normalize", x, step, index, seen, box.number("eps"))
        scores, variable = self.biased(self.scaled(x, box.number("scale"), name), place, f"{name}.of")
        found = self.map("softmax", scores, step, index, seen, variable)
        return self.dropped(step, found, box.number("dropout"), index, name)

    def map(self, op: str, x: Node, step: Step, index: Index, seen: Node, last: object, name: str = "") -> Node:
        """A tile that is divided by sums along its rows; `maps` has it with the variables of the step itself."""
        number = [*self.maps].index(step.name) if step.name in self.maps else len(self.maps)
        data = (number, self.place(step.legs, index), last)
        found = self.nodes.node(op, (x, seen), x.axes, name or step.name, data)
        self.maps.setdefault(step.name, found)
        return found

    def hidden(self, step: Step, box: Box, x: Node, index: Index) -> Node:
        """What some box may look at, and a number elsewhere."""
        pair = self.nodes.order[:2]
        if not {*x.axes} <= {*pair}:
            raise Unfit(f"'{step.name}' has a tile of {' '.join(x.axes)}")
        seen = where_seen(self.nodes, box, index, self.visible, lambda legs: self.indices(legs, index))
        fill = (box.number("fill"),)
        return self.nodes.node("hide", (self.nodes.spread(x, pair), seen), pair, step.name, fill)

    def visible(self, masks: Iterable[Function], place: At) -> Node:
        """Where some masks of the design, and that of the call, allow to look."""
        return self.nodes.node("visible", (), self.nodes.order[:2], "seen", (self.number_of(masks), place))

    def biased(self, x: Node, place: At, name: str) -> tuple[Node, str]:
        """x and what the mask of the call adds; of a logsumexp over tiles, each of these: exp of it is their sum, over
        the variable that stands beside."""
        (arg, variable) = (x.args[0], x.data[0]) if x.op == "over" and x.data[1] == "lse" else (x, "")
        if arg.axes != x.axes:
            arg, variable = x, ""
        bias = self.nodes.node("bias", (), x.axes, "bias", (place,))
        return self.nodes.add([arg, bias], name), variable

    def mask(self, step: Step, box: Box, x: Node, index: Index) -> Node:
        """Where a box may look."""
        if x.axes != self.nodes.order[:2]:
            raise Unfit(f"'{step.name}' has a tile of {' '.join(x.axes) or 'one number'}")
        others = tuple(leg for leg in box.operand("of").legs if leg not in self.nodes.order[:2])
        if self.others not in (None, others):
            raise Unfit(f"'{step.name}' has other legs than a box before it, and a mask of the call names them")
        self.others = others
        return self.visible(self.graph.masks(step), At(index.get(leg, "") for leg in others))

    def number_of(self, masks: Iterable[Function]) -> int:
        """The number of a box's masks, by what they show."""
        return self.masks.setdefault(look_of(self.graph, masks), len(self.masks))

    def dropped(self, step: Step, x: Node, tree: Arith, index: Index, name: str) -> Node:
        if evaluate(tree, self.graph.values) == 0:
            return x
        if x.axes != self.nodes.order[:2]:
            raise Unfit(f"'{step.name}' drops a tile of {' '.join(x.axes) or 'one number'}")
        heads = tuple(leg for leg in self.heads if leg in step.legs)
        data = (self.stream(step.name), tree, heads, self.place(heads, index))
        return self.nodes.node("drop", (x,), x.axes, name, data)

    # the result

    def exit(self, step: Step) -> Exit:
        index = self.indices(step.legs)
        at = self.place(step.legs, index)
        if isinstance(step.op, Box) and step.op.kind == "logsumexp":
            return Exit(at, self.shares(step, step.op, index), None, log=True)
        if isinstance(step.op, Box) and step.op.kind in ("sum", "mean"):
            return Exit(at, self.summed(step, step.op, index), None)
        if not isinstance(step.op, Contraction) or len(step.op.terms) != 1:
            known = "a product, a sum, a mean or a logsumexp"
            raise Unfit(f"'{step.name}' reads values of queries x keys otherwise than by {known}")
        (term,) = step.op.terms
        return self.reading(step, term, index, at)

    def shares(self, step: Step, box: Box, index: Index) -> Node:
        """The softmax whose rows are divided by the sum that a logsumexp over the keys is the log of."""
        x = self.use(box.uses[0], index)
        seen = self.mask(step, box, x, index)
        terms, variable = self.biased(x, seen.data[1], f"{step.name}_terms")
        return self.map("softmax", terms, step, index, seen, variable, f"{step.name}_shares")

    def summed(self, step: Step, box: Box, index: Index) -> Node:
        """What is summed over the keys that may be seen: for a mean divided by how many these are."""
        x, name = self.use(box.uses[0], index), step.name
        seen = self.mask(step, box, x, index)
        bias = self.nodes.node("bias", (), x.axes, "bias", (seen.data[1],))
        x = self.nodes.add([bias, x], f"{name}_terms")
        if box.kind == "sum":
            return self.nodes.node("keep", (x, seen), x.axes, name)
        ones = self.nodes.spread(self.number(ONE), x.axes)
        share = self.map("normalize", ones, step, index, seen, Number(0), f"{name}_share")
        return self.nodes.mul(share, x, name)

    def rank(self, node: Node) -> bool:
        return node.axes != self.nodes.order[:2]  # maps stand first

    def reading(self, step: Step, term: Term, index: Index, at: At) -> Exit:
        """Maps and values of the tiles of the result."""
        query, key = self.nodes.order[:2]
        summed = self.indices((leg for use in term.factors for leg in use.legs if leg not in step.legs), index)
        maps, *values = sorted((self.use(use, {**index, **summed}) for use in term.factors), key=self.rank)
        if maps.axes != (query, key):
            raise Unfit(f"'{step.name}' reads a tile of {' '.join(maps.axes) or 'one number'}")
        maps = self.scaled(maps, term.coefficient, maps.name)
        if values and (key not in values[0].axes or query in values[0].axes):
            if {*values[0].axes} - {query, key}:
                raise Unfit(f"'{step.name}' reads maps by values without the key leg")
            maps, values = self.nodes.mul(maps, values[0], maps.name), []
        if not vanishes(maps):
            maps = self.nodes.node("inside", (maps,), maps.axes, maps.name)
        return Exit(at, maps, values[0] if values else None, tuple(filter(None, summed.values())))


def _check(program: Program) -> None:
    """Maps are read by the result, not by other maps."""
    for one in program.maps:
        before = [node for node in below(one.args) if node.op in ROWS]
        if before:
            raise Unfit(f"'{one.name}' is a {one.op} of what is made of '{before[0].name}'")
    drawn = {node.data[0] for node in program.nodes.made.values() if node.op == "noise"}
    if len(drawn) == len(program.operands):
        raise Unfit("nothing is read but what is drawn")
