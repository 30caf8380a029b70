"""Dropout: in training, sets entries to zero with a probability and scales up the others."""

from __future__ import annotations

from tensornet_attn.ir.arithmetic import to_text
from tensornet_attn.ir.steps import Box, Step
from tensornet_attn.ir.values import ATOM, Legs
from tensornet_attn.ops.given import ForwardEmitter, KernelTiles, ReferenceEvaluation, Tensor, Tile
from tensornet_attn.ops.operation import Operation
from tensornet_attn.ops.schema import Arithmetic, BoxModel, Operand


class Dropout(BoxModel):
    """In training, sets entries to zero with this probability and scales up the others."""

    numbers = ("dropout",)
    dropout: Arithmetic
    of: Operand


class DropoutOperation(Operation):
    kind = "dropout"
    model = Dropout
    has_leg = False
    elementwise = inline = keeps_sign = scales = True

    def reference(self, run: ReferenceEvaluation, step: Step, box: Box) -> tuple[Tensor, Legs]:
        return run.dropped(run.operand(step), box.number("dropout")), step.legs

    def emit(self, lines: ForwardEmitter, step: Step, box: Box) -> None:
        operand = lines.value(box.of)
        expression = lines.dropped(box.number("dropout"), operand.text)
        lines.bind(step.name, expression, operand.legs, operand.level if expression == operand.text else ATOM)

    def tile(self, tiles: KernelTiles, step: Step, box: Box) -> Tile:
        return tiles.dropped(box.number("dropout"), tiles.value(box.of))

    def parameters(self, box: Box, written: dict[str, str]) -> list[str]:
        """The probability, even if it has the default value."""
        return [f"p = {to_text(probability)}" for _, probability in box.numbers]
