"""Sum, mean, largest entry and logsumexp along the leg, which the result lacks."""

from __future__ import annotations

import math
from typing import Any

from tensornet_attn.ir.steps import Box, Step
from tensornet_attn.ops.given import Legs, Lines, Run, Tensor, Value
from tensornet_attn.ops.model import BoxModel, LegName, Masks, Operand
from tensornet_attn.ops.operation import Operation, dim_of, without


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

    def of(self, torch: Any, run: Run, value: Tensor, keep: Tensor, axis: int) -> Tensor:
        """Of the visible entries."""
        raise NotImplementedError

    def reference(self, run: Run, step: Step, box: Box) -> tuple[Tensor, Legs]:
        import torch

        value, keep, legs, axis = run.masked(step)
        return self.of(torch, run, value, keep, axis), without(legs, box.leg)

    def write(self, lines: Lines, box: Box) -> None:
        value = lines.value()
        lines.bind(f"{value.atom}.{self.dense}({dim_of(value, box.leg)})", without(value.legs, box.leg))

    def write_masked(self, lines: Lines, box: Box, value: Value, keep: str, bias: str) -> None:
        text = value.text if bias == "None" else lines.call("added", value.text, bias)
        lines.bind(lines.call(f"masked_{box.kind}", text, keep), value.legs[:-1])


class LogSumExpOperation(Reduction):
    kind, dense = "logsumexp", "logsumexp"
    model = LogSumExp
    keeps_zeros = False
    per_element = 4  # largest, subtract, exp, sum
    saves = ("of", "result")

    def of(self, torch: Any, run: Run, value: Tensor, keep: Tensor, axis: int) -> Tensor:
        some = keep.any(axis, keepdim=True)
        value = torch.where(some, torch.where(keep, value, -math.inf), 0)
        return torch.where(some.squeeze(axis), value.logsumexp(axis), 0)


class MaxOperation(Reduction):
    """The gradient is shared evenly among equal largest entries."""

    kind, dense = "max", "amax"
    model = Max
    keeps_sign = True
    per_element = 1
    saves = ("of", "result")

    def of(self, torch: Any, run: Run, value: Tensor, keep: Tensor, axis: int) -> Tensor:
        return torch.where(keep.any(axis), torch.where(keep, value, -math.inf).amax(axis), 0)


class SumOperation(Reduction):
    kind, dense = "sum", "sum"
    model = Sum
    keeps_sign = linear = adds = True
    ignores_zeros = "always"
    per_element = 1

    def of(self, torch: Any, run: Run, value: Tensor, keep: Tensor, axis: int) -> Tensor:
        return torch.where(keep, value, 0).sum(axis)


class MeanOperation(Reduction):
    kind, dense = "mean", "mean"
    model = Mean
    keeps_sign = linear = True
    per_element = 1

    def of(self, torch: Any, run: Run, value: Tensor, keep: Tensor, axis: int) -> Tensor:
        return run.over(torch.where(keep, value, 0).sum(axis), keep.sum(axis).to(value.dtype))


OPERATIONS = (LogSumExpOperation(), MaxOperation(), SumOperation(), MeanOperation())
