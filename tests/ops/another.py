"""A map and boxes that the language lacks, each as one object.

logsigmoid; the largest entry up to here, which has no tiles; the sum of squares, which has; a product of two operands.
"""

from __future__ import annotations

from math import inf
from typing import Any

from tensornet_attn.ir.areas import Area
from tensornet_attn.ir.steps import Box, Step, without
from tensornet_attn.ops import ElementwiseMap, Mask, Operation
from tensornet_attn.ops.operation import axis_of, dim_of
from tensornet_attn.ops.schema import BoxModel, LegName, Masks, Operand

LOGSIGMOID = ElementwiseMap(
    "log_of_sigmoid",
    lambda torch, x: torch.nn.functional.logsigmoid(x),
    "F.logsigmoid({x})",
    "tl.minimum({x}, 0.0) - tl.log(1 + exp_of(-tl.abs({x})))",
    "{d} / (1 + exp_of({x}))",
    finite=True,
)

MASKED_CUMMAX = '''
def masked_cummax(x: Tensor, keep: Tensor | None) -> Tensor:
    """The largest visible entry up to each, where that is visible; zeros elsewhere: [..., m]."""
    if keep is None:
        return x.cummax(-1).values
    return torch.where(keep, torch.where(keep, x, torch.finfo(x.dtype).min).cummax(-1).values, 0)
'''.strip()


class CumMaxModel(BoxModel):
    """The largest entry up to here along the leg."""

    cummax: LegName
    mask: Masks = ()
    of: Operand


class CumMax(Operation):
    """The largest visible entry up to each; zeros where masks hide."""

    kind = "cummax"
    model = CumMaxModel
    masked = runs_along = zero_where_hidden = keeps_sign = True
    per_element = 1
    saves = ("of",)

    def reference(self, run: Any, step: Step, box: Box) -> tuple[Any, tuple[str, ...]]:
        import torch

        value, keep, legs, axis = run.masked(step)
        seen = value.where(keep, -inf)
        up_to = [seen.narrow(axis, 0, place + 1).amax(axis) for place in range(value.shape[axis])]
        return torch.stack(up_to, axis).where(keep, 0), legs

    def emit(self, lines: Any, step: Step, box: Box) -> None:
        value = lines.value(box.operand("of"))
        lines.bind(step.name, f"{value.atom}.cummax({dim_of(value, box.leg)}).values", value.legs)

    def emit_masked(self, lines: Any, step: Step, box: Box, value: Any, keep: str, bias: str) -> None:
        lines.functions.add(MASKED_CUMMAX)
        text = value.text if bias == "None" else lines.call("added", value.text, bias)
        lines.bind(step.name, f"masked_cummax({text}, {keep})", value.legs)


CUMMAX = CumMax()

LATE = Mask(
    "late",
    lambda query, key, least, apart: (query >= least) & (query - key >= apart),
    "({query} >= {a}) & ({distance} >= {b})",
    lambda least, apart: (Area(distance=(apart, inf), query=(least, inf)),),
    exact=True,
    usage="late(4, 1)",
    arguments=2,
    defaults=(0,),
    refuse=lambda least, apart: "shows all: its first argument must be at least 0" if least < 0 else "",
)


class SquaresModel(BoxModel):
    """The sum of squares along the leg."""

    squares: LegName
    mask: Masks = ()
    of: Operand


class Squares(Operation):
    """The sum of squares of the visible entries."""

    kind = "squares"
    model = SquaresModel
    masked = reduces = runs_along = keeps_sign = True
    takes_float_mask = False
    ignores_zeros = "always"
    per_element = 2
    saves = ("of",)

    def lower_bound(self, graph: Any, box: Box, below: float) -> float:
        return 0

    def reference(self, run: Any, step: Step, box: Box) -> tuple[Any, tuple[str, ...]]:
        value, keep, legs, axis = run.masked(step)
        return value.where(keep, 0).square().sum(axis), without(legs, box.leg)

    def emit_masked(self, lines: Any, step: Step, box: Box, value: Any, keep: str, bias: str) -> None:
        kept = value.atom if keep == "None" else lines.call("kept", value.text, keep)
        lines.bind(step.name, f"{kept}.square().sum(-1)", value.legs[:-1])

    def tile_along(self, tiles: Any, step: Step, box: Box) -> Any:
        x = tiles.value(box.operand("of"))
        return tiles.nodes.over(tiles.nodes.mul(x, x), tiles.variable, "add", step.name)

    def tile_summed(self, tiles: Any, step: Step, box: Box) -> Any:
        x, visible = tiles.masked(box.operand("of"))
        kept = tiles.nodes.node("keep", (x, visible), x.axes, step.name)
        return tiles.nodes.mul(kept, kept)


SQUARES = Squares()


class TimesModel(BoxModel):
    """`of` times the sum of `by` up to here along the leg."""

    operands = ("of", "by")
    times: LegName
    by: Operand
    of: Operand


class Times(Operation):
    """The product of one operand and the sum of another up to here."""

    kind = "times"
    model = TimesModel
    runs_along = True
    per_element = 2
    saves = ("of", "by")

    def reference(self, run: Any, step: Step, box: Box) -> tuple[Any, tuple[str, ...]]:
        axis = axis_of(box.leg, step.legs)
        return run.operand(step) * run.operand(step, "by").cumsum(axis), step.legs

    def emit(self, lines: Any, step: Step, box: Box) -> None:
        of, by = (lines.value(use).aligned(step.legs, whole=True) for use in box.uses)
        lines.bind(step.name, f"{of.atom} * {by.atom}.cumsum({dim_of(of, box.leg)})", step.legs)


TIMES = Times()
