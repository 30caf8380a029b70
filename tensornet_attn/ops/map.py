"""The box `map`: an elementwise function of the table in `maps`."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from tensornet_attn.ir.arithmetic import Arith, evaluate, names
from tensornet_attn.ir.steps import Box, Function, Step
from tensornet_attn.ir.values import Legs
from tensornet_attn.ops import maps
from tensornet_attn.ops.given import ForwardEmitter, Graph, KernelTiles, ReferenceEvaluation, Scene, Tensor, Tile
from tensornet_attn.ops.operation import Operation, call_words
from tensornet_attn.ops.schema import BoxModel, LegName, Operand


class Map(BoxModel):
    """An elementwise function."""

    map: LegName
    of: Operand


class MapOperation(Operation):
    """Takes all properties from the row that the box names."""

    kind = "map"
    model = Map
    has_leg = False
    has_map = elementwise = inline = True

    def finite(self, graph: Graph, box: Box) -> bool:
        return row(box).finite

    def nan_slope(self, box: Box) -> bool:
        return row(box).nan_slope

    def zero_at_zero(self, graph: Graph, box: Box) -> bool:
        return row(box).zero([evaluate(tree, graph.values) for tree in arguments(box)])

    def lower_bound(self, graph: Graph, box: Box, below: float) -> float:
        elementwise = row(box)
        if elementwise.keeps_sign and below >= 0:
            return 0
        return (
            elementwise.least
            if elementwise.least_of is None
            else elementwise.least_of([known(tree, graph.values) for tree in arguments(box)])
        )

    def reference(self, run: ReferenceEvaluation, step: Step, box: Box) -> tuple[Tensor, Legs]:
        import torch

        return row(box).reference(torch, run.operand(step), *map(run.number, arguments(box))), step.legs

    def operations(self, scene: Scene, step: Step, box: Box) -> int:
        return row(box).operations * scene.elements(box.of)

    def exponentials(self, box: Box) -> int:
        return int(row(box).exponential)

    def saved(self, box: Box) -> tuple[str, ...]:
        return (row(box).saves,)

    def emit(self, lines: ForwardEmitter, step: Step, box: Box) -> None:
        operand, elementwise = lines.value(box.of), row(box)
        numbers = [lines.number(tree) for tree in arguments(box)]
        if "{" not in elementwise.torch:
            lines.bind(
                step.name, lines.call(elementwise.torch or elementwise.name, operand.text, *numbers), operand.legs
            )
            return
        filled = elementwise.torch.format(x=operand.text, atom=operand.atom, **dict(zip("ab", numbers, strict=False)))
        lines.bind(step.name, filled, operand.legs, elementwise.level)

    def tile(self, tiles: KernelTiles, step: Step, box: Box) -> Tile | None:
        if not row(box).triton:
            return None
        x = tiles.value(box.of)
        numbers = [tiles.nodes.number(tree) for tree in arguments(box)]
        return tiles.nodes.node("map", (x, *numbers), x.axes, step.name, (row(box).name,))

    def words(self, box: Box) -> str:
        return call_words(row(box).name, arguments(box))


def row(box: Box) -> maps.ElementwiseMap:
    """The map of a box."""
    assert box.function is not None
    return maps.MAPS[box.function.name]


def arguments(box: Box) -> tuple[Arith, ...]:
    assert box.function is not None
    return tuple(tree for tree in box.function.arguments if not isinstance(tree, Function))


def known(tree: Arith, values: Mapping[str, int | float]) -> float:
    """The value of a number, minus infinity if it is unknown before run time."""
    return float(evaluate(tree, values)) if all(name.name in values for name in names(tree)) else -inf
