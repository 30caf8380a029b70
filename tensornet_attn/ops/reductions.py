"""Reductions: sum, mean, maximum and logsumexp along the leg."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar

from tensornet_attn.ir.arithmetic import ONE, Number
from tensornet_attn.ir.steps import Box, Step, without
from tensornet_attn.ir.values import Legs, TensorText
from tensornet_attn.ops.given import ForwardEmitter, KernelTiles, ReferenceEvaluation, Tensor, Tile, TilesOfBox
from tensornet_attn.ops.operation import Operation, dim_of, over
from tensornet_attn.ops.schema import BoxModel, LegNames, Masks, Operand


class LogSumExp(BoxModel):
    """The logarithm of the sum of exponentials along the leg."""

    logsumexp: LegNames
    mask: Masks = ()
    of: Operand


class Max(BoxModel):
    """The largest entry along the leg."""

    max: LegNames
    mask: Masks = ()
    of: Operand


class Sum(BoxModel):
    """The sum along the leg."""

    sum: LegNames
    mask: Masks = ()
    of: Operand


class Mean(BoxModel):
    """The mean along the leg."""

    mean: LegNames
    mask: Masks = ()
    of: Operand


class Reduction(Operation):
    """Reduces the leg. A row without a visible entry gives 0, and its logsumexp a number for minus infinity."""

    masked = reduces = runs_along = same_of_one = True
    dense: str  # the method of a tensor
    how: str  # the reduction of tiles: `tiles.program.Node`
    dense_of_nothing: ClassVar[bool] = False  # whether that method is right where there are no entries

    @abstractmethod
    def of(self, entries: Tensor, keep: Tensor, axis: int) -> Tensor:
        """The reduction of the visible entries."""

    def reference(self, run: ReferenceEvaluation, step: Step, box: Box) -> tuple[Tensor, Legs]:
        entries, keep, legs, axis = run.masked(step)
        return self.of(entries, keep, axis), without(legs, box.leg)

    def emit(self, lines: ForwardEmitter, step: Step, box: Box) -> None:
        if not self.dense_of_nothing and lines.graph.leg[str(box.leg)].sequence:  # there may be no positions
            super().emit(lines, step, box)
            return
        operand = lines.value(box.of)
        lines.bind(
            step.name, f"{operand.atom}.{self.dense}({dim_of(operand, box.leg)})", without(operand.legs, box.leg)
        )

    def emit_masked(
        self, lines: ForwardEmitter, step: Step, box: Box, operand: TensorText, keep: str, bias: str
    ) -> None:
        expression = operand.text if bias == "None" else lines.call("added", operand.text, bias)
        lines.bind(step.name, lines.call(f"masked_{box.kind}", expression, keep), operand.legs[:-1])

    def tile_along(self, tiles: TilesOfBox, step: Step, box: Box) -> Tile:
        return tiles.nodes.over(tiles.value(box.of), tiles.variable, self.how, step.name)


class LogSumExpOperation(Reduction):
    kind, dense, how = "logsumexp", "logsumexp", "lse"
    model = LogSumExp
    log_of_sum = True
    keeps_zeros = False
    per_element = 4  # max, subtract, exp, sum
    exponential = 1
    saves = ("of", "result")

    def of(self, entries: Tensor, keep: Tensor, axis: int) -> Tensor:
        """A row without an entry above minus infinity gives -1e15, or half of the least number of float16.

        Differences of such rows are finite, and in other dtypes their squares and sums too. Entries are relative to the
        largest one, because the backward of `logsumexp` subtracts its result, which rounding may have made that entry.
        """
        import torch

        finite_max = torch.finfo(entries.dtype).max
        keep = keep & (entries != -math.inf)
        some, nothing = keep.any(axis, keepdim=True), max(-1e15, -finite_max / 2)
        if not entries.shape[axis]:
            return entries.sum(axis) + nothing
        entries = entries.where(keep, -math.inf).where(some, 0)
        largest = entries.detach().amax(axis, keepdim=True).clamp(-finite_max, finite_max)
        return ((entries - largest).logsumexp(axis) + largest.squeeze(axis)).where(some.squeeze(axis), nothing)

    def tile_summed(self, tiles: KernelTiles, step: Step, box: Box) -> Tile:
        x, visible = tiles.masked(box.of)
        terms, variable = tiles.biased(x, visible, f"{step.name}_terms")
        return tiles.divided("softmax", terms, visible, variable, f"{step.name}_shares")


class MaxOperation(Reduction):
    """Equal maxima share the gradient evenly."""

    kind, dense, how = "max", "amax", "max"
    model = Max
    operand_gradient = "max_gradient"
    keeps_sign = True
    per_element = 1
    saves = ("of", "result")

    def of(self, entries: Tensor, keep: Tensor, axis: int) -> Tensor:
        if not entries.shape[axis]:
            return entries.sum(axis)
        return entries.where(keep, -math.inf).amax(axis).where(keep.any(axis), 0)


class SumOperation(Reduction):
    kind, dense, how = "sum", "sum", "add"
    model = Sum
    keeps_sign = linear = is_sum = True
    ignores_zeros = "always"
    dense_of_nothing = True
    per_element = 1

    def of(self, entries: Tensor, keep: Tensor, axis: int) -> Tensor:
        return entries.where(keep, 0).sum(axis)

    def tile_summed(self, tiles: KernelTiles, step: Step, box: Box) -> Tile:
        x, visible = biased(tiles, step, box)
        return tiles.nodes.node("keep", (x, visible), x.axes, step.name)


class MeanOperation(Reduction):
    kind, dense, how = "mean", "mean", "add"
    model = Mean
    keeps_sign = linear = True
    per_element = 1

    def of(self, entries: Tensor, keep: Tensor, axis: int) -> Tensor:
        return over(entries.where(keep, 0).sum(axis), keep.sum(axis).to(entries.dtype))

    def tile_along(self, tiles: TilesOfBox, step: Step, box: Box) -> Tile:
        return tiles.nodes.mul(tiles.nodes.share(tiles.variable), super().tile_along(tiles, step, box), step.name)

    def tile_summed(self, tiles: KernelTiles, step: Step, box: Box) -> Tile:
        """Each entry divided by the number of visible entries."""
        x, visible = biased(tiles, step, box)
        ones = tiles.nodes.spread(tiles.nodes.number(ONE), x.axes)
        share = tiles.divided("normalize", ones, visible, Number(0), f"{step.name}_share")
        return tiles.nodes.mul(share, x, step.name)


def biased(tiles: KernelTiles, step: Step, box: Box) -> tuple[Tile, Tile]:
    """The operand plus the float mask, and the visible pairs."""
    x, visible = tiles.masked(box.of)
    return tiles.nodes.add([tiles.nodes.mask_tile(visible), x], f"{step.name}_terms"), visible
