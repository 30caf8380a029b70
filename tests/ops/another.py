"""A map, a box and masks that the language lacks, each as one object.

Logsigmoid; the largest entry up to here; the first keys for all, and every k-th key.
"""

from __future__ import annotations

from math import inf
from typing import Any

from tensornet_attn.ir.areas import Area
from tensornet_attn.ir.steps import Box, Step
from tensornet_attn.ops import Map, Mask, Operation
from tensornet_attn.ops.model import BoxModel, LegName, Masks, Operand
from tensornet_attn.ops.operation import dim_of

LOGSIGMOID = Map(
    "logsigmoid",
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

    key = "cummax"
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

FIRST = Mask(
    "first",
    lambda query, key, count: key < count,
    "{key} < {a}",
    lambda count: (Area(key=(-inf, count - 1)),),
    exact=True,
    usage="first(4)",
    refuse=lambda count: "sees nothing: it counts no key" if count < 1 else "",
)
EVERY = Mask("every", lambda query, key, step: (query - key) % step == 0, "{distance} % {a} == 0", usage="every(2)")
