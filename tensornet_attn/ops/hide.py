"""What readers see, and a number elsewhere: made by rewriting, so that what masks hide does no harm."""

from __future__ import annotations

from math import isinf

from tensornet_attn.ir.steps import Box, Step
from tensornet_attn.ops.given import Legs, Lines, Run, Tensor
from tensornet_attn.ops.operation import Operation


class Hide(Operation):
    """Masks act before maps and products, not after: whatever stands where they hide."""

    kind = "hide"
    elementwise = inline = True
    keeps_zeros = False

    def reference(self, run: Run, step: Step, box: Box) -> tuple[Tensor, Legs]:
        import torch

        use = box.operand("of")
        keep = run.seen(box.seen, use.legs)
        return torch.where(keep, run.values[use.name], run.number(box.number("fill"))), use.legs

    def write(self, lines: Lines, box: Box) -> None:
        value, pair = lines.value(), (lines.graph.query, lines.graph.key)
        if {*pair} <= {*value.legs}:
            value = value.arranged(tuple(leg for leg in value.legs if leg not in pair) + tuple(map(str, pair)))
        fill = box.number("fill").value  # type: ignore[union-attr]
        keep = lines.seen(value.legs, value.batched)
        text = lines.call("hide", value.text, keep, 'float("-inf")' if isinf(fill) else repr(fill))
        lines.bind(text, value.legs)


OPERATIONS = (Hide(),)
