"""Builds the tile program of a region from its body: each step is evaluated for index variables of its legs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from tensornet_attn.graph.diagram import operation_of
from tensornet_attn.graph.graph import Box, Function, Graph, Kernel, Step, Term, Use
from tensornet_attn.ir.arithmetic import ONE, Arith, Number, evaluate
from tensornet_attn.ir.steps import within, without
from tensornet_attn.ops import OPS
from tensornet_attn.tiles.conditions import MaskConditions, conditions_of
from tensornet_attn.tiles.hidden import where_seen, with_hiding
from tensornet_attn.tiles.legs import MOST, RESERVED, made_inside, relative, sides_of
from tensornet_attn.tiles.program import ROWS, At, Axes, Exit, Node, Nodes, Program, TileOperand, Unfit, below, vanishes
from tensornet_attn.tiles.steps import BoxTiles, Index, Steps


def tile_program(graph: Graph, step: Step, most: int = MOST, biased: bool = False) -> Program:
    """The program of a kernel's body; `biased`: for calls with a float mask, where `Program.sums_powers`.

    Raises Unfit with the reason if there is none.
    """
    op = with_hiding(graph, step)
    heads, whole, widths = sides_of(graph, op, most)
    places = relative(graph, op)
    order = (graph.query, str(graph.key), *places, *widths)
    return Builder(graph, step, op, heads, whole, widths, places, Nodes(order, RESERVED), biased).program()


@dataclass
class Builder(Steps):
    graph: Graph
    step: Step
    op: Kernel
    heads: dict[str, int]
    whole: frozenset[str]
    widths: dict[str, tuple[str, ...]]
    places: tuple[str, ...]  # the leg of relative positions
    nodes: Nodes
    biased_calls: bool = False
    operands: dict[Use, TileOperand] = field(default_factory=dict)
    values: dict[tuple[str, At], Node] = field(default_factory=dict)
    maps: dict[str, Node] = field(default_factory=dict)
    masks: dict[MaskConditions, int] = field(default_factory=dict)
    others: tuple[str, ...] | None = None
    streams: dict[str, int] = field(default_factory=dict)

    def program(self) -> Program:
        *steps, result_step = self.op.body
        for step in steps:
            self.value(step, self.indices(step.legs))
        exit_ = self.exit(result_step)
        legs = self.arranged(result_step.legs)
        query, key = self.nodes.pair
        program = Program(
            self.step, query, key, self.heads, self.whole, self.widths, tuple(self.operands.values()), exit_, legs,
            tuple(self.maps.values()), tuple(self.masks), self.others or (), self.nodes, self.places,
        )  # fmt: skip
        _check(program)
        return program

    def value(self, step: Step, index: Index) -> Node:
        key = (step.name, self.index_of(step.legs, index))
        if key not in self.values:
            self.values[key] = self.tile(step, index)
        return self.values[key]

    def indices(self, legs: Iterable[str], index: Index | None = None) -> dict[str, str]:
        """New index variables for these legs, different from those in `index`."""
        taken, wanted = {*(index or {}).values()}, {*legs}
        return {leg: self.nodes.variable(leg, size, taken) for leg, size in self.heads.items() if leg in wanted}

    def index_of(self, legs: tuple[str, ...], index: Index) -> At:
        return At(index[leg] for leg in self.heads if leg in legs)

    def axes(self, legs: tuple[str, ...]) -> Axes:
        sides = {*self.nodes.pair, *self.places} & {*legs}
        sides |= {axis for axis, width in self.widths.items() if {*width} & {*legs}}
        axes = within(self.nodes.order, sides)
        if len(axes) > 2:
            raise Unfit(f"a tile would have more than two sides: {', '.join(axes)}")
        return axes

    def arranged(self, legs: tuple[str, ...]) -> tuple[str, ...]:
        """The legs in the order of operands and results: heads, sequence, width."""
        heads = within(self.heads, legs)
        long = within(self.nodes.pair, legs)
        return heads + long + tuple(leg for width in self.widths.values() for leg in width if leg in legs)

    # values of uses

    def use(self, use: Use, index: Index) -> Node:
        """The tile of a use, for the given index variables of its legs."""
        producer = next((step for step in self.op.body if step.name == use.name), None)
        if producer is None:
            return self.leaf(use, index)
        renamed = dict(zip(producer.legs, use.legs, strict=True))
        if any(old != new and not {old, new} <= self.whole for old, new in renamed.items()):
            raise Unfit(f"'{use.name}' is read with its legs renamed")
        producer_index = {old: index[new] for old, new in renamed.items() if old in self.heads}
        if len({*filter(None, producer_index.values())}) < len([*filter(None, producer_index.values())]):
            raise Unfit(f"'{use.name}' is read along a diagonal")
        return self.value(producer, producer_index)

    def leaf(self, use: Use, index: Index) -> Node:
        if made_inside(self.graph, use):
            tensor = self.graph.tensor[use.name]
            if tensor.role == "noise":
                return self.noise(use, index)
            assert tensor.init is not None
            if tensor.init.name == "distance":
                return self.nodes.node("distance", (), self.axes(use.legs), use.name)
            numbers = {"zeros": Number(0), "ones": ONE}
            return self.nodes.number(numbers.get(tensor.init.name) or tensor.init.arguments[0])  # type: ignore[arg-type]
        axes, number = self.operand(use)
        return self.nodes.node("load", (), axes, use.name, (number, self.index_of(use.legs, index)))

    def operand(self, use: Use) -> tuple[Axes, int]:
        """The axes of an operand, and its number."""
        if use not in self.operands:
            heads = within(self.heads, use.legs)
            axes = self.axes(use.legs)
            missing = [leg for axis in axes if axis in self.widths for leg in self.widths[axis] if leg not in use.legs]
            if missing:
                raise Unfit(f"'{use.name}' has only some of the legs of a width: it lacks '{missing[0]}'")
            if {*self.places} & {*axes} and {*self.nodes.pair} & {*axes}:
                raise Unfit(f"'{use.name}' has both relative positions and the leg '{axes[0]}'")
            self.operands[use] = TileOperand(use, heads, axes)
        if self.operands[use].table:
            raise Unfit(f"'{use.name}' is read by the distance of query and key, and in another way too")
        return self.operands[use].axes, list(self.operands).index(use)

    def noise(self, use: Use, index: Index) -> Node:
        tensor, variables = self.graph.tensor[use.name], self.index_of(use.legs, index)
        axes, number = self.operand(use)
        data = (number, variables, self.stream(use.name), tensor.std, tensor.always)
        return self.nodes.node("noise", (), axes, use.name, data)

    def stream(self, name: str) -> int:
        """The number of the random stream for a name; each name has its own."""
        return self.streams.setdefault(name, len(self.streams))

    # steps

    def box(self, step: Step, box: Box, index: Index) -> Node:
        """The tile of a box: along a leg of index variables, with masks, or elementwise."""
        operation, leg, outer_variable, where = OPS[box.kind], str(box.leg), "", f", in '{step.name}'"
        rule = operation.tile_masked if self.graph.masked(step) else operation.tile
        if leg in self.heads:
            index, outer = {**index, **self.indices((leg,), index)}, index
            rule, outer_variable, where = operation.tile_along, outer.get(leg, ""), f" over '{leg}'"
        tile: Node | None = rule(_BoxTiles(self, step, index, index.get(leg, ""), outer_variable), step, box)
        if tile is None:
            raise Unfit(f"kernels have no tiles for '{box.function.name if box.function else box.kind}'{where}")
        return tile

    def visible(self, masks: Iterable[Function], variables: At) -> Node:
        """Where masks of the design and the call leave pairs visible; equal masks have one number."""
        number = self.masks.setdefault(conditions_of(self.graph, masks), len(self.masks))
        return self.nodes.node("visible", (), self.nodes.pair, "seen", (number, variables))

    # the result

    def exit(self, step: Step) -> Exit:
        index = self.indices(step.legs)
        variables = self.index_of(step.legs, index)
        if step.box is not None:
            operation = operation_of(step)
            maps = operation.tile_summed(_BoxTiles(self, step, index), step, step.box)
            if maps is None:
                raise Unfit(f"'{step.name}' ends a kernel with a '{step.box.kind}', which kernels cannot end with")
            return Exit(variables, self.inside(maps), None, log=operation.log_of_sum)
        if len(step.terms) != 1:
            raise Unfit(f"'{step.name}' reads values of queries x keys, but not in a single product")
        (term,) = step.terms
        return self.reading(step, term, index, variables)

    def inside(self, x: Node) -> Node:
        """x, set to zero outside the range of queries and keys."""
        return x if vanishes(x) else self.nodes.node("inside", (x,), x.axes, x.name)

    def rank(self, node: Node) -> bool:
        return node.axes != self.nodes.pair  # sorts maps first

    def reading(self, step: Step, term: Term, index: Index, variables: At) -> Exit:
        """The exit of a step that multiplies maps and values."""
        query, key = self.nodes.pair
        summed = self.indices((leg for use in term.factors for leg in use.legs if leg not in step.legs), index)
        maps, *values = sorted((self.use(use, {**index, **summed}) for use in term.factors), key=self.rank)
        if maps.axes != (query, key):
            raise Unfit(f"'{step.name}' reads a tile of {' '.join(maps.axes) or 'one number'}, not of queries x keys")
        maps = self.nodes.scaled(maps, term.coefficient, maps.name)
        if values and (key not in values[0].axes or query in values[0].axes):
            if {*values[0].axes} - {query, key}:
                raise Unfit(f"'{step.name}' multiplies maps by values without the key leg")
            maps, values = self.nodes.mul(maps, values[0], maps.name), []
        return Exit(variables, self.inside(maps), values[0] if values else None, tuple(filter(None, summed.values())))


class _BoxTiles(BoxTiles[Builder]):
    """Implements `ops.given.KernelTiles`."""

    def entry(self, use: Use, leg: str) -> Node:
        (query, key), maker, name = self.nodes.pair, self.maker, self.step.name
        heads = within(maker.heads, use.legs)
        if others := {*use.legs} - {*heads, query, leg}:
            raise Unfit(f"'{name}' would have the leg '{min(others)}' of '{use.name}' in addition to queries and keys")
        if any(step.name == use.name for step in maker.op.body):
            raise Unfit(f"'{use.name}' is computed per block, but read by the distance of query and key")
        axes = (query, leg) if query in use.legs else (leg,)
        operand = TileOperand(use, heads, axes, leg)
        if maker.operands.setdefault(use, operand) != operand:
            raise Unfit(f"'{use.name}' is read by the distance of query and key, and in another way too")
        variables, reach = maker.index_of(use.legs, self.index), maker.graph.leg[leg].reach
        data = (list(maker.operands).index(use), variables, reach)
        return self.nodes.node("entry", (), (query, key), name, data)

    def masked(self, use: Use) -> tuple[Node, Node]:
        x, maker, step = self.value(use), self.maker, self.step
        if x.axes != self.nodes.pair:
            raise Unfit(f"'{step.name}' has a tile of {' '.join(x.axes) or 'one number'}, not of queries x keys")
        others = without(use.legs, *self.nodes.pair)
        if maker.others not in (None, others):
            raise Unfit(
                f"'{step.name}' and a box before it have different legs, so one mask of the call cannot fit both"
            )
        maker.others = others
        return x, maker.visible(maker.graph.masks(step), At(self.index.get(leg, "") for leg in others))

    def seen(self, x: Node) -> Node:
        if not {*x.axes} <= {*self.nodes.pair}:
            raise Unfit(f"'{self.step.name}' has a tile of {' '.join(x.axes)}, not of queries and keys")
        assert self.step.box is not None
        new = partial(self.maker.indices, index=self.index)
        return where_seen(self.nodes, self.step.box, self.index, self.maker.visible, new)

    def biased(self, x: Node, visible: Node, name: str) -> tuple[Node, str]:
        """In calls with a float mask, a softmax of log-sum-exps does not sum the exponentials itself: added to each
        exponent, a large mask would absorb what tells their shares apart."""
        arg, variable = x, ""
        if x.op == "over" and x.data[1] == "lse" and x.args[0].axes == x.axes and not self.maker.biased_calls:
            arg, variable = x.args[0], x.data[0]
        return self.nodes.add([arg, self.nodes.mask_tile(visible)], name), variable

    def divided(self, op: str, x: Node, visible: Node, last: object, name: str = "", sink: Node | None = None) -> Node:
        maps, step_name = self.maker.maps, self.step.name
        number = [*maps].index(step_name) if step_name in maps else len(maps)
        data = (number, self.maker.index_of(self.step.legs, self.index), last)
        attention_map = self.nodes.node(op, (x, visible, *([sink] if sink else [])), x.axes, name or step_name, data)
        maps.setdefault(step_name, attention_map)
        return attention_map

    def dropped(self, probability: Arith, x: Node) -> Node:
        maker, step = self.maker, self.step
        if evaluate(probability, maker.graph.values) == 0:
            return x
        if x.axes != self.nodes.pair:
            raise Unfit(f"'{step.name}' drops entries of {' '.join(x.axes) or 'one number'}, not of queries x keys")
        heads = within(maker.heads, step.legs)
        data = (maker.stream(step.name), probability, heads, maker.index_of(heads, self.index))
        return self.nodes.node("drop", (x,), x.axes, step.name, data)


def _check(program: Program) -> None:
    """Raises Unfit if a map is read by another map instead of the result, or if the program reads only noise."""
    for attention_map in program.maps:
        inner_maps = [node for node in below(attention_map.args) if node.op in ROWS]
        if inner_maps:
            raise Unfit(f"'{attention_map.name}' is a {attention_map.op} of a result of '{inner_maps[0].name}'")
    drawn = {node.data[0] for node in program.nodes.interned.values() if node.op == "noise"}
    if len(drawn) == len(program.operands):
        raise Unfit("it reads nothing except noise")
