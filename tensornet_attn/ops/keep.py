"""of where visible, 0 elsewhere."""

from __future__ import annotations

from tensornet_attn.ir.steps import Box, Step
from tensornet_attn.ops.given import Legs, Lines, Run, Tensor, Value
from tensornet_attn.ops.model import BoxModel, LegName, Masks, Operand
from tensornet_attn.ops.operation import Operation


class MaskedScores(BoxModel):
    """of where visible, 0 elsewhere."""

    key = "keep"
    keep: LegName
    mask: Masks = ()
    of: Operand


class Keep(Operation):
    kind = "keep"
    model = MaskedScores
    masked = zero_where_hidden = keeps_sign = linear = True
    ignores_zeros = "always"
    adds_mask = False
    per_element = 0  # its mask alone

    def reference(self, run: Run, step: Step, box: Box) -> tuple[Tensor, Legs]:
        import torch

        value, keep, legs, _ = run.masked(step)
        return torch.where(keep, value, 0), legs

    def write(self, lines: Lines, box: Box) -> None:
        value = lines.value()
        lines.bind(value.text, value.legs, value.level)

    def write_masked(self, lines: Lines, box: Box, value: Value, keep: str, bias: str) -> None:
        if keep != "None":
            lines.bind(lines.call("kept", value.text, keep), value.legs)
        elif value.text.isidentifier():
            lines.is_operand(value)
        else:
            lines.bind(value.text, value.legs, value.level)


OPERATIONS = (Keep(),)
