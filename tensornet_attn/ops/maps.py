"""The table of elementwise maps. A row has all properties of one map.

Texts are templates. Those of PyTorch use `x` (`atom` if a method call follows) and the numbers `a`, `b`; those of
Triton use `x`. A slope, the gradient of x, also uses the result `y` and its gradient `d`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import copysign, inf
from typing import Any

from tensornet_attn.ir.values import ATOM, PRODUCT
from tensornet_attn.ops.registered import registered

Numbers = Sequence[float]
_SIGMOID = "1 / (1 + exp_of(-{x}))"
_TANH = "2 / (1 + exp_of(-2 * {x})) - 1"
_LOG1P = "maximum_of({x}, 0.0) + tl.log(1 + exp_of(-tl.abs({x})))"


@dataclass(frozen=True)
class ElementwiseMap:
    """An elementwise function of x and numbers.

    `reference(torch, x, *numbers)` is its plain implementation. `torch` is its PyTorch text, or the name of a function
    of the runtime; if it is empty, the function has the name of the map. `finite`: the map and its derivative are
    finite at all numbers. `nan_slope`: its derivative at infinity is NaN. `least` is a lower bound; `least_of` computes
    it from the numbers, given as minus infinity if unknown. `keeps_sign`: it is nonnegative at nonnegative x. `saves`:
    the tensor saved for the backward.
    """

    name: str
    reference: Callable[..., Any]
    torch: str = ""
    triton: str = ""  # empty: no tiles
    slope: str = ""
    torch_slope: str = ""  # without numbers; empty: autograd
    usage: str = ""  # an example with useful numbers; empty: the name
    arguments: int = 0  # the number of its numbers
    finite: bool = False
    nan_slope: bool = False
    least: float = -inf
    least_of: Callable[[Numbers], float] | None = None
    keeps_sign: bool = False
    zero: Callable[[Numbers], bool] = lambda numbers: False  # whether it is zero at zero
    saves: str = "of"  # or "result", or "inner", another tensor as large
    level: int = ATOM  # the operator precedence of its PyTorch text
    operations: int = 1  # for each element

    @property
    def exponential(self) -> bool:
        """Whether it takes about as long as an exponential."""
        return any(word in self.triton for word in ("exp_of", "power_of", "tl.log", "tl.erf", "tl.sin", "tl.cos"))


_CUBIC = "1.5957691216057308 * ({x} + 0.044715 * {x} * {x} * {x})"  # 2 sqrt(2 / pi) (x + 0.044715 x ** 3)
_EXP20 = "exp_of(minimum_of({x}, 20.0))"
_MISH = f"({_EXP20} * ({_EXP20} + 2) / ({_EXP20} * ({_EXP20} + 2) + 2))"  # tanh(softplus(x))


def _at_zero(numbers: Numbers) -> bool:
    return True


def _limit(torch: Any, x: Any, bound: float) -> float:
    """A bound of x, infinite if the dtype of x has no number as large."""
    return bound if abs(bound) <= torch.finfo(x.dtype).max else copysign(inf, bound)


_ROWS = (
    ElementwiseMap(
        "relu", lambda torch, x: torch.relu(x), "F.relu({x})", "maximum_of({x}, 0.0)", "tl.where({x} > 0, {d}, 0.0)",
        "torch.ops.aten.threshold_backward({d}, {x}, 0)",  # one pass; a condition takes two
        finite=True, least=0, zero=_at_zero, saves="result",
    ),
    ElementwiseMap(
        "gelu", lambda torch, x: torch.nn.functional.gelu(x), "F.gelu({x})",
        "0.5 * {x} * (1 + tl.erf(0.7071067811865476 * {x}))",
        "{d} * (0.5 + 0.5 * tl.erf(0.7071067811865476 * {x}) + 0.3989422804014327 * {x} * exp_of(-0.5 * {x} * {x}))",
        finite=True, nan_slope=True, least=-0.17, keeps_sign=True, zero=_at_zero,
    ),
    ElementwiseMap(
        "gelu_tanh", lambda torch, x: torch.nn.functional.gelu(x, approximate="tanh"),
        'F.gelu({x}, approximate="tanh")', f"{{x}} / (1 + exp_of(-{_CUBIC}))",
        f"{{d}} / (1 + exp_of(-{_CUBIC})) * "
        f"(1 + {{x}} * (1.5957691216057308 + 0.21406444881780076 * {{x}} * {{x}}) / (1 + exp_of({_CUBIC})))",
        least=-0.171, keeps_sign=True, zero=_at_zero,
    ),
    ElementwiseMap(
        "quick_gelu", lambda torch, x: x * torch.sigmoid(1.702 * x), "", "{x} / (1 + exp_of(-1.702 * {x}))",
        "{d} * (1 + 1.702 * ({x} - {y})) / (1 + exp_of(-1.702 * {x}))",
        finite=True, nan_slope=True, least=-0.164, keeps_sign=True, zero=_at_zero,
    ),
    ElementwiseMap(
        "mish", lambda torch, x: torch.nn.functional.mish(x), "F.mish({x})",
        f"{{x}} * {_MISH}", f"{{d}} * ({_MISH} + ({{x}} - {{y}} * {_MISH}) / (1 + exp_of(-{{x}})))",
        least=-0.309, keeps_sign=True, zero=_at_zero,
    ),
    ElementwiseMap(
        "hardswish", lambda torch, x: torch.nn.functional.hardswish(x), "F.hardswish({x})",
        "{x} * minimum_of(maximum_of({x} + 3, 0.0), 6.0) / 6",
        "tl.where({x} < -3, 0.0, tl.where({x} <= 3, {d} * ({x} / 3 + 0.5), {d}))",
        least=-0.376, keeps_sign=True, zero=_at_zero,
    ),
    ElementwiseMap(
        "hardsigmoid", lambda torch, x: (x + 3).clamp(0, 6) / 6, "({x} + 3).clamp(0, 6) / 6",  # F's gradient is float32
        "minimum_of(maximum_of({x} + 3, 0.0), 6.0) / 6", "tl.where(({x} > -3) & ({x} < 3), {d} / 6, 0.0)",
        finite=True, least=0, level=PRODUCT,
    ),
    ElementwiseMap(
        "relu_squared", lambda torch, x: torch.relu(x).square(), "F.relu({x}).square()",
        "maximum_of({x}, 0.0) * maximum_of({x}, 0.0)", "2 * maximum_of({x}, 0.0) * {d}",
        least=0, zero=_at_zero,
    ),
    ElementwiseMap(
        "leaky_relu", lambda torch, x, a: torch.where(x > 0, x, a * x), "F.leaky_relu({x}, {a})",
        "tl.where({x} > 0, {x}, {a} * {x})", "tl.where({x} > 0, {d}, {a} * {d})",
        usage="leaky_relu(0.01)", arguments=1, finite=True, keeps_sign=True, zero=_at_zero,
        least_of=lambda numbers: 0 if -inf < numbers[0] <= 0 else -inf,
    ),
    ElementwiseMap(
        "silu", lambda torch, x: torch.nn.functional.silu(x), "F.silu({x})", "{x} / (1 + exp_of(-{x}))",
        "{d} * (1 + {x} - {y}) / (1 + exp_of(-{x}))",
        finite=True, nan_slope=True, least=-0.279, keeps_sign=True, zero=_at_zero,
    ),
    ElementwiseMap(
        "elu", lambda torch, x: torch.nn.functional.elu(x), "",
        "tl.where({x} > 0, {x}, exp_of(minimum_of({x}, 0.0)) - 1)", "tl.where({x} > 0, {d}, {d} * ({y} + 1))",
        finite=True, least=-1, keeps_sign=True, zero=_at_zero,
    ),
    ElementwiseMap(
        "elu1", lambda torch, x: torch.nn.functional.elu(x) + 1, "",
        "tl.where({x} > 0, {x} + 1, exp_of(minimum_of({x}, 0.0)))", "tl.where({x} > 0, {d}, {d} * {y})",
        finite=True, least=0, saves="result",
    ),
    ElementwiseMap(
        "elu1_neg", lambda torch, x: torch.nn.functional.elu(-x) + 1, "",
        "tl.where({x} < 0, 1 - {x}, exp_of(minimum_of(-{x}, 0.0)))", "tl.where({x} < 0, -{d}, -{d} * {y})",
        finite=True, least=0, saves="result",
    ),
    ElementwiseMap(
        "tanh", lambda torch, x: torch.tanh(x), "torch.tanh({x})", _TANH, "{d} * (1 - {y} * {y})",
        "{d} * (1 - {y} * {y})", finite=True, least=-1, keeps_sign=True, zero=_at_zero, saves="result",
    ),
    ElementwiseMap(
        "sigmoid", lambda torch, x: torch.sigmoid(x), "torch.sigmoid({x})", _SIGMOID, "{d} * {y} * (1 - {y})",
        "{d} * {y} * (1 - {y})", finite=True, least=0, saves="result",
    ),
    ElementwiseMap(
        "logsigmoid", lambda torch, x: torch.nn.functional.logsigmoid(x), "F.logsigmoid({x})",
        "minimum_of({x}, 0.0) - tl.log(1 + exp_of(-tl.abs({x})))", "{d} / (1 + exp_of({x}))", finite=True,
    ),
    ElementwiseMap(
        "erf", lambda torch, x: torch.erf(x), "torch.erf({x})", "tl.erf({x})",
        "{d} * 1.1283791670955126 * exp_of(-{x} * {x})", finite=True, least=-1, keeps_sign=True, zero=_at_zero,
    ),
    ElementwiseMap(
        "sin", lambda torch, x: torch.sin(x), "torch.sin({x})", "tl.sin({x})", "{d} * tl.cos({x})",
        finite=True, nan_slope=True, least=-1, zero=_at_zero,
    ),
    ElementwiseMap(
        "cos", lambda torch, x: torch.cos(x), "torch.cos({x})", "tl.cos({x})", "-{d} * tl.sin({x})",
        finite=True, nan_slope=True, least=-1,
    ),
    ElementwiseMap(
        "expm1", lambda torch, x: torch.expm1(x), "torch.expm1({x})", "exp_of({x}) - 1", "{d} * ({y} + 1)",
        least=-1, keeps_sign=True, zero=_at_zero, saves="result",
    ),
    ElementwiseMap(
        "log1p", lambda torch, x: torch.log1p(x), "torch.log1p({x})", "tl.log(1 + {x})",
        "tl.where({d} == 0, 0.0, {d} / (1 + {x}))", keeps_sign=True, zero=_at_zero,
    ),
    ElementwiseMap(
        "exp", lambda torch, x: torch.exp(x), "", "exp_of({x})", "{d} * {y}", "{d} * {y}",
        least=0, saves="result",
    ),
    ElementwiseMap(
        "log", lambda torch, x: torch.log(x), "torch.log({x})", "tl.log({x})",
        "tl.where({d} == 0, 0.0, {d} / {x})",
    ),
    ElementwiseMap(
        "square", lambda torch, x: torch.square(x), "torch.square({x})", "{x} * {x}", "2 * {x} * {d}", "2 * {x} * {d}",
        least=0, zero=_at_zero,
    ),
    ElementwiseMap(
        "sqrt", lambda torch, x: torch.sqrt(x), "torch.sqrt({x})", "tl.sqrt({x})",
        "tl.where({d} == 0, 0.0, {d} / (2 * {y}))", least=0, zero=_at_zero, saves="result",
    ),
    ElementwiseMap(
        "abs", lambda torch, x: torch.abs(x), "torch.abs({x})", "tl.abs({x})",
        "tl.where({x} > 0, {d}, tl.where({x} < 0, -{d}, 0.0))", finite=True, least=0, zero=_at_zero,
    ),
    ElementwiseMap(
        "softplus", lambda torch, x: torch.nn.functional.softplus(x), "", _LOG1P, "{d} / (1 + exp_of(-{x}))",
        finite=True, least=0,
    ),
    ElementwiseMap(
        "reciprocal", lambda torch, x: torch.where(x == 0, 0, 1 / torch.where(x == 0, 1, x)), "",
        "tl.where({x} == 0, 0.0, 1 / {x})", "-{d} * {y} * {y}", keeps_sign=True, saves="inner",
    ),
    ElementwiseMap(
        "softcap", lambda torch, x, cap: cap * torch.tanh(x / cap), "", "{a} * (2 / (1 + exp_of(-2 * {x} / {a})) - 1)",
        "{d} * (1 - ({y} / {a}) * ({y} / {a}))", usage="softcap(30)", arguments=1, finite=True,
        least_of=lambda numbers: -numbers[0] if numbers[0] >= 0 else -inf,
        keeps_sign=True, zero=_at_zero, saves="result",
    ),
    ElementwiseMap(
        "power", lambda torch, x, p: x**p, "raised_to", "power_of({x}, {a})",
        "tl.where({d} == 0, 0.0, {d} * {a} * power_of({x}, {a} - 1))", usage="power(2)", arguments=1,
        least_of=lambda numbers: 0 if numbers[0] % 2 == 0 else -inf,
        keeps_sign=True, zero=lambda numbers: numbers[0] > 0,
    ),
    ElementwiseMap(
        "clamp", lambda torch, x, a, b: x.clamp(_limit(torch, x, a), _limit(torch, x, b)), "",
        "minimum_of(maximum_of({x}, {a}), {b})", "tl.where(({x} >= {a}) & ({x} <= {b}), {d}, 0.0)",
        usage="clamp(0, 1)", arguments=2, finite=True, least_of=lambda numbers: numbers[0],
        zero=lambda numbers: numbers[0] <= 0 <= numbers[-1],
    ),
    ElementwiseMap(
        "clamp_min", lambda torch, x, a: x.clamp(min=_limit(torch, x, a)), "", "maximum_of({x}, {a})",
        "tl.where({x} >= {a}, {d}, 0.0)", usage="clamp_min(0)", arguments=1, finite=True,
        least_of=lambda numbers: numbers[0], zero=lambda numbers: numbers[0] <= 0,
    ),
    ElementwiseMap(
        "clamp_max", lambda torch, x, a: x.clamp(max=_limit(torch, x, a)), "", "minimum_of({x}, {a})",
        "tl.where({x} <= {a}, {d}, 0.0)", usage="clamp_max(1)", arguments=1, finite=True,
        zero=lambda numbers: numbers[0] >= 0,
    ),
)  # fmt: skip
MEANT = {  # names in other libraries, and the map of this language
    "clip": "clamp(0, 1)",
    "gelu_approximate": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "hardtanh": "clamp(-1, 1)",
    "hard_sigmoid": "hardsigmoid",
    "hard_swish": "hardswish",
    "log_sigmoid": "logsigmoid",
    "logistic": "sigmoid",
    "logit_softcap": "softcap(30)",
    "pow": "power(2)",
    "relu2": "relu_squared",
    "relu6": "clamp(0, 6)",
    "rsqrt": "power(-0.5)",
    "soft_cap": "softcap(30)",
    "softcapping": "softcap(30)",
    "sqrelu": "relu_squared",
    "squared_relu": "relu_squared",
    "swish": "silu",
    "tanh_softcap": "softcap(30)",
}
MAPS: dict[str, ElementwiseMap] = {row.name: row for row in _ROWS}


def another_map(row: ElementwiseMap) -> AbstractContextManager[None]:
    """Adds a map to the language inside a `with` block."""
    return registered(MAPS, row.name, row, "map")
