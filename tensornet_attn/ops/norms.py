"""Norms along the leg: of / (a length of it + eps)."""

from __future__ import annotations

from abc import abstractmethod

from tensornet_attn.ir.arithmetic import evaluate
from tensornet_attn.ir.steps import Box, Step
from tensornet_attn.ir.values import Legs
from tensornet_attn.ops.given import Graph, Lines, Run, Tensor
from tensornet_attn.ops.model import Arithmetic, BoxModel, LegName, Operand
from tensornet_attn.ops.operation import Operation, axis_of, dim_of, over


class RMSNorm(BoxModel):
    """of / sqrt(mean of squares along the leg + eps)."""

    key = "rmsnorm"
    numbers = ("eps",)
    rmsnorm: LegName
    eps: Arithmetic = 1e-5
    of: Operand


class LayerNorm(BoxModel):
    """(of - mean) / sqrt(variance along the leg + eps)."""

    key = "layernorm"
    numbers = ("eps",)
    layernorm: LegName
    eps: Arithmetic = 1e-5
    of: Operand


class L1Norm(BoxModel):
    """of / (sum of absolute values along the leg + eps)."""

    key = "l1norm"
    numbers = ("eps",)
    l1norm: LegName
    eps: Arithmetic = 0
    of: Operand


class L2Norm(BoxModel):
    """of / (root of the sum of squares along the leg + eps)."""

    key = "l2norm"
    numbers = ("eps",)
    l2norm: LegName
    eps: Arithmetic = 0
    of: Operand


class Norm(Operation):
    """`call`: its function in the runtime, which has `usual` for eps where none is given."""

    runs_along = inline = True
    per_element = 3
    saves: tuple[str, ...] = ("of", "row")
    call: str
    usual: float = 0

    @abstractmethod
    def of(self, x: Tensor, axis: int, eps: float) -> Tensor:
        """Of a tensor, along an axis."""

    def reference(self, run: Run, step: Step, box: Box) -> tuple[Tensor, Legs]:
        axis, eps = axis_of(box.leg, step.legs), run.number(box.number("eps"))
        return self.of(run.operand(step), axis, eps), step.legs

    def finite(self, graph: Graph, box: Box) -> bool:
        """A root is infinitely steep at zero."""
        return not self.usual or evaluate(box.number("eps"), graph.values) > 0

    def emit(self, lines: Lines, step: Step, box: Box) -> None:
        value = lines.value(box.operand("of"))
        dim, eps = str(dim_of(value, box.leg)), lines.eps(box.number("eps"), self.usual)
        lines.bind(step.name, lines.call(self.call, value.text, dim, *eps), value.legs)


class RMSNormOperation(Norm):
    kind, call = "rmsnorm", "rms_norm"  # square, sum, scale
    model = RMSNorm
    keeps_sign = True
    usual = 1e-5

    def of(self, x: Tensor, axis: int, eps: float) -> Tensor:
        return x / (x.square().mean(axis, keepdim=True) + eps).sqrt()


class LayerNormOperation(RMSNormOperation):
    kind, call = "layernorm", "layer_norm"
    model = LayerNorm  # type: ignore[assignment]
    keeps_sign = keeps_zeros = False
    per_element = 5  # sum, subtract, square, sum, scale
    saves = ("of", "row", "row")  # mean and deviation

    def of(self, x: Tensor, axis: int, eps: float) -> Tensor:
        return super().of(x - x.mean(axis, keepdim=True), axis, eps)


class L1NormOperation(Norm):
    kind, call = "l1norm", "l1_norm"  # absolute value, sum, divide
    model = L1Norm
    keeps_sign = True
    ignores_zeros = "always"

    def of(self, x: Tensor, axis: int, eps: float) -> Tensor:
        return over(x, x.abs().sum(axis, keepdim=True) + eps)


class L2NormOperation(Norm):
    kind, call = "l2norm", "l2_norm"
    model = L2Norm
    keeps_sign = True
    ignores_zeros = "always"

    def of(self, x: Tensor, axis: int, eps: float) -> Tensor:
        return over(x, x.norm(dim=axis, keepdim=True) + eps)
