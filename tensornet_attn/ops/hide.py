"""The operand at visible pairs and a number elsewhere. Rewrites insert it so that masked entries have no effect."""

from __future__ import annotations

from math import isinf

from tensornet_attn.ir.steps import Box, Step
from tensornet_attn.ir.values import SUM, Legs, TensorText
from tensornet_attn.ops.given import ForwardEmitter, KernelTiles, ReferenceEvaluation, Tensor, Tile
from tensornet_attn.ops.operation import Operation


class Hide(Operation):
    """Applies masks before maps and products instead of after them, so that any masked values are harmless."""

    kind = "hide"
    elementwise = inline = only_hides = True
    keeps_zeros = False

    def reference(self, run: ReferenceEvaluation, step: Step, box: Box) -> tuple[Tensor, Legs]:
        use = box.of
        entries, keep = run.values[use.name], run.seen(box.seen, use.legs)
        return entries.where(keep, run.number(box.number("fill"))), use.legs

    def emit_masked(
        self, lines: ForwardEmitter, step: Step, box: Box, operand: TensorText, keep: str, bias: str
    ) -> None:
        fill = box.number("fill").value  # type: ignore[union-attr]
        filled = 'float("-inf")' if isinf(fill) else repr(fill)
        condition, _, otherwise = keep.partition(" if ")
        if lines.plain and operand.text.isidentifier() and otherwise == "key_mask is not None else None":
            expression = f"{operand.text} if key_mask is None else {operand.text}.where({condition}, {filled})"
            lines.bind(step.name, expression, operand.legs, SUM)
        else:
            lines.bind(step.name, lines.call("hide", operand.text, keep, filled), operand.legs)

    def tile(self, tiles: KernelTiles, step: Step, box: Box) -> Tile:
        x, nodes = tiles.value(box.of), tiles.nodes
        seen = tiles.seen(x)
        return nodes.node("hide", (nodes.spread(x, nodes.pair), seen), nodes.pair, step.name, (box.number("fill"),))
