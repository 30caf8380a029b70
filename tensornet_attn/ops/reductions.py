"""Sum, mean, largest entry and logsumexp along the leg, which the result lacks."""

from __future__ import annotations

import math
from abc import abstractmethod

from tensornet_attn.ir.steps import Box, Step
from tensornet_attn.ir.values import Legs, Value
from tensornet_attn.ops.given import Lines, Run, Tensor
from tensornet_attn.ops.model import BoxModel, LegName, Masks, Operand
from tensornet_attn.ops.operation import Operation, dim_of, over, without


class LogSumExp(BoxModel):
    """The logarithm of the sum of exponentials along the leg."""

    key = "logsumexp"
    logsumexp: LegName
    mask: Masks = ()
    of: Operand


class Max(BoxModel):
    """The largest entry along the leg."""

    key = "max"
    max: LegName
    mask: Masks = ()
    of: Operand


class Sum(BoxModel):
    """The sum along the leg."""

    key = "sum"
    sum: LegName
    mask: Masks = ()
    of: Operand


class Mean(BoxModel):
    """The mean along the leg."""

    key = "mean"
    mean: LegName
    mask: Masks = ()
    of: Operand


class Reduction(Operation):
    """A number for each row along the leg; 0 for a row that sees nothing."""

    masked = reduces = runs_along = True
    dense: str  # the method of a tensor

    @abstractmethod
    def of(self, value: Tensor, keep: Tensor, axis: int) -> Tensor:
        """Of the visible entries."""

    def reference(self, run: Run, step: Step, box: Box) -> tuple[Tensor, Legs]:
        value, keep, legs, axis = run.masked(step)
        return self.of(value, keep, axis), without(legs, box.leg)

    def emit(self, lines: Lines, step: Step, box: Box) -> None:
        value = lines.value(box.operand("of"))
        lines.bind(step.name, f"{value.atom}.{self.dense}({dim_of(value, box.leg)})", without(value.legs, box.leg))

    def emit_masked(self, lines: Lines, step: Step, box: Box, value: Value, keep: str, bias: str) -> None:
        text = value.text if bias == "None" else lines.call("added", value.text, bias)
        lines.bind(step.name, lines.call(f"masked_{box.kind}", text, keep), value.legs[:-1])


class LogSumExpOperation(Reduction):
    kind, dense = "logsumexp", "logsumexp"
    model = LogSumExp
    log_of_sum = True
    keeps_zeros = False
    per_element = 4  # largest, subtract, exp, sum
    saves = ("of", "result")

    def of(self, value: Tensor, keep: Tensor, axis: int) -> Tensor:
        some = keep.any(axis, keepdim=True)
        value = value.where(keep, -math.inf).where(some, 0)
        return value.logsumexp(axis).where(some.squeeze(axis), 0)


class MaxOperation(Reduction):
    """The gradient is shared evenly among equal largest entries."""

    kind, dense = "max", "amax"
    model = Max
    keeps_sign = True
    per_element = 1
    saves = ("of", "result")

    def of(self, value: Tensor, keep: Tensor, axis: int) -> Tensor:
        return value.where(keep, -math.inf).amax(axis).where(keep.any(axis), 0)


class SumOperation(Reduction):
    kind, dense = "sum", "sum"
    model = Sum
    keeps_sign = linear = is_sum = True
    ignores_zeros = "always"
    per_element = 1

    def of(self, value: Tensor, keep: Tensor, axis: int) -> Tensor:
        return value.where(keep, 0).sum(axis)


class MeanOperation(Reduction):
    kind, dense = "mean", "mean"
    model = Mean
    keeps_sign = linear = True
    per_element = 1

    def of(self, value: Tensor, keep: Tensor, axis: int) -> Tensor:
        return over(value.where(keep, 0).sum(axis), keep.sum(axis).to(value.dtype))
