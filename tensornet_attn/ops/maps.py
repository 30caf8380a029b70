"""The elementwise maps: one row a map, with all that the package knows of it.

Texts are templates: of PyTorch over `x` (`atom` where something may follow it) and the numbers `a`, `b`; of Triton over
`x`; for the slope, which is the gradient of x, also over the result `y` and its gradient `d`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import inf
from typing import Any

from tensornet_attn.ir.values import ATOM, PRODUCT
from tensornet_attn.ops.registered import registered

Numbers = Sequence[float]
_SIGMOID = "1 / (1 + exp_of(-{x}))"
_TANH = "2 / (1 + exp_of(-2 * {x})) - 1"
_LOG1P = "tl.maximum({x}, 0.0) + tl.log(1 + exp_of(-tl.abs({x})))"


@dataclass(frozen=True)
class Map:
    """An elementwise function of x and numbers.

    `reference(torch, x, *numbers)`: what it is, on tensors. `torch`: its PyTorch text; empty where the runtime has a
    function of its name. `finite`: a number at every number, and so is its derivative. `least`: no value is below;
    `least_of` says so where the numbers decide, minus infinity standing for a number that is not known.
    `keeps_sign`: of what is not negative it is not negative. `saves`: what its backward keeps.
    """

    name: str
    reference: Callable[..., Any]
    torch: str = ""
    triton: str = ""  # empty: there are no tiles of it
    slope: str = ""
    torch_slope: str = ""  # without numbers; empty: torch knows it
    usage: str = ""  # how it is written, with numbers that make sense; its name where it has none
    arguments: int = 0  # how many numbers it has
    finite: bool = False
    least: float = -inf
    least_of: Callable[[Numbers], float] | None = None
    keeps_sign: bool = False
    zero: Callable[[Numbers], bool] = lambda numbers: False  # whether it is zero at zero
    saves: str = "of"  # or "result"
    level: int = ATOM  # how tightly its PyTorch text binds
    operations: int = 1  # for each number


def _at_zero(numbers: Numbers) -> bool:
    return True


_ROWS = (
    Map(
        "relu", lambda torch, x: torch.relu(x), "F.relu({x})", "tl.maximum({x}, 0.0)", "tl.where({x} > 0, {d}, 0.0)",
        "torch.ops.aten.threshold_backward({d}, {x}, 0)",  # one pass, where a condition is two
        finite=True, least=0, zero=_at_zero, saves="result",
    ),
    Map(
        "gelu", lambda torch, x: torch.nn.functional.gelu(x), "F.gelu({x})",
        "0.5 * {x} * (1 + tl.erf(0.7071067811865476 * {x}))",
        "{d} * (0.5 + 0.5 * tl.erf(0.7071067811865476 * {x}) + 0.3989422804014327 * {x} * exp_of(-0.5 * {x} * {x}))",
        finite=True, least=-0.17, keeps_sign=True, zero=_at_zero,
    ),
    Map(
        "silu", lambda torch, x: torch.nn.functional.silu(x), "F.silu({x})", "{x} / (1 + exp_of(-{x}))",
        "{d} * (1 + {x} - {y}) / (1 + exp_of(-{x}))", finite=True, least=-0.279, keeps_sign=True, zero=_at_zero,
    ),
    Map(
        "elu", lambda torch, x: torch.nn.functional.elu(x), "",
        "tl.where({x} > 0, {x}, exp_of(tl.minimum({x}, 0.0)) - 1)", "tl.where({x} > 0, {d}, {d} * ({y} + 1))",
        finite=True, least=-1, keeps_sign=True, zero=_at_zero,
    ),
    Map(
        "elu1", lambda torch, x: torch.nn.functional.elu(x) + 1, "",
        "tl.where({x} > 0, {x} + 1, exp_of(tl.minimum({x}, 0.0)))", "tl.where({x} > 0, {d}, {d} * {y})",
        finite=True, least=0, saves="result",
    ),
    Map(
        "elu1_neg", lambda torch, x: torch.nn.functional.elu(-x) + 1, "",
        "tl.where({x} < 0, 1 - {x}, exp_of(tl.minimum(-{x}, 0.0)))", "tl.where({x} < 0, -{d}, -{d} * {y})",
        finite=True, least=0, saves="result",
    ),
    Map(
        "tanh", lambda torch, x: torch.tanh(x), "torch.tanh({x})", _TANH, "{d} * (1 - {y} * {y})",
        "{d} * (1 - {y} * {y})", finite=True, least=-1, keeps_sign=True, zero=_at_zero, saves="result",
    ),
    Map(
        "sigmoid", lambda torch, x: torch.sigmoid(x), "torch.sigmoid({x})", _SIGMOID, "{d} * {y} * (1 - {y})",
        "{d} * {y} * (1 - {y})", finite=True, least=0, saves="result",
    ),
    Map(
        "exp", lambda torch, x: torch.exp(x), "torch.exp({x})", "exp_of({x})", "{d} * {y}", "{d} * {y}",
        least=0, saves="result",
    ),
    Map(
        "log", lambda torch, x: torch.log(x), "torch.log({x})", "tl.log({x})",
        "tl.where({d} == 0, 0.0, {d} / {x})",
    ),
    Map(
        "square", lambda torch, x: torch.square(x), "torch.square({x})", "{x} * {x}", "2 * {x} * {d}", "2 * {x} * {d}",
        least=0, zero=_at_zero,
    ),
    Map(
        "sqrt", lambda torch, x: torch.sqrt(x), "torch.sqrt({x})", "tl.sqrt({x})",
        "tl.where({d} == 0, 0.0, {d} / (2 * {y}))", least=0, zero=_at_zero, saves="result",
    ),
    Map(
        "abs", lambda torch, x: torch.abs(x), "torch.abs({x})", "tl.abs({x})",
        "tl.where({x} > 0, {d}, tl.where({x} < 0, -{d}, 0.0))", finite=True, least=0, zero=_at_zero,
    ),
    Map(
        "softplus", lambda torch, x: torch.nn.functional.softplus(x), "", _LOG1P, "{d} / (1 + exp_of(-{x}))",
        finite=True, least=0,
    ),
    Map(
        "reciprocal", lambda torch, x: torch.where(x == 0, 0, 1 / torch.where(x == 0, 1, x)), "",
        "tl.where({x} == 0, 0.0, 1 / {x})", "-{d} * {y} * {y}", keeps_sign=True, saves="result",
    ),
    Map(
        "softcap", lambda torch, x, cap: cap * torch.tanh(x / cap), "", "{a} * (2 / (1 + exp_of(-2 * {x} / {a})) - 1)",
        "{d} * (1 - ({y} / {a}) * ({y} / {a}))", usage="softcap(30)", arguments=1, finite=True,
        least_of=lambda numbers: -numbers[0] if numbers[0] >= 0 else -inf,
        keeps_sign=True, zero=_at_zero, saves="result",
    ),
    Map(
        "power", lambda torch, x, p: x**p, "{atom} ** {a}", "power_of({x}, {a})",
        "tl.where({d} == 0, 0.0, {d} * {a} * power_of({x}, {a} - 1))", usage="power(2)", arguments=1,
        least_of=lambda numbers: 0 if numbers[0] % 2 == 0 else -inf,
        keeps_sign=True, zero=lambda numbers: numbers[0] > 0, level=PRODUCT,
    ),
    Map(
        "clamp", lambda torch, x, a, b: x.clamp(a, b), "{atom}.clamp({a}, {b})",
        "tl.minimum(tl.maximum({x}, {a}), {b})", "tl.where(({x} >= {a}) & ({x} <= {b}), {d}, 0.0)",
        usage="clamp(0, 1)", arguments=2, finite=True, least_of=lambda numbers: numbers[0],
        zero=lambda numbers: numbers[0] <= 0 <= numbers[-1],
    ),
)  # fmt: skip
MAPS: dict[str, Map] = {row.name: row for row in _ROWS}


def another_map(row: Map) -> AbstractContextManager[None]:
    """Has one more map, inside of `with`."""
    return registered(MAPS, row.name, row, "map")
