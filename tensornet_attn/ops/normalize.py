"""Kernel attention: of / (sum along the leg + eps)."""

from __future__ import annotations

from tensornet_attn.ir.steps import Box, Step
from tensornet_attn.ir.values import Legs, TensorText
from tensornet_attn.ops.given import ForwardEmitter, KernelTiles, ReferenceEvaluation, Tensor, Tile
from tensornet_attn.ops.operation import Operation, over
from tensornet_attn.ops.schema import Arithmetic, BoxModel, LegName, Masks, Operand


class Normalize(BoxModel):
    """Kernel attention: of / (sum along the leg + eps)."""

    numbers = ("eps",)
    normalize: LegName
    mask: Masks = ()
    eps: Arithmetic = 0
    of: Operand


class NormalizeOperation(Operation):
    kind = "normalize"
    model = Normalize
    masked = runs_along = zero_where_hidden = keeps_sign = divides_by_sum = True
    ignores_zeros = "always"
    takes_float_mask = False
    per_element = 2  # sum, divide
    saves = ("of", "row")
    gradient = "normalized_gradient"

    def reference(self, run: ReferenceEvaluation, step: Step, box: Box) -> tuple[Tensor, Legs]:
        scores, keep, legs, axis = run.masked(step)
        scores = scores.where(keep, 0)
        return over(scores, scores.sum(axis, keepdim=True) + run.number(box.number("eps"))), legs

    def emit_masked(
        self, lines: ForwardEmitter, step: Step, box: Box, operand: TensorText, keep: str, bias: str
    ) -> None:
        lines.bind(step.name, lines.call("normalized", operand.text, keep, *lines.eps(box.number("eps"))), operand.legs)

    def tile_masked(self, tiles: KernelTiles, step: Step, box: Box) -> Tile:
        return tiles.divided("normalize", *tiles.masked(box.of), box.number("eps"))
