"""Normalisations along the leg."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from tensornet_attn.ir.arithmetic import evaluate
from tensornet_attn.ir.steps import Box, Step
from tensornet_attn.ir.tokens import Refusal
from tensornet_attn.ir.values import Legs
from tensornet_attn.ops.given import Checker, ForwardEmitter, Graph, ReferenceEvaluation, Tensor
from tensornet_attn.ops.operation import Operation, axis_of, dim_of, over
from tensornet_attn.ops.schema import Arithmetic, BoxModel, LegName, LegNames, Operand


class RMSNorm(BoxModel):
    """of / sqrt(mean of squares along the leg + eps)."""

    numbers = ("eps",)
    rmsnorm: LegNames
    eps: Arithmetic = 1e-5
    of: Operand


class LayerNorm(BoxModel):
    """(of - mean) / sqrt(variance along the leg + eps)."""

    numbers = ("eps",)
    layernorm: LegNames
    eps: Arithmetic = 1e-5
    of: Operand


class L1Norm(BoxModel):
    """of / (sum of absolute values along the leg + eps)."""

    numbers = ("eps",)
    l1norm: LegNames
    eps: Arithmetic = 0
    of: Operand


class L2Norm(BoxModel):
    """of / (root of the sum of squares along the leg + eps)."""

    numbers = ("eps",)
    l2norm: LegNames
    eps: Arithmetic = 0
    of: Operand


class GroupNorm(BoxModel):
    """`layernorm` within each of `groups` equal groups of neighbouring entries along the leg."""

    numbers = ("groups", "eps")
    groupnorm: LegName
    groups: Arithmetic
    eps: Arithmetic = 1e-5
    of: Operand


class Norm(Operation):
    """`call` names the runtime function; `usual` is that function's default for eps."""

    runs_along = inline = True
    per_element = 3
    saves: tuple[str, ...] = ("of", "row")
    call: str
    usual: float = 0

    @abstractmethod
    def of(self, x: Tensor, axis: int, eps: float) -> Tensor:
        """The norm of a tensor along an axis."""

    def reference(self, run: ReferenceEvaluation, step: Step, box: Box) -> tuple[Tensor, Legs]:
        axis, eps = axis_of(box.leg, step.legs), run.number(box.number("eps"))
        return self.of(run.operand(step), axis, eps), step.legs

    def finite(self, graph: Graph, box: Box) -> bool:
        """The derivative of a square root is infinite at zero, which eps > 0 avoids."""
        return not self.usual or evaluate(box.number("eps"), graph.values) > 0

    def emit(self, lines: ForwardEmitter, step: Step, box: Box) -> None:
        operand = lines.value(box.of)
        dim, eps = str(dim_of(operand, box.leg)), lines.eps(box.number("eps"), self.usual)
        call = lines.call(self.call, operand.text, dim, *self.arguments(lines, box), *eps)
        lines.bind(step.name, call, operand.legs)

    def arguments(self, lines: ForwardEmitter, box: Box) -> tuple[str, ...]:
        """The arguments of the call between the dimension and eps."""
        return ()


class RMSNormOperation(Norm):
    kind, call = "rmsnorm", "rms_norm"  # square, sum, scale
    model = RMSNorm
    cpp_row: ClassVar[tuple[str, str] | None] = ("{x} * {x}", "tl::sqrt(sum / {size} + {eps})")
    keeps_sign = True
    usual = 1e-5

    def of(self, x: Tensor, axis: int, eps: float) -> Tensor:
        return x / (x.square().mean(axis, keepdim=True) + eps).sqrt()


class LayerNormOperation(RMSNormOperation):
    kind, call = "layernorm", "layer_norm"
    model = LayerNorm  # type: ignore[assignment]
    cpp_row = None
    keeps_sign = keeps_zeros = False
    per_element = 5  # sum, subtract, square, sum, scale
    saves = ("of", "row", "row")  # mean and deviation

    def of(self, x: Tensor, axis: int, eps: float) -> Tensor:
        return super().of(x - x.mean(axis, keepdim=True), axis, eps)


class GroupNormOperation(LayerNormOperation):
    kind, call = "groupnorm", "group_norm"
    model = GroupNorm  # type: ignore[assignment]

    def check(self, box: Checker, name: str, value: int | float, leg: str, other: str) -> None:
        size = box.declared[leg].size
        if name != "groups" or box.broken(leg):
            return
        if size is None:
            hint = "use a leg with a size, such as a feature leg."
            raise Refusal("run-time-leg", f"leg '{leg}' is sized at run time and cannot be divided into groups.", hint)
        if size % int(value):
            message = f"'groups' is {value}; it must be a whole number that divides the size {size} of '{leg}'."
            raise Refusal("number", message, "e.g. 'groups: 8'.")

    def reference(self, run: ReferenceEvaluation, step: Step, box: Box) -> tuple[Tensor, Legs]:
        axis, eps = axis_of(box.leg, step.legs), run.number(box.number("eps"))
        x = run.operand(step).movedim(axis, -1)
        groups = x.unflatten(-1, (int(run.number(box.number("groups"))), -1))
        return self.of(groups, -1, eps).flatten(-2).movedim(-1, axis), step.legs

    def arguments(self, lines: ForwardEmitter, box: Box) -> tuple[str, ...]:
        return (lines.integer(box.number("groups")),)


class L1NormOperation(Norm):
    kind, call = "l1norm", "l1_norm"  # absolute value, sum, divide
    model = L1Norm
    cpp_row = "tl::abs({x})", "sum + {eps}"
    keeps_sign = True
    ignores_zeros = "always"

    def of(self, x: Tensor, axis: int, eps: float) -> Tensor:
        return over(x, x.abs().sum(axis, keepdim=True) + eps)


class L2NormOperation(Norm):
    kind, call = "l2norm", "l2_norm"
    model = L2Norm
    cpp_row = "{x} * {x}", "tl::sqrt(sum) + {eps}"
    keeps_sign = True
    ignores_zeros = "always"
    saves = ("of", "row", "row")  # root of the sum, and divisor

    def of(self, x: Tensor, axis: int, eps: float) -> Tensor:
        return over(x, x.norm(dim=axis, keepdim=True) + eps)
