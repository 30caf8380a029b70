"""softmax(scale * of) along the leg, with an optional sink: a further score without a value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from tensornet_attn.ir.arithmetic import ONE, Negative
from tensornet_attn.ir.steps import Box, Step, Use, without
from tensornet_attn.ir.tokens import Refusal
from tensornet_attn.ir.values import Legs, TensorText
from tensornet_attn.ops.given import (
    Checker,
    ForwardEmitter,
    Graph,
    KernelTiles,
    ReferenceEvaluation,
    Tensor,
    Tile,
    TilesOfBox,
)
from tensornet_attn.ops.operation import Operation, aligned, dim_of
from tensornet_attn.ops.schema import Arithmetic, BoxModel, LegNames, Masks, Operand, OperandOrNumber


class Softmax(BoxModel):
    """softmax(scale * of) along the leg; `sink` is a further score in each row, without a value."""

    numbers = ("scale", "dropout")
    operands = ("of", "sink")
    optional = frozenset({"sink"})
    softmax: LegNames
    scale: Arithmetic = 1
    mask: Masks = ()
    dropout: Arithmetic = 0
    sink: OperandOrNumber | None = None
    of: Operand


class SoftmaxOperation(Operation):
    """Rows without a visible score above minus infinity give zeros.

    They are replaced before exp, because 0 * inf would give NaN.
    """

    kind = "softmax"
    model = Softmax
    masked = runs_along = zero_where_hidden = True
    keeps_zeros = False
    per_element = 5  # max, subtract, exp, sum, divide
    exponential = 1
    saves = ("result",)
    gradient = "softmax_gradient"
    row_gradients: ClassVar[Mapping[str, str]] = {"sink": "sink_gradient"}
    look = "softmax"

    def result(self, box: Checker, leg: str, other: str) -> Legs:
        legs, sink = box.legs or (), box.operands.get("sink")
        beyond = [sink_leg for sink_leg in (sink.legs if sink else ()) if sink_leg not in without(legs, leg)]
        if beyond:
            box.written("sink")
            has = f"'sink' has leg '{beyond[0]}'"
            hint = f"use only legs of 'of' other than '{leg}' in the sink: each row has one sink."
            raise Refusal(
                "box-leg", f"{has}; the rows of this softmax have {' '.join(without(legs, leg)) or 'no legs'}.", hint
            )
        return legs

    def lower_bound(self, graph: Graph, box: Box, below: float) -> float:
        return 0

    def reference(self, run: ReferenceEvaluation, step: Step, box: Box) -> tuple[Tensor, Legs]:
        """The sink is a further column, which is removed after the softmax."""
        import torch

        scores, keep, legs, axis = run.masked(step, run.number(box.number("scale")))
        keep = keep & (scores != -math.inf)
        scores = scores.where(keep, -math.inf).where(keep.any(axis, keepdim=True), 0)
        if (use := sink_of(box)) is not None:
            sink = aligned(run.values[use.name], use.legs, legs)
            sink = sink.expand_as(scores.sum(axis, keepdim=True))  # there may be no keys
            weights = torch.cat([sink, scores], axis).softmax(axis).narrow(axis, 1, scores.shape[axis])
        else:
            weights = scores.softmax(axis)
        return run.dropped(weights.where(keep, 0), box.number("dropout")), legs

    def emit(self, lines: ForwardEmitter, step: Step, box: Box) -> None:
        if sink_of(box) is not None:
            super().emit(lines, step, box)
            return
        operand = lines.value(box.of)
        expression = f"{lines.scaled(box.number('scale'), operand).atom}.softmax({dim_of(operand, box.leg)})"
        lines.bind(step.name, lines.dropped(box.number("dropout"), expression), operand.legs)

    def tile_masked(self, tiles: KernelTiles, step: Step, box: Box) -> Tile:
        x, visible = tiles.masked(box.of)
        scaled = tiles.nodes.scaled(x, box.number("scale"), step.name)
        scores, variable = tiles.biased(scaled, visible, f"{step.name}.of")
        sink = None if (use := sink_of(box)) is None else tiles.value(use)
        return tiles.dropped(box.number("dropout"), tiles.divided("softmax", scores, visible, variable, sink=sink))

    def tile_along(self, tiles: TilesOfBox, step: Step, box: Box) -> Tile | None:
        """exp(x - lse)"""
        nodes = tiles.nodes
        x = nodes.scaled(tiles.value(box.of), box.number("scale"), step.name)
        if sink_of(box) is not None:
            return None
        minus = nodes.mul(nodes.number(Negative(ONE)), nodes.over(x, tiles.variable, "lse", step.name))
        exponent = nodes.add([nodes.renamed(x, {tiles.variable: tiles.result_index}), minus])
        return nodes.node("map", (exponent,), exponent.axes, step.name, ("exp",))

    def emit_masked(
        self, lines: ForwardEmitter, step: Step, box: Box, operand: TensorText, keep: str, bias: str
    ) -> None:
        arguments = [lines.scaled(box.number("scale"), operand).text, keep, bias]
        if (use := sink_of(box)) is None:
            expression = lines.call("masked_softmax", *arguments)
        else:
            sink = lines.value(use).aligned(operand.legs, whole=True)
            expression = lines.call("sink_softmax", arguments[0], sink.text, *arguments[1:])
        lines.bind(step.name, lines.dropped(box.number("dropout"), expression), operand.legs)


def sink_of(box: Box) -> Use | None:
    """The sink, None if there is none."""
    return dict(box.operands).get("sink")
