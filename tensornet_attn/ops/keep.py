"""Masked scores without normalisation: `of` at visible pairs, 0 elsewhere."""

from __future__ import annotations

from tensornet_attn.ir.steps import Box, Step
from tensornet_attn.ir.values import Legs, TensorText
from tensornet_attn.ops.given import Checker, ForwardEmitter, KernelTiles, ReferenceEvaluation, Tensor, Tile
from tensornet_attn.ops.operation import Operation, check_key_leg
from tensornet_attn.ops.schema import BoxModel, LegName, Masks, Operand


class MaskedScores(BoxModel):
    """Masked scores without normalisation: `of` at visible pairs, 0 elsewhere."""

    keep: LegName
    mask: Masks = ()
    of: Operand


class Keep(Operation):
    kind = "keep"
    model = MaskedScores
    masked = zero_where_hidden = only_hides = keeps_sign = linear = same_of_one = True
    ignores_zeros = "always"
    takes_float_mask = False
    per_element = 0  # only its mask

    def result(self, box: Checker, leg: str, other: str) -> Legs:
        check_key_leg(box, "keep", leg)
        return super().result(box, leg, other)

    def reference(self, run: ReferenceEvaluation, step: Step, box: Box) -> tuple[Tensor, Legs]:
        scores, keep, legs, _ = run.masked(step)
        return scores.where(keep, 0), legs

    def emit(self, lines: ForwardEmitter, step: Step, box: Box) -> None:
        operand = lines.value(box.of)
        lines.bind(step.name, operand.text, operand.legs, operand.level)

    def emit_masked(
        self, lines: ForwardEmitter, step: Step, box: Box, operand: TensorText, keep: str, bias: str
    ) -> None:
        if keep != "None":
            lines.bind(step.name, lines.call("kept", operand.text, keep), operand.legs)
        elif operand.text.isidentifier():
            lines.values[step.name] = operand
        else:
            lines.bind(step.name, operand.text, operand.legs, operand.level)

    def tile_masked(self, tiles: KernelTiles, step: Step, box: Box) -> Tile:
        x, visible = tiles.masked(box.of)
        return tiles.nodes.node("keep", (x, visible), x.axes, step.name)
