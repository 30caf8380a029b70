"""Norms along the leg: of / (a length of it + eps)."""

from __future__ import annotations

from typing import Any

from tensornet_attn.ir.arithmetic import evaluate
from tensornet_attn.ir.steps import Box, Step
from tensornet_attn.ops.given import Graph, Legs, Lines, Run, Tensor
from tensornet_attn.ops.model import Arithmetic, BoxModel, LegName, Operand
from tensornet_attn.ops.operation import Operation, axis_of, dim_of


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

    def of(self, torch: Any, run: Run, x: Tensor, axis: int, eps: float) -> Tensor:
        raise NotImplementedError

    def reference(self, run: Run, step: Step, box: Box) -> tuple[Tensor, Legs]:
        import torch

        axis, eps = axis_of(box.leg, step.legs), run.number(box.number("eps"))
        return self.of(torch, run, run.operand(step), axis, eps), step.legs

    def finite(self, graph: Graph, box: Box) -> bool:
        """A root is infinitely steep at zero."""
        return not self.usual or evaluate(box.number("eps"), graph.values) > 0

    def write(self, lines: Lines, box: Box) -> None:
        value = lines.value()
        lines.bind(lines.call(self.call, value.text, str(dim_of(value, box.leg)), *lines.eps(self.usual)), value.legs)


class RMSNormOperation(Norm):
    kind, call = "rmsnorm", "rms_norm"  # square, sum, scale
    model = RMSNorm
    keeps_sign = True
    usual = 1e-5

    def of(self, torch: Any, run: Run, x: Tensor, axis: int, eps: float) -> Tensor:
        return x / (x.square().mean(axis, keepdim=True) + eps).sqrt()


class LayerNormOperation(RMSNormOperation):
    kind, call = "layernorm", "layer_norm"
    model = LayerNorm  # type: ignore[assignment]
    keeps_sign = keeps_zeros = False
    per_element = 5  # sum, subtract, square, sum, scale
    saves = ("of", "row", "row")  # mean and deviation

    def of(self, torch: Any, run: Run, x: Tensor, axis: int, eps: float) -> Tensor:
        return super().of(torch, run, x - x.mean(axis, keepdim=True), axis, eps)


class L1NormOperation(Norm):
    kind, call = "l1norm", "l1_norm"  # absolute value, sum, divide
    model = L1Norm
    keeps_sign = True
    ignores_zeros = "always"

    def of(self, torch: Any, run: Run, x: Tensor, axis: int, eps: float) -> Tensor:
        return run.over(x, x.abs().sum(axis, keepdim=True) + eps)


class L2NormOperation(Norm):
    kind, call = "l2norm", "l2_norm"
    model = L2Norm
    keeps_sign = True
    ignores_zeros = "always"

    def of(self, torch: Any, run: Run, x: Tensor, axis: int, eps: float) -> Tensor:
        return run.over(x, torch.linalg.vector_norm(x, dim=axis, keepdim=True) + eps)


OPERATIONS = (RMSNormOperation(), LayerNormOperation(), L1NormOperation(), L2NormOperation())
