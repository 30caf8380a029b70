"""softmax(scale * of) along the leg."""

from __future__ import annotations

import math

from tensornet_attn.ir.steps import Box, Step
from tensornet_attn.ops.given import Graph, Legs, Lines, Run, Tensor, Value
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
    look = "softmax"

    def least(self, graph: Graph, box: Box, below: float) -> float:
        return 0

    def reference(self, run: Run, step: Step, box: Box) -> tuple[Tensor, Legs]:
        import torch

        scores, keep, legs, axis = run.masked(step, run.number(box.number("scale")))
        scores = torch.where(keep, scores, -math.inf)
        scores = torch.where(keep.any(axis, keepdim=True), scores, 0)
        weights = torch.where(keep, torch.softmax(scores, axis), 0)
        return torch.nn.functional.dropout(weights, run.number(box.number("dropout")), run.training), legs

    def write(self, lines: Lines, box: Box) -> None:
        value = lines.value()
        text = f"{lines.scaled(value).atom}.softmax({dim_of(value, box.leg)})"
        lines.bind(lines.dropped(text), value.legs)

    def write_masked(self, lines: Lines, box: Box, value: Value, keep: str, bias: str) -> None:
        text = lines.call("masked_softmax", lines.scaled(value).text, keep, bias)
        lines.bind(lines.dropped(text), value.legs)


OPERATIONS = (SoftmaxOperation(),)
