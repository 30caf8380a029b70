"""`of` at the k entries along the leg where `by` is largest, 0 elsewhere."""

from __future__ import annotations

from tensornet_attn.ir.steps import Box, Step
from tensornet_attn.ir.tokens import Refusal
from tensornet_attn.ir.values import Legs
from tensornet_attn.ops.given import Checker, Lines, Run, Tensor
from tensornet_attn.ops.model import Arithmetic, BoxModel, LegNames, Operand
from tensornet_attn.ops.operation import Operation, axis_of, dim_of


class TopK(BoxModel):
    """`of` at the k entries along the leg where `by` is largest, 0 elsewhere."""

    key = "topk"
    numbers = ("k",)
    operands = ("of", "by")
    topk: LegNames
    k: Arithmetic
    by: Operand | None = None
    of: Operand


class TopKOperation(Operation):
    kind = "topk"
    model = TopK
    runs_along = keeps_sign = selects = True
    ignores_zeros = "nonnegative"
    per_element = 2  # compare, keep
    saves = ("chosen",)
    without_gradient = ("by",)

    def check(self, box: Checker, name: str, value: int | float, leg: str, other: str) -> None:
        size = box.declared[leg].size
        if not isinstance(value, int) or value < 1:
            raise Refusal("number", f"'k' is {value}; it must be a whole number from 1.", "e.g. 'k: 2'.")
        if size is not None and value > size and not box.broken(leg):
            raise Refusal("k-too-large", f"'k' is {value}, but leg '{leg}' has size {size}.", f"at most {size}.")

    def result(self, box: Checker, leg: str, other: str) -> Legs:
        legs, by = box.legs or (), box.operands["by"].legs
        if leg not in by or set(by) - set(legs):
            box.written("by")
            has = f"'by' has legs {' '.join(by) or 'none'}; 'of' has {' '.join(legs)}"
            raise Refusal("box-leg", f"{has}.", f"'by' has '{leg}', and no leg that 'of' lacks.")
        return legs

    def reference(self, run: Run, step: Step, box: Box) -> tuple[Tensor, Legs]:
        """A stable sort keeps equal entries in order: the smaller index wins."""
        import torch

        axis, role = axis_of(box.leg, step.legs), "by" if "by" in dict(box.operands) else "of"
        of, by = torch.broadcast_tensors(run.operand(step), run.operand(step, role))
        order = by.sort(dim=axis, descending=True, stable=True).indices
        none = torch.zeros_like(by, dtype=torch.bool)
        chosen = none.scatter(axis, order.narrow(axis, 0, int(run.number(box.number("k")))), True)
        zeros = torch.where(none, by, 0)  # so that what `by` is made of gets gradients of zero
        return torch.where(chosen, of, zeros), step.legs

    def emit(self, lines: Lines, step: Step, box: Box) -> None:
        of, by = lines.value(box.operand("of")), lines.value(box.operand("by"))
        k, dim = lines.integer(box.number("k")), str(dim_of(of, box.leg))
        lines.bind(step.name, lines.call("top_entries", of.text, by.aligned(of.legs).text, k, dim), of.legs)
