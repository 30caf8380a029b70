"""softmax(scale * of) along the leg."""

from __future__ import annotations

import math

from tensornet_attn.ir.arithmetic import ONE, Negative
from tensornet_attn.ir.steps import Box, Step
from tensornet_attn.ir.values import Legs, Value
from tensornet_attn.ops.given import Graph, KernelTiles, Lines, Run, Tensor, Tile, Tiles
from tensornet_attn.ops.model import Arithmetic, BoxModel, LegName, Masks, Operand
from tensornet_attn.ops.operation import Operation, dim_of


class Softmax(BoxModel):
    """softmax(scale * of) along the leg."""

    key = "softmax"
    numbers = ("scale", "dropout")
    softmax: LegName
    scale: Arithmetic = 1
    mask: Masks = ()
    dropout: Arithmetic = 0
    of: Operand


class SoftmaxOperation(Operation):
    """Rows that see nothing are zeros; they are replaced before exp, where zero times infinity would be NaN."""

    kind = "softmax"
    model = Softmax
    masked = runs_along = zero_where_hidden = True
    keeps_zeros = False
    per_element = 5  # largest, subtract, exp, sum, divide
    saves = ("result",)
    gradient = "softmax_gradient"
    look = "softmax"

    def lower_bound(self, graph: Graph, box: Box, below: float) -> float:
        return 0

    def reference(self, run: Run, step: Step, box: Box) -> tuple[Tensor, Legs]:
        scores, keep, legs, axis = run.masked(step, run.number(box.number("scale")))
        scores = scores.where(keep, -math.inf).where(keep.any(axis, keepdim=True), 0)
        return run.dropped(scores.softmax(axis).where(keep, 0), box.number("dropout")), legs

    def emit(self, lines: Lines, step: Step, box: Box) -> None:
        value = lines.value(box.operand("of"))
        text = f"{lines.scaled(box.number('scale'), value).atom}.softmax({dim_of(value, box.leg)})"
        lines.bind(step.name, lines.dropped(box.number("dropout"), text), value.legs)

    def tile_masked(self, tiles: KernelTiles, step: Step, box: Box) -> Tile:
        x, visible = tiles.masked(box.operand("of"))
        scaled = tiles.nodes.scaled(x, box.number("scale"), step.name)
        scores, variable = tiles.biased(scaled, visible, f"{step.name}.of")
        return tiles.dropped(box.number("dropout"), tiles.divided("softmax", scores, visible, variable))

    def tile_along(self, tiles: Tiles, step: Step, box: Box) -> Tile:
        """exp(x - lse)"""
        nodes = tiles.nodes
        x = nodes.scaled(tiles.value(box.operand("of")), box.number("scale"), step.name)
        minus = nodes.mul(nodes.number(Negative(ONE)), nodes.over(x, tiles.variable, "lse", step.name))
        rest = nodes.add([nodes.renamed(x, {tiles.variable: tiles.place}), minus])
        return nodes.node("map", (rest,), rest.axes, step.name, ("exp",))

    def emit_masked(self, lines: Lines, step: Step, box: Box, value: Value, keep: str, bias: str) -> None:
        text = lines.call("masked_softmax", lines.scaled(box.number("scale"), value).text, keep, bias)
        lines.bind(step.name, lines.dropped(box.number("dropout"), text), value.legs)
